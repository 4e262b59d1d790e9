"""Weeks of pushes, pops and ticks in any order: a message is delivered once, in order, until its time is over."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from angelia.queues.model import PushItem
from angelia.queues.slice import QueuesSlice
from angelia.stores.ledger import Ledger
from queue_storage import DAY, HOUR, NOON, QueueStorage

OPTIONS = {
    "kept": {},
    "short": {"retentionEnabled": True, "retentionSeconds": 86_400},
    "done": {"retentionEnabled": True, "completedRetentionSeconds": 6 * 3600},
    "brief": {"retentionEnabled": True, "retentionSeconds": 3 * 86_400, "maxWaitTimeSeconds": 7200},
}
PARTITIONS = ("Default", "p")


@dataclass
class Told:
    """What a plain program knows of a partition: names and times of its messages, and three positions."""

    names: list[str] = field(default_factory=list)
    times: list[datetime] = field(default_factory=list)
    floor: int = 0
    cursor: int = 0
    evicted: set[int] = field(default_factory=set)
    consumed: set[int] = field(default_factory=set)

    def older(self, than: datetime) -> int:
        return sum(1 for at in self.times if at <= than)

    def retain(self, options: dict[str, int], now: datetime) -> None:
        if seconds := options.get("retentionSeconds", 0):
            self.floor = max(self.floor, self.older(now - timedelta(seconds=seconds)))
        if seconds := options.get("completedRetentionSeconds", 0):
            self.floor = max(self.floor, min(self.cursor, self.older(now - timedelta(seconds=seconds))))

    def evict(self, options: dict[str, int], now: datetime) -> None:
        if seconds := options.get("maxWaitTimeSeconds", 0):
            late = set(range(self.floor, self.older(now - timedelta(seconds=seconds))))
            self.evicted |= late - self.consumed

    def pop(self, options: dict[str, int], batch: int, now: datetime) -> list[str]:
        first = max(self.cursor, self.floor)
        if seconds := options.get("maxWaitTimeSeconds", 0):
            first = max(first, self.older(now - timedelta(seconds=seconds)))
        found = self.names[first : first + batch]
        if first < len(self.names) or self.names[max(self.cursor, self.floor) :]:
            self.cursor = first + len(found)
            self.consumed |= set(range(first, self.cursor))
        return found


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_ticks_run_when_messages_are_delivered_once_and_in_order(
    queues: QueuesSlice, ledger: Ledger, seed: int
) -> None:
    drawn, storage = random.Random(seed), QueueStorage(queues, ledger)
    await storage.drop_days()
    for queue, options in OPTIONS.items():
        await storage.configure(queue, **options)
        await storage.configure(queue, partition="p")
    told = {(queue, partition): Told() for queue in OPTIONS for partition in PARTITIONS}
    now, count_of_all = NOON, 0
    for _ in range(250):
        queue, partition = drawn.choice(list(OPTIONS)), drawn.choice(PARTITIONS)
        mine = told[queue, partition]
        now += drawn.choice([timedelta(minutes=1), HOUR, 5 * HOUR])
        match drawn.choice(["push", "push", "push", "again", "pop", "pop", "retain", "evict", "days", "days", "ids"]):
            case "push":
                # Most chunks of a day are of the queue that keeps them for a day only.
                for _ in range(15 if queue == "short" else 1):
                    count = drawn.randint(1, 4)
                    new = [f"{number:05}" for number in range(count_of_all, count_of_all + count)]
                    count_of_all += count
                    await storage.push(queue, new, now, partition)
                    mine.names += new
                    mine.times += [now] * count
            case "again" if mine.names:
                at = drawn.randrange(len(mine.names))
                item = PushItem(queue, partition, transaction_id=mine.names[at])
                (result,) = await queues.pushes.push([item], None, now)
                known = mine.names[at] in mine.names[mine.floor :]
                assert result.status == ("duplicate" if known else "queued")
                if not known:
                    mine.names.append(mine.names[at])
                    mine.times.append(now)
            case "pop":
                batch = drawn.randint(1, 8)
                popped = await storage.pop(queue, now, batch, partition=partition)
                assert popped.names == mine.pop(OPTIONS[queue], batch, now), (queue, partition)
                assert all(await popped.ack(now))
            case "retain":
                await storage.retain(now)
                for (name, _), one in told.items():
                    one.retain(OPTIONS[name], now)
            case "evict":
                await storage.evict(now)
                for (name, _), one in told.items():
                    one.evict(OPTIONS[name], now)
            case "days":
                for _ in range(drawn.choice([1, 3, 100])):
                    if not await storage.days(copied_chunks=3).run(now):
                        break
            case "ids":
                while await storage.upkeep(batch=5).prune_ids(now):
                    pass
        for (name, part), one in told.items():
            assert await storage.floor(name, part) == one.floor, (name, part)
            assert set(await storage.evicted(name, part)) == {at for at in one.evicted if at >= one.floor}
    await storage.keep_days(now + DAY)
    for (queue, partition), one in told.items():
        found = list[str]()
        while names := (popped := await storage.pop(queue, now, 1000, partition=partition)).names:
            await popped.ack(now)
            found += names
        assert found == one.pop(OPTIONS[queue], 1_000_000, now), (queue, partition)
