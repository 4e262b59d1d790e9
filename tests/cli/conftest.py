"""Commands run in this process, or by a child in a terminal; each in a home and a shell of its own."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import secrets
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from angelia.cli.main import run
from cli.running import PROGRAM, Angelia, Ended
from client.recorder import Recorder, recording
from server_process import ServerProcess


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A clean environment; its directory holds home, data and angelia.toml."""
    for name in list(os.environ):
        if name.startswith("ANGELIA_") or name in ("NO_COLOR", "DATABASE_URL", "REDIS_URL"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANGELIA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANGELIA_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield tmp_path


@pytest.fixture
def angelia(shell: Path, capsys: pytest.CaptureFixture[str]) -> Angelia:
    """`angelia("agent", "new", "alice")` runs the command and tells how it ended."""

    def command(*argv: str) -> Ended:
        capsys.readouterr()
        code = run(list(argv))
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return command


@pytest.fixture
def person(shell: Path, angelia: Angelia, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Angelia]:
    """`alice = person("alice")` has a home of her own, in which `alice("mail", "inbox")` runs a command."""

    def make(name: str) -> Angelia:
        def command(*argv: str, stdin: bytes | None = None) -> Ended:
            with monkeypatch.context() as patch:
                patch.setenv("ANGELIA_HOME", str(shell / f"home-{name}"))
                if stdin is not None:
                    patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
                return angelia(*argv)

        return command

    return make


@pytest.fixture
def into(shell: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bytes, str]]:
    """`into(bob, "mail", "open", id)` runs a command with stdout in a file; its bytes, and what stderr says."""

    def command(whose: Angelia, *argv: str) -> tuple[bytes, str]:
        path = shell / "redirected"
        with path.open("w") as file, monkeypatch.context() as patch:
            patch.setattr("sys.stdout", file)
            ended = whose(*argv)
        assert ended.code == 0, ended.err
        return path.read_bytes(), ended.err

    return command


@pytest.fixture(scope="session")
def live_server(directory: Path) -> Iterator[ServerProcess]:
    """A real server; an agent's name must be new on it."""
    limits = "register=off,identity=off,keys=off,bundles=off,room_lookup=off,room_read=off,find=off,who=off"
    server = ServerProcess(directory / f"cli-{secrets.token_hex(4)}", limits=limits)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def live(live_server: ServerProcess, shell: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a real server, which the commands find."""
    monkeypatch.setenv("ANGELIA_URL", live_server.start_url)
    return live_server.start_url


@pytest.fixture
def server(shell: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A server that answers as told, and that the commands find, with an operator's token."""
    with recording() as recorder:
        monkeypatch.setenv("ANGELIA_URL", recorder.url)
        monkeypatch.setenv("ANGELIA_TOKEN", "agt_operator")
        yield recorder


@pytest.fixture
def terminal(shell: Path) -> Callable[..., Ended]:
    """Run a command in a pseudo-terminal of 80 columns, type something, and read what a person would see."""

    def command(*argv: str, typed: Sequence[tuple[str, str]] = ()) -> Ended:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        child = subprocess.Popen(
            [*PROGRAM, *argv], stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)
        seen, answers = "", list(typed)
        while part := _read(ours):
            seen += part
            # Only after its question: asking for a passphrase throws away what was typed before.
            if answers and seen.endswith(answers[0][0]):
                os.write(ours, answers.pop(0)[1].encode())
        os.close(ours)
        return Ended(child.wait(), seen.replace("\r\n", "\n"), "")

    return command


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 65536).decode()
    except OSError:  # Linux says EIO when the last writer has gone
        return ""
