"""Kill or empty anything under load: each consumer group completes every acknowledged push, in order, and no completed
message comes again."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from angelia.runtime_file import Runtime
from server_process import ServerProcess

QUEUE = "orders"
GROUPS = ("__QUEUE_MODE__", "readers")
PARTITIONS = tuple(f"p{number}" for number in range(6))
PRODUCERS, CONSUMERS = 4, 3
LEASE = 2
FAULTS = ("flush", "worker", "valkey", "postgres", "server")
FORGETFUL = {"postgres", "server"}  # a lease need not survive these: it is not flushed to the disk


@dataclass(frozen=True)
class Try:
    """A message that a producer tried to push: its partition, and when it did so first."""

    partition: str
    at: float


@dataclass(frozen=True)
class Batch:
    """Messages of one partition in the answer to a pop."""

    group: str
    partition: str
    ids: tuple[str, ...]
    began: float  # the pop's request
    at: float  # its answer


@dataclass
class History:
    """What the clients saw. Times are of one clock."""

    tries: dict[str, Try] = field(default_factory=dict)  # by transaction id
    acknowledged: dict[str, float] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    completed: dict[tuple[str, str], float] = field(default_factory=dict)  # by group and id: when
    forgotten: list[tuple[float, float]] = field(default_factory=list)  # faults that may forget leases: begin and end
    released: set[tuple[str, str]] = field(default_factory=set)  # group and id: its lease was given back before its end
    in_doubt: set[tuple[str, str]] = field(default_factory=set)  # its consumer died before the answer to its ack came
    answers: Counter[str] = field(default_factory=Counter)

    def missing(self) -> set[tuple[str, str]]:
        """What no consumer completed, nor may have."""
        done = self.completed.keys() | self.in_doubt
        return {(group, id_) for group in GROUPS for id_ in self.acknowledged} - done

    def violations(self) -> list[str]:
        return [*self._invented(), *self._returned(), *self._overtaken(), *self._shared()]

    def _invented(self) -> list[str]:
        return [
            f"{id_} was never pushed to {batch.partition}"
            for batch in self.batches
            for id_ in batch.ids
            if id_ not in self.tries or self.tries[id_].partition != batch.partition
        ]

    def _returned(self) -> list[str]:
        return [
            f"{id_} was completed by {batch.group}, and came again to a pop that began {batch.began - done:.3f} s later"
            for batch in self.batches
            for id_ in batch.ids
            if (done := self.completed.get((batch.group, id_))) is not None and done < batch.began
        ]

    def _overtaken(self) -> list[str]:
        """Messages that were delivered before one of their partition whose push was acknowledged before theirs began:
        each group must have seen the older one before, or in the same answer."""
        wrong = []
        seen: dict[tuple[str, str], set[str]] = defaultdict(set)
        older = {
            partition: sorted(
                (at, id_) for id_, at in self.acknowledged.items() if self.tries[id_].partition == partition
            )
            for partition in PARTITIONS
        }
        for batch in sorted(self.batches, key=lambda one: one.at):
            before = seen[batch.group, batch.partition]
            for id_ in batch.ids:
                before.add(id_)
                tried = self.tries[id_].at if id_ in self.tries else 0.0
                for at, other in older[batch.partition]:
                    if at >= tried:
                        break
                    if other not in before and not self._is_answered_late(batch, other):
                        wrong.append(f"{id_} came to {batch.group} before {other}, pushed before it")
        return wrong

    def _is_answered_late(self, batch: Batch, id_: str) -> bool:
        """Whether the answer with an older message was read after this one, though its pop was the earlier one."""
        return any(
            one.group == batch.group and id_ in one.ids and one.began < batch.at < one.at for one in self.batches
        )

    def _shared(self) -> list[str]:
        """Messages that two consumers of a group had at the same time, though no fault had forgotten the lease."""
        wrong, last = [], dict[tuple[str, str], Batch]()
        for batch in sorted(self.batches, key=lambda one: one.at):
            for id_ in batch.ids:
                before = last.get((batch.group, id_))
                last[batch.group, id_] = batch
                if before is None or (batch.group, id_) in self.released:
                    continue
                if batch.at < before.began + LEASE and not any(
                    since <= batch.at and before.began <= until for since, until in self.forgotten
                ):
                    wrong.append(f"{id_} was delivered to {batch.group} twice within {batch.at - before.began:.2f} s")
        return wrong


class Traffic:
    """Producers and consumers of one queue, which go on whatever happens to the server."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self.url = url
        self.history = History()
        self._chance = chance
        self._stopping = False
        self._consumers: list[asyncio.Task[None]] = []

    async def configure(self) -> None:
        options = {"leaseTime": LEASE, "retryLimit": 1_000_000, "retryDelay": 0}
        async with httpx.AsyncClient(timeout=10) as client:
            answer = await client.post(f"{self.url}/api/v1/configure", json={"queue": QUEUE, "options": options})
        assert answer.status_code == 200, answer.text

    async def produce(self) -> None:
        await asyncio.gather(*(self._produce(f"producer {number}") for number in range(PRODUCERS)))

    def stop_producing(self) -> None:
        self._stopping = True

    def start_consumers(self) -> None:
        self._consumers = [asyncio.create_task(self._consume(group)) for group in GROUPS for _ in range(CONSUMERS)]

    async def kill_consumers(self) -> None:
        """Their connections close, whatever they were doing."""
        for task in self._consumers:
            task.cancel()
        for outcome in await asyncio.gather(*self._consumers, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    def check_consumers(self) -> None:
        for task in self._consumers:
            if task.done():
                task.result()

    async def _produce(self, name: str) -> None:
        async with httpx.AsyncClient(timeout=10) as client:
            number = 0
            while not self._stopping:
                items = []
                for _ in range(self._chance.randint(1, 3)):
                    number += 1
                    id_, partition = f"{name} message {number}", self._chance.choice(PARTITIONS)
                    self.history.tries[id_] = Try(partition, time.monotonic())
                    items.append(
                        {"queue": QUEUE, "partition": partition, "payload": {"n": number}, "transactionId": id_}
                    )
                answers = await self._until_answered(client, "push", {"items": items}, 201)
                assert {one["status"] for one in answers} <= {"queued", "duplicate"}, answers
                for item in items:
                    self.history.acknowledged[item["transactionId"]] = time.monotonic()

    async def _consume(self, group: str) -> None:
        query = {"batch": 5, "partitions": 2, "wait": "true", "timeout": 1000, "consumerGroup": group}
        async with httpx.AsyncClient(timeout=10) as client:
            while True:
                began = time.monotonic()
                try:
                    answer = await client.get(f"{self.url}/api/v1/pop/queue/{QUEUE}", params=query)
                except httpx.TransportError as error:
                    self.history.answers[type(error).__name__] += 1
                    await asyncio.sleep(0.02)
                    continue
                self.history.answers[f"pop {answer.status_code}"] += 1
                if answer.status_code == 200:
                    await self._work(client, group, answer.json()["messages"], began)
                elif answer.status_code != 204:
                    assert answer.status_code >= 500, answer.text
                    await asyncio.sleep(0.05)

    async def _work(self, client: httpx.AsyncClient, group: str, messages: list[dict[str, Any]], began: float) -> None:
        at = time.monotonic()
        by_partition: dict[str, list[str]] = defaultdict(list)
        for one in messages:
            by_partition[one["partition"]].append(one["transactionId"])
        self.history.batches += [Batch(group, name, tuple(ids), began, at) for name, ids in by_partition.items()]
        what = self._chance.random()
        if what < 0.02:
            return  # as if it had died: the lease runs out
        failing = messages[self._chance.randrange(len(messages))] if what < 0.1 else None
        if failing is not None:
            self.history.released.update((group, id_) for id_ in by_partition[failing["partition"]])
        acks = [
            {
                "transactionId": one["transactionId"],
                "partitionId": one["partitionId"],
                "leaseId": one["leaseId"],
                "status": "failed" if one is failing else "completed",
            }
            for one in messages
        ]
        doubts = {(group, ack["transactionId"]) for ack in acks if ack["status"] == "completed"}
        self.history.in_doubt |= doubts
        told = await self._until_answered(client, "ack/batch", {"acknowledgments": acks, "consumerGroup": group}, 200)
        self.history.in_doubt -= doubts
        for ack, answer in zip(acks, told, strict=True):
            assert answer["success"] or answer["error"] == "Invalid or expired lease", answer
            if answer["success"] and ack["status"] == "completed":
                self.history.completed.setdefault((group, ack["transactionId"]), time.monotonic())

    async def _until_answered(self, client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int) -> Any:
        """Repeats a request, as the clients do, until the server has done it."""
        while True:
            try:
                answer = await client.post(f"{self.url}/api/v1/{path}", json=body)
            except httpx.TransportError as error:
                self.history.answers[type(error).__name__] += 1
                await asyncio.sleep(0.02)
                continue
            self.history.answers[f"{path} {answer.status_code}"] += 1
            if answer.status_code == status:
                return answer.json()
            assert answer.status_code >= 500, answer.text
            await asyncio.sleep(0.05)


def strike(server: ServerProcess, runtime: Runtime, fault: str) -> Runtime:
    if fault == "flush":
        with redis.Redis.from_url(runtime.redis_url) as hot:
            hot.flushall()
        return runtime
    server.kill(fault)
    return server.start() if fault == "server" else runtime


async def served_again(traffic: Traffic, fault: str) -> float:
    """Waits until pushes are acknowledged and messages completed again. Returns how long that took."""
    history, began = traffic.history, time.monotonic()
    pushed, completed = len(history.acknowledged), len(history.completed)
    while len(history.acknowledged) < pushed + 10 or len(history.completed) < completed + 10:
        traffic.check_consumers()
        assert time.monotonic() < began + 20, f"no service after {fault}: {history.answers}"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def faults_under_load(directory: Path, faults: list[str], seed: int) -> None:
    chance = random.Random(seed)
    server = ServerProcess(directory / f"queues-{secrets.token_hex(4)}", workers="2")
    runtime = await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.wait_until_healthy, runtime.url)
    traffic = Traffic(runtime.url, chance)
    history = traffic.history
    await traffic.configure()
    traffic.start_consumers()
    producing = asyncio.create_task(traffic.produce())
    back: dict[str, list[float]] = defaultdict(list)
    try:
        for fault in faults:
            await asyncio.sleep(chance.uniform(0.2, 0.6))
            began = time.monotonic()
            if chance.random() < 0.5:
                await traffic.kill_consumers()
                traffic.start_consumers()
            runtime = await asyncio.to_thread(strike, server, runtime, fault)
            traffic.url = runtime.url
            await asyncio.to_thread(server.wait_until_healthy, runtime.url)
            if fault in FORGETFUL:
                history.forgotten.append((began, time.monotonic()))
            back[fault].append(await served_again(traffic, fault))
        traffic.stop_producing()
        await producing
        deadline = time.monotonic() + 60
        while (missing := history.missing()) or not await nothing_waits(runtime.url):
            traffic.check_consumers()
            assert time.monotonic() < deadline, f"{len(missing)} were never completed, such as {sorted(missing)[:5]}"
            await asyncio.sleep(0.05)
        await traffic.kill_consumers()
        assert history.violations() == []
        assert server.stop() == 0
    finally:
        traffic.stop_producing()
        producing.cancel()
        await asyncio.gather(producing, return_exceptions=True)
        await traffic.kill_consumers()
        server.stop()
    deliveries = Counter((batch.group, id_) for batch in history.batches for id_ in batch.ids)
    print(
        f"\n{len(faults)} faults (seed {seed}): {len(history.acknowledged):,} acknowledged messages, each completed by"
        f" {len(GROUPS)} groups in {len(history.batches):,} batches; {sum(n > 1 for n in deliveries.values()):,} were"
        f" delivered again before that; answers {dict(history.answers)}; service was back after at most"
        f" { {fault: f'{max(times):.1f} s' for fault, times in back.items()} }"
    )


async def nothing_waits(url: str) -> bool:
    """Whether the server says so too: each group completed every message that is there."""
    async with httpx.AsyncClient(timeout=30) as client:
        totals = (await client.get(f"{url}/api/v1/resources/queues/{QUEUE}")).json()["totals"]
    assert totals["deadLetter"] == totals["evicted"] == 0
    return bool(totals["completed"] == totals["total"])


def test_the_checker_sees_what_no_server_may_do() -> None:
    group = GROUPS[0]
    history = History(
        tries={"a": Try("p0", 0), "b": Try("p0", 2)},
        acknowledged={"a": 1, "b": 3},
        batches=[Batch(group, "p0", ("b",), 4, 5), Batch(group, "p0", ("a",), 5.5, 5.6)],
    )
    assert history.violations() == [f"b came to {group} before a, pushed before it"]
    history.batches = [Batch(group, "p0", ("a", "b"), 4, 5), Batch(group, "p0", ("a", "b"), 5.2, 5.3)]
    assert len(history.violations()) == 2, "twice within a lease"
    history.forgotten = [(5.0, 5.1)]
    assert history.violations() == []
    history.completed = {(group, "a"): 5.1}
    assert len(history.violations()) == 1, "again after it was completed"
    assert history.missing() == {(group, "b"), (GROUPS[1], "a"), (GROUPS[1], "b")}
    history.batches = [Batch(group, "p1", ("a",), 4, 5), Batch(group, "p0", ("c",), 4, 5)]
    assert len(history.violations()) == 2, "in another partition, and never pushed"


@pytest.mark.timeout(180)
async def test_every_acknowledged_push_is_completed_by_every_group_whatever_is_killed(disk_directory: Path) -> None:
    await faults_under_load(disk_directory, ["valkey", "postgres", "server"], seed=random.randrange(1 << 32))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_a_hundred_faults_lose_no_push_and_repeat_no_completed_message(disk_directory: Path) -> None:
    faults = [FAULTS[number % len(FAULTS)] for number in range(100)]
    await faults_under_load(disk_directory, faults, seed=random.randrange(1 << 32))
