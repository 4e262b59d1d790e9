"""Kill any process, empty the hot tier: what was acknowledged to a sender arrives, and opens once."""

from __future__ import annotations

import random
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest
import redis

from angelia.client import Client
from angelia.client.receiving import Received
from angelia.envelope.refusals import Replayed
from angelia.errors import AngeliaError
from angelia.mailbox import identity
from angelia.mailbox.box import Mailbox
from angelia.mailbox.outgoing import Sent
from angelia.stores.embedded.datadir import read_runtime
from processes import ServerProcess

LIMITS = "register=off,identity=off,keys=off,bundles=off,send=off,receive=off,unproven=off"
VICTIMS = ("worker", "valkey", "postgres", "memory", "server")
SENDERS, RECIPIENTS = 3, 2
LEASE = 5


class Person(ABC):
    """An agent with a mailbox, a client, and a thread that works until it is told to stop."""

    def __init__(self, server: ServerProcess, home: Path, name: str) -> None:
        self.name = name
        made = identity.create(home, name)
        with Client(server.start_url, identity=made) as client:
            agent = client.register(made.public_key)
            client.claim_handle(name)
        made = identity.record_registration(home, made, id=agent.id, handle=name, server=server.start_url)
        self.mailbox = Mailbox(home, made, datetime.now(UTC))
        self.client = Client(server.start_url, identity=self.mailbox, timeout=10)
        self.client.publish_keys(self.mailbox)
        self.answers: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def begin(self, stop: threading.Event) -> threading.Thread:
        def work() -> None:
            while not stop.is_set() and self.failure is None:
                try:
                    self.step()
                except AngeliaError as error:
                    self.answers[error.code] += 1
                    time.sleep(0.05)
                except BaseException as error:  # noqa: BLE001 - told to the test, which is another thread
                    self.failure = error

        thread = threading.Thread(target=work, name=self.name)
        thread.start()
        return thread

    @abstractmethod
    def step(self) -> None:
        """One round of its work."""

    def close(self) -> None:
        self.client.close()
        self.mailbox.close()


class Sender(Person):
    """Sends all the time; `sent` is what the server said it has."""

    def __init__(self, server: ServerProcess, home: Path, name: str, recipients: list[str]) -> None:
        super().__init__(server, home, name)
        self.recipients = recipients
        self.sent: dict[str, bytes] = {}
        self._bodies: dict[str, bytes] = {}
        self._count = 0

    def step(self) -> None:
        self._count += 1
        body = f"{self.name} {self._count}".encode()
        delivered = self.client.deliver_outbox(self.mailbox)
        for one in delivered.sent:
            self.sent[one.replay_key] = b""  # what it says is in its recipient's inbox
        sent = self.client.send(self.mailbox, self.recipients[self._count % len(self.recipients)], body)
        self.sent[sent.replay_key] = body

    def finish(self) -> None:
        """What waits in the outbox goes too."""
        deadline = time.monotonic() + 60
        while any(row.status is Sent.STORED for row in self.mailbox.outbox.page(10_000)):
            assert time.monotonic() < deadline, "the outbox is not empty"
            for one in self.client.deliver_outbox(self.mailbox).sent:
                self.sent[one.replay_key] = b""
            time.sleep(0.2)


class Recipient(Person):
    """Receives all the time; a message that was acknowledged must never come again."""

    def __init__(self, server: ServerProcess, home: Path, name: str) -> None:
        super().__init__(server, home, name)
        self.opened: Counter[str] = Counter()
        self.bodies: dict[str, bytes] = {}
        self.again = 0

    def step(self) -> None:
        self.take(self.client.receive(self.mailbox, wait=1, most=20, lease_seconds=LEASE))

    def take(self, received: Received) -> None:
        for opened in received.messages:
            self.opened[opened.message.replay_key] += 1
            self.bodies[opened.message.replay_key] = opened.body
        recovered = {message.replay_key for message in received.recovered}
        for one in received.not_opened:
            assert isinstance(one.error, Replayed), one.error
            # It was opened, and the acknowledgment had not been confirmed: it may come again, and is not shown.
            assert one.replay_key in recovered, f"{one.replay_key} was acknowledged and came again"
            self.again += 1


def crash_rounds(directory: Path, home: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    server = ServerProcess(directory / f"mail-{secrets.token_hex(4)}", limits=LIMITS)
    server.start()
    recipients = [Recipient(server, home, f"recipient-{n}") for n in range(RECIPIENTS)]
    senders = [Sender(server, home, f"sender-{n}", [one.name for one in recipients]) for n in range(SENDERS)]
    for recipient in recipients:
        for sender in senders:
            recipient.client.find_keys(recipient.mailbox, sender.name)
            recipient.mailbox.allowlist.allow(sender.name, datetime.now(UTC))
    stop_sending, stop_receiving = threading.Event(), threading.Event()
    sending = [one.begin(stop_sending) for one in senders]
    receiving = [one.begin(stop_receiving) for one in recipients]
    people = [*senders, *recipients]
    try:
        for number in range(rounds):
            time.sleep(chance.uniform(0.3, 0.9))
            _strike(server, VICTIMS[number % len(VICTIMS)])
            server.wait_until_healthy(server.start_url, 30)
            _progress(senders, people)
        stop_sending.set()
        for thread in sending:
            thread.join(60)
        for sender in senders:
            sender.finish()
        _drained(senders, recipients, people)
        stop_receiving.set()
        for thread in receiving:
            thread.join(60)
        _check(server, senders, recipients)
        _tell(rounds, seed, senders, recipients)
    finally:
        stop_sending.set()
        stop_receiving.set()
        for thread in (*sending, *receiving):
            thread.join(60)
        for person in people:
            person.close()
        server.stop()


def _strike(server: ServerProcess, victim: str) -> None:
    if victim == "memory":
        runtime = read_runtime(server.data_dir)
        assert runtime is not None
        with redis.Redis.from_url(runtime.redis_url) as hot:
            hot.flushall()
        return
    server.kill(victim)
    if victim == "server":
        server.start()


def _progress(senders: list[Sender], people: list[Person]) -> None:
    """Service is back, without a person, when every sender's mail is taken again."""
    before = [len(sender.sent) for sender in senders]
    deadline = time.monotonic() + 30
    while any(len(sender.sent) == count for sender, count in zip(senders, before, strict=True)):
        _raise_failures(people)
        assert time.monotonic() < deadline, [dict(sender.answers) for sender in senders]
        time.sleep(0.02)


def _drained(senders: list[Sender], recipients: list[Recipient], people: list[Person]) -> None:
    """Until everything that was sent has been opened; leases that nobody holds any more run out meanwhile."""
    deadline = time.monotonic() + 60
    wanted = {key for sender in senders for key in sender.sent}
    while missing := wanted - {key for recipient in recipients for key in recipient.bodies}:
        _raise_failures(people)
        assert time.monotonic() < deadline, f"{len(missing)} of {len(wanted)} never arrived"
        time.sleep(0.1)
    time.sleep(LEASE + 1)  # what was opened and not acknowledged comes again, and is acknowledged then


def _raise_failures(people: list[Person]) -> None:
    for person in people:
        if person.failure is not None:
            raise AssertionError(f"{person.name} failed") from person.failure


def _check(server: ServerProcess, senders: list[Sender], recipients: list[Recipient]) -> None:
    _raise_failures([*senders, *recipients])
    twice = {key: count for one in recipients for key, count in one.opened.items() if count > 1}
    assert twice == {}, "opened more than once"
    for sender in senders:
        for key, body in sender.sent.items():
            found = next(one.bodies[key] for one in recipients if key in one.bodies)
            assert not body or found == body
        news = sender.client.update_outbox(sender.mailbox)
        assert news.doubts == (), news.doubts
        states = {row.replay_key: row.status for row in sender.mailbox.outbox.page(10_000)}
        assert {states[key] for key in sender.sent} <= {Sent.DELIVERED, Sent.READ}, Counter(states.values())
    left, wrong = _in_ledger(server)
    assert left == 0, "nothing waits any more"
    assert wrong == [], "every receipt is signed by its recipient and has its times"


def _in_ledger(server: ServerProcess) -> tuple[int, list[dict[str, object]]]:
    import asyncio

    async def look() -> tuple[int, list[dict[str, object]]]:
        runtime = read_runtime(server.data_dir)
        assert runtime is not None
        connection = await asyncpg.connect(runtime.database_url)
        try:
            wrong = await connection.fetch(
                "SELECT status, attested_by, delivered_at, acknowledged_at FROM delivery_receipts WHERE status <>"
                " 'delivered' OR attested_by <> 'recipient' OR delivered_at IS NULL OR acknowledged_at IS NULL"
                " OR receipt_wire IS NULL OR delivery_attempts < 1"
            )
            return await connection.fetchval("SELECT count(*) FROM envelopes"), [dict(row) for row in wrong]
        finally:
            await connection.close()

    return asyncio.run(look())


def _tell(rounds: int, seed: int, senders: list[Sender], recipients: list[Recipient]) -> None:
    sent = sum(len(sender.sent) for sender in senders)
    opened = sum(sum(one.opened.values()) for one in recipients)
    again = sum(one.again for one in recipients)
    answers = sum((person.answers for person in (*senders, *recipients)), Counter())
    print(
        f"\n{rounds} crashes (seed {seed}): {sent:,} acknowledged sends, {opened:,} opened once each, {again} came"
        f" again and were not shown; refusals meanwhile {dict(answers)}"
    )


@pytest.mark.timeout(180)
def test_acknowledged_mail_survives_the_death_of_any_process(directory: Path, tmp_path: Path) -> None:
    crash_rounds(directory, tmp_path, rounds=len(VICTIMS), seed=random.SystemRandom().randrange(10**6))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_acknowledged_mail_survives_a_hundred_deaths(directory: Path, tmp_path: Path) -> None:
    crash_rounds(directory, tmp_path, rounds=100, seed=random.SystemRandom().randrange(10**6))
