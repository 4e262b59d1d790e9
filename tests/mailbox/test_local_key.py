"""An emergency replaces the local key too: what a thief of the key file copies later opens nothing."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from angelia.envelope import wire
from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.mailbox import bundle_signing, identity, local_key
from angelia.mailbox.database import FILE, BrokenDatabase
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.mailbox import Mailbox
from stolen_mailbox import CHANNEL, COLUMNS, Send, fill, opens, sealed_rows

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SUITES = 0b1011  # with a separate ML-KEM key, which is a row


def emergency(box: Mailbox) -> None:
    box.key_rotation.begin(NOW, emergency=True, signer=True, suites=SUITES)
    box.key_rotation.finish(NOW)


def test_the_tables_here_are_all_that_have_something_under_the_local_key() -> None:
    assert set(local_key.TABLES) == set(COLUMNS)


@pytest.mark.parametrize("together", [1, 100])
def test_a_stolen_key_file_and_a_later_copy_of_the_database_open_nothing(
    bob: Mailbox, send: Send, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(local_key, "_TOGETHER", together)
    key = fill(bob, send)
    stolen = bob.identity.unlocked.seeds["local"]
    before = list(sealed_rows(bob))
    assert {table for table, *_ in before} == set(COLUMNS)
    assert all(opens(stolen, *row) for row in before)
    emergency(bob)
    (message,) = bob.inbox.page().messages
    assert bob.inbox.read(message.replay_key, NOW).body == b"kept in the inbox"
    (row,) = bob.outbox.page()
    assert bob.outbox._body(row) == b"kept in the outbox"
    assert bob.channels.key(CHANNEL, key.key_id, NOW) == key
    after = list(sealed_rows(bob))
    assert {table for table, *_ in after} == set(COLUMNS)
    assert not any(opens(stolen, *row) for row in after)
    files = [path.read_bytes() for path in bob.directory.glob(f"{FILE}*")]
    assert not any(content in file for *_, content in before for file in files), "neither in the log nor in free pages"
    assert stolen not in bob.identity.unlocked.seeds.values()


def test_a_usual_rotation_keeps_the_local_key(bob: Mailbox) -> None:
    before = bob.identity.unlocked.seeds["local"]
    bob.key_rotation.begin(NOW, signer=True)
    bob.key_rotation.finish(NOW)
    assert bob.identity.unlocked.seeds["local"] == before
    assert "next.local" not in bob.identity.unlocked.seeds


def test_the_local_key_is_replaced_while_the_server_has_not_answered_and_again_when_it_has(
    bob: Mailbox, send: Send
) -> None:
    fill(bob, send)
    stolen = bob.identity.unlocked.seeds["local"]
    bob.key_rotation.begin(NOW, emergency=True, signer=True)
    since = bob.identity.unlocked.seeds["local"]
    assert stolen not in bob.identity.unlocked.seeds.values()
    assert not any(opens(stolen, *row) for row in sealed_rows(bob))
    assert all(opens(since, *row) for row in sealed_rows(bob))
    bob.key_rotation.finish(NOW)
    assert since not in bob.identity.unlocked.seeds.values()
    assert not any(opens(since, *row) for row in sealed_rows(bob))
    (message,) = bob.inbox.page().messages
    assert bob.inbox.read(message.replay_key, NOW).body == b"kept in the inbox"


def test_the_local_key_is_replaced_though_the_emergency_has_to_wait(home: Path, bob: Mailbox, send: Send) -> None:
    fill(bob, send)
    bob.key_rotation.begin(NOW)
    stolen = bob.identity.unlocked.seeds["local"]
    bob.key_rotation.begin(NOW, emergency=True, signer=True)
    assert stolen not in identity.load(home, "bob", lambda: "").unlocked.seeds.values()
    assert not any(opens(stolen, *row) for row in sealed_rows(bob))
    assert bob.verify() == []


def test_an_emergency_that_is_given_up_has_replaced_the_local_key_all_the_same(bob: Mailbox, send: Send) -> None:
    fill(bob, send)
    stolen = bob.identity.unlocked.seeds["local"]
    bob.key_rotation.begin(NOW, emergency=True)
    bob.key_rotation.abandon()
    assert set(bob.identity.unlocked.seeds) == {"ed25519", "ml_dsa_65", "xwing", "local"}
    assert not any(opens(stolen, *row) for row in sealed_rows(bob))
    assert bob.verify() == []


@pytest.mark.parametrize("accepted", [False, True])
def test_an_emergency_that_an_earlier_release_began_replaces_the_local_key_when_it_is_finished(
    home: Path, bob: Mailbox, send: Send, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    fill(bob, send)
    bob.key_rotation.begin(NOW, emergency=True, signer=True)
    with identity.key_file(home, bob.identity) as file:
        file.write({name: seed for name, seed in file.seeds.items() if name != "next.local"})
    stolen = bob.identity.unlocked.seeds["local"]
    if accepted:
        with monkeypatch.context() as crash:
            crash.setattr(LocalKey, "replace", _crash)
            crash.setattr(bundle_signing, "promoted", _crash)
            with pytest.raises(KeyboardInterrupt):
                bob.key_rotation.finish(NOW)
    bob.close()
    with Mailbox(home, identity.load(home, "bob", lambda: ""), NOW) as again:
        if not accepted:
            again.key_rotation.finish(NOW)
        assert again.key_rotation.pending() is None
        assert stolen not in again.identity.unlocked.seeds.values()
        assert not any(opens(stolen, *row) for row in sealed_rows(again))
        assert again.verify() == []


def _crash(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_row_that_does_not_open_is_left_and_told_and_keeps_nothing_else_from_a_new_key(
    home: Path, bob: Mailbox, send: Send
) -> None:
    fill(bob, send)
    broken = wire.decode(send(body=b"damaged on the disk"))
    bob.receive(broken.wire, now=NOW)
    with bob.database.transaction() as tx:
        tx.execute("UPDATE inbox SET body = zeroblob(length(body)) WHERE replay_key = ?", (broken.replay_key,))
    emergency(bob)
    bob.close()
    with Mailbox(home, identity.load(home, "bob", lambda: ""), NOW) as again:
        (problem,) = again.verify()
        assert problem.path.name == FILE
        assert broken.replay_key in problem.what
        bodies = [
            again.inbox._body(one.replay_key)
            for one in again.inbox.page().messages
            if one.message_id != broken.header.message_id
        ]
        assert bodies == [b"kept in the inbox"]


def test_a_key_file_of_another_time_is_refused_before_anything_is_put_under_a_new_key(
    home: Path, bob: Mailbox, send: Send
) -> None:
    fill(bob, send)
    before = {name: (home / "bob" / name).read_bytes() for name in ("key", "agent.json")}
    emergency(bob)
    rows = list(sealed_rows(bob))
    bob.close()
    for name, content in before.items():
        (home / "bob" / name).write_bytes(content)
    with Mailbox(home, identity.load(home, "bob", lambda: ""), NOW) as restored:
        with pytest.raises(BrokenDatabase):
            restored.key_rotation.begin(NOW, emergency=True)
        assert list(sealed_rows(restored)) == rows
        assert (home / "bob" / "key").read_bytes() == before["key"]


def test_a_process_that_had_the_mailbox_open_reads_and_writes_on(home: Path, bob: Mailbox, send: Send) -> None:
    key = fill(bob, send)
    with Mailbox(home, identity.load(home, "bob", lambda: ""), NOW) as other:
        emergency(bob)
        (message,) = other.inbox.page().messages
        assert other.inbox.read(message.replay_key, NOW).body == b"kept in the inbox"
        assert other.channels.key(CHANNEL, key.key_id, NOW) == key
        new = EpochKey.generate()
        other.channels.keep(ChannelKey(CHANNEL, 2, new), "alice", NOW)
        assert bob.channels.key(CHANNEL, new.key_id, NOW) == new


def test_what_another_process_writes_while_rows_are_encrypted_again_is_under_the_new_key(
    home: Path, bob: Mailbox, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bob, send)
    stolen, new = bob.identity.unlocked.seeds["local"], EpochKey.generate()
    other = Mailbox(home, identity.load(home, "bob", lambda: ""), NOW)
    again = LocalKey._sealed_again

    def meanwhile(self: LocalKey, table: str, after: str) -> str | None:
        if table == "channel_keys" and after:  # its row would come after all that is looked at again
            write = threading.Thread(target=lambda: other.channels.keep(ChannelKey(CHANNEL, 2, new), "alice", NOW))
            write.start()
            write.join()
        return again(self, table, after) if not after else None

    monkeypatch.setattr(LocalKey, "_sealed_again", meanwhile)
    emergency(bob)
    other.close()
    assert bob.channels.key(CHANNEL, new.key_id, NOW) == new
    assert not any(opens(stolen, *row) for row in sealed_rows(bob))


def test_a_key_file_of_before_the_emergency_does_not_fit_the_database_any_more(
    home: Path, bob: Mailbox, send: Send
) -> None:
    fill(bob, send)
    stolen = (home / "bob" / "key").read_bytes(), (home / "bob" / "agent.json").read_bytes()
    emergency(bob)
    bob.close()
    (home / "bob" / "key").write_bytes(stolen[0])
    (home / "bob" / "agent.json").write_bytes(stolen[1])
    with Mailbox(home, identity.load(home, "bob", lambda: ""), NOW) as thief:
        (message,) = thief.inbox.page().messages
        with pytest.raises(BrokenDatabase):
            thief.inbox.read(message.replay_key, NOW)
        with pytest.raises(BrokenDatabase):
            thief.own_keys.make_one_time_keys(1, NOW)
