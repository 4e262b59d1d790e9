"""When a message of the outbox is sent again, and when it is sealed again first. Pure: rows, keys and times come in."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from angelia.envelope.bundles import Bundle
from angelia.envelope.times import SKEW, moment
from angelia.envelope.wire import Header
from angelia.errors import AngeliaError, Conflict
from angelia.mailbox.outbox_message import OutboxMessage, OutboxStatus

LONGEST_WAIT = timedelta(minutes=5)
# How many times longer each envelope of a message is used than the one before, while no server takes it.
_GROWS = 4
# How often one message is resealed, over its whole life.
MOST_RESEALS = 5
LONGEST_PAUSE = LONGEST_WAIT * _GROWS ** (MOST_RESEALS - 1)


class SealStands(AngeliaError, code="seal_stands"):
    """The message is not sealed again: nothing that its recipient signed asks for it"""


def back_off(attempts: int) -> timedelta:
    """Returns the pause after a failed attempt: 1, 2, 4 … seconds, at most five minutes."""
    return min(timedelta(seconds=1 << min(attempts, 16)), LONGEST_WAIT)


def retry_at(row: OutboxMessage, now: datetime) -> datetime:
    """Returns when a message is tried again after a failed attempt.

    A server takes an envelope within five minutes of its making, and a message gets few envelopes: once the present one
    is too old, the next attempt comes when another one may be made."""
    at = now + back_off(row.attempts)
    if not row.reseals or at <= row.created_at + SKEW:
        return at
    return now + LONGEST_PAUSE if row.reseals >= MOST_RESEALS else max(at, next_envelope_at(row))


def next_envelope_at(row: OutboxMessage) -> datetime:
    """Returns when a message that no server took may be resealed without its sender's request. At most five envelopes
    replace the first, so each is used longer than the one before: together a day."""
    return row.created_at + (LONGEST_WAIT * _GROWS**row.reseals if row.reseals else SKEW)


def check_resealable(row: OutboxMessage) -> None:
    """Raises Conflict for a message that is being withdrawn, or whose content is not kept any more."""
    if row.withdraw_asked_at is not None:
        raise Conflict(f"the message to {row.recipient} is being withdrawn, so it is not sealed again")
    if not row.resealable:
        raise content_gone(row)


def content_gone(row: OutboxMessage) -> Conflict:
    return Conflict(f"the message to {row.recipient} is {row.status}: its content is not kept any more")


def check_reason(row: OutboxMessage, header: Header, bundle: Bundle, own_signer: UUID, now: datetime) -> None:
    """Raises SealStands unless there is a reason to reseal: a newer bundle of the recipient that does not list the key,
    a new signing pair of this agent, or an envelope that is too old for a server that has not taken it. A server's word
    is no reason."""
    if row.reseals >= MOST_RESEALS:
        raise SealStands(
            f"the message to {row.recipient} was sealed again {MOST_RESEALS} times, and is not once more",
            hint="send it anew if it is still wanted",
        )
    if header.sender_key_id != own_signer:
        return
    taken = row.status is not OutboxStatus.STORED
    if not taken and abs(now - moment(header.created_at)) > SKEW:
        return
    listed = any(entry.key.key_id == header.key_id for entry in bundle.kem_keys)
    # No bundle lists a one-time key, and its private half outlives even an emergency for as long as a message lives.
    lasting = taken and row.one_time
    if lasting or listed or bundle.bundle_version <= row.bundle_version:
        raise SealStands(
            f"the server says that a key of the message to {row.recipient} is not good any more, and nothing that "
            f"{row.recipient} or this agent signed says so: bundle {bundle.bundle_version} of {row.recipient} stands"
        )
