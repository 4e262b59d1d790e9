"""What the mailbox destroys by itself: in time, only once the time has surely come, and from every file."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from angelia.envelope.refusals import IdConflict, Replayed
from angelia.errors import NotFound
from angelia.mailbox import identity
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import OutboxStatus

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

Send = Callable[..., bytes]


def seeds(box: Mailbox) -> list[bytes]:
    with box.database.transaction() as tx:
        return [seed for (seed,) in tx.execute("SELECT seed FROM kem_keys")]


def on_disk(box: Mailbox, secret: bytes) -> bool:
    return any(secret in path.read_bytes() for path in box.directory.glob("replay_state.db*"))


def rotate(box: Mailbox) -> None:
    box.key_rotation.begin(NOW)
    box.key_rotation.finish(NOW)


@pytest.fixture
def unsent(alice: Mailbox, bob: Mailbox, send: Send) -> str:
    """A message of Alice that no relay has yet."""
    send()
    return alice.outbox.page()[0].replay_key


@pytest.mark.parametrize("wrong_for", [timedelta(0), 59 * MINUTE])
def test_a_clock_that_ran_ahead_for_a_moment_destroys_nothing(
    alice: Mailbox, bob: Mailbox, unsent: str, wrong_for: timedelta
) -> None:
    rotate(alice)
    for now in (NOW + DAY, NOW + 400 * DAY, NOW + 400 * DAY + wrong_for, NOW + DAY + HOUR, NOW + DAY + 2 * HOUR):
        alice.receive_many([], now=now)
    assert len(seeds(alice)) == 1
    assert alice.outbox.message(unsent).status is OutboxStatus.STORED
    assert [one.replay_key for one in alice.outbox.due(NOW + DAY)] == [unsent]
    known = alice.pinned_keys.bundle("bob", NOW, max_age=None)
    assert known is not None
    alice.outbox.reseal(unsent, known.bundle, NOW + DAY)


def test_a_clock_that_runs_ahead_again_and_again_destroys_nothing(alice: Mailbox, bob: Mailbox, unsent: str) -> None:
    rotate(alice)
    for n in range(5):
        alice.receive_many([], now=NOW + (400 + n) * DAY)
        alice.receive_many([], now=NOW + n * MINUTE)
    assert len(seeds(alice)) == 1
    assert alice.outbox.message(unsent).resealable


def test_an_agent_that_was_away_for_a_month_destroys_soon_after_it_is_back(home: Path, alice: Mailbox) -> None:
    rotate(alice)
    alice.close()
    back = NOW + 30 * DAY
    for at, left in ((back, 1), (back + HOUR - MINUTE, 1), (back + HOUR, 0)):
        with Mailbox(home, identity.load(home, "alice", lambda: ""), at) as box:
            assert len(seeds(box)) == left


def test_a_message_past_its_time_is_not_tried_again_even_before_its_content_goes(
    alice: Mailbox, bob: Mailbox, unsent: str
) -> None:
    expires = alice.outbox.message(unsent).expires_at
    assert len(alice.outbox.due(expires - MINUTE)) == 1
    assert alice.outbox.due(expires) == []


def test_a_one_time_key_is_in_no_file_once_its_message_is_opened(bob: Mailbox, send: Send) -> None:
    (key,) = bob.own_keys.make_one_time_keys(1, NOW)
    (seed,) = seeds(bob)
    sealed = send(one_time_key=key)
    assert on_disk(bob, seed)
    bob.receive(sealed, now=NOW)
    assert not on_disk(bob, seed)


def test_a_replaced_key_is_in_no_file_once_it_is_destroyed(bob: Mailbox) -> None:
    rotate(bob)
    (seed,) = seeds(bob)
    bob.receive_many([], now=NOW + 30 * DAY)
    assert on_disk(bob, seed)
    bob.receive_many([], now=NOW + 30 * DAY + HOUR)
    assert not on_disk(bob, seed)


@pytest.mark.parametrize("size", [100, 100_000])
def test_the_content_of_a_message_is_in_no_file_once_it_is_delivered(alice: Mailbox, bob: Mailbox, size: int) -> None:
    known = alice.pinned_keys.bundle("bob", NOW, max_age=None)
    assert known is not None
    key = alice.outbox.seal(known.bundle, bytes(size), now=NOW).replay_key
    _, content = alice.database.row("outbox_body", key)
    assert on_disk(alice, content[:60])
    alice.outbox.mark(key, OutboxStatus.DELIVERED)
    assert not on_disk(alice, content[:60])
    assert not on_disk(alice, content[-60:])


def test_what_a_killed_process_left_in_the_log_goes_when_the_mailbox_is_opened(
    home: Path, bob: Mailbox, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = bob.own_keys.make_one_time_keys(1, NOW)
    (seed,) = seeds(bob)
    monkeypatch.setattr("angelia.mailbox.database.MailboxTx.empty_log", lambda _: None)
    bob.receive(send(one_time_key=key), now=NOW)
    assert on_disk(bob, seed)
    monkeypatch.undo()
    with Mailbox(home, identity.load(home, "bob", lambda: ""), NOW) as again:
        assert not on_disk(again, seed)


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_deleted_message_is_in_no_file_and_is_not_opened_again(bob: Mailbox, send: Send, size: int) -> None:
    sealed = send(body=bytes(size))
    key = bob.receive(sealed, now=NOW).message.replay_key
    _, content = bob.database.row("inbox_body", key)
    assert on_disk(bob, content[:60])
    bob.delete(key, NOW)
    assert not on_disk(bob, content[:60])
    assert list(bob.directory.rglob(f"{key}.agl")) == []
    with pytest.raises(Replayed):
        bob.receive(sealed, now=NOW)
    assert bob.verify() == []


def test_a_deleted_message_leaves_no_other_envelope_of_it_and_no_key_that_opens_one(
    alice: Mailbox, bob: Mailbox
) -> None:
    known, later = alice.pinned_keys.bundle("bob", NOW, max_age=None), NOW + timedelta(minutes=10)
    assert known is not None
    keys = bob.own_keys.make_one_time_keys(4, NOW)
    first = alice.outbox.seal(known.bundle, b"destroy me", now=NOW, one_time_key=keys[0])
    second = alice.outbox.reseal(first.replay_key, known.bundle, later, one_time_key=keys[1])
    third = alice.outbox.reseal(second.replay_key, known.bundle, later + timedelta(minutes=10), one_time_key=keys[2])
    other = alice.outbox.seal(known.bundle, b"another", now=NOW, message_id=(shared := uuid.uuid4()))
    conflict = alice.outbox.seal(known.bundle, b"same id as another", now=NOW, message_id=shared)
    bob.receive_many([first.wire, second.wire, other.wire, conflict.wire], now=later)
    assert len(seeds(bob)) == 3
    bob.delete(first.replay_key, later)
    assert [path.stem for path in (bob.directory / "dead").iterdir()] == [conflict.replay_key]
    assert len(seeds(bob)) == 2
    with pytest.raises(IdConflict):  # what comes after it was deleted is not kept either
        bob.receive(third.wire, now=later + timedelta(minutes=10))
    assert len(seeds(bob)) == 1
    assert list(bob.directory.rglob(f"{third.replay_key}.agl")) == []
    assert bob.verify() == []


def test_a_deletion_that_a_crash_interrupted_is_ended_by_saying_it_again(bob: Mailbox, send: Send) -> None:
    key = bob.receive(send(), now=NOW).message.replay_key
    (bob.directory / "inbox" / f"{key}.agl").unlink()
    bob.delete(key, NOW)
    with pytest.raises(NotFound):
        bob.inbox.message(key)
