"""`./dev` installs what a command needs and no more, says what it is doing, and stops where an installation fails."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A Python that makes a .venv of itself; as that it is pip, and notes what it is to install.
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv .venv")
        mkdir -p .venv/bin
        cp "$0" .venv/bin/python
        for tool in angelia ruff mypy; do printf '#!/bin/sh\\necho "%s $*"\\n' $tool > .venv/bin/$tool; done
        chmod +x .venv/bin/* ;;
    "-m pip --version") [ ! -e .venv/half-made ] ;;
    *"pip install"*)
        eval "echo \\${$#}" >> installed
        echo "Collecting pyspark"
        echo "  Downloading pyspark-4.3.0.tar.gz.metadata (3 kB)"
        echo "  Downloading pyspark-4.3.0.tar.gz (437.2 MB)"
        echo "Building wheel for pyspark (pyproject.toml): started"
        echo "Installing collected packages: click, pyspark, angelia"
        [ ! -e hangs ] || sleep 600
        [ ! -e fails ] || { cat fails >&2; exit 1; } ;;
esac
"""
Dev = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("dev", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path


@pytest.fixture
def dev(clone: Path) -> Dev:
    environ = os.environ | {"PYTHON": str(clone / "python")}
    return lambda *words: subprocess.run(
        ["./dev", *words], cwd=clone, env=environ, capture_output=True, text=True, timeout=60
    )


def installed(clone: Path) -> list[str]:
    return (clone / "installed").read_text().split()


def test_running_installs_what_running_needs_and_testing_the_rest(clone: Path, dev: Dev) -> None:
    assert dev("run", "--port", "0").stdout == "angelia serve --port 0\n"
    assert installed(clone) == [".[pipeline]"]
    assert dev("run").stderr == ""
    assert dev("lint").returncode == 0
    assert installed(clone) == [".[pipeline]", ".[dev]", "queen-mq==0.15.0"]
    assert dev("run").stderr + dev("lint").stderr == ""
    assert installed(clone) == [".[pipeline]", ".[dev]", "queen-mq==0.15.0"]


def test_who_has_the_test_tools_needs_nothing_to_run(clone: Path, dev: Dev) -> None:
    dev("lint")
    dev("run")
    assert installed(clone) == [".[dev]", "queen-mq==0.15.0"]


def test_a_change_of_dependencies_is_installed(clone: Path, dev: Dev) -> None:
    dev("run")
    with (clone / "constraints.txt").open("a") as file:
        file.write("click==8.2\n")
    dev("run")
    assert installed(clone) == [".[pipeline]", ".[pipeline]"]


def test_the_set_up_says_what_it_is_doing(dev: Dev) -> None:
    first, *steps = dev("run").stderr.splitlines()
    assert first == "setting up .venv, once: server and pipeline"
    told = [re.sub(r"^ *\d+ s  ", "", step) for step in steps]
    assert told[0].startswith("making it with ")
    assert told[1:-1] == [
        "finding out what is needed",
        "downloading pyspark (437.2 MB)",
        "building pyspark",
        "installing 3 packages",
    ]
    assert re.fullmatch(r"done, \d+ MB", told[-1])


def test_an_installation_that_fails_says_why_and_is_tried_again(clone: Path, dev: Dev) -> None:
    said = [f"  line {n}" for n in range(20)] + ["AssertionError", "ERROR: No matching distribution found for click"]
    (clone / "fails").write_text("\n".join(said) + "\n")
    ended = dev("run")
    assert (ended.returncode, ended.stdout) == (1, "")
    *told, error, hint = ended.stderr.splitlines()
    assert told[-15:] == said[-15:]
    assert (error, hint[:6]) == ("error: the installation failed", "hint: ")
    (clone / "fails").unlink()
    assert dev("run").stdout == "angelia serve\n"


def test_a_venv_that_was_left_half_made_is_made_anew(clone: Path, dev: Dev) -> None:
    dev("run")
    for made in (clone / ".venv").glob(".set-up-*"):
        made.unlink()
    (clone / ".venv/half-made").touch()
    ended = dev("run")
    assert (ended.returncode, ended.stdout) == (0, "angelia serve\n")
    assert "making it with" in ended.stderr
    assert not (clone / ".venv/half-made").exists()


def without_pip(venv: Path) -> dict[str, str]:
    """An environment as uv makes it, or another tool; and what is in it."""
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").write_text("#!/bin/sh\nexit 1\n")
    (venv / "bin/python").chmod(0o755)
    (venv / "notes.txt").write_text("mine")
    return contents(venv)


def contents(venv: Path) -> dict[str, str]:
    return {str(file.relative_to(venv)): file.read_text() for file in venv.rglob("*") if file.is_file()}


@pytest.mark.parametrize("by_a_link", [False, True])
def test_an_environment_that_somebody_else_made_is_left_alone(clone: Path, dev: Dev, by_a_link: bool) -> None:
    venv = clone / ".venv"
    if by_a_link:
        venv = clone / "elsewhere"
        (clone / ".venv").symlink_to(venv)
    before = without_pip(venv)
    ended = dev("run")
    assert (ended.returncode, ended.stdout) == (1, "")
    error, hint = ended.stderr.splitlines()[-2:]
    assert error == "error: .venv has no pip, and ./dev did not make it"
    assert hint.startswith("hint: ")
    assert contents(venv) == before


def test_an_environment_that_dev_began_is_made_anew_also_when_its_making_was_cut_short(clone: Path, dev: Dev) -> None:
    python = clone / "python"
    whole = python.read_text()
    python.write_text(whole.replace("cp ", "kill -9 $PPID $$; cp "))
    dev("run")
    assert (clone / ".venv/bin").is_dir()
    (clone / ".venv/half-made").touch()
    python.write_text(whole)
    assert dev("run").stdout == "angelia serve\n"
    assert not (clone / ".venv/half-made").exists()


def test_ctrl_c_in_the_middle_of_the_set_up_leaves_nothing_running(clone: Path) -> None:
    (clone / "hangs").touch()
    running = subprocess.Popen(
        ["./dev", "run"],
        cwd=clone,
        env=os.environ | {"PYTHON": str(clone / "python")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stderr is not None
    while "installing 3 packages" not in running.stderr.readline():
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGINT)
    try:
        running.communicate(timeout=20)  # until the last process that could print has gone
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130


def test_nothing_sends_its_reader_to_an_index_that_does_not_have_us() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py"), *ROOT.glob("src/**/*.md")]
    assert [page.name for page in pages if re.search(r"pip install ['\"]?angelia", page.read_text("utf-8"))] == []
    assert "git clone <this repository> angelia && cd angelia" in pages[0].read_text("utf-8")
