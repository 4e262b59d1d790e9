"""An agent's keys on disk: private from birth, never overwritten, and refused when others could touch them."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from pathlib import Path
from uuid import UUID

import pytest

from angelia.envelope.ids import KeyType, key_id
from angelia.errors import AlreadyExists, AngeliaError, InvalidArgument, NotFound
from angelia.mailbox import identity, private_files
from angelia.mailbox.keyfile import BrokenKeyFile, WrongPassphrase
from angelia.mailbox.private_files import UnsafeFile

ID = UUID("3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10")


def nobody() -> str:
    raise AssertionError("asked for a passphrase that the key does not have")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "agents"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_agent_can_be_opened_again(home: Path) -> None:
    made = identity.create(home, "alice")
    opened = identity.load(home, "alice", nobody)
    assert opened.public_key == made.public_key
    assert opened.key_id == key_id(KeyType.ED25519, made.public_key)
    assert (opened.name, opened.handle, opened.id) == ("alice", "alice", None)


def test_everything_is_private_whatever_the_umask(home: Path) -> None:
    before = os.umask(0)
    try:
        identity.create(home, "alice")
    finally:
        os.umask(before)
    assert mode(home) == mode(home / "alice") == 0o700
    assert mode(home / "alice" / "key") == mode(home / "alice" / "agent.json") == 0o600
    assert sorted(path.name for path in (home / "alice").iterdir()) == ["agent.json", "key"]


def test_the_card_tells_no_secret(home: Path) -> None:
    made = identity.create(home, "alice")
    card = (home / "alice" / "agent.json").read_bytes()
    assert made.key.private_bytes_raw().hex() not in card.hex()
    assert set(json.loads(card)) == {"handle", "id", "key_id", "public_key", "server"}
    assert "PrivateKey" not in repr(made)


def test_an_agent_is_never_overwritten(home: Path) -> None:
    identity.create(home, "alice")
    before = (home / "alice" / "key").read_bytes()
    with pytest.raises(AlreadyExists):
        identity.create(home, "alice")
    assert (home / "alice" / "key").read_bytes() == before


def test_of_many_makers_at_once_exactly_one_wins_and_keeps_its_key(home: Path) -> None:
    home.mkdir(mode=0o700)
    won: list[identity.Identity] = []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait()
        with contextlib.suppress(AlreadyExists):
            won.append(identity.create(home, "alice"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = won
    assert identity.load(home, "alice", nobody).public_key == winner.public_key


def test_a_crash_before_the_key_leaves_the_name_free(home: Path) -> None:
    (home / "alice").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    assert identity.create(home, "alice").name == "alice"


def test_a_crash_after_the_key_loses_nothing(home: Path) -> None:
    made = identity.create(home, "alice")
    (home / "alice" / "agent.json").unlink()
    opened = identity.load(home, "alice", nobody)
    assert (opened.key_id, opened.handle) == (made.key_id, "alice")
    assert identity.card(home, "alice") is None


def test_a_failed_write_leaves_the_old_file_and_no_litter(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = identity.create(home, "alice")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        identity.record_registration(home, made, id=ID, handle="alice", server="http://h")
    monkeypatch.undo()
    assert sorted(path.name for path in (home / "alice").iterdir()) == ["agent.json", "key"]
    assert identity.load(home, "alice", nobody).id is None


@pytest.mark.parametrize("bad", ["", "A", "../x", "a/b", "a..b", ".a", "a-", "ä", "a b", "a\n", "x" * 256])
def test_only_a_handle_can_be_a_name(home: Path, bad: str) -> None:
    with pytest.raises(InvalidArgument):
        identity.create(home, bad)
    with pytest.raises(InvalidArgument):
        identity.load(home, bad, nobody)
    assert not list(home.parent.glob("x*"))


@pytest.mark.parametrize("name", ["key", "agent.json"])
@pytest.mark.parametrize("loose", [0o604, 0o640, 0o660, 0o644])
def test_a_file_that_others_can_touch_is_refused_with_the_remedy(home: Path, name: str, loose: int) -> None:
    identity.create(home, "alice")
    path = home / "alice" / name
    path.chmod(loose)
    with pytest.raises(UnsafeFile, match=f"mode {loose:04o}") as refused:
        identity.load(home, "alice", nobody)
    assert refused.value.hint == f"chmod 600 {path}"


def test_a_directory_that_others_can_change_is_refused_with_the_remedy(home: Path) -> None:
    identity.create(home, "alice")
    for directory in (home, home / "alice"):
        directory.chmod(0o770)
        with pytest.raises(UnsafeFile) as refused:
            identity.load(home, "alice", nobody)
        assert refused.value.hint == f"chmod 700 {directory}"
        directory.chmod(0o700)


def test_symlinks_are_not_followed(home: Path, tmp_path: Path) -> None:
    identity.create(home, "alice")
    elsewhere = tmp_path / "elsewhere"
    (home / "alice" / "key").rename(elsewhere)
    (home / "alice" / "key").symlink_to(elsewhere)
    with pytest.raises(UnsafeFile):
        identity.load(home, "alice", nobody)
    with pytest.raises(AlreadyExists):
        identity.create(home, "alice")

    identity.create(home, "bob")
    (home / "bob").rename(tmp_path / "bob")
    (home / "bob").symlink_to(tmp_path / "bob")
    with pytest.raises(UnsafeFile):
        identity.load(home, "bob", nobody)


def test_a_pipe_in_place_of_a_key_does_not_hang(home: Path) -> None:
    identity.create(home, "alice")
    (home / "alice" / "key").unlink()
    os.mkfifo(home / "alice" / "key", 0o600)
    with pytest.raises(UnsafeFile, match="regular file"):
        identity.load(home, "alice", nobody)


def test_an_oversized_file_is_not_read(home: Path) -> None:
    identity.create(home, "alice")
    with (home / "alice" / "key").open("ab") as file:
        file.truncate(1 << 30)
    with pytest.raises(UnsafeFile, match="bytes"):
        identity.load(home, "alice", nobody)


def test_another_key_under_the_same_card_is_noticed(home: Path) -> None:
    identity.create(home, "alice")
    identity.create(home, "bob")
    (home / "bob" / "key").replace(home / "alice" / "key")
    with pytest.raises(BrokenKeyFile, match="not the one"):
        identity.load(home, "alice", nobody)


def test_a_passphrase_is_asked_for_only_when_there_is_one(home: Path) -> None:
    made = identity.create(home, "alice", "geheim")
    assert identity.load(home, "alice", lambda: "geheim").public_key == made.public_key
    with pytest.raises(WrongPassphrase):
        identity.load(home, "alice", lambda: "falsch")


def test_a_registration_is_remembered(home: Path) -> None:
    made = identity.create(home, "alice")
    identity.record_registration(home, made, id=ID, handle="alice-7", server="http://localhost:8080")
    opened = identity.load(home, "alice", nobody)
    assert (opened.name, opened.handle, opened.id) == ("alice", "alice-7", ID)
    assert opened.server == "http://localhost:8080"
    assert mode(home / "alice" / "agent.json") == 0o600


def test_the_agents_of_a_home_are_listed_in_order(home: Path) -> None:
    assert identity.names(home) == []
    for name in ("carol", "alice", "bob"):
        identity.create(home, name)
    (home / "half-made").mkdir()
    (home / "notes.txt").touch()
    assert identity.names(home) == ["alice", "bob", "carol"]


def test_an_unknown_agent_is_named_with_the_way_to_make_it(home: Path) -> None:
    with pytest.raises(NotFound) as missing:
        identity.load(home, "zoe", nobody)
    assert missing.value.hint == "angelia agent new zoe"


def test_every_refusal_is_of_one_family() -> None:
    for kind in (UnsafeFile, BrokenKeyFile, WrongPassphrase):
        assert issubclass(kind, AngeliaError)
        assert kind.code != "internal"
