"""Received mail: listed newest first, read by the beginning of its id, acknowledged once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from angelia.envelope.receipts import ReceiptStatus
from angelia.envelope.wire import Priority
from angelia.errors import AmbiguousId, InvalidArgument, NotFound
from angelia.mailbox.database import BrokenDatabase
from angelia.mailbox.inbox import ReadState
from angelia.mailbox.mailbox import Mailbox

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

Send = Callable[..., bytes]


@pytest.fixture
def keys(bob: Mailbox, send: Send) -> list[str]:
    """Five messages, a minute apart; their replay keys, oldest first."""
    received = [
        bob.receive(send(body=bytes([n]), now=NOW + n * MINUTE, priority=Priority(n % 4)), now=NOW + n * MINUTE)
        for n in range(5)
    ]
    return [one.message.replay_key for one in received]


def test_the_newest_comes_first_and_pages_follow_one_another(bob: Mailbox, keys: list[str]) -> None:
    first = bob.inbox.page(limit=2)
    assert [message.replay_key for message in first.messages] == [keys[4], keys[3]]
    second = bob.inbox.page(limit=2, after=first.after)
    third = bob.inbox.page(limit=2, after=second.after)
    assert [message.replay_key for page in (second, third) for message in page.messages] == [keys[2], keys[1], keys[0]]
    assert third.after is None


def test_messages_of_the_same_moment_are_all_listed(bob: Mailbox, send: Send) -> None:
    keys = {bob.receive(send(), now=NOW).message.replay_key for _ in range(5)}
    listed: list[str] = []
    page = bob.inbox.page(limit=2)
    while True:
        listed += [message.replay_key for message in page.messages]
        if page.after is None:
            break
        page = bob.inbox.page(limit=2, after=page.after)
    assert len(listed) == 5
    assert set(listed) == keys


def test_a_list_has_headers_and_no_content(bob: Mailbox, keys: list[str]) -> None:
    newest = bob.inbox.page().messages[0]
    assert not hasattr(newest, "body")
    assert (newest.sender, newest.priority, newest.status) == ("alice", Priority.LOW, ReadState.UNREAD)
    assert newest.created_at == newest.received_at == NOW + 4 * MINUTE
    assert newest.expires_at == newest.created_at + timedelta(days=7)


def test_a_message_is_read_by_the_beginning_of_its_id_and_gives_one_receipt(bob: Mailbox, keys: list[str]) -> None:
    opened = bob.inbox.read(keys[1][:8], NOW)
    assert opened.body == b"\x01"
    assert opened.receipt is not None
    assert opened.receipt.status is ReceiptStatus.READ
    again = bob.inbox.read(keys[1], NOW)
    assert (again.body, again.receipt, again.message.status) == (b"\x01", None, ReadState.READ)


@pytest.mark.parametrize("prefix", ["", "abc", "0123456", "g" * 8, "A" * 8, "00000000%", "0" * 65, "00000000\n"])
def test_what_cannot_begin_an_id_is_refused(bob: Mailbox, prefix: str) -> None:
    with pytest.raises(InvalidArgument):
        bob.inbox.read(prefix, NOW)


def test_an_unknown_id_is_not_found(bob: Mailbox, keys: list[str]) -> None:
    with pytest.raises(NotFound):
        bob.inbox.read("0" * 64, NOW)


def test_the_beginning_of_two_ids_is_ambiguous(bob: Mailbox, keys: list[str]) -> None:
    with bob.database.transaction() as tx:
        tx.execute("UPDATE inbox SET replay_key = ? WHERE replay_key = ?", ("ab" * 31 + "00", keys[0]))
        tx.execute("UPDATE inbox SET replay_key = ? WHERE replay_key = ?", ("ab" * 31 + "ff", keys[1]))
    with pytest.raises(AmbiguousId):
        bob.inbox.message("ab" * 8)
    assert bob.inbox.message("ab" * 31 + "f").replay_key.endswith("ff")


def test_what_is_acknowledged_is_not_waiting_any_more(bob: Mailbox, keys: list[str]) -> None:
    bob.inbox.mark_acked(keys[:3], NOW + MINUTE)
    bob.inbox.mark_acked(keys[:1], NOW + 2 * MINUTE)
    assert [one.replay_key for one in bob.inbox.page().messages[::-1] if one.acked_at is None] == keys[3:]
    assert bob.inbox.message(keys[0]).acked_at == NOW + MINUTE


def test_a_receipt_can_be_given_again_after_a_crash_lost_it(alice: Mailbox, bob: Mailbox, keys: list[str]) -> None:
    receipt = bob.inbox.receipt(keys[0], ReceiptStatus.DELIVERED, NOW)
    alice.check_receipt(receipt)


def test_a_body_that_was_moved_to_another_row_does_not_open(bob: Mailbox, keys: list[str]) -> None:
    with bob.database.transaction() as tx:
        tx.execute(
            "UPDATE inbox SET (body_nonce, body) = (SELECT body_nonce, body FROM inbox WHERE replay_key = ?)"
            " WHERE replay_key = ?",
            (keys[0], keys[1]),
        )
    assert bob.inbox.read(keys[0], NOW).body == b"\x00"
    with pytest.raises(BrokenDatabase):
        bob.inbox.read(keys[1], NOW)


def test_an_answer_is_found_by_its_conversation_and_its_sender(bob: Mailbox, send: Send) -> None:
    question = uuid.uuid4()
    first, second = (bob.receive(send(body=body, correlation_id=question), now=NOW) for body in (b"one", b"two"))
    bob.receive(send(control=True, body=b"\x02key", correlation_id=question), now=NOW)
    found = bob.inbox.answer_to(question, "alice")
    assert found is not None
    assert found.message in (first.message, second.message)
    assert found.body in (b"one", b"two")
    assert bob.inbox.answer_to(question, "mallory") is None
    assert bob.inbox.answer_to(uuid.uuid4(), "alice") is None


def test_what_was_received_together_is_listed_by_its_time_of_sending(bob: Mailbox, send: Send) -> None:
    seconds = (3, 0, 4, 1, 2)
    wires = [send(body=bytes([n]), now=NOW + timedelta(seconds=n)) for n in seconds]
    bob.receive_many(wires, now=NOW + MINUTE)
    pages = [bob.inbox.page(limit=2)]
    while pages[-1].after is not None:
        pages.append(bob.inbox.page(limit=2, after=pages[-1].after))
    listed = [(message.created_at - NOW).total_seconds() for page in pages for message in page.messages]
    assert listed == [4, 3, 2, 1, 0]
