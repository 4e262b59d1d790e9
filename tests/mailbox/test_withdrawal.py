"""A sender takes a message back, and what its recipient signed counts all the same."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from angelia.envelope.wire import Envelope
from angelia.errors import Conflict
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import OutboxStatus

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture
def sealed(alice: Mailbox, bob: Mailbox) -> Envelope:
    link = bob.own_keys.newest()
    assert link is not None
    return alice.outbox.seal(link.bundle, b"hello", now=NOW)


def test_a_withdrawn_message_has_failed_and_leaves_no_content(alice: Mailbox, sealed: Envelope) -> None:
    assert alice.withdrawals.complete(sealed.replay_key, NOW)
    row = alice.outbox.message(sealed.replay_key)
    assert (row.status, row.withdrawn) == (OutboxStatus.FAILED, True)
    assert not row.resealable


def test_a_message_that_was_withdrawn_and_opened_all_the_same_was_delivered(alice: Mailbox, sealed: Envelope) -> None:
    alice.withdrawals.complete(sealed.replay_key, NOW)
    assert alice.outbox.mark(sealed.replay_key, OutboxStatus.DELIVERED)


@pytest.mark.parametrize("signed", [OutboxStatus.DELIVERED, OutboxStatus.READ, OutboxStatus.FAILED])
def test_what_the_recipient_signed_is_neither_withdrawn_nor_failed_later(
    alice: Mailbox, sealed: Envelope, signed: OutboxStatus
) -> None:
    key = sealed.replay_key
    alice.withdrawals.request(key, NOW)  # the relay did not answer; what the recipient signs then is the recipient's
    assert alice.outbox.mark(key, signed)
    assert not alice.withdrawals.complete(key, NOW)
    assert not alice.outbox.mark(key, OutboxStatus.FAILED)
    with pytest.raises(Conflict, match="not taken back"):
        alice.withdrawals.request(key, NOW)
    row = alice.outbox.message(key)
    assert (row.status, row.withdrawn, row.withdraw_asked_at) == (signed, False, None)
