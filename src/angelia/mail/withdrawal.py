"""What agents may do with mail in transit: ask for its status, and withdraw what was not delivered yet."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from angelia import metrics
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.errors import Conflict, MessageExpired, NotFound, Unavailable
from angelia.mail import receipts_store, store
from angelia.mail.audit_events import audit_event
from angelia.mail.delivery_checks import withheld
from angelia.mail.hot_store import HotMail
from angelia.mail.model import DeliveryStatus, EnvelopeRow, ReceiptRecord, ReceiptStep
from angelia.mail.sender_events import delivery_event
from angelia.policy.service import Policy
from angelia.stores.ledger import Ledger
from angelia.stores.wake import RequestTime

WITHDRAWN = "withdrawn"
_WITHDRAWAL = timedelta(seconds=10)


class InTransit:
    """Messages between their sender and their recipient."""

    def __init__(self, ledger: Ledger, hot: HotMail, policy: Policy) -> None:
        self._ledger = ledger
        self._hot = hot
        self._policy = policy

    async def withdraw(self, agent: AgentRow, replay_key: bytes, now: datetime) -> None:
        """Withdraws a message that its recipient has not been given. Idempotent."""
        clock = RequestTime(now)
        async with self._ledger.reading() as tx:
            known = await receipts_store.one(tx, replay_key)
            if known is None or known.sender != agent.handle:
                raise NotFound("there is no such message of yours", hint="only what you sent can be withdrawn")
            waiting = await store.one(tx, known.recipient, replay_key)
            # It may have ended between the two statements: then the receipt says how.
            known = await receipts_store.one(tx, replay_key) or known
        if waiting is None or known.status is not DeliveryStatus.PENDING:
            _check_withdrawn(known)
            return
        async with self._ledger.transaction() as tx:
            locked = await store.lock_one(tx, known.recipient, replay_key)
            known = await receipts_store.one(tx, replay_key) or known
            if locked is None or known.status is not DeliveryStatus.PENDING:
                _check_withdrawn(known)
                return
            async with self._held(locked, clock.now()):  # later than `now`: the lock may have been waited for
                await store.remove(tx, [locked])
                await receipts_store.move(
                    tx, [ReceiptStep(message=locked, status=DeliveryStatus.FAILED, reason=WITHDRAWN)]
                )
                event = audit_event("message_withdrawn", locked, now, agent.handle, locked.recipient)
                await audit.record(tx, [event])
        metrics.MAIL_ENDED.labels(WITHDRAWN).inc()
        with contextlib.suppress(Unavailable):
            told = delivery_event(locked, DeliveryStatus.FAILED, now, WITHDRAWN)
            await self._hot.remove(locked.recipient, [locked.mref], [told])

    async def status(
        self, agent: AgentRow, replay_key: bytes, now: datetime
    ) -> tuple[ReceiptRecord, EnvelopeRow | None]:
        """The receipt of a message, for its sender or its recipient, and its envelope while that waits.

        The envelope has its bytes for the recipient alone, and only if it may be delivered now."""
        async with self._ledger.reading() as tx:
            known = await receipts_store.one(tx, replay_key)
            if known is None or agent.handle not in (known.sender, known.recipient):
                raise NotFound("there is no such message of yours")
            found = await store.one(tx, known.recipient, replay_key)
            if found is None:
                return known, None
            revoked, denied = await withheld(tx, self._policy, [found], now)
        row = found.row
        shown = agent.handle == row.recipient and row.expires_at > now and row.mref not in revoked | denied
        return known, row if shown else dataclasses.replace(row, wire=None)

    @asynccontextmanager
    async def _held(self, row: EnvelopeRow, now: datetime) -> AsyncIterator[None]:
        """Keeps a message from being leased while it is withdrawn; after a crash it is free again in seconds.

        Under the lock on its row, so that of two withdrawals neither frees what the other one holds."""
        if not await self._hot.hold(row, now, now + _WITHDRAWAL):
            raise Conflict("the recipient was given the message already", hint="there is no recall after delivery")
        try:
            yield
        except BaseException:
            with contextlib.suppress(Unavailable):
                await self._hot.let_go(row.recipient, row.mref)
            raise


def _check_withdrawn(known: ReceiptRecord) -> None:
    """Refuses the withdrawal of a message that ended in another way."""
    if known.failure_reason == WITHDRAWN:
        return
    if known.status is DeliveryStatus.EXPIRED:
        raise MessageExpired("the message has expired")
    raise Conflict(f"the message is {known.status} already", hint="there is no recall after delivery")
