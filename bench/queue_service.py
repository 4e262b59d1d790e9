"""Our queues as a side of the benchmarks: the service layer, called in process on the stores of the benchmark, with the
background work of the slice."""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import msgspec

from angelia.api import clock
from angelia.app import Slices
from angelia.keys import master_key
from angelia.keys.node_key import load_or_make
from angelia.queues.model import QUEUE_MODE, Ack, PopRequest, PushItem
from angelia.queues.slice import QueuesSlice
from angelia.settings import Loaded, Settings
from angelia.stores.open_stores import Stores
from angelia.ticker import Ticker
from queue_load import Load, push_all
from queue_peers import IN_FLIGHT_SECONDS, payloads

_LEASED_AT_ONCE = 100


@asynccontextmanager
async def opened(urls: tuple[str, str]) -> AsyncIterator[tuple[Stores, QueuesSlice]]:
    """The slices of one process on running stores, as the application opens them, without background work."""
    database_url, redis_url = urls
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(data_dir=Path(directory), database_url=database_url, redis_url=redis_url)
        master_key.make(Path(directory) / "master.key")
        node = load_or_make(Path(directory) / "node.key")
        loaded = Loaded(settings, {"database_url": "bench", "redis_url": "bench"})
        async with Stores.opened(loaded) as stores, Slices.opened(stores, loaded, node) as slices:
            yield stores, slices.queues
            stores.wake.stop()


@asynccontextmanager
async def service(urls: tuple[str, str]) -> AsyncIterator[QueuesSlice]:
    """The same, with the background work of the queues."""
    async with opened(urls) as (stores, queues), Ticker(stores.ledger, queues.ticks()):
        yield queues


class OurQueue:
    """A queue of so many partitions. A batch goes to one of them, the next batch to the next."""

    _most_partitions = 1  # that a pop claims

    def __init__(self, queues: QueuesSlice, name: str, partitions: int, groups: Sequence[str] = (QUEUE_MODE,)) -> None:
        self._queues = queues
        self.name = name
        self._partitions = itertools.cycle([f"p{number}" for number in range(partitions)])
        self._groups = groups
        self.clock = clock

    @classmethod
    async def made(
        cls, queues: QueuesSlice, partitions: int, groups: int = 1, options: Mapping[str, object] | None = None
    ) -> Self:
        name = f"bench-{uuid.uuid4()}"
        await queues.catalog.configure(name, clock(), {"leaseTime": IN_FLIGHT_SECONDS, **(options or {})})
        names = [QUEUE_MODE] if groups == 1 else [f"group-{number}" for number in range(groups)]
        made = cls(queues, name, partitions, names)
        for number in range(groups):
            await made.take(1, number)  # a group begins with its first pop
        return made

    def batch(self, payloads: Sequence[bytes]) -> list[PushItem]:
        partition = next(self._partitions)
        return [self._item(partition, one) for one in payloads]

    async def push(self, batch: list[PushItem]) -> None:
        results = await self._queues.pushes.push(batch, None, self.clock())
        assert all(one.status == "queued" for one in results), results

    async def take(self, most: int, group: int = 0) -> int:
        request = PopRequest(queue=self.name, group=self._groups[group], batch=most, partitions=self._most_partitions)
        delivery = await self._queues.claims.pop(request, self.clock())
        if delivery is None:
            return 0
        lease = uuid.UUID(delivery.lease_id)
        acks = [
            Ack(
                transaction_id=one.transaction_id,
                partition_id=one.partition.partition_id,
                group=self._groups[group],
                lease_id=lease,
            )
            for one in delivery.messages
        ]
        results = await self._queues.settlement.ack(acks, self.clock())
        assert all(one.success for one in results), results
        return len(results)

    async def skip(self, count: int) -> None:
        """Pops so many messages that need no acknowledgment."""
        while count > 0:
            request = PopRequest(queue=self.name, group=self._groups[0], batch=1_000, auto_ack=True)
            delivery = await self._queues.claims.pop(request, self.clock())
            assert delivery is not None, f"{count} messages are missing"
            count -= len(delivery.messages)

    async def lease(self, count: int) -> None:
        """Leases whole partitions, which belong to no other message."""
        made = payloads(count)
        for at in range(0, count, _LEASED_AT_ONCE):
            partition = f"leased-{at}"
            await self.push([self._item(partition, one) for one in made[at : at + _LEASED_AT_ONCE]])
            for group in self._groups:
                assert await self._leased(partition, group) == min(_LEASED_AT_ONCE, count - at)

    async def _leased(self, partition: str, group: str) -> int:
        request = PopRequest(queue=self.name, partition=partition, group=group, batch=_LEASED_AT_ONCE)
        delivery = await self._queues.claims.pop(request, self.clock())
        return 0 if delivery is None else len(delivery.messages)

    def _item(self, partition: str, payload: bytes) -> PushItem:
        return PushItem(
            queue=self.name, partition=partition, payload=msgspec.Raw(payload), transaction_id=str(uuid.uuid4())
        )


class SpreadQueue(OurQueue):
    """A queue in which each message goes to another partition than the one before, and a pop claims up to a hundred
    partitions."""

    _most_partitions = 100

    def batch(self, payloads: Sequence[bytes]) -> list[PushItem]:
        return [self._item(next(self._partitions), one) for one in payloads]


async def fill(queue: OurQueue, count: int) -> None:
    """Sends so many messages through a queue, by calls of a thousand that need no acknowledgment."""
    load = Load(count // 10, 4, 1_000)
    for _ in range(10):
        await push_all(queue, load)
        await queue.skip(load.count)
