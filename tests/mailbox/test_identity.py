"""An agent's keys on disk: private from birth, never overwritten, and refused when others could touch them."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from angelia.envelope.ids import KeyType, key_id
from angelia.errors import AlreadyExists, AngeliaError, DiskFull, InvalidArgument, NotFound
from angelia.mailbox import agent_names, identity, keyfile, private_files
from angelia.mailbox.keyfile import BrokenKeyFile, WrongPassphrase
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.private_files import UnsafeFile

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
ID = UUID("3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10")


def nobody() -> str:
    raise AssertionError("asked for a passphrase that the key does not have")


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
    assert identity.public_identity(home, "alice") is None


def test_a_failed_write_leaves_the_old_file_and_no_litter(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = identity.create(home, "alice")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files.os, "fsync", full)
    with pytest.raises(DiskFull, match=str(home / "alice")):
        identity.record_registration(home, made, id=ID, handle="alice", server="http://h")
    monkeypatch.undo()
    assert sorted(path.name for path in (home / "alice").iterdir()) == ["agent.json", "key"]
    assert identity.load(home, "alice", nobody).id is None


def test_what_a_killed_writer_left_half_written_goes_and_nothing_else_does(home: Path) -> None:
    identity.create(home, "alice")
    litter = [".key.0123456789abcdef", ".agent.json.0123456789abcdef"]
    other = [".key", ".key.bak", ".key.0123456789abcdef.old", "key.0123456789abcdef", ".keys.0123456789abcdef"]
    for name in (*litter, *other):
        (home / "alice" / name).write_bytes(b"all seeds")
    identity.load(home, "alice", nobody)
    assert {path.name for path in (home / "alice").iterdir()} == {"key", "agent.json", *other}


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


def test_a_directory_in_place_of_a_key_is_refused(home: Path) -> None:
    identity.create(home, "alice")
    (home / "alice" / "key").unlink()
    (home / "alice" / "key").mkdir(mode=0o700)
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
    assert agent_names.names(home) == []
    for name in ("carol", "alice", "bob"):
        identity.create(home, name)
    (home / "half-made").mkdir()
    (home / "notes.txt").touch()
    assert agent_names.names(home) == ["alice", "bob", "carol"]


def test_an_unknown_agent_is_named_with_the_way_to_make_it(home: Path) -> None:
    with pytest.raises(NotFound) as missing:
        identity.load(home, "zoe", nobody)
    assert missing.value.hint == "angelia agent new zoe"


def test_every_refusal_is_of_one_family() -> None:
    for kind in (UnsafeFile, BrokenKeyFile, WrongPassphrase):
        assert issubclass(kind, AngeliaError)
        assert kind.code != "internal"


def test_a_new_agent_has_all_its_seeds(home: Path) -> None:
    identity.create(home, "alice")
    seeds = keyfile.unlock((home / "alice" / "key").read_bytes(), nobody).seeds
    assert {name: len(seed) for name, seed in seeds.items()} == {
        "ed25519": 32,
        "ml_dsa_65": 32,
        "xwing": 96,
        "local": 32,
    }


def test_the_request_key_is_the_ed25519_half_of_the_pair(home: Path) -> None:
    made = identity.create(home, "alice")
    assert made.public_key == made.pair.public.ed25519 == made.key.public_key().public_bytes_raw()
    assert identity.load(home, "alice", nobody).pair.public.fingerprint == made.pair.public.fingerprint


def test_no_secret_shows_in_a_repr(home: Path) -> None:
    made = identity.create(home, "alice")
    shown = repr(made) + str(made)
    for seed in made.unlocked.seeds.values():
        assert repr(seed)[2:-1] not in shown
        assert seed.hex() not in shown


def older_key_file(home: Path, passphrase: str | None) -> bytes:
    """A key file as the release before wrote it: an Ed25519 seed and nothing else."""
    made = identity.create(home, "alice")
    seeds = {"ed25519": made.unlocked.seeds["ed25519"]}
    (home / "alice" / "key").write_bytes(keyfile.encode(seeds, keyfile.protect(passphrase)))
    return made.public_key


def test_a_key_file_of_the_release_before_loads_and_gets_what_it_lacks_once(home: Path) -> None:
    public_key = older_key_file(home, None)
    opened = identity.load(home, "alice", nobody)
    assert opened.public_key == public_key
    again = identity.load(home, "alice", nobody)
    assert again.pair.public.fingerprint == opened.pair.public.fingerprint
    assert again.unlocked.seeds == opened.unlocked.seeds
    with Mailbox(home, again, NOW) as box:
        assert box.own_keys.first_bundle(NOW).bundle.signer.ed25519 == public_key


def test_a_protected_file_of_the_release_before_stays_protected_and_asks_once(home: Path) -> None:
    older_key_file(home, "geheim")
    asked: list[str] = []

    def prompt() -> str:
        asked.append("passphrase")
        return "geheim"

    opened = identity.load(home, "alice", prompt)
    assert asked == ["passphrase"]
    content = (home / "alice" / "key").read_bytes()
    assert json.loads(content)["protection"] == "scrypt-aes256gcm"
    assert keyfile.unlock(content, prompt).seeds == opened.unlocked.seeds
    assert mode(home / "alice" / "key") == 0o600


def test_a_card_may_name_the_next_pair_but_no_other(home: Path) -> None:
    made = identity.create(home, "alice")
    other = identity.create(home, "bob")
    with identity.key_file(home, made) as file:
        seeds = other.unlocked.seeds
        file.write(file.seeds | {"next.ed25519": seeds["ed25519"], "next.ml_dsa_65": seeds["ml_dsa_65"]})
    card = json.loads((home / "alice" / "agent.json").read_bytes())
    bobs = json.loads((home / "bob" / "agent.json").read_bytes())
    card |= {"key_id": bobs["key_id"], "public_key": bobs["public_key"]}
    (home / "alice" / "agent.json").write_text(json.dumps(card))
    assert identity.load(home, "alice", nobody).public_key == made.public_key


def test_a_registration_recorded_by_who_opened_the_keys_before_a_rotation_keeps_the_new_key(home: Path) -> None:
    made = identity.create(home, "alice")
    other = identity.create(home, "bob").unlocked.seeds
    with identity.key_file(home, made) as file:
        file.write(file.seeds | {"ed25519": other["ed25519"], "ml_dsa_65": other["ml_dsa_65"]})
    identity.record_registration(home, made, id=ID, handle="alice", server="http://h")
    assert identity.load(home, "alice", nobody).id == ID


def test_who_opened_the_keys_before_a_registration_does_not_wipe_it_from_the_card(home: Path) -> None:
    with Mailbox(home, identity.create(home, "alice"), NOW) as box:
        opened = identity.load(home, "alice", nobody)
        identity.record_registration(home, opened, id=ID, handle="alice-7", server="http://h")
        assert box.own_keys.first_bundle(NOW).bundle.agent_nhi == "alice-7"
        box.key_rotation.begin(NOW, signer=True)
        box.key_rotation.finish(NOW)
        assert (box.identity.id, box.identity.handle) == (ID, "alice-7")
    card = identity.public_identity(home, "alice")
    assert card is not None
    assert (card.id, card.handle, card.server, card.key_id) == (ID, "alice-7", "http://h", box.identity.key_id)


@pytest.mark.parametrize("name", ["ed25519", "ml_dsa_65", "xwing", "local", "next.xwing"])
def test_a_seed_of_the_wrong_length_is_called_damage(home: Path, name: str) -> None:
    made = identity.create(home, "alice")
    (home / "alice" / "key").write_bytes(keyfile.encode({**made.unlocked.seeds, name: b"short"}, None))
    with pytest.raises(BrokenKeyFile, match="damaged"):
        identity.load(home, "alice", nobody)


def test_a_key_file_without_an_ed25519_seed_is_no_agents(home: Path) -> None:
    identity.create(home, "alice")
    (home / "alice" / "key").write_bytes(keyfile.encode({"xwing": bytes(96)}, None))
    with pytest.raises(BrokenKeyFile, match="no Ed25519 seed"):
        identity.load(home, "alice", nobody)


@pytest.mark.parametrize("what", ["home", "home/alice", "home/alice/key", "home/alice/agent.json"])
def test_what_belongs_to_another_user_is_not_used_even_by_root(
    home: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity.create(home, "alice")
    theirs = (home.parent / what.replace("home", home.name)).stat().st_ino
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        """As it would be if the file were another user's: only root could make it so here."""
        status = real(descriptor)
        values = list(status)
        values[4] = status.st_uid + (status.st_ino == theirs)
        return os.stat_result(values)

    monkeypatch.setattr("angelia.mailbox.private_files.os.fstat", fstat)
    with pytest.raises(UnsafeFile, match="another user"):
        identity.load(home, "alice", nobody)
