"""What queues, partitions and consumer groups have, and how far they are. Every figure is counted when it is asked
for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

import msgspec

from angelia.errors import NotFound
from angelia.queues import listings_api as api
from angelia.queues import listings_store as store
from angelia.queues import maintenance_store
from angelia.queues.catalog import Catalog
from angelia.queues.model import Queue
from angelia.queues.stamps import stamp, stamp_or_none
from angelia.stores.ledger import Ledger, Row

R = TypeVar("R", bound=msgspec.Struct)

_SPARED = 10  # all queues are counted again when so many times the duration of the last count has passed
_MOST_AGE = 10.0
_BEHIND_SECONDS, _STUCK_SECONDS = 60, 300
_LAGGING_SECONDS = 300


class QueueState(StrEnum):
    """How a queue is doing."""

    OK = "ok"
    BEHIND = "behind"  # its oldest message waits for more than a minute, and more come in than go out
    STUCK = "stuck"  # messages wait, and none was settled for five minutes
    PAUSED = "paused"  # pops return nothing


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """What an operator looks at first."""

    queue: Row
    state: QueueState
    in_per_second: float
    out_per_second: float
    lag_seconds: int


@dataclass(frozen=True, slots=True)
class _Counted:
    """All queues together, as they were counted."""

    body: api.QueuesOverview
    at: float
    took: float


class Listings:
    """Lists of queues, partitions and consumer groups."""

    def __init__(self, ledger: Ledger, catalog: Catalog) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._counted: _Counted | None = None

    async def queues(self, query: api.QueuesQuery, now: datetime) -> api.QueueEntries:
        async with self._ledger.reading() as tx:
            rows = await store.queues(tx, now, query.search, query.namespace, query.task, query.limit, query.offset)
        entries = [
            _of(api.QueueEntry, row, created_at=stamp(row["created_at"]), messages=_of(api.QueueCounts, row))
            for row in rows
        ]
        return api.QueueEntries(queues=entries)

    async def queue(self, name: str, now: datetime) -> api.QueueDetails:
        queue = await self.existing(name)
        async with self._ledger.reading() as tx:
            rows = await store.partitions(tx, now, name)
        partitions = [_partition(row) for row in rows]
        return api.QueueDetails(
            id=queue.queue_id,
            name=queue.name,
            namespace=queue.namespace,
            task=queue.task,
            created_at=stamp(queue.created_at),
            partitions=partitions,
            totals=_sum([one.stats for one in partitions]),
        )

    async def partitions(self, query: api.PartitionsQuery, now: datetime) -> api.PartitionEntries:
        async with self._ledger.reading() as tx:
            rows = await store.partitions(tx, now, query.queue, query.limit, query.offset)
        return api.PartitionEntries(partitions=[_partition(row) for row in rows])

    async def namespaces(self, now: datetime) -> api.NamespaceEntries:
        async with self._ledger.reading() as tx:
            rows = await store.namespaces(tx, now)
        entries = [_of(api.NamespaceEntry, row, messages=_of(api.ScopeCounts, row)) for row in rows]
        return api.NamespaceEntries(namespaces=entries)

    async def tasks(self, now: datetime) -> api.TaskEntries:
        async with self._ledger.reading() as tx:
            rows = await store.tasks(tx, now)
        return api.TaskEntries(tasks=[_of(api.TaskEntry, row, messages=_of(api.ScopeCounts, row)) for row in rows])

    async def overview(self, now: datetime) -> api.QueuesOverview:
        """All queues together. With many partitions that is work, so a count is used for a while; its age is said."""
        known = self._counted
        age = 0.0 if known is None else time.monotonic() - known.at
        if known is None or age > min(_MOST_AGE, _SPARED * known.took):
            known, age = await self._count(now), 0.0
        return msgspec.structs.replace(known.body, stats_age=round(age, 3))

    async def refresh(self, now: datetime) -> None:
        """Counts all queues again."""
        await self._count(now)

    async def depth(self, name: str, group: str) -> api.QueueDepth:
        """What a consumer group has still to consume."""
        await self.existing(name)
        async with self._ledger.reading() as tx:
            rows = await store.depth(tx, name, group)
        pending = sum(row["pending"] for row in rows)
        return api.QueueDepth(
            queue=name,
            group=group,
            pending=pending,
            partitions_pending=len(rows),
            conflation=False,
            effective_pending=pending,
            partitions=[_of(api.PartitionDepth, row) for row in rows],
        )

    async def groups(self, now: datetime, queue: str | None = None) -> list[api.GroupEntry]:
        """Consumer groups, one entry for each and its queue."""
        async with self._ledger.reading() as tx:
            rows = await store.groups(tx, now, queue)
        return [
            _of(
                api.GroupEntry,
                row,
                topics=[row["queue_name"]],
                state=_group_state(row),
                subscription_mode="timestamp" if row["mode"] == "time" else row["mode"],
                subscription_timestamp=stamp_or_none(row["from_at"]),
                subscription_created_at=stamp(row["created_at"]),
            )
            for row in rows
        ]

    async def lagging(self, seconds: int, now: datetime) -> list[api.LaggingPartition]:
        """Partitions whose oldest message that waits for a consumer group is so old, the oldest first."""
        async with self._ledger.reading() as tx:
            rows = await store.group_partitions(tx, now, behind=seconds)
        return [
            api.LaggingPartition(
                consumer_group=row["group_name"],
                queue_name=row["queue_name"],
                partition_name=row["partition_name"],
                partition_id=row["partition_id"],
                worker_id=row["worker"],
                offset_lag=row["lag"],
                time_lag_seconds=row["seconds"],
                lag_hours=round(row["seconds"] / 3600, 2),
                oldest_unconsumed_at=stamp_or_none(row["oldest_at"]),
                last_consumed_at=stamp_or_none(row["consumed_at"]),
            )
            for row in rows
        ]

    async def group(self, name: str, now: datetime, queue: str | None = None) -> dict[str, api.GroupPartitions]:
        """How far a consumer group is, by queue and partition."""
        async with self._ledger.reading() as tx:
            rows = await store.group_partitions(tx, now, group=name, queue=queue)
        by_queue: dict[str, list[api.GroupPartition]] = {}
        for row in sorted(rows, key=lambda row: (row["queue_name"], row["partition_name"])):
            by_queue.setdefault(row["queue_name"], []).append(
                api.GroupPartition(
                    partition=row["partition_name"],
                    worker_id=row["worker"],
                    lease_active=row["leased"],
                    lease_expires_at=stamp_or_none(row["lease_until"]),
                    offset_lag=row["lag"],
                    time_lag_seconds=row["seconds"],
                    total_consumed=row["consumed"],
                    last_consumed_at=stamp_or_none(row["consumed_at"]),
                )
            )
        return {queue: api.GroupPartitions(partitions=partitions) for queue, partitions in by_queue.items()}

    async def group_exists(self, name: str) -> bool:
        async with self._ledger.reading() as tx:
            return await store.group_exists(tx, name)

    async def overviews(
        self,
        now: datetime,
        *,
        after: str | None = None,
        prefix: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        name: str | None = None,
        limit: int = 1,
    ) -> list[QueueOverview]:
        """Queues by name, with their states and rates."""
        since = _rates_since(now)
        async with self._ledger.reading() as tx:
            modes = await maintenance_store.modes(tx)
            rows = await store.overviews(
                tx, now, since, after=after, prefix=prefix, namespace=namespace, task=task, name=name, limit=limit
            )
        return [_overview(row, now, since, paused=modes.pop_paused) for row in rows]

    async def count(self, prefix: str | None, namespace: str | None, task: str | None) -> int:
        async with self._ledger.reading() as tx:
            return await store.count_queues(tx, prefix, namespace, task)

    async def existing(self, name: str) -> Queue:
        """A queue; NotFound if there is none of that name."""
        found = await self._catalog.queue(name)
        if found is None:
            raise NotFound("Queue not found", hint="`angelia queue list` shows all")
        return found

    async def _count(self, now: datetime) -> _Counted:
        began = time.monotonic()
        since = _rates_since(now)
        async with self._ledger.reading() as tx:
            totals = await store.totals(tx, now)
            lags = await store.lags(tx, now)
            pushed, settled = await store.rates(tx, since)
        seconds = (now - since).total_seconds()
        body = _of(
            api.QueuesOverview,
            totals,
            messages=_of(api.MessageFigures, totals),
            lag=api.LagSpread(time=_spread(lags, "time"), offset=_spread(lags, "offset")),
            throughput=api.ThroughputNow(
                ingested_per_second=round(pushed / seconds, 2), processed_per_second=round(settled / seconds, 2)
            ),
            stats_age=0.0,
            timestamp=stamp(now),
        )
        ended = time.monotonic()
        self._counted = counted = _Counted(body, ended, ended - began)
        return counted


def _rates_since(now: datetime) -> datetime:
    """Rates are counted over the present minute and the one before."""
    return now.replace(second=0, microsecond=0) - timedelta(minutes=1)


def _overview(row: Row, now: datetime, since: datetime, *, paused: bool) -> QueueOverview:
    seconds = (now - since).total_seconds()
    into, out = row["pushed"] / seconds, row["settled"] / seconds
    lag = 0 if row["oldest_at"] is None else max(0, int((now - row["oldest_at"]).total_seconds()))
    if paused:
        state = QueueState.PAUSED
    elif lag >= _STUCK_SECONDS and row["recently_settled"] == 0:
        state = QueueState.STUCK
    elif lag > _BEHIND_SECONDS and into >= out:
        state = QueueState.BEHIND
    else:
        state = QueueState.OK
    return QueueOverview(row, state, round(into, 1), round(out, 1), lag)


def _group_state(row: Row) -> str:
    if row["max_time_lag"] > _LAGGING_SECONDS:
        return "Lagging"
    return "Stable" if row["consumed"] or row["members"] else "Dead"


def _partition(row: Row) -> api.PartitionEntry:
    return _of(
        api.PartitionEntry,
        row,
        created_at=stamp(row["created_at"]),
        stats=_of(api.MessageFigures, row),
        oldest_message=stamp_or_none(row["oldest_message"]),
        newest_message=stamp_or_none(row["newest_message"]),
    )


def _spread(row: Row, what: str) -> api.Spread:
    return api.Spread(**{name: round(row[f"{what}_{name}"], 3) for name in ("avg", "max", "min", "median")})


def _sum(figures: Sequence[api.MessageFigures]) -> api.MessageFigures:
    names = api.MessageFigures.__struct_fields__
    return api.MessageFigures(**{name: sum(getattr(one, name) for one in figures) for name in names})


def _of(kind: type[R], row: Row, **given: object) -> R:
    """A record of the columns that are named like its fields, and of what is given."""
    names = [name for name in kind.__struct_fields__ if name not in given]
    return kind(**{name: row[name] for name in names}, **given)
