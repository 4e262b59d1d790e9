"""Kill, stop, empty, fill up or tear anything: mail that was acknowledged arrives, once, in its order, in its time."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import psutil
import pytest
import redis

from angelia.client import Client
from angelia.client.transport import Trip
from angelia.envelope import wire
from angelia.envelope.refusals import Expired, Replayed
from angelia.envelope.wire import Priority
from angelia.errors import AngeliaError, MessageExpired
from angelia.mailbox import identity
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import OutboxMessage, OutboxStatus
from angelia.runtime_file import read_runtime
from mail_history import Handing, History, Opening, Try, Verdict
from server_process import ServerProcess
from small_disks import SmallDisk, can_mount, small_disk

LIMITS = "register=off,identity=off,keys=off,bundles=off,send=off,receive=off,unproven=off"
SENDERS, RECIPIENTS, WORKERS = 3, 2, 2
LEASE = 5
SHORT_LIFE = 4
DISK_MB, DISK_MB_PER_ROUND = 400, 3  # of each message some 7 kB stay, and as much is in the write-ahead log for a while
DEATHS = {"kill server", "kill valkey", "tear"}  # after these a lease whose poll failed cannot be given back


class Person(ABC):
    """An agent with a mailbox, a client, and a thread that works until it is told to stop."""

    def __init__(self, server: ServerProcess, home: Path, name: str, history: History) -> None:
        self.name, self.history = name, history
        made = identity.create(home, name)
        with Client(server.start_url, identity=made) as client:
            agent = client.agents.register(made.public_key)
            client.agents.claim_handle(name)
        made = identity.record_registration(home, made, id=agent.id, handle=name, server=server.start_url)
        self.mailbox = Mailbox(home, made, datetime.now(UTC))
        self.client = Client(server.start_url, identity=self.mailbox, timeout=10, observer=self.observe)
        self.client.keys.publish(self.mailbox)
        self.answers: Counter[str] = Counter()
        self.served = 0.0  # when the last request that did its work began
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

    def observe(self, trip: Trip) -> None:
        """One attempt of a request, as the client saw it."""
        failed = trip.status is None or trip.status >= 500
        if failed and trip.method == "GET" and trip.path == "/v1/messages":
            polls = self.history.unanswered if trip.status is None else self.history.failed
            polls.append((self.name, time.time()))
            self.history.remarks.append((time.time(), f"a poll of {self.name} failed ({trip.status})"))

    @abstractmethod
    def step(self) -> None:
        """One round of its work."""

    def close(self) -> None:
        self.client.close()
        self.mailbox.close()


class Sender(Person):
    """Sends all the time, to each recipient in turn; some messages go first, and some do not live long."""

    def __init__(self, server: ServerProcess, home: Path, name: str, history: History, recipients: list[str]) -> None:
        super().__init__(server, home, name, history)
        self.recipients = recipients
        self.taken: set[str] = set()
        self._count = 0

    def step(self) -> None:
        self.deliver()
        self._count += 1
        body, to = f"{self.name} {self._count}".encode(), self.recipients[self._count % len(self.recipients)]
        priority = Priority.HIGH if self._count % 5 == 0 else Priority.NORMAL
        wishes = {"ttl_seconds": SHORT_LIFE} if self._count % 7 == 0 else {}
        began = time.time()
        self.history.tries[body] = Try((self.name, to, int(priority)), began)
        self._took(self.client.mail.send(self.mailbox, to, body, priority=priority, **wishes).replay_key)
        self.served = began

    def deliver(self) -> None:
        for one in self.client.mail.deliver_outbox(self.mailbox).sent:
            self._took(one.replay_key)

    def finish(self) -> None:
        """What waits in the outbox and lives goes too."""
        deadline = time.monotonic() + 60
        while any(row.status is OutboxStatus.STORED and row.expires_at > datetime.now(UTC) for row in self.outbox()):
            assert time.monotonic() < deadline, "the outbox is not empty"
            self.deliver()
            time.sleep(0.2)

    def outbox(self) -> list[OutboxMessage]:
        return self.mailbox.outbox.page(100_000)

    def _took(self, replay_key: str) -> None:
        self.taken.add(replay_key)
        self.history.acknowledged.setdefault(replay_key, time.time())


class Recipient(Person):
    """Receives all the time, in one place; a message that was acknowledged must never come again."""

    again = 0

    def step(self) -> None:
        began = time.time()
        page = self.client.mail.poll(wait=1, max_messages=20, lease_seconds=LEASE)
        self.served = began
        handings = {one.replay_key: self._handing(one.replay_key, one.wire, one.attempt) for one in page.messages}
        self.history.handings += handings.values()
        received = self.client.mail.take_in(self.mailbox, page.messages)
        for opened in received.messages:
            self.history.openings.append(Opening(handings[opened.message.replay_key], opened.body))
        recovered = {message.replay_key for message in received.recovered}
        for one in received.not_opened:
            if isinstance(one.error, MessageExpired | Expired):
                continue
            assert isinstance(one.error, Replayed), one.error
            # It was opened, and the acknowledgment had not been confirmed: it may come again, and is not shown.
            unconfirmed = self.mailbox.inbox.message(one.replay_key).acked_at is None
            assert one.replay_key in recovered or unconfirmed, f"{one.replay_key} was acknowledged and came again"
            self.again += 1

    def _handing(self, replay_key: str, content: bytes, attempt: int) -> Handing:
        return Handing(self.name, replay_key, time.time(), wire.decode(content).header.expires_at / 1000, attempt)


@dataclass
class Faults:
    """Everything that is done to a server; each fault is over when its method returns."""

    server: ServerProcess
    chance: random.Random
    disk: SmallDisk | None
    kinds: dict[str, Callable[[], None]] = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = {
            "kill worker": lambda: self.server.kill("worker"),
            "stop worker": self.stop_worker,
            "kill postgres": lambda: self.server.kill("postgres"),
            "flush": self.flush,
            "kill valkey": lambda: self.server.kill("valkey"),
            "stop postgres": lambda: self.stop("postgres"),
            "kill server": self.kill_server,
            "tear": self.tear,
        }
        if self.disk is not None:
            self.kinds["fill disk"] = self.fill_disk

    def kill_server(self) -> None:
        self.server.kill("server")
        self.server.start()

    def stop_worker(self) -> None:
        self.stop("worker")

    def stop(self, name: str) -> None:
        pid = self.server.pid_of(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(self.chance.uniform(0.5, 2.5))
        finally:
            os.kill(pid, signal.SIGCONT)

    def flush(self) -> None:
        runtime = read_runtime(self.server.data_dir)
        assert runtime is not None
        with redis.Redis.from_url(runtime.redis_url) as hot:
            hot.flushall()

    def fill_disk(self) -> None:
        assert self.disk is not None
        with self.disk.filled(leaving=self.chance.choice((0, 1 << 20))):
            time.sleep(self.chance.uniform(0.5, 1.5))

    def tear(self) -> None:
        """What a power cut leaves: the hot tier is gone, and the end or the middle of one of its files is rubbish."""
        server, valkey = self.server.pid_of("server"), psutil.Process(self.server.pid_of("valkey"))
        os.kill(server, signal.SIGSTOP)  # so that it is not started again before its files are torn
        try:
            valkey.kill()
            while valkey.is_running() and valkey.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
            torn = self.chance.choice(sorted((self.server.data_dir / "valkey").glob("appendonlydir/*")))
            content = bytearray(torn.read_bytes())
            place, rubbish = self.chance.randrange(len(content) + 1), self.chance.randbytes(64)
            how = self.chance.choice(("cut", "garbled", "rubbish"))
            with torn.open("r+b") as file:
                if how == "cut":
                    file.truncate(place)
                else:
                    file.seek(len(content) if how == "rubbish" else place)
                    file.write(rubbish)
        finally:
            os.kill(server, signal.SIGCONT)


def fault_rounds(directory: Path, home: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    with ExitStack() as stack:
        size = DISK_MB + DISK_MB_PER_ROUND * rounds
        disk = stack.enter_context(small_disk(directory, size)) if can_mount() else None
        place = disk.path if disk is not None else directory
        server = ServerProcess(place / f"faults-{secrets.token_hex(4)}", limits=LIMITS, workers=str(WORKERS))
        server.log = directory / f"{server.data_dir.name}.log"
        server.start()
        stack.callback(server.stop)
        history, faults = History(), Faults(server, chance, disk)
        recipients = [Recipient(server, home, f"recipient-{n}", history) for n in range(RECIPIENTS)]
        names = [one.name for one in recipients]
        senders = [Sender(server, home, f"sender-{n}", history, names) for n in range(SENDERS)]
        people = [*senders, *recipients]
        for person in people:
            stack.callback(person.close)
        for recipient in recipients:
            for sender in senders:
                recipient.client.keys.find(recipient.mailbox, sender.name)
                recipient.mailbox.allowlist.allow(sender.name, datetime.now(UTC))
        back = _strike_again_and_again(server, faults, senders, recipients, rounds)
        expired = asyncio.run(_expired(server))
        verdict = history.check(expired, LEASE)
        print(f"\n{shutil.disk_usage(place).used >> 20:,} MB are used")
        _tell(rounds, seed, back, people, history, verdict, len(expired))
        assert verdict.violations == [], "\n".join(verdict.violations)
        # What was opened just before its end, and acknowledged only after it, has expired all the same.
        _check_receipts(server, senders, {one.handing.replay_key for one in history.openings} - expired)
        _verify_audit(server)


def _strike_again_and_again(
    server: ServerProcess, faults: Faults, senders: list[Sender], recipients: list[Recipient], rounds: int
) -> dict[str, list[float]]:
    """Faults while mail goes on, then rest until all has arrived; how long after each fault service was back."""
    people: list[Person] = [*senders, *recipients]
    back: dict[str, list[float]] = {kind: [] for kind in faults.kinds}
    stop_sending, stop_receiving = threading.Event(), threading.Event()
    sending, receiving = [one.begin(stop_sending) for one in senders], [one.begin(stop_receiving) for one in recipients]
    try:
        kinds = list(faults.kinds)
        for number in range(rounds):
            time.sleep(faults.chance.uniform(0.2, 0.7))
            kind = kinds[number % len(kinds)]
            history, began = people[0].history, time.time()
            history.remarks.append((began, f"{kind} began"))
            faults.kinds[kind]()
            history.remarks.append((time.time(), f"{kind} was over"))
            if kind in DEATHS:
                history.deaths.append((began, time.time()))
            back[kind].append(_until_served_again(server, kind, people))
        stop_sending.set()
        for thread in sending:
            thread.join(60)
        server.wait_until_healthy(server.start_url, 30)
        for sender in senders:
            sender.finish()
        _drained(server, senders[0].history, people)
    finally:
        stop_sending.set()
        stop_receiving.set()
        for thread in (*sending, *receiving):
            thread.join(60)
    _raise_failures(people)
    return back


def _until_served_again(server: ServerProcess, kind: str, people: list[Person]) -> float:
    """Service is back, without an operator, when mail of every sender is taken and every recipient's poll answered."""
    began = time.time()
    while any(person.served < began for person in people):
        _raise_failures(people)
        if time.time() > began + 45:
            log = server.log.read_text()[-3000:]
            raise AssertionError(f"no service after {kind}: {[dict(one.answers) for one in people]}\n{log}")
        time.sleep(0.02)
    return time.time() - began


def _drained(server: ServerProcess, history: History, people: list[Person]) -> None:
    """Until everything that was taken was opened or has ended. Leases of nobody run out meanwhile, and what
    was opened and not acknowledged comes again until the server has heard of it."""
    deadline = time.monotonic() + 60
    while True:
        missing = history.acknowledged.keys() - {one.handing.replay_key for one in history.openings}
        waiting = asyncio.run(_asked(server, "SELECT replay_key FROM envelopes"))
        if not waiting and missing <= asyncio.run(_expired(server)):
            return
        _raise_failures(people)
        assert time.monotonic() < deadline, f"{len(missing)} never arrived, {len(waiting)} wait to be acknowledged"
        time.sleep(0.5)


def _raise_failures(people: list[Person]) -> None:
    for person in people:
        if person.failure is not None:
            raise AssertionError(f"{person.name} failed") from person.failure


async def _asked(server: ServerProcess, statement: str) -> list[asyncpg.Record]:
    runtime = read_runtime(server.data_dir)
    assert runtime is not None
    connection = await asyncpg.connect(runtime.database_url)
    try:
        rows: list[asyncpg.Record] = await connection.fetch(statement)
        return rows
    finally:
        await connection.close()


async def _expired(server: ServerProcess) -> set[str]:
    rows = await _asked(server, "SELECT replay_key FROM delivery_receipts WHERE status = 'expired'")
    return {row["replay_key"].hex() for row in rows}


def _check_receipts(server: ServerProcess, senders: list[Sender], delivered: set[str]) -> None:
    """Each message has the receipt that it should, and its sender believes it."""
    wrong = asyncio.run(
        _asked(
            server,
            "SELECT status, attested_by, delivered_at, acknowledged_at FROM delivery_receipts WHERE status <> 'expired'"
            " AND (status <> 'delivered' OR attested_by <> 'recipient' OR delivered_at IS NULL"
            " OR acknowledged_at IS NULL OR receipt_wire IS NULL OR delivery_attempts < 1)",
        )
    )
    assert wrong == [], "every receipt is signed by its recipient and has its times"
    for sender in senders:
        assert sender.client.mail.update_outbox(sender.mailbox).doubts == []
        states = {row.replay_key: row.status for row in sender.outbox()}
        assert {states[key] for key in sender.taken & delivered} <= {OutboxStatus.DELIVERED, OutboxStatus.READ}, (
            Counter(states.values())
        )


def _verify_audit(server: ServerProcess) -> None:
    command = (Path(sys.executable).parent / "angelia", "audit", "verify", "--url", server.start_url)
    environ = os.environ | {"ANGELIA_DATA_DIR": str(server.data_dir)}
    said = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


def _tell(
    rounds: int,
    seed: int,
    back: dict[str, list[float]],
    people: list[Person],
    history: History,
    verdict: Verdict,
    expired: int,
) -> None:
    again = sum(one.again for one in people if isinstance(one, Recipient))
    answers = sum((person.answers for person in people), Counter[str]())
    times = {
        kind: f"{sorted(found)[len(found) // 2]:.1f} s, at most {max(found):.1f} s"
        for kind, found in back.items()
        if found
    }
    print(
        f"\n{rounds} faults (seed {seed}): {len(history.acknowledged):,} acknowledged sends, {len(history.openings):,}"
        f" opened, {expired} expired, {again} came again and were not shown, {verdict.redelivered} passed after a lost"
        f" answer, {verdict.after_failed_polls} of them only by a poll that was answered with an error;"
        f" refusals meanwhile {dict(answers)}; service was back after (median, most) {times}"
    )


@pytest.mark.timeout(240)
def test_acknowledged_mail_survives_every_fault_in_its_order(disk_directory: Path, tmp_path: Path) -> None:
    fault_rounds(disk_directory, tmp_path, rounds=9, seed=random.SystemRandom().randrange(10**6))


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_acknowledged_mail_survives_three_hundred_faults_in_its_order(disk_directory: Path, tmp_path: Path) -> None:
    fault_rounds(disk_directory, tmp_path, rounds=300, seed=random.SystemRandom().randrange(10**6))
