"""The mail slice of one process on real stores: its services, to be called with any time, and its routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from angelia.agents import routes as agent_routes
from angelia.agents.service import Agents
from angelia.api import AgentRow as AgentRecord
from angelia.audit.failures import Failures
from angelia.audit.failures_store import Counts
from angelia.envelope.receipts import Receipt
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import TTL_MAX, Envelope
from angelia.errors import AngeliaError
from angelia.guard import routes as guard_routes
from angelia.guard import store as guard_store
from angelia.guard.blocks import Blocks
from angelia.guard.service import Guard
from angelia.guard.tokens import Tokens, new_text, token_row
from angelia.http.edge import Edge
from angelia.keys import master_key
from angelia.keys import routes as key_routes
from angelia.keys.bundle_succession import Emergency
from angelia.keys.field_encryption import Fields
from angelia.keys.model import Reason
from angelia.keys.node_key import load_or_make
from angelia.keys.schedules import Schedules
from angelia.keys.service import Keys
from angelia.keys.store import HotBundles
from angelia.mail import receipt_routes
from angelia.mail import routes as mail_routes
from angelia.mail.acknowledgement import PutBack, Settled, Settling, new_ack, new_nack
from angelia.mail.dead_letters import DeadLetters
from angelia.mail.delivery import Delivery, Handed, Wanted
from angelia.mail.hot_store import HotMail
from angelia.mail.model import Queued, ReceiptRow
from angelia.mail.receipts import Receipts
from angelia.mail.service import Mail, Sent
from angelia.mail.ticks import Upkeep
from angelia.mail.withdrawal import UnderWay
from angelia.policy import routes as policy_routes
from angelia.policy.service import Policy
from angelia.policy.store import HotRates
from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from edges import edge_of, limiter_of
from mailroom import NO_LIMITS, Correspondent


@dataclass(frozen=True)
class PostOffice:
    """One process that carries mail, without the ticks: a test calls them when it wants them."""

    ledger: Ledger
    hot: HotTier
    wake: Wake
    agents: Agents
    policy: Policy
    keys: Keys
    failures: Failures
    queues: HotMail
    mail: Mail
    under_way: UnderWay
    delivery: Delivery
    settling: Settling
    receipts: Receipts
    dead_letters: DeadLetters
    upkeep: Upkeep
    _known: dict[str, AgentRecord] = field(default_factory=dict)

    async def agent(self, who: Correspondent) -> AgentRecord:
        if who.handle not in self._known:
            self._known[who.handle] = await self.agents.named(who.handle)
        return self._known[who.handle]

    async def send(self, who: Correspondent, envelope: Envelope, now: datetime) -> Sent:
        return await self.mail.send(await self.agent(who), envelope, now)

    async def sent(
        self, who: Correspondent, to: Correspondent, now: datetime, body: bytes = b"hello", **how: Any
    ) -> Envelope:
        """Seal and send a message at a time."""
        envelope = who.seal(to, body, **{"created_at": unix_ms(now), **how})
        assert (await self.send(who, envelope, now)).new
        return envelope

    async def poll(self, who: Correspondent, now: datetime, *, wait: float = 0, **wanted: Any) -> list[Handed]:
        return (await self.delivery.receive(await self.agent(who), Wanted(**wanted), wait, now)).messages

    async def ack(
        self, who: Correspondent, handed: Handed, now: datetime, receipt: Receipt | None = None
    ) -> Settled | AngeliaError | None:
        ack = new_ack(handed.row.replay_key, handed.token, receipt)
        (done,) = await self.settling.acknowledge(await self.agent(who), [ack], now)
        return done

    async def nack(self, who: Correspondent, handed: Handed, now: datetime, **how: Any) -> PutBack | AngeliaError:
        nack = new_nack(handed.row.replay_key, handed.token, **how)
        (done,) = await self.settling.put_back(await self.agent(who), [nack], now)
        return done

    async def withdraw(self, who: Correspondent, envelope: Envelope, now: datetime) -> None:
        await self.under_way.withdraw(await self.agent(who), bytes.fromhex(envelope.replay_key), now)

    async def revoke(self, who: Correspondent, at: datetime, since: datetime, *, signer: bool = False) -> None:
        """An emergency: the keys of an agent, or its signing pair, were stolen at some time and are replaced."""
        link = who.rotation(at=unix_ms(at), signer=signer, grace=False)
        await who.accepted(  # type: ignore[arg-type]
            self, link, reason=Reason.EMERGENCY, emergency=Emergency("stolen", since, None)
        )

    async def requeue(self, who: Correspondent, envelope: Envelope, now: datetime) -> Queued:
        return await self.dead_letters.requeue(bytes.fromhex(envelope.replay_key), who.handle, who.handle, now)

    async def receipt(self, who: Correspondent, envelope: Envelope) -> ReceiptRow:
        return await self.receipts.one(await self.agent(who), bytes.fromhex(envelope.replay_key))

    async def dead(self, who: Correspondent, to: Correspondent, now: datetime, **how: Any) -> tuple[Envelope, datetime]:
        """A message that its recipient gave back until it was a dead letter, and when that was."""
        envelope = await self.sent(who, to, now, **how)
        for _ in range(5):
            (got,) = await self.poll(to, now)
            done = await self.nack(to, got, now, reason="cannot be read")
            assert isinstance(done, PutBack)
            now += timedelta(seconds=10)
        assert done.retry_at is None
        return envelope, now - timedelta(seconds=10)

    async def rebuild(self, memory: str) -> int:
        """Let the rebuild tick run until it has nothing to do; how often it had."""
        runs = 0
        while await self.upkeep.rebuild(memory):
            runs += 1
        return runs

    async def forget_everything(self) -> None:
        """What a restart does to a hot tier without a memory on disk."""
        await self.hot._redis.flushall()


@asynccontextmanager
async def open_office(database_url: str, redis_url: str, *, read_only: bool = False) -> AsyncIterator[PostOffice]:
    """The services of one process; any number of them may share stores."""
    if read_only:
        database_url += f"{'&' if '?' in database_url else '?'}default_transaction_read_only=on"
    ledger, hot = await Ledger.open(database_url), HotTier(redis_url)
    agents, policy, wake, queues = Agents(ledger), Policy(ledger, HotRates(hot)), Wake(hot), HotMail(hot)
    failures = Failures(ledger, Counts(hot))
    keys = Keys(ledger, HotBundles(hot), agents, policy, wake)
    mail, settling = Mail(ledger, queues, policy, failures), Settling(ledger, queues)
    if not read_only:
        await policy.start_with(datetime.now(UTC), loopback=True)
    try:
        yield PostOffice(
            ledger,
            hot,
            wake,
            agents,
            policy,
            keys,
            failures,
            queues,
            mail,
            UnderWay(ledger, queues, policy),
            Delivery(ledger, queues, wake, policy, failures),
            settling,
            Receipts(ledger, queues, failures),
            DeadLetters(ledger, queues, agents),
            Upkeep(ledger, queues, keys),
        )
    finally:
        await wake.close()
        await settling.close()
        await mail.close()
        await agents.close()
        await hot.close()
        await ledger.close()


def edge(office: PostOffice, directory: Path, ttl_max: int = TTL_MAX) -> Edge:
    """The office's routes behind a guard, with those that a correspondent needs beside them."""
    settings = Settings(limits=NO_LIMITS, data_dir=directory)
    tokens, blocks = Tokens(office.ledger, office.agents), Blocks(office.ledger, office.hot)
    schedules = Schedules(office.ledger, office.keys, Fields(master_key.make(directory / "master.key")), office.wake)
    routes = [
        *agent_routes.routes(office.agents, show_email=False),
        *guard_routes.routes(tokens, blocks),
        *policy_routes.routes(office.policy),
        *key_routes.routes(office.keys, schedules, load_or_make(directory / "node.key")),
        *mail_routes.routes(
            office.mail, office.under_way, office.delivery, office.settling, office.receipts, ttl_max=ttl_max
        ),
        *receipt_routes.routes(office.receipts, office.dead_letters),
    ]
    limiter = limiter_of(routes, office.hot, blocks, settings)
    guard = Guard(agents=office.agents, tokens=tokens, limiter=limiter, settings=settings, open_mode=False)
    return edge_of(routes, guard, settings, open_mode=False)


async def admin_token(office: PostOffice) -> str:
    text = new_text()
    async with office.ledger.transaction() as tx:
        row = token_row(text, "admin", "admin", None, datetime.now(UTC), None)
        await guard_store.make_token(tx, row, first_admin=True)
    return text


async def told(connection: asyncpg.Connection, *kinds: str) -> list[tuple[str, str | None, str | None]]:
    """The audit's events of some kinds, in order: what, by whom, about whom."""
    rows = await connection.fetch(
        "SELECT event_type, actor_nhi, object_nhi FROM audit_events"
        " WHERE event_type = ANY ($1) ORDER BY xid, occurred_at",
        kinds,
    )
    return [tuple(row) for row in rows]


async def left(connection: asyncpg.Connection) -> dict[str, int]:
    """How many rows of mail the ledger has."""
    tables = ("envelopes", "sent_ids", "delivery_receipts")
    return {table: await connection.fetchval(f"SELECT count(*) FROM {table}") for table in tables}  # noqa: S608
