"""Dead letters of queues: listed, put back, purged; and messages that an operator gives up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.audit import service as audit
from angelia.audit.model import Detail
from angelia.errors import Conflict, NotFound, Unavailable
from angelia.queues import dead_letters_store, groups_store, messages_store, store
from angelia.queues import messages_api as api
from angelia.queues.catalog import Catalog
from angelia.queues.dead_letters_store import LetterFilter as LetterFilter  # routes choose by it
from angelia.queues.dead_letters_store import QueueLetter
from angelia.queues.model import QUEUE_MODE, Ack, ChunkIds, Partition
from angelia.queues.news import News
from angelia.queues.payloads import Payloads
from angelia.queues.settlement import Part, Settlement, results_of, settle
from angelia.queues.stamps import stamp
from angelia.stores.ledger import Ledger, Tx

_AT_ONCE = 500
_ROUNDS = 10
_REFUSALS = {
    "paused": ("pushes are paused for maintenance", "end maintenance first"),
    "full": ("the queue is at max capacity", "put fewer back at a time, or raise maxSize"),
}
_MOVED = "moved to the dead letters by an operator"


class _Stale(Exception):
    """A queue was configured while its letters were put back."""


class QueueDeadLetters:
    """The dead letters of all queues. Each belongs to a consumer group."""

    def __init__(
        self, ledger: Ledger, catalog: Catalog, payloads: Payloads, settlement: Settlement, news: News
    ) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._payloads = payloads
        self._settlement = settlement
        self._news = news

    async def page(self, chosen: LetterFilter, limit: int, offset: int) -> tuple[list[api.LetterEntry], int]:
        """A page of dead letters with their payloads, newest first, and how many there are in all. A payload that
        cannot be decrypted is null."""
        async with self._ledger.reading() as tx:
            letters = await dead_letters_store.page(tx, chosen, limit, offset)
            total = await dead_letters_store.count(tx, chosen)
        partitions = await self._catalog.by_no({one.partition_no for one in letters if one.key_id is not None})
        found = [
            _entry(
                one,
                await self._payloads.shown(partitions.get(one.partition_no), one.key_id, one.message_id, one.body),
            )
            for one in letters
        ]
        return found, total

    async def count(self, chosen: LetterFilter) -> int:
        async with self._ledger.reading() as tx:
            return await dead_letters_store.count(tx, chosen)

    async def retry(self, partition_id: UUID, transaction_id: str, now: datetime, *, by: str = "anonymous") -> int:
        """Puts the dead letters of a message back at the end of its partition, for their consumer groups only. Returns
        how many; NotFound if there are none."""
        chosen = LetterFilter(partition_id=partition_id, transaction_id=transaction_id)
        count = await self.requeue(chosen, now, by=by)
        if not count:
            raise NotFound("Message not found", hint="it is no dead letter")
        return count

    async def requeue(self, chosen: LetterFilter, now: datetime, *, by: str = "anonymous") -> int:
        """Puts dead letters back. Returns how many."""
        # What fails again while this goes on is not put back a second time.
        chosen = replace(chosen, until=now if chosen.until is None else min(now, chosen.until))
        done = 0
        while True:
            count = await self._requeue_some(chosen, now, by)
            done += count
            if count < _AT_ONCE:
                return done

    async def purge(self, chosen: LetterFilter, now: datetime, *, by: str = "anonymous") -> int:
        """Deletes dead letters for good. Returns how many."""
        chosen = replace(chosen, until=now if chosen.until is None else min(now, chosen.until))
        done = 0
        while True:
            async with self._ledger.transaction() as tx:
                count = await dead_letters_store.purge(tx, chosen, _AT_ONCE)
                if count:
                    await _record(tx, "queue_dead_letters_purged", chosen, count, by, now)
            done += count
            if count < _AT_ONCE:
                return done

    async def give_up(self, partition_id: UUID, transaction_id: str, now: datetime, *, by: str = "anonymous") -> None:
        """Moves a message that waits to the dead letters of all consumer groups that have still to consume it; of a
        queue that no consumer has read yet, of the group without a name."""
        partition = (await self._catalog.by_id([partition_id])).get(partition_id)
        if partition is None:
            raise NotFound("Message not found")
        async with self._ledger.transaction() as tx:
            locked = await self._lock_readers(tx, partition, now)
            found = await messages_store.find(tx, partition_id, transaction_id)
            if found is None:
                raise NotFound("Message not found")
            if any(row["lease_until"] is not None for row in await messages_store.readers(tx, found, now)):
                raise Conflict("Message is being processed", hint="wait until its lease ends")
            groups = [one for one in await messages_store.open_for(tx, found) if one[0] in locked]
            if not groups:
                raise Conflict("Message is not pending")
            acks = [
                Ack(transaction_id=transaction_id, partition_id=partition_id, group=name, status="dlq", error=_MOVED)
                for _, name in groups
            ]
            parts = [
                Part(partition, group_no, None, [number], [ack])
                for number, ((group_no, _), ack) in enumerate(zip(groups, acks, strict=True))
            ]
            rows = await settle(tx, parts, now)
            for result in results_of(acks, parts, rows):
                if not result.success:
                    raise Conflict(result.error or "Message is not pending")
            detail: Detail = {"transaction_id": transaction_id, "groups": len(groups)}
            event = audit.event("queue_message_given_up", now, actor=by, object=partition.queue.name, detail=detail)
            await audit.record(tx, [event])
        self._settlement.count(parts, rows)
        await self._settlement.tell(parts, rows)

    async def prune(self, now: datetime) -> bool:
        """Forgets put-back copies that are gone. Returns whether more may be left."""
        async with self._ledger.transaction() as tx:
            return await dead_letters_store.prune_marks(tx, _AT_ONCE) == _AT_ONCE

    async def _requeue_some(self, chosen: LetterFilter, now: datetime, by: str) -> int:
        for _ in range(_ROUNDS):
            try:
                async with self._ledger.transaction() as tx:
                    letters = await dead_letters_store.take(tx, chosen, _AT_ONCE)
                    if not letters:
                        return 0
                    numbers = list({one.partition_no for one in letters})
                    partitions = {one.partition_no: one for one in await store.partitions_by_no(tx, numbers)}
                    await self._put_back(tx, letters, partitions, now)
                    await _record(tx, "queue_dead_letters_requeued", chosen, len(letters), by, now)
            except _Stale:
                continue
            await self._news.tell(partitions.values())
            return len(letters)
        raise Unavailable("the queue changed while its dead letters were put back", hint="try again", retry_after=1)

    async def _put_back(
        self, tx: Tx, letters: Sequence[QueueLetter], partitions: dict[int, Partition], now: datetime
    ) -> None:
        plain = [one for one in letters if one.key_id is None]
        if any(partitions[one.partition_no].options.encryption_enabled for one in plain):
            await self._payloads.ready(now)
        sealed = [self._sealed(one, partitions[one.partition_no]) for one in letters]
        outcomes = set(await dead_letters_store.put_back(tx, letters, sealed, now)) - {"stored"}
        for outcome, (refusal, hint) in _REFUSALS.items():
            if outcome in outcomes:
                raise Conflict(refusal, hint=hint)
        if outcomes:
            raise _Stale

    def _sealed(self, letter: QueueLetter, partition: Partition) -> tuple[UUID | None, bytes]:
        """The key id and the body of a copy. It has the id of the original, to which an encrypted body is bound."""
        if letter.key_id is not None or not partition.options.encryption_enabled:
            return letter.key_id, letter.body
        key_id, (body,) = self._payloads.sealed(partition, ChunkIds(letter.message_id), [letter.body])
        return key_id, body

    async def _lock_readers(self, tx: Tx, partition: Partition, now: datetime) -> set[int]:
        """Keeps all consumer groups from a partition until the transaction ends, and returns their numbers. A queue
        without any gets the one without a name."""
        group_nos = await groups_store.group_nos(tx, partition.queue.queue_no)
        if not group_nos:
            await store.make_group(tx, partition.queue, QUEUE_MODE, "all", None, now)
            group_nos = await groups_store.group_nos(tx, partition.queue.queue_no)
        await groups_store.lock_cursors(tx, [(partition.partition_no, group_no) for group_no in group_nos])
        return set(group_nos)


def error_pattern(glob: str | None) -> str | None:
    """A text with `*` and `?` as a pattern of LIKE."""
    if not glob:
        return None
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%").replace("?", "_")


def _entry(one: QueueLetter, data: msgspec.Raw) -> api.LetterEntry:
    return api.LetterEntry(
        id=one.message_id,
        transaction_id=one.transaction_id,
        trace_id=one.trace_id,
        partition_id=one.partition_id,
        queue=one.queue,
        partition=one.partition,
        consumer_group=one.group,
        error_message=one.error,
        retry_count=one.attempts,
        data=data,
        producer_sub=one.producer,
        created_at=stamp(one.created_at),
        failed_at=stamp(one.failed_at),
    )


async def _record(tx: Tx, event: str, chosen: LetterFilter, count: int, by: str, now: datetime) -> None:
    detail: Detail = {
        "count": count,
        "partition": chosen.partition,
        "group": chosen.group,
        "error": chosen.error,
        "transaction_id": chosen.transaction_id,
    }
    name = chosen.queue or (str(chosen.partition_id) if chosen.partition_id else None)
    await audit.record(tx, [audit.event(event, now, actor=by, object=name, detail=detail)])
