"""The SQL statements about dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "dead_letters.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which dead letters are meant. `error` is a pattern of LIKE."""

    queue: str | None = None
    partition: str | None = None
    group: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    transaction_id: str | None = None
    partition_id: UUID | None = None

    def values(self) -> tuple[object, ...]:
        names = (self.queue, self.partition, self.group)
        return (*names, self.since, self.until, self.error, self.transaction_id, self.partition_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLetter:
    """A message that a consumer group gave up. Its body is encrypted if there is a key id."""

    letter_no: int
    queue_no: int
    partition_no: int
    partition_id: UUID
    queue: str
    partition: str
    group: str
    position: int
    message_id: UUID
    transaction_id: str
    trace_id: str | None
    producer: str | None
    key_id: UUID | None
    body: bytes
    error: str
    attempts: int
    created_at: datetime
    failed_at: datetime
    group_no: int = 0
    options_version: int = 0


async def page(tx: Tx, chosen: LetterFilter, limit: int, offset: int) -> list[QueueLetter]:
    """Dead letters, newest first."""
    return [record_of(QueueLetter, row) for row in await tx.fetch(SQL["page"], *chosen.values(), limit, offset)]


async def count(tx: Tx, chosen: LetterFilter) -> int:
    return int(await tx.fetchval(SQL["count"], *chosen.values()))


async def take(tx: Tx, chosen: LetterFilter, most: int) -> list[QueueLetter]:
    """Removes dead letters, at most so many, and returns them in the order in which they failed."""
    letters = [record_of(QueueLetter, row) for row in await tx.fetch(SQL["take"], *chosen.values(), most)]
    return sorted(letters, key=lambda one: one.letter_no)


async def purge(tx: Tx, chosen: LetterFilter, most: int) -> int:
    """Deletes dead letters, at most so many, and returns how many."""
    return int((await tx.execute(SQL["purge"], *chosen.values(), most)).rpartition(" ")[2])


async def put_back(
    tx: Tx, letters: Sequence[QueueLetter], sealed: Sequence[tuple[UUID | None, bytes]], now: datetime
) -> list[str]:
    """Stores copies at the end of their partitions, each for its consumer group only; `sealed` are key ids and bodies.
    Returns the outcomes of `queue_push`."""
    rows = await tx.fetch(
        SQL["put_back"],
        now,
        [one.queue_no for one in letters],
        [one.partition_no for one in letters],
        [one.options_version for one in letters],
        [1] * len(letters),
        [one.message_id for one in letters],
        [key_id for key_id, _ in sealed],
        [one.producer for one in letters],
        [body for _, body in sealed],
        [one.transaction_id for one in letters],
        [len(body) for _, body in sealed],
        [one.trace_id for one in letters],
        [one.group_no for one in letters],
    )
    await tx.execute(
        SQL["mark"],
        [one.partition_no for one in letters],
        [one.transaction_id for one in letters],
        [one.group_no for one in letters],
    )
    return [row["outcome"] for row in rows]


async def prune_marks(tx: Tx, most: int) -> int:
    """Forgets where copies are of which the message is gone, at most so many. Returns how many."""
    return int((await tx.execute(SQL["prune_marks"], most)).rpartition(" ")[2])
