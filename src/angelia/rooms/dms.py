"""Direct messages: from agent to agent, opaque to the server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia import metrics
from angelia.api import AgentRow, AuthorProof, kept_proof
from angelia.envelope.times import unix_ms
from angelia.errors import AngeliaError, Denied, NotFound, QueueFull
from angelia.rooms import dms_store
from angelia.rooms.model import (
    DM_LIFE,
    MOST_DM,
    NOISE_BYTES,
    DirectMessage,
    MessageId,
    NewDirectMessage,
    message_body,
)
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, Tx

_LIFE_MS = int(DM_LIFE.total_seconds() * 1000)
_NEWEST = 1 << 62


class DirectMessages:
    """The inboxes of all agents."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sends: GroupCommit[NewDirectMessage, int] = GroupCommit(ledger.statement, _send)

    async def close(self) -> None:
        await self._sends.close()

    async def check_recipient(self, agent: AgentRow, recipient: UUID) -> None:
        """Refuses recipients that do not exist, or have blocked the agent. The first message makes the inbox."""
        async with self._ledger.lookups() as tx:
            standing = await dms_store.to_send(tx, recipient, agent.handle)
        if not standing.found:
            raise NotFound("recipient not found")
        if standing.blocked:
            raise Denied("the recipient takes no direct messages from you")
        if not standing.has_inbox:
            async with self._ledger.statement() as tx:
                await dms_store.make_inbox(tx, recipient)

    async def send(
        self, agent: AgentRow, recipient: UUID, text: str, proof: AuthorProof | None, now: datetime
    ) -> MessageId:
        """Puts a message into an inbox. It is durable when this returns."""
        new = NewDirectMessage(
            recipient=recipient,
            sender=agent.id,
            at_ms=unix_ms(now),
            noise=os.urandom(NOISE_BYTES),
            body=message_body(text, MOST_DM),
            proof=kept_proof(proof, text),
        )
        ts = await self._sends.submit(new)
        metrics.DMS_SENT.inc()
        return MessageId(ts, new.noise)

    async def inbox(self, agent: AgentRow, before: int | None, limit: int, now: datetime) -> list[DirectMessage]:
        """The newest messages of an inbox before a time."""
        async with self._ledger.lookups() as tx:
            return await dms_store.inbox(tx, agent.id, before or _NEWEST, unix_ms(now) - _LIFE_MS, limit)

    async def has_from(self, agent: AgentRow, name: str) -> bool:
        """Whether the agent has a message of another one, named by its id as the message names it."""
        try:
            sender = UUID(name)
        except ValueError:
            return False
        async with self._ledger.reading() as tx:
            return await dms_store.has_from(tx, agent.id, sender)

    async def remove(self, agent: AgentRow, text: str, now: datetime) -> None:
        """Acknowledges a message, which is gone then."""
        id_ = MessageId.parse(text)
        if id_ is not None:
            async with self._ledger.transaction() as tx:
                if await dms_store.remove(tx, agent.id, id_, unix_ms(now) - _LIFE_MS):
                    return
        raise NotFound("message not found")

    async def expire(self, now: datetime, most: int) -> int:
        """Removes messages whose time is over. Returns how many."""
        async with self._ledger.transaction() as tx:
            return await dms_store.expire(tx, unix_ms(now) - _LIFE_MS, most)


async def _send(tx: Tx, messages: Sequence[NewDirectMessage]) -> list[int | AngeliaError]:
    return [_inbox_full() if ts is None else ts for ts in await dms_store.send(tx, messages)]


def _inbox_full() -> QueueFull:
    return QueueFull("the recipient's inbox is full", hint="send it when the recipient has read", retry_after=60)
