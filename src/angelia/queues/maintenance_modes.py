"""Maintenance: pushes are buffered, and stored in their order when it ends; pops return nothing.

As long as a partition has buffered messages, pushes to it are buffered behind them. Others are stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from angelia.audit import service as audit
from angelia.queues import maintenance_store as store
from angelia.queues.catalog import Catalog
from angelia.queues.maintenance_store import BufferCounts, BufferedMessage, Modes, Place
from angelia.queues.model import CHUNK_BYTES, CHUNK_MESSAGES, ChunkIds, Partition, PushResult
from angelia.queues.news import News
from angelia.queues.payloads import EncryptionUnavailable, Payloads
from angelia.queues.pushing import PushEntry, Pushes, PushSlice, QueueChanged
from angelia.stores.ledger import Ledger, Tx

_AT_ONCE, _BYTES_AT_ONCE = 1_000, 8 << 20  # messages that one transaction stores
_MOST_PARTITIONS = 200  # of which it stores messages: each is a lock
_MOST_CHUNKS = 50  # of a partition in one statement: if it refuses one, all behind it are sent again
_ANSWER_SECONDS = 5.0  # how long a request stores messages; the tick stores the rest
_RETRY = timedelta(seconds=30)
_ROUNDS = 10
_PER_MESSAGE = 100  # bytes that a message takes beside its payload
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenanceState:
    """The modes, and the messages that wait."""

    modes: Modes
    buffered: BufferCounts


@dataclass(slots=True)
class _Waiting:
    """The first buffered messages of a partition, in order. If one is refused, it and those behind it stay there."""

    partition: Partition
    messages: list[BufferedMessage] = field(default_factory=list)
    refused: str | None = None

    @property
    def place(self) -> Place:
        return self.partition.queue.name, self.partition.name

    def refuse_from(self, at: int, error: str) -> None:
        self.messages, self.refused = self.messages[:at], error

    def settle(self, results: Mapping[int, PushResult | None]) -> list[int]:
        """Returns the numbers of messages that leave the buffer: they were stored, or are duplicates. Those without a
        result are to be tried again."""
        left, done = list[BufferedMessage](), list[int]()
        for message in self.messages:
            result = results.get(message.message_no)
            if result is None:
                left.append(message)
            elif result.status == "failed":
                self.refused = result.error or "it cannot be stored"
                break
            else:
                done.append(message.message_no)
        self.messages = left
        return done


class Maintenance:
    """The modes of maintenance, which all processes share."""

    def __init__(self, ledger: Ledger, catalog: Catalog, pushes: Pushes, payloads: Payloads, news: News) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._pushes = pushes
        self._payloads = payloads
        self._news = news
        self._changing = asyncio.Lock()

    async def state(self) -> MaintenanceState:
        async with self._ledger.reading() as tx:
            return MaintenanceState(await store.modes(tx), await store.counts(tx))

    async def pause_pushes(self, now: datetime, *, by: str = "anonymous") -> MaintenanceState:
        async with self._changing, self._ledger.transaction() as tx:
            before = await store.lock_mode(tx)
            await store.pause_pushes(tx)
            if not before.push_paused:
                await _record(tx, "queue_pushes_paused", by, now)
        return await self.state()

    async def resume_pushes(self, now: datetime, *, by: str = "anonymous") -> MaintenanceState:
        """Takes pushes again, and stores what was buffered. If that takes long, the tick goes on with it."""
        async with self._changing, self._ledger.transaction() as tx:
            before = await store.lock_mode(tx)
            await store.take_pushes(tx)
            if before.push_paused:
                await _record(tx, "queue_pushes_resumed", by, now)
        until = time.monotonic() + _ANSWER_SECONDS
        while await self.flush(now) and time.monotonic() < until:
            pass
        return await self.state()

    async def pause_pops(self, now: datetime, *, by: str = "anonymous") -> MaintenanceState:
        async with self._ledger.transaction() as tx:
            if await store.set_pop(tx, paused=True):
                await _record(tx, "queue_pops_paused", by, now)
        return await self.state()

    async def resume_pops(self, now: datetime, *, by: str = "anonymous") -> MaintenanceState:
        async with self._ledger.transaction() as tx:
            if await store.set_pop(tx, paused=False):
                await _record(tx, "queue_pops_resumed", by, now)
        self._news.ring()  # consumers that wait look at the ledger again
        return await self.state()

    async def flush(self, now: datetime) -> bool:
        """Stores buffered messages, unless pushes stay paused. Returns whether more are left to store now."""
        async with self._changing:
            for _ in range(_ROUNDS):
                with suppress(QueueChanged):
                    return await self._flush(now)
        return True

    async def _flush(self, now: datetime) -> bool:
        async with self._ledger.reading() as tx:
            modes = await store.modes(tx)
            places = await store.due(tx, now, _MOST_PARTITIONS)
            found = await store.first_messages(tx, places, _AT_ONCE, _BYTES_AT_ONCE) if places else []
            # The queue of the last messages may have been deleted with them.
            settled = modes.push_resuming == await store.any_buffered(tx)
        if modes.push_paused or (settled and not places):
            return False
        # All that needs another connection comes before the transaction: pushes that wait for its end hold some.
        waiting = await self._waiting(places, found, now)
        async with self._ledger.transaction() as tx:
            if (await store.lock_mode(tx)).push_paused:
                return False
            stored = await self._store(tx, waiting, now)
            await store.take_pushes(tx)
            more = await store.any_due(tx, now)
        if stored:
            await self._pushes.told(stored)
        return more

    async def _waiting(
        self, places: Sequence[Place], found: Sequence[BufferedMessage], now: datetime
    ) -> list[_Waiting]:
        """Messages by partition. Without a key, an encrypted queue takes none that was buffered before it was
        encrypted; those that were encrypted in the buffer need no key."""
        partitions = await self._catalog.made(places, now)
        if len(partitions) < len(places):
            raise QueueChanged
        waiting = {place: _Waiting(partitions[place]) for place in places}
        for one in found:
            waiting[one.queue_name, one.partition_name].messages.append(one)
        plain = {
            one.place: next(at for at, message in enumerate(one.messages) if message.key_id is None)
            for one in waiting.values()
            if one.partition.options.encryption_enabled and any(message.key_id is None for message in one.messages)
        }
        if plain:
            try:
                await self._payloads.ready(now)
            except EncryptionUnavailable as error:
                for place, at in plain.items():
                    waiting[place].refuse_from(at, error.message)
        return list(waiting.values())

    async def _store(self, tx: Tx, waiting: Sequence[_Waiting], now: datetime) -> list[PushSlice]:
        """Stores messages. Returns what was stored. Pushes to partitions that have messages left stay buffered."""
        partitions = [one.partition for one in waiting]
        await store.lock_partitions(tx, partitions)
        await store.lock_sizes(tx, partitions)
        unchanged = await store.unchanged(tx, partitions)
        for partition in partitions:
            if partition.partition_no not in unchanged:
                self._catalog.forget_queue(partition.queue.name)
                raise QueueChanged
        present = await store.present(tx, [message.message_no for one in waiting for message in one.messages])
        for one in waiting:
            one.messages = [message for message in one.messages if message.message_no in present]
        # Only this transaction sees this: partitions with messages left are held back again before the commit.
        await store.release(tx, [one.place for one in waiting])
        stored: list[PushSlice] = []
        done: list[int] = []
        while any(one.messages for one in waiting):
            stored += await self._store_first(tx, waiting, now, done)
        await store.done(tx, done)
        refused = [one for one in waiting if one.refused is not None]
        if refused:
            log.warning("buffered messages cannot be stored", partitions=len(refused), why=refused[0].refused)
        await store.hold_back(
            tx, [(*one.place, now if one.refused is None else now + _RETRY, one.refused) for one in waiting]
        )
        return stored

    async def _store_first(
        self, tx: Tx, waiting: Sequence[_Waiting], now: datetime, done: list[int]
    ) -> list[PushSlice]:
        """Tries to store the next chunks of each partition. Returns those that were stored, and notes the numbers of
        messages that leave the buffer."""
        slices, sent = list[PushSlice](), list[BufferedMessage]()
        for one in waiting:
            follows = None
            for chunk in _chunks(one.messages):
                follows = _slice(one.partition, chunk, len(sent), now, follows)
                slices.append(follows)
                sent += chunk
        results: list[PushResult | None] = [None] * len(sent)
        await self._pushes.stored(tx, slices, results)
        by_number = {message.message_no: result for message, result in zip(sent, results, strict=True)}
        for one in waiting:
            done += one.settle(by_number)
        queued = {number for number, result in enumerate(results) if result is not None and result.status == "queued"}
        return [one for one in slices if one.entries[0].number in queued]


def _chunks(messages: Sequence[BufferedMessage]) -> list[list[BufferedMessage]]:
    """The first messages of a partition as chunks, each of which is stored or refused as a whole."""
    chunks, size, ids = list[list[BufferedMessage]](), 0, set[str]()
    for one in messages:
        size += len(one.body) + _PER_MESSAGE
        if not chunks or size > CHUNK_BYTES or one.transaction_id in ids or not _continues(chunks[-1], one):
            if len(chunks) == _MOST_CHUNKS:
                break
            chunks.append([])
            size, ids = len(one.body) + _PER_MESSAGE, set()
        chunks[-1].append(one)
        ids.add(one.transaction_id)
    return chunks


def _continues(chunk: Sequence[BufferedMessage], one: BufferedMessage) -> bool:
    """Whether a message can be stored as the next one of a chunk."""
    first = chunk[0]
    return (
        len(chunk) < CHUNK_MESSAGES
        and (one.producer, one.key_id) == (first.producer, first.key_id)
        # The ids of a chunk count on, and an encrypted payload is bound to its own.
        and (one.key_id is None or one.message_id.int == first.message_id.int + len(chunk))
    )


def _slice(
    partition: Partition, chunk: Sequence[BufferedMessage], number: int, now: datetime, follows: PushSlice | None
) -> PushSlice:
    """A chunk as it is pushed; its messages have numbers from `number` on."""
    first = chunk[0]
    return PushSlice(
        partition,
        first.producer,
        now,
        [PushEntry(at, one.transaction_id, one.trace_id, one.body) for at, one in enumerate(chunk, number)],
        sum(len(one.body) + _PER_MESSAGE for one in chunk),
        {one.transaction_id for one in chunk},
        follows,
        alone=True,
        sealed=None if first.key_id is None else (first.key_id, ChunkIds(first.message_id)),
    )


async def _record(tx: Tx, event: str, by: str, now: datetime) -> None:
    await audit.record(tx, [audit.event(event, now, actor=by, object="queues")])
