"""Every SQL statement about direct messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from angelia.rooms.model import MOST_HELD, MOST_OF_SENDER, DirectMessage, MessageId, NewDirectMessage
from angelia.stores.ledger import Tx
from angelia.stores.sql import columns, record_of, statements

SQL = statements(__file__, "dms.sql")


@dataclass(frozen=True, slots=True)
class DmStanding:
    """Whether the recipient of a direct message exists, has an inbox, and has blocked the sender."""

    found: bool
    has_inbox: bool
    blocked: bool


async def to_send(tx: Tx, recipient: UUID, sender: str) -> DmStanding:
    """What is to know before a message of `sender`, a handle, is sent."""
    row = await tx.fetchrow(SQL["to_send"], recipient, sender)
    assert row is not None, "one row, whether or not there is such an agent"
    return record_of(DmStanding, row)


async def make_inbox(tx: Tx, agent_id: UUID) -> None:
    await tx.execute(SQL["make_inbox"], agent_id)


async def send(tx: Tx, messages: Sequence[NewDirectMessage]) -> list[int | None]:
    """Stores direct messages in inboxes that exist. Returns the time of each; None where the inbox has no room."""
    values = [(one.recipient, one.sender, one.at_ms, one.noise, one.body, one.proof) for one in messages]
    rows = await tx.fetch(SQL["send"], *columns(values, 6), MOST_HELD, MOST_OF_SENDER)
    return [row["ts"] for row in rows]


async def inbox(tx: Tx, recipient: UUID, before: int, after: int, limit: int) -> list[DirectMessage]:
    rows = await tx.fetch(SQL["inbox"], recipient, before, after, limit)
    return [record_of(DirectMessage, row) for row in rows]


async def has_from(tx: Tx, recipient: UUID, sender: UUID) -> bool:
    """Whether an inbox holds a message of an agent."""
    return bool(await tx.fetchval(SQL["has_from"], recipient, sender))


async def remove(tx: Tx, recipient: UUID, id: MessageId, after: int) -> bool:
    """Removes a direct message. Returns whether it was there."""
    done: str = await tx.execute(SQL["remove"], recipient, *id, after)
    return done == "UPDATE 1"


async def expire(tx: Tx, until: int, most: int) -> int:
    return int(await tx.fetchval(SQL["expire"], until, most))
