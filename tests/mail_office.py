"""The mail slice of one process on real stores: its routes, and its services, to which a test passes the time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from angelia.agents.service import Agents
from angelia.api import AgentRow as AgentRecord
from angelia.audit.failures import Failures
from angelia.envelope.receipts import Receipt, receipt_document
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError
from angelia.keys.bundle_succession import Emergency
from angelia.keys.model import Reason
from angelia.keys.service import Keys
from angelia.mail.acknowledgement import Acknowledged, Acknowledgements, Nacked
from angelia.mail.api import AckItem, NackItem, ReceiveQuery
from angelia.mail.dead_letters import DeadLetters
from angelia.mail.delivery import Delivery, LeasedEnvelope
from angelia.mail.hot_store import HotMail
from angelia.mail.model import EnvelopeRow, ReceiptRecord
from angelia.mail.receipts import Receipts
from angelia.mail.service import Mail, SendResult
from angelia.mail.ticks import MailTicks
from angelia.mail.withdrawal import InTransit
from angelia.policy.service import Policy
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from assembled_slices import Assembled, assembled
from mail_agents import NO_LIMITS, Correspondent


@dataclass(frozen=True)
class PostOffice:
    """One process with the mail slice. Its ticks run only when a test calls them."""

    process: Assembled
    ledger: Ledger
    hot: HotTier
    wake: Wake
    agents: Agents
    policy: Policy
    keys: Keys
    failures: Failures
    queues: HotMail
    mail: Mail
    in_transit: InTransit
    delivery: Delivery
    acknowledgements: Acknowledgements
    receipts: Receipts
    dead_letters: DeadLetters
    background: MailTicks
    _known: dict[str, AgentRecord] = field(default_factory=dict)

    async def agent(self, who: Correspondent) -> AgentRecord:
        if who.handle not in self._known:
            self._known[who.handle] = await self.agents.named(who.handle)
        return self._known[who.handle]

    async def send(self, who: Correspondent, envelope: Envelope, now: datetime) -> SendResult:
        return await self.mail.send(await self.agent(who), envelope, now)

    async def sent(
        self, who: Correspondent, to: Correspondent, now: datetime, body: bytes = b"hello", **how: Any
    ) -> Envelope:
        """Seals and sends a message at the given time."""
        envelope = who.seal(to, body, **{"created_at": unix_ms(now), **how})
        assert (await self.send(who, envelope, now)).new
        return envelope

    async def poll(self, who: Correspondent, now: datetime, **wanted: Any) -> list[LeasedEnvelope]:
        return (await self.delivery.receive(await self.agent(who), ReceiveQuery(**wanted), now)).messages

    async def ack(
        self, who: Correspondent, handed: LeasedEnvelope, now: datetime, receipt: Receipt | None = None
    ) -> Acknowledged | AngeliaError | None:
        document = None if receipt is None else receipt_document(receipt)
        ack = AckItem(replay_key=handed.row.replay_key.hex(), lease_token=str(handed.token), receipt=document)
        (done,) = await self.acknowledgements.acknowledge(await self.agent(who), [ack], now)
        return done

    async def nack(
        self, who: Correspondent, handed: LeasedEnvelope, now: datetime, **how: Any
    ) -> Nacked | AngeliaError:
        nack = NackItem(replay_key=handed.row.replay_key.hex(), lease_token=str(handed.token), **how)
        (done,) = await self.acknowledgements.nack(await self.agent(who), [nack], now)
        return done

    async def withdraw(self, who: Correspondent, envelope: Envelope, now: datetime) -> None:
        await self.in_transit.withdraw(await self.agent(who), bytes.fromhex(envelope.replay_key), now)

    async def revoke(self, who: Correspondent, at: datetime, since: datetime, *, signer: bool = False) -> None:
        """An emergency rotation: replaces an agent's keys, or its signing pair, that were stolen at some time."""
        link = who.rotation(at=unix_ms(at), signer=signer, grace=False)
        await who.accepted(  # type: ignore[arg-type]
            self, link, reason=Reason.EMERGENCY, emergency=Emergency("stolen", since, None)
        )

    async def requeue(self, who: Correspondent, envelope: Envelope, now: datetime) -> EnvelopeRow:
        return await self.dead_letters.requeue(bytes.fromhex(envelope.replay_key), who.handle, who.handle, now)

    async def receipt(self, who: Correspondent, envelope: Envelope) -> ReceiptRecord:
        return await self.receipts.one(await self.agent(who), bytes.fromhex(envelope.replay_key))

    async def dead(self, who: Correspondent, to: Correspondent, now: datetime, **how: Any) -> tuple[Envelope, datetime]:
        """Returns a dead letter, made by nacks of its recipient, and its time."""
        envelope = await self.sent(who, to, now, **how)
        for _ in range(5):
            (got,) = await self.poll(to, now)
            done = await self.nack(to, got, now, reason="cannot be read")
            assert isinstance(done, Nacked)
            now += timedelta(seconds=10)
        assert done.retry_at is None
        return envelope, now - timedelta(seconds=10)

    async def rebuild(self, memory: str) -> int:
        """Runs the rebuild tick until it has nothing to do. Returns how many rounds had work."""
        runs = 0
        while await self.background.rebuild(memory):
            runs += 1
        return runs

    async def forget_everything(self) -> None:
        """Empties the hot tier, as a restart without a journal does."""
        await self.hot._redis.flushall()


@asynccontextmanager
async def open_office(
    database_url: str, redis_url: str, directory: Path, *, read_only: bool = False, **values: object
) -> AsyncIterator[PostOffice]:
    """Opens the services of one process. Any number of processes may share the stores."""
    if read_only:
        database_url += f"{'&' if '?' in database_url else '?'}default_transaction_read_only=on"
    ledger, hot = await Ledger.open(database_url), HotTier(redis_url)
    try:
        async with assembled(ledger, hot, directory, limits=NO_LIMITS, **values) as process:
            if not read_only:
                await process.slices.policy.policy.start_with(datetime.now(UTC), loopback=True)
            opened = process.slices
            yield PostOffice(
                process,
                ledger,
                hot,
                process.stores.wake,
                opened.agents.agents,
                opened.policy.policy,
                opened.keys.keys,
                opened.audit.failures,
                opened.mail.queues,
                opened.mail.mail,
                opened.mail.in_transit,
                opened.mail.delivery,
                opened.mail.acknowledgements,
                opened.mail.receipts,
                opened.mail.dead_letters,
                opened.mail.background,
            )
    finally:
        await hot.close()
        await ledger.close()


async def told(connection: asyncpg.Connection, *kinds: str) -> list[tuple[str, str | None, str | None]]:
    """Returns the audit events of some kinds, in order: kind, actor, subject."""
    rows = await connection.fetch(
        "SELECT event_type, actor_nhi, object_nhi FROM audit_events"
        " WHERE event_type = ANY ($1) ORDER BY xid, occurred_at",
        kinds,
    )
    return [tuple(row) for row in rows]


async def left(connection: asyncpg.Connection) -> dict[str, int]:
    """Returns the number of rows in each mail table of the ledger."""
    tables = ("envelopes", "sent_ids", "delivery_receipts")
    return {table: await connection.fetchval(f"SELECT count(*) FROM {table}") for table in tables}  # noqa: S608
