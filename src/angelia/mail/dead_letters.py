"""Messages that could not be delivered: their recipient or an operator lists them, and may requeue them."""

from __future__ import annotations

import contextlib
from datetime import datetime

from angelia.agents.service import Agents
from angelia.api import PageQuery, parse_cursor
from angelia.audit import service as audit
from angelia.errors import Conflict, KeyRevoked, MessageExpired, NotFound, Unavailable
from angelia.mail import receipts_store, store
from angelia.mail.audit_events import audit_event
from angelia.mail.delivery_checks import under_revoked_keys
from angelia.mail.hot_store import HotMail
from angelia.mail.model import EnvelopeRow, EnvelopeState
from angelia.stores.ledger import Ledger


class DeadLetters:
    """The dead letters of all recipients; they expire as all messages do."""

    def __init__(self, ledger: Ledger, hot: HotMail, agents: Agents) -> None:
        self._ledger = ledger
        self._hot = hot
        self._agents = agents

    async def page(self, name: str, query: PageQuery) -> list[EnvelopeRow]:
        """An agent's dead letters, newest first."""
        before = parse_cursor(query.cursor)
        agent = await self._agents.named(name)
        async with self._ledger.reading() as tx:
            return await store.dead_of(tx, agent.handle, before, query.and_one_more)

    async def requeue(self, replay_key: bytes, owner: str | None, by: str, now: datetime) -> EnvelopeRow:
        """Puts one back at the end of its queue, and returns it. Its receipt stays `failed`, as its sender was told.

        `owner` is the recipient whose dead letter it must be; None for an operator."""
        async with self._ledger.transaction() as tx:
            known = await receipts_store.one(tx, replay_key)
            if known is None or owner not in (None, known.recipient):
                raise NotFound("there is no such dead letter")
            row = await store.lock_one(tx, known.recipient, replay_key)
            if row is None:
                raise NotFound("there is no such dead letter", hint="it was settled, or its time was over")
            if row.state is not EnvelopeState.DEAD:
                raise Conflict("the message is in its queue already")
            if row.expires_at <= now:
                raise MessageExpired("the message has expired")
            if await under_revoked_keys(tx, [row]):
                raise KeyRevoked("a key of this message was revoked since: nobody can open it, or believe it")
            requeued = await store.requeue(tx, row.recipient, replay_key, now)
            assert requeued is not None, "it is locked, and dead"
            await audit.record(tx, [audit_event("message_requeued", requeued, now, by, requeued.recipient)])
        with contextlib.suppress(Unavailable):
            await self._hot.enqueue(requeued)
        return requeued
