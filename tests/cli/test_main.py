"""How a command ends, whatever ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from angelia import __version__
from angelia.cli import main
from angelia.cli.output import Manner
from cli.running import PROGRAM, Angelia


def test_the_version_is_one_line(angelia: Angelia) -> None:
    assert angelia("--version").out == f"angelia {__version__}\n"


@pytest.mark.parametrize(
    ("said", "manner"),
    [
        ("agent show --json", Manner(json=True)),
        ("agent show -qv", Manner(quiet=True, verbose=True)),
        ("agent show --quiet --verbose", Manner(quiet=True, verbose=True)),
        ("room post x -- --json -q", Manner()),
        ("-n5", Manner()),
    ],
)
def test_the_manner_is_read_off_the_raw_words(said: str, manner: Manner) -> None:
    assert main.manner_of(said.split()) == manner


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_command_without_its_streams_works_all_the_same(shell: Path, closed: str) -> None:
    command = ["sh", "-c", f'"$@" {closed}', "sh", *PROGRAM, "config", "show"]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (child.returncode, child.stderr) == (0, "")
    assert bool(child.stdout) == (">&-" not in closed.split())


def test_a_closed_pipe_ends_quietly(shell: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = subprocess.run([*PROGRAM, "config", "show"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (child.returncode, child.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_an_error_not_a_silent_loss(shell: Path) -> None:
    with Path("/dev/full").open("w") as full:
        child = subprocess.run(
            [*PROGRAM, "config", "show"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (child.returncode, child.stderr) == (1, "error: No space left on device (disk_full)\n")


def test_ctrl_c_ends_with_130_and_no_traceback(shell: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environ = {**os.environ, "ANGELIA_TOKEN": "t"}
        command = [*PROGRAM, "token", "list", "--url", url]
        child = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        while b"\r\n\r\n" not in connection.recv(65536, socket.MSG_PEEK):
            pass
        while psutil.Process(child.pid).status() != psutil.STATUS_SLEEPING:
            pass  # the request is here, and the command waits for its answer
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert err == "\nstopped\n"


def test_a_bug_is_one_line_and_with_v_a_traceback(shell: Path) -> None:
    script = (
        "import sys; from angelia.cli import main\n"
        "def broken(argv): raise ZeroDivisionError('oh')\n"
        "main.run = broken; main.main()"
    )
    for words, lines in (([], 2), (["-v"], 15)):
        child = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
        assert child.returncode == 1
        assert "error: ZeroDivisionError: oh (internal)\n" in child.stderr
        assert ("Traceback" in child.stderr) is (words == ["-v"])
        assert len(child.stderr.splitlines()) <= lines


def test_a_setting_that_does_not_work_is_a_usage_error(angelia: Angelia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANGELIA_PORT", "many")
    ended = angelia("config", "show")
    assert ended.code == 2
    assert ended.err.startswith("error: port from ANGELIA_PORT")


def test_stdout_is_utf8_whatever_the_locale(shell: Path) -> None:
    environ = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "latin-1", "ANGELIA_JWT_ISSUER": "Grün…"}
    child = subprocess.run([*PROGRAM, "config", "show"], env=environ, capture_output=True, check=False)
    assert child.returncode == 0
    assert "Grün…" in child.stdout.decode("utf-8")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("angelia a", {"agent", "audit"}),
        ("angelia agent ", {"new", "show", "register", "handle"}),
        ("angelia agent show --as ", {"alice", "bob"}),
        ("angelia agent show --as b", {"bob"}),
        ("angelia agent --json show --as b", {"bob"}),
        ("angelia token create --ro", {"--role"}),
        ("angelia token create --role ", {"admin", "read-write", "read-only"}),
    ],
)
def test_the_shell_completes_verbs_flags_and_local_handles(
    shell: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, offered: set[str]
) -> None:
    from angelia.mailbox import identity

    for name in ("alice", "bob"):
        identity.create(shell / "home", name)
    monkeypatch.setenv(main.COMPLETE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
    main.run([])
    assert {item.partition(",")[2] for item in capsys.readouterr().out.split()} == offered
