"""Acknowledgments: how the work on leased messages ended, and leases that are extended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from angelia.errors import AngeliaError
from angelia.queues import store
from angelia.queues.activity import Activity
from angelia.queues.catalog import Catalog
from angelia.queues.model import Ack, AckResult, Extended, Partition
from angelia.queues.news import News
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, Row, Tx

_MOST_ACKS, _MOST_PARTS = 10_000, 500  # in one statement; each part is a lock
_ERRORS = {"not_found": "Message not found", "lease": "Invalid or expired lease"}


@dataclass(slots=True)
class Part:
    """Acknowledgments of one request for one cursor and one lease. They are settled together: a batch in which all
    messages failed counts as one attempt."""

    partition: Partition
    group_no: int
    lease_id: UUID | None
    numbers: list[int] = field(default_factory=list)  # their places in the request
    acks: list[Ack] = field(default_factory=list)


@dataclass(slots=True)
class Settling:
    """A request's acknowledgments, as the ledger takes them."""

    parts: list[Part]
    now: datetime


class Settlement:
    """Settles messages of consumer groups."""

    def __init__(self, ledger: Ledger, catalog: Catalog, news: News, activity: Activity) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._news = news
        self._activity = activity
        self._commits: GroupCommit[Settling, Sequence[Row]] = GroupCommit(
            ledger.statement, self._commit, weight=_weight, most_weight=_MOST_ACKS
        )

    async def ack(self, acks: Sequence[Ack], now: datetime) -> list[AckResult]:
        """Acknowledges messages. Returns for each whether that was taken; it is durable then."""
        parts = await self.parts_of(acks)
        rows: list[Row] = []
        for begin in range(0, len(parts), _MOST_PARTS):
            rows += await self._commits.submit(Settling(parts[begin : begin + _MOST_PARTS], now))
        if await self.groups_changed(parts, rows):
            return await self.ack(acks, now)
        self.count(parts, rows)
        return results_of(acks, parts, rows)

    async def groups_changed(self, parts: Sequence[Part], rows: Sequence[Row]) -> bool:
        """Whether a consumer group none of whose messages were found was deleted and made anew. What was settled for
        others is settled: to acknowledge it again changes nothing."""
        changed = False
        for part, row in zip(parts, rows, strict=True):
            if _unknown(part, row):
                queue, name = part.partition.queue, part.acks[0].group
                self._catalog.forget_group(queue.name, name)
                changed = changed or await self._catalog.group(queue, name) not in (None, part.group_no)
        return changed

    async def parts_of(self, acks: Sequence[Ack]) -> list[Part]:
        """Acknowledgments by cursor and lease. Those of unknown partitions and consumer groups are in none."""
        partitions = await self._catalog.by_id({ack.partition_id for ack in acks})
        parts: dict[tuple[int, str, UUID | None], Part] = {}
        for number, ack in enumerate(acks):
            partition = partitions.get(ack.partition_id)
            if partition is None:
                continue
            key = (partition.partition_no, ack.group, ack.lease_id)
            part = parts.get(key)
            if part is None:
                group_no = await self._catalog.group(partition.queue, ack.group)
                if group_no is None:
                    continue
                part = parts[key] = Part(partition, group_no, ack.lease_id)
            part.numbers.append(number)
            part.acks.append(ack)
        return list(parts.values())

    def count(self, parts: Sequence[Part], rows: Sequence[Row]) -> None:
        """Counts what was settled."""
        for part, row in zip(parts, rows, strict=True):
            refused = set(row["refused"] or ())
            taken = [ack.status for at, ack in enumerate(part.acks, 1) if at not in refused]
            completed, failed = taken.count("completed"), taken.count("failed")
            self._activity.settled(part.partition.queue.queue_no, completed, failed, len(row["dead"] or ()))

    async def tell(self, parts: Iterable[Part], rows: Iterable[Row]) -> None:
        """Tells consumers of partitions with further messages whose lease ended."""
        await self._news.tell(part.partition for part, row in zip(parts, rows, strict=True) if row["more"])

    async def extend(self, lease_id: UUID, seconds: int | None, now: datetime) -> Extended:
        """Extends a lease in all its partitions, by the lease time of their queue for None."""
        async with self._ledger.statement() as tx:
            row = await store.extend(tx, now, lease_id, seconds)
        if row["renewed"]:
            return Extended(row["renewed"], row["until"])
        return Extended(0, error="Lease already expired" if row["known"] else "Lease not found")

    async def close(self) -> None:
        await self._commits.close()

    async def _commit(self, tx: Tx, batch: Sequence[Settling]) -> list[Sequence[Row] | AngeliaError]:
        """Settles messages of several requests. They are committed when the statement returns, so consumers are told
        then: once for all, and before any request is answered."""
        parts = [part for one in batch for part in one.parts]
        rows = await settle(tx, parts, max(one.now for one in batch))
        await self.tell(parts, rows)
        results: list[Sequence[Row] | AngeliaError] = []
        for one in batch:
            results.append(rows[: len(one.parts)])
            rows = rows[len(one.parts) :]
        return results


async def settle(tx: Tx, parts: Sequence[Part], now: datetime) -> Sequence[Row]:
    """Settles messages in one call. Returns a row about each part."""
    acks = [ack for part in parts for ack in part.acks]
    plain = all(ack.status == "completed" for ack in acks)
    return await store.ack(
        tx,
        now,
        [part.partition.partition_no for part in parts],
        [part.group_no for part in parts],
        [part.lease_id for part in parts],
        [len(part.acks) for part in parts],
        [ack.transaction_id for ack in acks],
        None if plain else [ack.status for ack in acks],
        None if plain else [ack.error for ack in acks],
    )


def results_of(acks: Sequence[Ack], parts: Sequence[Part], rows: Sequence[Row]) -> list[AckResult]:
    """What became of each acknowledgment of a request, in order."""
    results: list[AckResult | None] = [None] * len(acks)
    for part, row in zip(parts, rows, strict=True):
        refused = dict(zip(row["refused"] or (), row["refusals"] or (), strict=True))
        dead, released = set(row["dead"] or ()), row["released"]
        queue, partition = part.partition.queue.name, part.partition.name
        for at, (number, ack) in enumerate(zip(part.numbers, part.acks, strict=True), 1):
            error = _ERRORS[refused[at]] if at in refused else None
            results[number] = AckResult(
                error is None, ack.transaction_id, error, queue, partition, released, at in dead
            )
    unknown = _ERRORS["not_found"]
    return [one or AckResult(False, ack.transaction_id, unknown) for ack, one in zip(acks, results, strict=True)]


def _unknown(part: Part, row: Row) -> bool:
    """Whether none of the messages was found."""
    return row["refusals"] is not None and row["refusals"].count("not_found") == len(part.acks)


def _weight(one: Settling) -> int:
    return sum(len(part.acks) + _MOST_ACKS // _MOST_PARTS for part in one.parts)
