"""Pushes: messages become chunks, which group commit gathers and one function of the ledger stores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from uuid import UUID, uuid4

from angelia.envelope.times import unix_ms
from angelia.errors import AngeliaError, Unavailable
from angelia.queues import store
from angelia.queues.activity import Activity
from angelia.queues.catalog import Catalog
from angelia.queues.maintenance import Buffer
from angelia.queues.model import (
    CHUNK_BYTES,
    CHUNK_MESSAGES,
    ChunkIds,
    Partition,
    PushItem,
    PushResult,
)
from angelia.queues.news import News
from angelia.queues.payloads import EncryptionUnavailable, Payloads
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, Row, Tx

_ROUNDS = 10  # without progress, of a push whose queues change while it goes on
_MOST_BYTES = 32 << 20  # in one statement
_MOST_PARTITIONS = 500  # in one statement
_PER_MESSAGE = 100  # bytes that a message takes beside its payload


@dataclass(slots=True)
class PushEntry:
    """A message on its way into a partition: which of the request's it is, and its contents."""

    number: int
    transaction_id: str
    trace_id: str | None
    payload: bytes


@dataclass(slots=True)
class PushSlice:
    """Messages of one request for one partition, few enough for one chunk."""

    partition: Partition
    producer: str | None
    now: datetime
    entries: list[PushEntry]
    size: int = 0
    transaction_ids: set[str] = field(default_factory=set)
    follows: PushSlice | None = None  # the slice before it, of the same request and partition
    alone: bool = False  # it shares its chunk with no other request
    sealed: tuple[UUID, ChunkIds] | None = None  # payloads are encrypted already: by which key, and bound to which ids


@dataclass(slots=True)
class Outcome:
    """What became of a slice. Stored: the ids of its chunk, and its number in it. Else nothing of it was stored:
    `known` are ids of messages that were there already, `room` is how many of it a full queue still takes."""

    how: str
    ids: ChunkIds | None = None
    begins: int = 0
    known: dict[int, str] = field(default_factory=dict)
    room: int = 0


@dataclass(slots=True)
class _Chunk:
    """Slices that are stored together."""

    slices: list[PushSlice]
    ids: ChunkIds
    count: int = 0
    size: int = 0
    transaction_ids: set[str] = field(default_factory=set)

    def takes(self, one: PushSlice) -> bool:
        first = self.slices[0]
        return (
            not (first.alone or one.alone)
            and first.producer == one.producer
            and first.partition.queue.options_version == one.partition.queue.options_version
            and self.count + len(one.entries) <= CHUNK_MESSAGES
            and self.size + one.size <= CHUNK_BYTES
            # A second message of one transaction id is a duplicate, which only a later chunk finds out.
            and self.transaction_ids.isdisjoint(one.transaction_ids)
        )

    def add(self, one: PushSlice) -> None:
        self.slices.append(one)
        self.grow(one)

    def grow(self, one: PushSlice) -> None:
        self.count += len(one.entries)
        self.size += one.size
        self.transaction_ids |= one.transaction_ids


class QueueChanged(Exception):
    """A queue was changed or deleted while messages were on their way to it"""


class Pushes:
    """Stores messages. A result `queued` means that the message is durable, and pops that begin then see it."""

    def __init__(
        self, ledger: Ledger, catalog: Catalog, payloads: Payloads, news: News, buffer: Buffer, activity: Activity
    ) -> None:
        self._catalog = catalog
        self._payloads = payloads
        self._news = news
        self._buffer = buffer
        self._activity = activity
        self._commits: GroupCommit[list[PushSlice], list[Outcome]] = GroupCommit(
            ledger.statement, self._commit, most_weight=_MOST_BYTES, weight=_weight
        )

    async def push(self, items: Sequence[PushItem], producer: str | None, now: datetime) -> list[PushResult]:
        """Pushes messages to any queues. Returns what became of each, in order."""
        results: list[PushResult | None] = [None] * len(items)
        waiting = _entries(items)
        firsts = _firsts(items, waiting)
        waiting = [entry for entry in waiting if firsts[entry.number] == entry.number]
        alone, tries = False, 0
        while waiting and tries < _ROUNDS:
            left = await self._round(items, waiting, producer, now, results, alone=alone)
            alone, tries = True, 0 if len(left) < len(waiting) else tries + 1
            waiting = left
        if waiting:
            raise Unavailable("queues changed while messages were pushed to them", hint="try again", retry_after=1)
        for number, first in enumerate(firsts):
            if number != first:
                results[number] = _repeated(results[first], items[number])
        return [one for one in results if one is not None]

    async def prepared(
        self, items: Sequence[PushItem], producer: str | None, now: datetime
    ) -> tuple[list[PushSlice], list[PushResult | None]]:
        """Messages of a transaction, ready to be stored; and the results of those that cannot be."""
        results: list[PushResult | None] = [None] * len(items)
        entries = _entries(items)
        for entry, first in zip(entries, _firsts(items, entries), strict=True):
            if entry.number != first:
                results[entry.number] = PushResult("duplicate", entry.transaction_id, items[first].queue)
        single = [entry for entry in entries if results[entry.number] is None]
        slices, missing = await self._placed(items, single, producer, now)
        if missing:
            raise QueueChanged
        return await self._encryptable(slices, results, now), results

    async def stored(self, tx: Tx, slices: list[PushSlice], results: list[PushResult | None]) -> None:
        """Stores messages in a transaction, and notes what became of each; QueueChanged if a queue was changed or
        deleted since they were prepared."""
        for one, outcome in zip(slices, (await self._store(tx, [slices]))[0] if slices else [], strict=True):
            if outcome.how in ("stale", "gone"):
                self._catalog.forget_queue(one.partition.queue.name)
                raise QueueChanged
            if outcome.how == "paused":
                for entry in one.entries:
                    results[entry.number] = _failed(one, entry, "pushes are paused for maintenance")
            else:  # what comes after a slice that was refused has no result, and needs none: nothing is committed
                _settle(one, outcome, results)

    async def told(self, slices: Sequence[PushSlice]) -> None:
        """Counts messages of a transaction that were stored, and tells consumers of them."""
        self._count(slices)
        await self._news.tell(one.partition for one in slices)

    async def close(self) -> None:
        await self._commits.close()

    async def _round(
        self,
        items: Sequence[PushItem],
        waiting: list[PushEntry],
        producer: str | None,
        now: datetime,
        results: list[PushResult | None],
        *,
        alone: bool,
    ) -> list[PushEntry]:
        """Tries to store messages. Returns those that are to be tried again: alone, so that no other push hinders them
        again."""
        slices, again = await self._placed(items, waiting, producer, now)
        for one in slices:
            one.alone = one.alone or alone
        slices = await self._encryptable(slices, results, now)
        if not slices:
            return again
        told: list[PushSlice] = []
        buffered: list[PushSlice] = []
        for one, outcome in zip(slices, await self._submitted(slices), strict=True):
            if outcome.how == "stored":
                told.append(one)
            elif outcome.how in ("stale", "gone"):
                self._catalog.forget_queue(one.partition.queue.name)
            if outcome.how == "paused":
                buffered.append(one)
            else:
                again += _settle(one, outcome, results)
        if buffered:
            kept = await self._buffer.keep(
                [
                    (one.partition, entry.transaction_id, entry.trace_id, entry.payload, producer)
                    for one in buffered
                    for entry in one.entries
                ],
                now,
            )
            for one in buffered:
                if one.partition.partition_no not in kept:
                    self._catalog.forget_queue(one.partition.queue.name)
                    again += one.entries
                    continue
                for entry in one.entries:
                    results[entry.number] = PushResult("buffered", entry.transaction_id, one.partition.queue.name)
            again.sort(key=lambda entry: entry.number)  # also messages that came behind these
        self._count(told)
        return again

    async def _submitted(self, slices: Sequence[PushSlice]) -> list[Outcome]:
        """Stores slices, so many in one commit: each partition is a lock. What follows a refused slice waits."""
        outcomes, refused = list[Outcome](), set[int]()
        for begin in range(0, len(slices), _MOST_PARTITIONS):
            some = slices[begin : begin + _MOST_PARTITIONS]
            waits = [one.partition.partition_no in refused for one in some]
            ready = [one for one, waiting in zip(some, waits, strict=True) if not waiting]
            stored = iter(await self._commits.submit(ready) if ready else [])
            for one, waiting in zip(some, waits, strict=True):
                outcomes.append(Outcome("after") if waiting else next(stored))
                if outcomes[-1].how != "stored":
                    refused.add(one.partition.partition_no)
        return outcomes

    def _count(self, slices: Iterable[PushSlice]) -> None:
        for one in slices:
            self._activity.pushed(one.partition.queue.queue_no, len(one.entries), one.size)

    async def _placed(
        self, items: Sequence[PushItem], entries: Sequence[PushEntry], producer: str | None, now: datetime
    ) -> tuple[list[PushSlice], list[PushEntry]]:
        """Messages by partition, which is made if need be; and those whose partition was deleted in this moment."""
        names = [(items[entry.number].queue, items[entry.number].partition) for entry in entries]
        partitions = await self._catalog.made(names, now)
        placed = [(partitions.get(name), entry) for name, entry in zip(names, entries, strict=True)]
        missing = [entry for partition, entry in placed if partition is None]
        return _slices([(partition, entry) for partition, entry in placed if partition], producer, now), missing

    async def _encryptable(
        self, slices: list[PushSlice], results: list[PushResult | None], now: datetime
    ) -> list[PushSlice]:
        """Slices that can be stored as their queue wants it: of an encrypted queue, none without a key."""
        if not any(one.partition.options.encryption_enabled for one in slices):
            return slices
        try:
            await self._payloads.ready(now)
        except EncryptionUnavailable as error:
            for one in slices:
                if one.partition.options.encryption_enabled:
                    for entry in one.entries:
                        results[entry.number] = _failed(one, entry, error.message)
            return [one for one in slices if not one.partition.options.encryption_enabled]
        return slices

    async def _commit(self, tx: Tx, pushes: Sequence[list[PushSlice]]) -> list[list[Outcome] | AngeliaError]:
        """Stores the slices of several pushes. They are committed when the statement returns, so consumers are told
        once for all of them, before any push is answered."""
        outcomes = await self._store(tx, pushes)
        await self._news.tell(
            one.partition
            for push, told in zip(pushes, outcomes, strict=True)
            for one, outcome in zip(push, told, strict=True)
            # A repeated push may mean that the server that stored the first one died before it told anyone.
            if outcome.how == "stored" or outcome.known
        )
        return list(outcomes)

    async def _store(self, tx: Tx, pushes: Sequence[list[PushSlice]]) -> list[list[Outcome]]:
        """Stores the slices of several pushes, merged into chunks."""
        chunks = _merged(one for push in pushes for one in push)
        now = max(one.now for push in pushes for one in push)
        rows = await store.push(tx, now, *self._arrays(chunks))
        outcomes = _outcomes(chunks, rows)
        return [[outcomes[id(one)] for one in push] for push in pushes]

    def _arrays(self, chunks: Sequence[_Chunk]) -> list[Sequence[object] | None]:
        """The arrays of the function `queue_push`, payloads encrypted where the queue wants it."""
        key_ids, bodies, ends = list[UUID | None](), list[bytes](), list[int]()
        transaction_ids, trace_ids = list[str](), list[str | None]()
        for chunk in chunks:
            partition = chunk.slices[0].partition
            entries = [entry for one in chunk.slices for entry in one.entries]
            payloads, key_id = [entry.payload for entry in entries], None
            sealed = chunk.slices[0].sealed
            if sealed is not None:
                key_id = sealed[0]
            elif partition.options.encryption_enabled:
                key_id, payloads = self._payloads.sealed(partition, chunk.ids, payloads)
            key_ids.append(key_id)
            bodies.append(b"".join(payloads))
            ends += accumulate(map(len, payloads))
            transaction_ids += [entry.transaction_id for entry in entries]
            trace_ids += [entry.trace_id for entry in entries]
        firsts = [chunk.slices[0] for chunk in chunks]
        return [
            [one.partition.queue.queue_no for one in firsts],
            [one.partition.partition_no for one in firsts],
            [one.partition.queue.options_version for one in firsts],
            [chunk.count for chunk in chunks],
            [chunk.ids.first for chunk in chunks],
            key_ids,
            [one.producer for one in firsts],
            bodies,
            transaction_ids,
            ends,
            trace_ids if any(trace_ids) else None,
            _followed(chunks),
        ]


def _entries(items: Sequence[PushItem]) -> list[PushEntry]:
    return [
        PushEntry(number, item.transaction_id or str(uuid4()), item.trace_id, bytes(item.payload))
        for number, item in enumerate(items)
    ]


def _firsts(items: Sequence[PushItem], entries: Sequence[PushEntry]) -> list[int]:
    """For each message of a request the number of the first one with its transaction id in its partition."""
    if len({entry.transaction_id for entry in entries}) == len(entries):
        return list(range(len(entries)))
    seen: dict[tuple[str, str, str], int] = {}
    return [
        seen.setdefault((item.queue, item.partition, entry.transaction_id), entry.number)
        for item, entry in zip(items, entries, strict=True)
    ]


def _slices(entries: Iterable[tuple[Partition, PushEntry]], producer: str | None, now: datetime) -> list[PushSlice]:
    """Messages by partition, in slices that fit into chunks."""
    open_: dict[int, PushSlice] = {}
    slices = []
    for partition, entry in entries:
        size = len(entry.payload) + _PER_MESSAGE
        one = open_.get(partition.partition_no)
        if one is None or len(one.entries) >= CHUNK_MESSAGES or one.size + size > CHUNK_BYTES:
            one = open_[partition.partition_no] = PushSlice(
                partition, producer, now, [], follows=one, alone=one is not None
            )
            slices.append(one)
        one.entries.append(entry)
        one.transaction_ids.add(entry.transaction_id)
        one.size += size
    return slices


def _merged(slices: Iterable[PushSlice]) -> list[_Chunk]:
    """Chunks of slices. Those of one partition stay in their order."""
    open_: dict[int, _Chunk] = {}
    chunks = []
    for one in slices:
        number = one.partition.partition_no
        chunk = open_.get(number)
        if chunk is not None and chunk.takes(one):
            chunk.add(one)
            continue
        ids = ChunkIds.made(unix_ms(one.now), os.urandom(10)) if one.sealed is None else one.sealed[1]
        chunk = open_[number] = _Chunk([one], ids)
        chunk.grow(one)
        chunks.append(chunk)
    return chunks


def _followed(chunks: Sequence[_Chunk]) -> list[int] | None:
    """For each chunk the number of the one that it follows, from 1 on, or 0; None if none follows another."""
    if all(chunk.slices[0].follows is None for chunk in chunks):
        return None
    numbers = {id(one): number for number, chunk in enumerate(chunks, 1) for one in chunk.slices}
    return [numbers.get(id(chunk.slices[0].follows), 0) for chunk in chunks]


def _outcomes(chunks: Sequence[_Chunk], rows: Sequence[Row]) -> dict[int, Outcome]:
    """The outcome of each slice, by its identity, from the rows about chunks."""
    about: dict[int, list[Row]] = {}
    for row in rows:
        about.setdefault(row["chunk"] - 1, []).append(row)
    outcomes = {}
    for number, chunk in enumerate(chunks):
        told, begins = about[number], 0
        how = told[0]["outcome"]
        known = dict[int, str]()
        for row in told:
            if row["message"] is not None:  # the first message of an id comes first, before one that was put back
                known.setdefault(row["message"] - 1, ChunkIds(row["first_id"]).text(row["number"]))
        for one in chunk.slices:
            ends = begins + len(one.entries)
            outcomes[id(one)] = Outcome(
                how,
                chunk.ids,
                begins,
                {at - begins: id_ for at, id_ in known.items() if begins <= at < ends},
                max(0, min(len(one.entries), (told[0]["number"] or 0) - begins)) if how == "full" else 0,
            )
            begins = ends
    return outcomes


def _settle(one: PushSlice, outcome: Outcome, results: list[PushResult | None]) -> list[PushEntry]:
    """Notes the results of a slice. Returns the messages that are to be tried again."""
    if outcome.how == "stored":
        assert outcome.ids is not None, "a stored chunk has ids"
        partition_id, queue = str(one.partition.partition_id), one.partition.queue.name
        for number, entry in enumerate(one.entries, outcome.begins):
            id_ = outcome.ids.text(number)
            results[entry.number] = PushResult("queued", entry.transaction_id, queue, id_, partition_id, entry.trace_id)
        return []
    if outcome.how == "full":
        for entry in one.entries[outcome.room :]:
            results[entry.number] = _failed(one, entry, f"Queue {one.partition.queue.name} is at max capacity")
        return one.entries[: outcome.room]
    for at, id_ in outcome.known.items():
        entry = one.entries[at]
        results[entry.number] = PushResult("duplicate", entry.transaction_id, one.partition.queue.name, id_)
    return [entry for at, entry in enumerate(one.entries) if at not in outcome.known]


def _failed(one: PushSlice, entry: PushEntry, error: str) -> PushResult:
    return PushResult("failed", entry.transaction_id, one.partition.queue.name, trace_id=entry.trace_id, error=error)


def _repeated(first: PushResult | None, item: PushItem) -> PushResult:
    """The result of a message whose transaction id another one of the same request has."""
    assert first is not None, "all firsts have results"
    if first.status == "failed":
        return first
    return PushResult("duplicate", first.transaction_id, item.queue, first.message_id)


def _weight(slices: list[PushSlice]) -> int:
    return sum(one.size + _MOST_BYTES // _MOST_PARTITIONS for one in slices)
