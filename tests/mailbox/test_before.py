"""A mailbox of the build before upgrades by itself when it is opened."""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from angelia.mailbox import identity
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import OutboxMessage, OutboxStatus

FIXTURE = Path(__file__).parents[1] / "fixtures" / "before" / "home.tar.xz"
# While its mail was alive, whenever the test runs.
THEN = datetime(2026, 11, 17, 3, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with tarfile.open(FIXTURE) as packed:
        packed.extractall(tmp_path, filter="tar")
    for path in (tmp_path / "home").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    (tmp_path / "home").chmod(0o700)
    return tmp_path / "home"


@pytest.fixture
def alice(home: Path) -> Iterator[Mailbox]:
    """Alice's mailbox, of whose messages the old build also called one failed."""
    with sqlite3.connect(home / "alice" / "mail" / "replay_state.db") as old:
        (key,) = old.execute("SELECT replay_key FROM outbox WHERE status = 'queued' ORDER BY created_at").fetchone()
        old.execute("UPDATE outbox SET status = 'failed' WHERE replay_key = ?", (key,))
    old.close()
    with Mailbox(home, identity.load(home, "alice", lambda: ""), THEN) as mailbox:
        yield mailbox


def told(row: OutboxMessage) -> tuple[OutboxStatus, OutboxStatus | None, bool, int]:
    return row.status, row.reported, row.resealable, row.reseals


def test_an_outbox_of_the_build_before_keeps_its_messages_and_what_is_known_of_them(alice: Mailbox) -> None:
    assert [told(row) for row in reversed(alice.outbox.page())] == [
        (OutboxStatus.DELIVERED, None, False, 0),
        (OutboxStatus.STORED, OutboxStatus.FAILED, True, 0),  # a server's word, whose content was kept
        (OutboxStatus.DELIVERED, None, False, 0),
        (OutboxStatus.QUEUED, None, True, 0),
        (OutboxStatus.STORED, None, True, 0),
    ]
    assert len(alice.outbox.due(THEN)) == 1
    assert alice.verify() == []


def test_what_the_build_before_called_failed_is_sent_again_when_its_sender_says_so(alice: Mailbox) -> None:
    (failed,) = [row for row in alice.outbox.page() if row.reported is OutboxStatus.FAILED]
    assert failed.replay_key not in {row.replay_key for row in alice.outbox.due(THEN)}
    assert alice.outbox.retry_now(THEN) == 2
    assert failed.replay_key in {row.replay_key for row in alice.outbox.due(THEN)}
    assert alice.outbox.mark(failed.replay_key, OutboxStatus.DELIVERED)


def test_what_the_build_before_called_failed_is_asked_about_again_and_settled_by_a_signature(alice: Mailbox) -> None:
    """It did not write down whether the recipient had signed that."""
    (failed,) = [row for row in alice.outbox.page() if row.reported is OutboxStatus.FAILED]
    assert failed.replay_key in {row.replay_key for row in alice.outbox.unsettled(THEN)}
    assert alice.outbox.mark(failed.replay_key, OutboxStatus.FAILED)
    assert told(alice.outbox.message(failed.replay_key)) == (OutboxStatus.FAILED, None, False, 0)


def test_what_waits_in_it_can_be_sealed_again_settled_and_deleted(alice: Mailbox) -> None:
    (waiting,) = alice.outbox.due(THEN)
    known = alice.pinned_keys.bundle("bob", THEN, max_age=None)
    assert known is not None
    again = alice.outbox.reseal(waiting.replay_key, known.bundle, THEN)
    assert again.header.message_id == waiting.message_id
    assert alice.outbox.mark(again.replay_key, OutboxStatus.DELIVERED)
    alice.delete(again.replay_key, THEN)
    assert waiting.message_id not in {row.message_id for row in alice.outbox.page()}
    assert alice.verify() == []


def test_what_was_opened_is_remembered_by_its_senders_name(home: Path) -> None:
    with sqlite3.connect(home / "bob" / "mail" / "replay_state.db") as old:
        (deleted,) = old.execute("SELECT replay_key FROM inbox ORDER BY received_at").fetchone()
        old.execute("DELETE FROM inbox WHERE replay_key = ?", (deleted,))
    old.close()
    with Mailbox(home, identity.load(home, "bob", lambda: ""), THEN) as bob, bob.database.transaction() as tx:
        names = tx.execute("SELECT replay_key, sender_nhi FROM replay_state").fetchall()
        assert (deleted, "alice") in names
        assert all(sender for _, sender in names)


def test_what_a_server_called_revoked_stays_so(home: Path) -> None:
    with sqlite3.connect(home / "alice" / "mail" / "replay_state.db") as old:
        old.execute("""UPDATE bundles SET revoked = '["00000000-0000-4000-8000-000000000007"]' WHERE nhi = 'bob'""")
    old.close()
    with Mailbox(home, identity.load(home, "alice", lambda: ""), THEN) as alice:
        known = alice.pinned_keys.bundle("bob", THEN, max_age=None)
        assert known is not None
        assert known.revoked == {UUID("00000000-0000-4000-8000-000000000007")}
