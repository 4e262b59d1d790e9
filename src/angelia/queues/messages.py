"""Single messages: listed with their status, shown, deleted, and read without a cursor or lease."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from angelia.audit import service as audit
from angelia.errors import Conflict, InvalidArgument, NotFound
from angelia.queues import dead_letters_store, groups_store, messages_store
from angelia.queues import messages_api as api
from angelia.queues.catalog import Catalog
from angelia.queues.dead_letters_store import LetterFilter, QueueLetter
from angelia.queues.messages_store import MessageFilter as MessageFilter  # routes choose by it
from angelia.queues.messages_store import ReadMessage
from angelia.queues.messages_tail import WaitingTail, WaitingTails
from angelia.queues.model import QUEUE_MODE, Partition, Queue
from angelia.queues.news import News
from angelia.queues.payloads import Payloads
from angelia.queues.stamps import stamp, stamp_or_none
from angelia.stores.ledger import Ledger, Row
from angelia.stores.wake import RECHECK_SECONDS, about_to_wait

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_BYTES = 8 << 20  # of the payloads in one answer
_SPARED_SECONDS = 0.05  # between two looks for news that is about no message: on a busy queue leases end all the time
# A push may be committed after a later one of another partition. So partitions are read again from a while before the
# last message on; of each that has messages in this while, the place is remembered, if they are not too many.
_LATE = timedelta(seconds=10)
_MOST_SEEN = 300


class ReadPlace(msgspec.Struct, frozen=True, array_like=True):
    """How far a reader of a queue is: the time of its last message, and for partitions with messages about that time
    the position behind the last one, with its time."""

    at: datetime = _EPOCH
    seen: dict[int, tuple[int, datetime]] = {}
    late: bool = True  # whether messages that were committed late are found

    @property
    def since(self) -> datetime:
        return self.at - _LATE if self.late and self.at > _EPOCH + _LATE else self.at

    @property
    def positions(self) -> dict[int, int]:
        return {number: position for number, (position, _) in self.seen.items()}

    def text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> ReadPlace:
        try:
            raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
            place = msgspec.msgpack.decode(raw, type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidArgument("`after` is no place that this list gave out") from error
        if place.at.tzinfo is None or any(at.tzinfo is None for _, at in place.seen.values()):
            raise InvalidArgument("`after` is no place that this list gave out")
        return place

    def after(self, seen: dict[int, tuple[int, datetime]]) -> ReadPlace:
        """The place behind further messages: of each partition, the position behind the last, with its time."""
        at = max([self.at, *(time_ for _, time_ in seen.values())])
        recent = {p: place for p, place in (self.seen | seen).items() if place[1] >= at - _LATE}
        if len(recent) <= _MOST_SEEN:
            return ReadPlace(at, recent)
        return ReadPlace(at, {p: place for p, place in recent.items() if place[1] == at}, late=False)


class ShownMessage(msgspec.Struct, frozen=True):
    """A message that was read, its partition, and its payload."""

    message: ReadMessage
    partition: Partition
    data: msgspec.Raw


class QueueMessages:
    """The messages of all queues, one by one."""

    def __init__(self, ledger: Ledger, catalog: Catalog, payloads: Payloads, news: News) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._payloads = payloads
        self._news = news
        self._tails = WaitingTails()
        news.follow(self._tails)

    async def page(self, chosen: MessageFilter, limit: int, offset: int, now: datetime) -> api.MessageEntries:
        """Messages, newest first, with their status."""
        async with self._ledger.reading() as tx:
            rows = await messages_store.page(tx, chosen, limit, offset, now)
            queue_mode, groups = await messages_store.mode(tx, chosen)
        kinds = {(True, True): "hybrid", (True, False): "queue", (False, True): "bus", (False, False): "none"}
        mode = api.ReadersMode(has_queue_mode=queue_mode, bus_groups_count=groups, type=kinds[queue_mode, groups > 0])
        return api.MessageEntries(messages=[api.MessageEntry(**_entry(row)) for row in rows], mode=mode)

    async def show(self, partition_id: UUID, transaction_id: str, now: datetime) -> api.MessageDetails:
        """A message with its payload; if only a dead letter of it is left, that."""
        chosen = LetterFilter(partition_id=partition_id, transaction_id=transaction_id)
        async with self._ledger.reading() as tx:
            found = await messages_store.find(tx, partition_id, transaction_id)
            row = None if found is None else await messages_store.detail(tx, found, now)
            readers = [] if found is None else await messages_store.readers(tx, found, now)
            letters = await dead_letters_store.page(tx, chosen, 1, 0)
        letter = letters[0] if letters else None
        partition = (await self._catalog.by_id([partition_id])).get(partition_id)
        if partition is None or (row is None and letter is None):
            raise NotFound("Message not found")
        if row is not None:
            key_id, shown = row["key_id"], _entry(row)
            payload = await self._payloads.shown(partition, key_id, row["id"], row["body"])
        else:
            assert letter is not None, "one of them is there"
            key_id, shown = letter.key_id, _entry_of_letter(letter, partition)
            payload = await self._payloads.shown(partition, key_id, letter.message_id, letter.body)
        attempts = max((one["attempts"] for one in readers), default=0)
        return api.MessageDetails(
            **shown,
            payload=payload,
            is_encrypted=key_id is not None,
            error_message=None if letter is None else letter.error,
            retry_count=attempts if letter is None else letter.attempts,
            queue_config=msgspec.to_builtins(partition.options),
            consumer_groups=[
                api.MessageReader(
                    name=one["name"], consumed=one["consumed"], lease_expires_at=stamp_or_none(one["lease_until"])
                )
                for one in readers
            ],
        )

    async def delete(self, partition_id: UUID, transaction_id: str, now: datetime, *, by: str = "anonymous") -> None:
        """Deletes a message and its dead letters. NotFound if there is neither; Conflict while it is leased."""
        partition = (await self._catalog.by_id([partition_id])).get(partition_id)
        if partition is None:
            raise NotFound("Message not found")
        chosen = LetterFilter(partition_id=partition_id, transaction_id=transaction_id)
        async with self._ledger.transaction() as tx:
            groups = await groups_store.group_nos(tx, partition.queue.queue_no)
            await groups_store.lock_cursors(tx, [(partition.partition_no, group_no) for group_no in groups])
            found = await messages_store.find(tx, partition_id, transaction_id)
            letters = await dead_letters_store.purge(tx, chosen, 1000)
            if found is None and not letters:
                raise NotFound("Message not found")
            while found is not None:
                if any(row["lease_until"] is not None for row in await messages_store.readers(tx, found, now)):
                    raise Conflict("Message is being processed", hint="wait until its lease ends")
                await messages_store.remove(tx, found, transaction_id)
                found = await messages_store.find(tx, partition_id, transaction_id)  # a copy, or its original
            event = audit.event(
                "queue_message_deleted",
                now,
                actor=by,
                object=partition.queue.name,
                detail={"partition": partition.name, "transaction_id": transaction_id},
            )
            await audit.record(tx, [event])

    async def read(
        self, queue: str, partition: str | None, place: ReadPlace, limit: int, wait: float
    ) -> tuple[list[ShownMessage], ReadPlace]:
        """Messages behind a place, in the order of their times, and the place behind them. Waits for one so many
        seconds. Nothing is leased, and no cursor moves."""
        until = time.monotonic() + wait
        with self._tails.waiting(queue, partition) as tail:
            while True:
                found = await self._queue(queue)  # each time: it may be deleted and made anew meanwhile
                async with self._ledger.reading() as tx:
                    read = await messages_store.after(
                        tx, found.queue_no, partition, place.since, place.positions, limit, _MOST_BYTES
                    )
                if read or time.monotonic() >= until or self._news.stopping:
                    return await self._shown(read), place.after(_places(read))
                about_to_wait()
                await self._until_news(tail, place, min(until, time.monotonic() + RECHECK_SECONDS))

    async def newest(self, queue: str, partition: str | None, count: int) -> tuple[list[ShownMessage], ReadPlace]:
        """The newest messages, in the order of their times, and the place behind them."""
        found = await self._queue(queue)
        async with self._ledger.transaction() as tx:
            await messages_store.one_snapshot(tx)
            read = await messages_store.newest(tx, found.queue_no, partition, max(count, 1), _MOST_BYTES)
            at = read[-1].created_at if read else _EPOCH
            ends = await messages_store.ends(tx, found.queue_no, partition, at - _LATE, _MOST_SEEN + 1)
        place = ReadPlace(at).after({number: (end, time_) for number, end, time_ in ends})
        return await self._shown(read[-count:] if count else []), place

    async def _until_news(self, tail: WaitingTail, place: ReadPlace, until: float) -> None:
        """Waits until a partition has messages behind a place, the server stops, or the time has come. News also tells
        of leases that ended, so only the partitions that it names are looked at."""
        while (left := until - time.monotonic()) > 0 and not self._news.stopping:
            told = await tail.wait(left)
            if told:
                async with self._ledger.lookups() as tx:
                    if await messages_store.any_after(tx, told, place.since, place.positions):
                        return
                await asyncio.sleep(_SPARED_SECONDS)

    async def _queue(self, name: str) -> Queue:
        found = await self._catalog.queue(name)
        if found is None:
            raise NotFound("Queue not found", hint="`angelia queue list` shows all")
        return found

    async def _shown(self, read: Sequence[ReadMessage]) -> list[ShownMessage]:
        partitions = await self._catalog.by_no({one.partition_no for one in read})
        return [
            ShownMessage(one, partition, await self._payloads.shown(partition, one.key_id, one.id, one.body))
            for one in read
            if (partition := partitions.get(one.partition_no)) is not None
        ]


def _entry(row: Row) -> dict[str, Any]:
    """The fields of a message in a list."""
    return {
        "id": row["id"],
        "transaction_id": row["transaction_id"],
        "partition_id": row["partition_id"],
        "queue_path": f"{row['queue']}/{row['partition']}",
        "queue": row["queue"],
        "partition": row["partition"],
        "namespace": row["namespace"],
        "task": row["task"],
        "status": row["status"],
        "queue_status": row["queue_status"],
        "bus_status": api.BusStatus(consumed_by=row["consumed_by"], total_groups=row["total_groups"]),
        "trace_id": row["trace_id"],
        "producer_sub": row["producer"],
        "queue_priority": row["priority"],
        "created_at": stamp(row["created_at"]),
        "lease_expires_at": stamp_or_none(row["lease_until"]),
    }


def _entry_of_letter(letter: QueueLetter, partition: Partition) -> dict[str, Any]:
    """The same of a message that retention has removed."""
    return {
        "id": letter.message_id,
        "transaction_id": letter.transaction_id,
        "partition_id": partition.partition_id,
        "queue_path": f"{partition.queue.name}/{partition.name}",
        "queue": partition.queue.name,
        "partition": partition.name,
        "namespace": partition.queue.namespace,
        "task": partition.queue.task,
        "status": "dead_letter",
        "queue_status": "completed" if letter.group == QUEUE_MODE else None,
        "bus_status": api.BusStatus(
            consumed_by=int(letter.group != QUEUE_MODE), total_groups=int(letter.group != QUEUE_MODE)
        ),
        "trace_id": letter.trace_id,
        "producer_sub": letter.producer,
        "queue_priority": partition.options.priority,
        "created_at": stamp(letter.created_at),
        "lease_expires_at": None,
    }


def _places(read: Sequence[ReadMessage]) -> dict[int, tuple[int, datetime]]:
    return {one.partition_no: (one.position + 1, one.created_at) for one in read}
