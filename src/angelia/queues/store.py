"""The SQL statements of the hot path of queues: names, pushes, pops and acknowledgments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from angelia.errors import InvalidArgument
from angelia.queues.model import Options, Partition, Queue
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import statements

SQL = statements(__file__)
_PARTITIONS = 5_000  # that one statement looks at
_MOST_LOCKS = 2_000  # in one transaction


async def queue(tx: Tx, name: str) -> Queue | None:
    row = await tx.fetchrow(SQL["queue"], name)
    return None if row is None else queue_of(row)


async def queues_of(tx: Tx, namespace: str | None, task: str | None) -> list[Queue]:
    return [queue_of(row) for row in await tx.fetch(SQL["queues_of"], namespace, task)]


async def partitions(tx: Tx, names: Sequence[tuple[str, str]]) -> list[Partition]:
    """Those of the partitions, by the names of queue and partition, that exist."""
    rows = await tx.fetch(SQL["partitions"], [name for name, _ in names], [name for _, name in names])
    return [_partition_of(row) for row in rows]


async def partitions_by_id(tx: Tx, ids: Sequence[UUID]) -> list[Partition]:
    return [_partition_of(row) for row in await tx.fetch(SQL["partitions_by_id"], ids)]


async def partitions_by_no(tx: Tx, numbers: Sequence[int]) -> list[Partition]:
    return [_partition_of(row) for row in await tx.fetch(SQL["partitions_by_no"], numbers)]


async def make_queue(tx: Tx, id: UUID, name: str, namespace: str, task: str, now: datetime, options: Options) -> None:
    """Makes a queue, unless it is there."""
    await tx.execute(SQL["make_queue"], id, name, namespace, task, now, msgspec.to_builtins(options))


async def make_partitions(tx: Tx, queue: str, ids: Sequence[UUID], names: Sequence[str], now: datetime) -> None:
    """Makes those partitions of a queue that are not there."""
    await tx.execute(SQL["hold_queue"], queue)
    await tx.execute(SQL["make_partitions"], queue, ids, names, now)


async def lock_queue(tx: Tx, name: str) -> Queue | None:
    row = await tx.fetchrow(SQL["lock_queue"], name)
    return None if row is None else queue_of(row)


async def change_queue(tx: Tx, queue_no: int, namespace: str, task: str, options: dict[str, Any]) -> Queue:
    row = await tx.fetchrow(SQL["change_queue"], queue_no, namespace, task, options)
    assert row is not None, "it is locked"
    return queue_of(row)


async def change_partition(tx: Tx, queue_no: int, name: str, options: dict[str, Any]) -> None:
    await tx.execute(SQL["change_partition"], queue_no, name, options)


async def group(tx: Tx, queue_no: int, name: str) -> int | None:
    found: int | None = await tx.fetchval(SQL["group"], queue_no, name)
    return found


async def make_group(tx: Tx, queue: Queue, name: str, mode: str, from_at: datetime | None, now: datetime) -> int | None:
    """Makes a consumer group that begins with the oldest message (all), with what is pushed from now on (new), or at a
    time. Returns its number; None if it is there already, or the queue is gone."""
    await tx.execute(SQL["hold_queue"], queue.name)
    number: int | None = await tx.fetchval(SQL["make_group"], queue.queue_no, name, mode, from_at, now)
    if number is not None and mode != "all":
        begins = from_at if mode == "time" else None
        after: str | None = ""
        while after is not None:
            after = await tx.fetchval(SQL["begin_group"], queue.queue_no, number, begins, now, after, _PARTITIONS)
    return number


async def expect(tx: Tx, queue: str, group: str, now: datetime) -> None:
    """Notes that a consumer group waits for a queue that does not exist."""
    await tx.execute(SQL["expect"], queue, group, now)


async def was_expected(tx: Tx, queue: str, group: str) -> bool:
    """Whether a consumer group waited for a queue before it existed. It is asked once."""
    return bool(await tx.fetchval(SQL["was_expected"], queue, group))


async def push(tx: Tx, now: datetime, *arrays: Sequence[object] | None) -> Sequence[Row]:
    """Stores chunks; the arrays and the rows are those of the function `queue_push`."""
    return await tx.fetch(SQL["push"], now, *arrays)


async def pop(tx: Tx, now: datetime, *arrays: Sequence[object]) -> Sequence[Row]:
    """Claims messages; the arrays and the rows are those of the function `queue_pop`."""
    return await tx.fetch(SQL["pop"], now, *arrays)


async def pops_are_paused(tx: Tx) -> bool:
    return bool(await tx.fetchval(SQL["pops_are_paused"]))


async def ack(tx: Tx, now: datetime, *arrays: Sequence[object] | None) -> Sequence[Row]:
    """Settles messages; the arrays and the rows are those of the function `queue_ack`."""
    return await tx.fetch(SQL["ack"], now, *arrays)


async def bury(
    tx: Tx, now: datetime, partition: Partition, group_no: int, positions: Sequence[int], errors: Sequence[str]
) -> None:
    """Copies messages to the dead letters of a consumer group."""
    numbers = (partition.queue.queue_no, partition.partition_no, group_no)
    await tx.execute(SQL["bury"], now, *numbers, positions, errors)


async def extend(tx: Tx, now: datetime, lease_id: UUID, seconds: int | None) -> Row:
    """Extends a lease; the columns are those of the function `queue_extend`."""
    row = await tx.fetchrow(SQL["extend"], now, lease_id, seconds)
    assert row is not None, "the function returns one row"
    return row


async def live_leases(
    tx: Tx, leases: Sequence[UUID], others: Sequence[tuple[int, int]], now: datetime
) -> dict[tuple[int, int], UUID]:
    """The leases in force, by partition and consumer group. These cursors, and the others, stay as they are until the
    transaction ends. InvalidArgument if they are more than a transaction should lock."""
    partition_nos, group_nos = [one for one, _ in others], [one for _, one in others]
    if await tx.fetchval(SQL["lock_cursors"], leases, partition_nos, group_nos, _MOST_LOCKS + 1) > _MOST_LOCKS:
        raise InvalidArgument(f"the leases of a transaction cover more than {_MOST_LOCKS:,} partitions")
    rows = await tx.fetch(SQL["live_leases"], leases, now)
    return {(row["partition_no"], row["group_no"]): row["lease_id"] for row in rows}


async def waiting(
    tx: Tx, queue_no: int, group_no: int, partition: str | None, now: datetime, after: str = ""
) -> tuple[list[tuple[int, datetime | None]], str | None]:
    """The partitions, or the one of that name, in which messages wait for a consumer group, and until when each is held
    back. Looks at some partitions after that name; the second value is the last of them, if there may be more."""
    row = await tx.fetchrow(SQL["waiting"], queue_no, group_no, now, partition, after, _PARTITIONS)
    assert row is not None, "it is an aggregate"
    return list(zip(row["partition_nos"] or (), row["untils"] or (), strict=True)), row["last"]


def queue_of(row: Row) -> Queue:
    return Queue(
        queue_no=row["queue_no"],
        queue_id=row["queue_id"],
        name=row["name"],
        namespace=row["namespace"],
        task=row["task"],
        created_at=row["created_at"],
        options=msgspec.convert(row["options"], Options),
        options_version=row["options_version"],
    )


def _partition_of(row: Row) -> Partition:
    return Partition(
        partition_no=row["partition_no"],
        partition_id=row["partition_id"],
        name=row["partition_name"],
        options=msgspec.convert(row["partition_options"], Options),
        queue=queue_of(row),
    )
