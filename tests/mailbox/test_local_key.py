"""An emergency replaces the local key too: what a thief of the key file copies later opens nothing."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.mailbox import identity, local_key
from angelia.mailbox.box import Mailbox
from angelia.mailbox.database import FILE, BrokenDatabase
from angelia.mailbox.local_key import LocalKey
from thief import CHANNEL, COLUMNS, Send, fill, opens, sealed_rows

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SUITES = 0b1011  # with a separate ML-KEM key, which is a row


def emergency(box: Mailbox) -> None:
    box.own.begin_rotation(NOW, emergency=True, signer=True, suites=SUITES)
    box.own.finish_rotation(NOW)


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
    bob.own.begin_rotation(NOW, signer=True)
    bob.own.finish_rotation(NOW)
    bob.own.begin_rotation(NOW, emergency=True)
    bob.own.abandon_rotation()
    assert bob.identity.unlocked.seeds["local"] == before
    assert "next.local" not in bob.identity.unlocked.seeds


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
            thief.own.make_one_time_keys(1, NOW)
