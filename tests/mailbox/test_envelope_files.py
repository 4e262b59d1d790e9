"""Envelope files: named by their hash, written whole or not at all, and read only when they are what they seem."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from angelia.envelope.wire import MAX_ENVELOPE
from angelia.errors import DiskFull, NotFound
from angelia.mailbox.envelope_files import EnvelopeFiles
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.private_files import CannotWrite, UnsafeFile

WIRE = b"the bytes of an envelope"
KEY = hashlib.sha256(WIRE).hexdigest()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[EnvelopeFiles]:
    made = EnvelopeFiles(tmp_path / "inbox")
    yield made
    made.close()


def plant(directory: EnvelopeFiles, kind: str, name: str = f"{KEY}.agl") -> None:
    """Something in the place of an envelope that an honest writer would not put there."""
    path, elsewhere = directory.path / name, directory.path.parent / "elsewhere"
    match kind:
        case "symlink":
            elsewhere.write_bytes(WIRE)
            path.symlink_to(elsewhere)
        case "dangling symlink":
            path.symlink_to(elsewhere)
        case "hard link":
            elsewhere.write_bytes(WIRE)
            os.link(elsewhere, path)
        case "pipe":
            os.mkfifo(path, 0o600)
        case "directory":
            path.mkdir()
        case "too big":
            with path.open("wb") as file:
                file.truncate(MAX_ENVELOPE + 1)
        case "changed":
            path.write_bytes(WIRE + b"!")


PLANTED = ["symlink", "dangling symlink", "hard link", "pipe", "directory", "too big", "changed"]


def test_a_file_is_private_and_proves_itself(directory: EnvelopeFiles) -> None:
    before = os.umask(0)
    try:
        directory.put([(KEY, WIRE)])
    finally:
        os.umask(before)
    path = directory.path / f"{KEY}.agl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
    assert directory.get(KEY) == WIRE
    directory.put([(KEY, WIRE)])
    assert list(directory.problems()) == []


def test_a_missing_file_is_said_to_be_missing(directory: EnvelopeFiles) -> None:
    with pytest.raises(NotFound):
        directory.get(KEY)


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_no_envelope_is_neither_read_nor_overwritten_nor_waited_for(
    directory: EnvelopeFiles, kind: str
) -> None:
    plant(directory, kind)
    before = os.lstat(directory.path / f"{KEY}.agl")
    with pytest.raises(UnsafeFile):
        directory.get(KEY)
    with pytest.raises(UnsafeFile):
        directory.put([(KEY, WIRE)])
    after = os.lstat(directory.path / f"{KEY}.agl")
    assert (before.st_ino, before.st_size, before.st_mode) == (after.st_ino, after.st_size, after.st_mode)
    (problem,) = directory.problems()
    assert problem.path.name == f"{KEY}.agl"


@pytest.mark.parametrize(
    "name",
    [f"{KEY}.agl\n", f"{KEY.upper()}.agl", f"{KEY[:-1]}.agl", f"{KEY}.json", f"{KEY}.agl.bak", "x", "\x1b[2J.agl"],
)
def test_a_name_that_is_not_a_hash_is_named_as_a_problem(directory: EnvelopeFiles, name: str) -> None:
    (directory.path / name).write_bytes(WIRE)
    (problem,) = directory.problems()
    assert problem.what == "is not named as an envelope is"


def test_a_file_that_cannot_be_written_leaves_nothing(
    directory: EnvelopeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(DiskFull, match=KEY):
        directory.put([(KEY, WIRE)])
    assert list(directory.path.iterdir()) == []


@pytest.mark.parametrize("act", ["rename", "unlink", "fsync"])
def test_what_the_operating_system_refuses_is_told_with_its_path(
    directory: EnvelopeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    directory.put([(KEY, WIRE)])
    other = EnvelopeFiles(tmp_path / "other")
    uses: dict[str, Callable[[], None]] = {
        "rename": lambda: directory.move(KEY, other),
        "unlink": lambda: directory.remove([KEY]),
        "fsync": directory.sync,
    }

    def broken(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, act, broken)
    with pytest.raises(CannotWrite, match=f"{tmp_path}.*Input/output error"):
        uses[act]()
    monkeypatch.undo()
    other.close()


def test_what_a_crash_left_half_written_is_swept_away_but_not_what_is_being_written(directory: EnvelopeFiles) -> None:
    old, young = (directory.path / f".{KEY}.agl.{n:016x}" for n in range(2))
    for path in (old, young):
        path.write_bytes(WIRE[:5])
    now = datetime.now(UTC)
    past = (now - timedelta(hours=2)).timestamp()
    os.utime(old, (past, past))
    directory.sweep(now)
    assert list(directory.path.iterdir()) == [young]
    assert list(directory.problems()) == []


def test_a_drawer_that_is_a_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "inbox").symlink_to(tmp_path / "real")
    with pytest.raises(UnsafeFile):
        EnvelopeFiles(tmp_path / "inbox")


def test_moving_what_somebody_else_has_moved_is_no_fault(directory: EnvelopeFiles, tmp_path: Path) -> None:
    other = EnvelopeFiles(tmp_path / "dead")
    directory.put([(KEY, WIRE)])
    directory.move(KEY, other)
    directory.move(KEY, other)
    assert other.get(KEY) == WIRE
    other.close()


def test_a_mailbox_names_every_file_that_is_wrong(bob: Mailbox, alice: Mailbox, send: Callable[..., bytes]) -> None:
    now = datetime(2026, 11, 15, 12, tzinfo=UTC)
    kept, changed, gone = (bob.receive(send(), now=now).message.replay_key for _ in range(3))
    inbox = bob.directory / "inbox"
    (inbox / f"{changed}.agl").write_bytes(b"changed")
    (inbox / f"{gone}.agl").unlink()
    (bob.directory / "dead" / "stray").touch()
    assert {problem.path for problem in bob.verify()} == {
        inbox / f"{changed}.agl",
        inbox / f"{gone}.agl",
        bob.directory / "dead" / "stray",
    }
    page = bob.inbox.page()
    assert len(page.messages) == 3
    assert {warning.path.stem for warning in page.warnings} == {changed, gone}
    assert bob.inbox.read(changed, now).body == bob.inbox.read(kept, now).body == b"hello"
    assert alice.verify() == []
