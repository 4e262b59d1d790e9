"""Mail as a machine: whatever is done in whatever order, ledger and queues do what a plain model does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, ClassVar

import asyncpg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from angelia.envelope.ids import bucket_of
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Envelope, Priority
from angelia.errors import AngeliaError, Unavailable
from angelia.mail import ticks
from angelia.mail.acknowledgement import Acknowledged, Nacked
from angelia.mail.api import AckItem, NackItem, ReceiveQuery
from angelia.mail.model import Accepted, EnvelopeRow, LeaseToken
from keyholder import whole_ms
from mail_agents import Correspondent
from mail_office import PostOffice, open_office

TABLES = ("envelopes", "sent_ids", "delivery_receipts", "mail_marks", "audit_events")
BACK_OFF = {1: 1, 2: 2, 3: 4, 4: 8}
LEASE = 30
WAITS = (1, 2, 5, 9, 29, 31, 61, 130, 301, 700)
FIRST = next(name for name in (f"bob-{n}" for n in count()) if bucket_of(name) == 0)
which = st.integers(0, 30)


@dataclass
class World:
    """The real thing, with a loop of its own."""

    runner: asyncio.Runner
    office: PostOffice
    alice: Correspondent
    bob: Correspondent
    connection: asyncpg.Connection


@pytest.fixture(scope="module")
def world(shared_database: str, stores: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    @asynccontextmanager
    async def opened(runner: asyncio.Runner) -> AsyncIterator[World]:
        connection = await asyncpg.connect(shared_database)
        async with open_office(shared_database, stores.redis_url, tmp_path_factory.mktemp("office")) as office:
            now = whole_ms(datetime.now(UTC))
            alice, bob = Correspondent(), Correspondent()
            await alice.enter(office, "alice", now)  # type: ignore[arg-type]
            await bob.enter(office, FIRST, now)  # type: ignore[arg-type]
            yield World(runner, office, alice, bob, connection)
        await connection.close()

    with pytest.MonkeyPatch.context() as patched, asyncio.Runner() as runner:
        patched.setattr(ticks, "BUCKETS", 1)  # all mail is in the first: a rebuild need not look at the others
        whole = opened(runner)
        yield runner.run(whole.__aenter__())
        runner.run(whole.__aexit__(None, None, None))


@dataclass
class Message:
    """What the model knows of one message."""

    envelope: Envelope
    answer: Accepted
    place: tuple[int, int]  # by priority, then by arrival
    accepted_at: datetime
    expires_at: datetime
    state: str = "queued"  # queued, dead or gone
    receipt: str = "pending"
    reason: str | None = None
    acknowledged: bool = False
    # What the hot tier knows.
    indexed: bool = False
    attempts: int = 0
    until: datetime | None = None
    token: LeaseToken | None = None
    tokens: list[LeaseToken] = field(default_factory=list)

    def forget(self) -> None:
        self.indexed, self.attempts, self.until, self.token = False, 0, None, None

    def held_by_other(self, token: LeaseToken, now: datetime) -> bool:
        return self.token is not None and self.until is not None and self.until > now and self.token != token


class MailMachine(RuleBasedStateMachine):
    """One sender, one recipient, a clock that only the machine moves."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.now = whole_ms(datetime.now(UTC))
        self.messages: list[Message] = []
        self.arrivals = 0
        self.memories = 0
        self.reconciled: datetime | None = None
        self.run(self._empty())

    def run(self, work: Any) -> Any:
        return self.world.runner.run(work)

    async def _empty(self) -> None:
        for table in TABLES:
            await self.world.connection.execute(f"DELETE FROM {table}")  # noqa: S608
        await self.world.office.forget_everything()

    async def _outcome(self, work: Any) -> Any:
        """What comes of a call, or the code of its refusal."""
        try:
            return await work
        except AngeliaError as error:
            return error.code

    def _pick(self, n: int) -> Message:
        return self.messages[n % len(self.messages)]

    # What senders do.

    @rule(priority=st.sampled_from(Priority), ttl=st.sampled_from((20, 60, 3600)))
    def send(self, priority: Priority, ttl: int) -> None:
        self._send(priority, ttl).indexed = True

    @rule(priority=st.sampled_from(Priority))
    def send_and_crash(self, priority: Priority) -> None:
        """The commit happens, the script does not."""

        async def lost(*args: object) -> bool:
            raise Unavailable

        queues = self.world.office.queues
        queues.enqueue_all = lost  # type: ignore[method-assign]
        try:
            self._send(priority, 3600)
        finally:
            del queues.enqueue_all

    def _send(self, priority: Priority, ttl: int) -> Message:
        world = self.world
        envelope = world.alice.seal(world.bob, created_at=unix_ms(self.now), priority=priority, ttl_seconds=ttl)
        sent = self.run(world.office.send(world.alice, envelope, self.now))
        assert sent.new
        self.arrivals += 1
        made = Message(
            envelope, sent.answer, (-int(priority), self.arrivals), self.now, self.now + timedelta(seconds=ttl)
        )
        self.messages.append(made)
        return made

    @precondition(lambda self: self.messages)
    @rule(n=which)
    def send_again(self, n: int) -> None:
        message, world = self._pick(n), self.world
        sent = self.run(world.office.send(world.alice, message.envelope, self.now))
        assert (sent.new, sent.answer) == (False, message.answer)

    @precondition(lambda self: self.messages)
    @rule(n=which)
    def send_something_else_under_the_same_id(self, n: int) -> None:
        message, world = self._pick(n), self.world
        id_ = message.envelope.header.message_id
        other = world.alice.seal(world.bob, b"other", message_id=id_, created_at=unix_ms(self.now))
        told = self.run(self._outcome(world.office.send(world.alice, other, self.now)))
        assert told == "message_id_conflict"

    @precondition(lambda self: self.messages)
    @rule(n=which)
    def withdraw(self, n: int) -> None:
        message, world = self._pick(n), self.world
        told = self.run(self._outcome(world.office.withdraw(world.alice, message.envelope, self.now)))
        if message.reason == "withdrawn":
            assert told is None
        elif message.receipt == "expired":
            assert told == "message_expired"
        elif message.receipt != "pending" or message.attempts > 0:
            assert told == "conflict"
        else:
            assert told is None
            message.state, message.receipt, message.reason = "gone", "failed", "withdrawn"
            message.forget()

    # What the recipient does.

    @rule(most=st.integers(1, 4), min_priority=st.sampled_from((0, 0, 2)))
    def poll(self, most: int, min_priority: int) -> None:
        agent = self.run(self.world.office.agent(self.world.bob))
        wanted = ReceiveQuery(max_messages=most, min_priority=min_priority, lease_seconds=LEASE)
        got = self.run(self.world.office.delivery.receive(agent, wanted, self.now))
        free = [one for one in self.messages if one.indexed and (one.until is None or one.until <= self.now)]
        for one in free:
            one.until = None  # back in its place
        order = sorted((one for one in free if -one.place[0] >= min_priority), key=lambda one: one.place)
        first, given = list[Message](), list[Message]()
        while order and not given:  # what is not there any more does not stand in the way
            taken, order = order[:most], order[most:]
            first += taken
            given = [one for one in taken if one.state == "queued" and one.expires_at > self.now]
        for ghost in first:
            if ghost not in given:
                ghost.forget()
        passed = [one for one in self._missing() if given and one.place < taken[-1].place]
        given = sorted(given + passed, key=lambda one: one.place)
        given, released = given[:most], given[most:]
        for one in passed:
            one.indexed = True
        for one in released:
            one.token = None
        assert [one.row.replay_key.hex() for one in got.messages] == [one.envelope.replay_key for one in given]
        for message, handed in zip(given, got.messages, strict=True):
            message.attempts += 1
            message.until, message.token = self.now + timedelta(seconds=LEASE), handed.token
            message.tokens.append(handed.token)
            assert handed.attempt == message.attempts
            assert handed.wire == message.envelope.wire

    def _missing(self) -> list[Message]:
        """What waits in the ledger and the hot tier does not know of."""
        return [one for one in self.messages if one.state == "queued" and one.expires_at > self.now and not one.indexed]

    def _given(self, n: int, k: int) -> tuple[Message, LeaseToken] | None:
        given = [one for one in self.messages if one.tokens]
        if not given:
            return None
        message = given[n % len(given)]
        return message, message.tokens[k % len(message.tokens)]

    @precondition(lambda self: any(one.tokens for one in self.messages))
    @rule(n=which, k=which)
    def acknowledge(self, n: int, k: int) -> None:
        chosen = self._given(n, k)
        assert chosen is not None
        message, token = chosen
        ack = AckItem(replay_key=message.envelope.replay_key, lease_token=str(token))
        agent = self.run(self.world.office.agent(self.world.bob))
        (told,) = self.run(self.world.office.acknowledgements.acknowledge(agent, [ack], self.now))
        if message.held_by_other(token, self.now):
            assert getattr(told, "code", told) == "lease_lost"
        elif message.state == "dead":
            assert getattr(told, "code", told) == "conflict"
        elif message.state != "gone":
            assert isinstance(told, Acknowledged)
            message.state, message.acknowledged = "gone", True
            message.receipt = "delivered" if message.receipt == "pending" else message.receipt
            message.forget()
        elif message.acknowledged:
            assert told is None
        else:
            expected = "message_expired" if message.receipt == "expired" else "conflict"
            assert getattr(told, "code", told) == expected

    @precondition(lambda self: any(one.tokens for one in self.messages))
    @rule(n=which, k=which)
    def give_back(self, n: int, k: int) -> None:
        chosen = self._given(n, k)
        assert chosen is not None
        self._give_back(*chosen)

    @precondition(lambda self: self.messages)
    @rule(n=which, most=st.integers(2, 4))
    def give_back_again_and_again(self, n: int, most: int) -> None:
        """What seldom happens by chance: a message is refused each time that it comes."""
        message = self._pick(n)
        for _ in range(5):
            self.let_time_pass(9)
            self.poll(most, 0)
            if message.token is not None:
                self._give_back(message, message.token)

    def _give_back(self, message: Message, token: LeaseToken) -> None:
        nack = NackItem(replay_key=message.envelope.replay_key, lease_token=str(token), reason="no")
        agent = self.run(self.world.office.agent(self.world.bob))
        (told,) = self.run(self.world.office.acknowledgements.nack(agent, [nack], self.now))
        if message.state != "queued" or message.expires_at <= self.now:
            assert getattr(told, "code", told) == "not_found"
        elif message.token != token:
            assert getattr(told, "code", told) == "lease_lost"
        elif message.attempts >= 5:
            assert told == Nacked(None)
            message.state = "dead"
            if message.receipt == "pending":
                message.receipt, message.reason = "failed", "no"
            message.forget()
        else:
            message.until = self.now + timedelta(seconds=BACK_OFF[message.attempts])
            message.token = None
            assert told == Nacked(message.until)

    @precondition(lambda self: self.messages)
    @rule(n=which)
    def requeue(self, n: int) -> None:
        message, world = self._pick(n), self.world
        told = self.run(self._outcome(world.office.requeue(world.bob, message.envelope, self.now)))
        if message.state == "gone":
            assert told == "not_found"
        elif message.state == "queued":
            assert told == "conflict"
        elif message.expires_at <= self.now:
            assert told == "message_expired"
        else:
            assert isinstance(told, EnvelopeRow)
            self.arrivals += 1
            message.state, message.accepted_at, message.indexed = "queued", self.now, True
            message.place = (message.place[0], self.arrivals)

    # What time and ticks do.

    @rule(seconds=st.sampled_from(WAITS))
    def let_time_pass(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def expire(self) -> None:
        self.run(self.world.office.background.expire(self.now))
        for message in self.messages:
            if message.state != "gone" and message.expires_at <= self.now:
                message.state = "gone"
                message.receipt = "expired" if message.receipt == "pending" else message.receipt
                message.forget()

    @rule()
    def reconcile(self) -> None:
        self.run(self.world.office.background.reconcile(self.now))
        since = min(self.reconciled or self.now, self.now) - timedelta(seconds=120)
        until = self.now - timedelta(seconds=5)
        for message in self.messages:
            if message.state == "queued" and since <= message.accepted_at < until:
                message.indexed = True
        self.reconciled = until

    @rule()
    def forget_and_rebuild(self) -> None:
        self.memories += 1
        self.run(self.world.office.forget_everything())
        assert self.run(self.world.office.rebuild(f"memory {self.memories}"))
        assert not self.run(self.world.office.rebuild(f"memory {self.memories}"))
        for message in self.messages:
            message.forget()
            message.indexed = message.state == "queued"

    @rule()
    def forget(self) -> None:
        self.run(self.world.office.forget_everything())
        for message in self.messages:
            message.forget()

    # What always holds.

    @invariant()
    def the_ledger_is_what_the_model_says(self) -> None:
        rows = self.run(self.world.connection.fetch("SELECT replay_key, state FROM envelopes"))
        assert {row["replay_key"].hex(): row["state"] for row in rows} == {
            one.envelope.replay_key: one.state for one in self.messages if one.state != "gone"
        }
        rows = self.run(
            self.world.connection.fetch(
                "SELECT replay_key, status, failure_reason, acknowledged_at IS NOT NULL AS acked FROM delivery_receipts"
            )
        )
        assert {row["replay_key"].hex(): tuple(row)[1:] for row in rows} == {
            one.envelope.replay_key: (one.receipt, one.reason, one.acknowledged) for one in self.messages
        }

    def teardown(self) -> None:
        """Nothing that was taken is lost: after a rebuild, what waits is what arrives."""
        if not self.messages:
            return
        self.forget_and_rebuild()
        agent = self.run(self.world.office.agent(self.world.bob))
        # An hour of steps leaves no more than these.
        got = self.run(self.world.office.delivery.receive(agent, ReceiveQuery(max_messages=100), self.now))
        waiting = [one for one in self.messages if one.state == "queued" and one.expires_at > self.now]
        assert [one.row.replay_key.hex() for one in got.messages] == [
            one.envelope.replay_key for one in sorted(waiting, key=lambda one: one.place)
        ]


def run_machine(world: World, examples: int, steps: int) -> None:
    class Bound(MailMachine):
        pass

    Bound.world = world
    run_state_machine_as_test(Bound, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None))


def test_whatever_happens_mail_is_delivered_as_the_model_says(world: World) -> None:
    run_machine(world, 20, 25)


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
def test_whatever_happens_for_a_long_time_mail_is_delivered_as_the_model_says(world: World) -> None:
    run_machine(world, 400, 60)
