"""What agents may do with mail that is under way: see how it stands, and take back what nobody was given yet."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from angelia import metrics
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.errors import Conflict, MessageExpired, NotFound, Unavailable
from angelia.mail import receipts_store, store
from angelia.mail.delivery_checks import withheld
from angelia.mail.hot_store import HotMail
from angelia.mail.model import Queued, ReceiptRow, Status
from angelia.mail.receipts_store import Step
from angelia.mail.sender_events import word
from angelia.policy.service import Policy
from angelia.stores.ledger import Ledger

WITHDRAWN = "withdrawn"
_WITHDRAWAL = timedelta(seconds=10)


class UnderWay:
    """Messages between their sender and their recipient, for both of them."""

    def __init__(self, ledger: Ledger, hot: HotMail, policy: Policy) -> None:
        self._ledger = ledger
        self._hot = hot
        self._policy = policy

    async def withdraw(self, agent: AgentRow, replay_key: bytes, now: datetime) -> None:
        """Take a message back that its recipient has not been given; saying it again is no error."""
        began = time.monotonic()
        async with self._ledger.reading() as tx:
            known = (await receipts_store.of_messages(tx, [replay_key])).get(replay_key)
            if known is None or known.sender != agent.handle:
                raise NotFound("there is no such message of yours", hint="only what you sent can be withdrawn")
            row = await store.one(tx, known.recipient, replay_key)
            # It may have come to its end between the two: what it came to is in the receipt.
            known = (await receipts_store.of_messages(tx, [replay_key])).get(replay_key, known)
        if row is None or known.status is not Status.PENDING:
            _check_withdrawn(known)
            return
        async with self._ledger.transaction() as tx:
            locked = (await store.lock(tx, [(row.recipient, replay_key)])).get((row.recipient, replay_key))
            known = (await receipts_store.of_messages(tx, [replay_key])).get(replay_key, known)
            if locked is None or known.status is not Status.PENDING:
                _check_withdrawn(known)
                return
            # The lock may have been waited for.
            async with self._held(locked, now + timedelta(seconds=time.monotonic() - began)):
                await store.remove(tx, [locked])
                await receipts_store.move(tx, [Step(message=locked, status=Status.FAILED, reason=WITHDRAWN)])
                event = audit.event(
                    "message_withdrawn",
                    now,
                    actor=agent.handle,
                    object=locked.recipient,
                    message_id=locked.message_id,
                    replay_key=replay_key,
                )
                await audit.record(tx, [event])
        metrics.MAIL_ENDED.labels(WITHDRAWN).inc()
        with contextlib.suppress(Unavailable):
            said = word(locked, Status.FAILED, now, WITHDRAWN)
            await self._hot.remove(locked.recipient, [locked.mref], [said])

    async def status(self, agent: AgentRow, replay_key: bytes, now: datetime) -> tuple[ReceiptRow, Queued | None]:
        """How a message stands, for its sender or its recipient; with its row while it waits.

        Its bytes are there for its recipient alone, and only if they could be handed over as well."""
        async with self._ledger.reading() as tx:
            known = (await receipts_store.of_messages(tx, [replay_key])).get(replay_key)
            if known is None or agent.handle not in (known.sender, known.recipient):
                raise NotFound("there is no such message of yours")
            row = await store.one(tx, known.recipient, replay_key)
            if row is None:
                return known, None
            held_back = await withheld(tx, self._policy, [row], now)
        shown = agent.handle == row.recipient and row.expires_at > now and row.mref not in held_back
        return known, row if shown else dataclasses.replace(row, wire=None)

    @asynccontextmanager
    async def _held(self, row: Queued, now: datetime) -> AsyncIterator[None]:
        """Keep a message from being handed out while it is withdrawn; a crash lets go of it after seconds.

        Under the lock on its row, so that of two withdrawals neither lets go of what the other one keeps back."""
        if not await self._hot.hold(row.recipient, row.mref, row.score, now, now + _WITHDRAWAL):
            raise Conflict("the recipient was given the message already", hint="there is no recall after delivery")
        try:
            yield
        except BaseException:
            with contextlib.suppress(Unavailable):
                await self._hot.let_go(row.recipient, row.mref)
            raise


def _check_withdrawn(known: ReceiptRow) -> None:
    """A message that is not there any more: was it withdrawn before, or is it too late?"""
    if known.failure_reason == WITHDRAWN:
        return
    if known.status is Status.EXPIRED:
        raise MessageExpired("the message has expired")
    raise Conflict(f"the message is {known.status} already", hint="there is no recall after delivery")
