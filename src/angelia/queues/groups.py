"""Consumer groups are moved and deleted; queues are emptied and deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from angelia.audit import service as audit
from angelia.audit.model import Detail
from angelia.errors import NotFound
from angelia.queues import groups_store, maintenance_store, store
from angelia.queues.catalog import Catalog
from angelia.queues.groups_store import Cursor, CursorMove, GroupRow, LetterPlace
from angelia.queues.model import Queue, check_name
from angelia.queues.news import News
from angelia.stores.ledger import Ledger, Tx

# What one transaction locks: PostgreSQL has room for some thousand locks of all transactions together.
_PARTITIONS_AT_ONCE = 200
_CURSORS_AT_ONCE = 2_000
_LETTERS_AT_ONCE = 1_000  # dead letters that one transaction looks at; each may have megabytes


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    """What a deletion removed: the group's places in partitions, and its dead letters."""

    partitions: int = 0
    dead_letters: int = 0

    def __add__(self, other: DeletedGroup) -> DeletedGroup:
        return DeletedGroup(self.partitions + other.partitions, self.dead_letters + other.dead_letters)


class ConsumerGroups:
    """The consumer groups of all queues. What many partitions need is done in several transactions."""

    def __init__(self, ledger: Ledger, catalog: Catalog, news: News) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._news = news

    async def seek(
        self,
        group: str,
        queue: str,
        to: datetime | None,
        now: datetime,
        *,
        partition: str | None = None,
        by: str = "anonymous",
    ) -> CursorMove:
        """Moves a consumer group to the first message after a time, or to the end for None. Its leases end. A group
        that no consumer has used yet begins there."""
        check_name(group, "consumerGroup")
        found = await self._queue(queue)
        moves: list[CursorMove] = []

        async def move(tx: Tx, numbers: list[int]) -> None:
            group_no = await store.group(tx, found.queue_no, group)
            if group_no is None:
                group_no = await store.make_group(tx, found, group, "all", None, now)
                if group_no is None:
                    raise NotFound("Queue not found")
                if partition is None:
                    begins = ("new", now) if to is None else ("time", to)
                    await groups_store.set_subscription(tx, group_no, *begins)
            await groups_store.lock_cursors(tx, [(number, group_no) for number in numbers])
            if not moves:
                where: Detail = {"group": group, "to": "end" if to is None else to.isoformat(), "partition": partition}
                await _record(tx, "queue_group_moved", found, where, by, now)
            moves.append(await groups_store.move_cursors(tx, numbers, group_no, to, now))

        await self._in_batches(found, partition, move)
        self._catalog.forget_group(found.name, group)
        await self._news.changed(found)
        return sum(moves, CursorMove())

    async def count_seek(self, group: str, queue: str, to: datetime | None, partition: str | None = None) -> CursorMove:
        """What a seek would change. A group that no consumer has used yet would read all."""
        found = await self._queue(queue)
        moves: list[CursorMove] = []

        async def count(tx: Tx, numbers: list[int]) -> None:
            group_no = await store.group(tx, found.queue_no, group)
            moves.append(await groups_store.count_moves(tx, numbers, group_no or 0, to))

        await self._in_batches(found, partition, count)
        return sum(moves, CursorMove())

    async def set_subscription(self, group: str, from_at: datetime, now: datetime, *, by: str = "anonymous") -> int:
        """Lets a consumer group begin at a time, in all its queues and in partitions that it has not read yet. Returns
        in how many queues that was."""
        found = await self._of(group)
        for one in found:
            queue = await self._queue(one.queue)

            async def move(tx: Tx, numbers: list[int], group_no: int = one.group_no) -> None:
                await groups_store.lock_cursors(tx, [(number, group_no) for number in numbers])
                await groups_store.move_cursors(tx, numbers, group_no, from_at, now, only_unread=True)

            await self._in_batches(queue, None, move)
            async with self._ledger.transaction() as tx:
                await groups_store.set_subscription(tx, one.group_no, "time", from_at)
                where: Detail = {"group": group, "from": from_at.isoformat()}
                await _record(tx, "queue_group_subscribed", queue, where, by, now)
            await self._news.changed(queue)
        return len(found)

    async def delete(self, group: str, queue: str | None, now: datetime, *, by: str = "anonymous") -> DeletedGroup:
        """Deletes a consumer group, of one queue or of all, with its dead letters. A later pop by its name starts
        anew."""
        deleted = DeletedGroup()
        for one in await self._of(group, queue):
            of = await self._queue(one.queue)
            partitions = 0

            async def forget(tx: Tx, numbers: list[int], group_no: int = one.group_no) -> None:
                nonlocal partitions
                await groups_store.lock_cursors(tx, [(number, group_no) for number in numbers])
                partitions += await groups_store.forget_cursors(tx, numbers, group_no)

            # Before the group: after a crash there is a group that can be deleted again.
            letters = await self._delete_letters(of, one.group_no)
            async with self._ledger.transaction() as tx:
                await groups_store.delete_group(tx, one.group_no)
                what: Detail = {"group": group, "dead_letters": letters}
                await _record(tx, "queue_group_deleted", of, what, by, now)
            # From here on no pop or acknowledgment writes a cursor: each of them looks for the group under the lock.
            await self._in_batches(of, None, forget)
            letters += await self._delete_letters(of, one.group_no)  # those of acknowledgments that came meanwhile
            deleted += DeletedGroup(partitions, letters)
            self._catalog.forget_group(of.name, group)
            await self._news.changed(of)
        return deleted

    async def restart(self, group: str, queue: str | None, now: datetime, *, by: str = "anonymous") -> DeletedGroup:
        """Lets a consumer group, of one queue or of all, begin again where its first pop began."""
        partitions = 0
        for one in await self._of(group, queue):
            of = await self._queue(one.queue)

            async def restart(tx: Tx, numbers: list[int], row: GroupRow = one) -> None:
                nonlocal partitions
                await groups_store.lock_cursors(tx, [(number, row.group_no) for number in numbers])
                partitions += await groups_store.forget_cursors(tx, numbers, row.group_no)
                if row.from_at is not None:
                    await groups_store.move_cursors(tx, numbers, row.group_no, row.from_at, now)

            await self._in_batches(of, None, restart)
            async with self._ledger.transaction() as tx:
                await _record(tx, "queue_group_restarted", of, {"group": group}, by, now)
            await self._news.changed(of)
        return DeletedGroup(partitions)

    async def clear(self, queue: str, partition: str | None, now: datetime, *, by: str = "anonymous") -> int:
        """Removes all messages of a queue, or of one of its partitions, for all consumer groups; dead letters stay.
        Returns how many."""
        found = await self._queue(queue)
        cleared = 0
        numbers: list[int] = []

        async def clear(tx: Tx, page: list[int]) -> None:
            nonlocal cleared
            await groups_store.lock_partitions(tx, page)
            cleared += await groups_store.clear(tx, page)
            numbers.extend(page)

        await self._in_batches(found, partition, clear)
        # The messages are hidden by now. What is left are leases of them, which would hold back what is pushed next.
        for begin in range(0, len(numbers), _PARTITIONS_AT_ONCE):
            await self._leave_hidden(numbers[begin : begin + _PARTITIONS_AT_ONCE], now)
        async with self._ledger.transaction() as tx:
            await _record(tx, "queue_cleared", found, {"partition": partition, "messages": cleared}, by, now)
        await self._news.changed(found)
        return cleared

    async def delete_queue(self, name: str, now: datetime, *, by: str = "anonymous") -> bool:
        """Deletes a queue with all that it has. Returns whether it was there."""
        found = await self._catalog.queue(name)
        if found is None:
            return False
        async with self._ledger.transaction() as tx:
            existed = await groups_store.delete_queue(tx, found.queue_no)
            if existed:
                await maintenance_store.forget_queue(tx, name)
                await _record(tx, "queue_deleted", found, {}, by, now)
        self._catalog.forget_queue(name)
        await self._news.changed(found)
        return existed

    async def _queue(self, name: str) -> Queue:
        found = await self._catalog.queue(name)
        if found is None:
            raise NotFound("Queue not found", hint="`angelia queue list` shows all")
        return found

    async def _of(self, group: str, queue: str | None = None) -> list[GroupRow]:
        async with self._ledger.reading() as tx:
            return await groups_store.groups(tx, group, queue)

    async def _leave_hidden(self, partition_nos: list[int], now: datetime) -> None:
        """Moves cursors over messages that are hidden, and ends their leases."""
        after: Cursor = (0, 0)
        while True:
            async with self._ledger.transaction() as tx:
                cursors = await groups_store.behind_floor(tx, partition_nos, after, _CURSORS_AT_ONCE)
                await groups_store.lock_cursors(tx, cursors)
                await groups_store.move_to_floor(tx, cursors, now)
            if len(cursors) < _CURSORS_AT_ONCE:
                return
            after = cursors[-1]

    async def _delete_letters(self, queue: Queue, group_no: int) -> int:
        """Deletes the dead letters of a consumer group, some in each transaction. Returns how many."""
        deleted = 0
        place: LetterPlace | None = groups_store.NEWEST_LETTER
        while place is not None:
            async with self._ledger.transaction() as tx:
                count, place = await groups_store.delete_letters(tx, queue.queue_no, group_no, place, _LETTERS_AT_ONCE)
            deleted += count
        return deleted

    async def _in_batches(
        self, queue: Queue, partition: str | None, work: Callable[[Tx, list[int]], Awaitable[None]]
    ) -> None:
        """Runs work on all partitions of a queue, or on one, some in each transaction."""
        after = ""
        while True:
            async with self._ledger.transaction() as tx:
                if partition is None:
                    page = await groups_store.partition_page(tx, queue.queue_no, after, _PARTITIONS_AT_ONCE)
                else:
                    page = await groups_store.partition_named(tx, queue.queue_no, partition)
                    if not page:
                        raise NotFound("Partition not found")
                await work(tx, [number for number, _ in page])
            if partition is not None or len(page) < _PARTITIONS_AT_ONCE:
                return
            after = page[-1][1]


async def _record(tx: Tx, event: str, queue: Queue, detail: Detail, by: str, now: datetime) -> None:
    await audit.record(tx, [audit.event(event, now, actor=by, object=queue.name, detail=detail)])
