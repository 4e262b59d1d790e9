"""Pops: a consumer claims messages of partitions under a lease, and waits if there are none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from uuid import UUID, uuid4

import msgspec
import structlog

from angelia.errors import AngeliaError
from angelia.keys.master_key import CorruptRecord, KeyRefused
from angelia.queues import store
from angelia.queues.activity import Activity
from angelia.queues.catalog import Catalog
from angelia.queues.model import (
    MOST_PARTITIONS,
    Ack,
    AckStatus,
    ChunkIds,
    Partition,
    PoppedMessage,
    PopRequest,
    Queue,
    QueueDelivery,
)
from angelia.queues.news import News
from angelia.queues.payloads import Payloads
from angelia.queues.readiness import Place, Readiness, Ready, Scope
from angelia.queues.settlement import Settlement
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, Row, Tx
from angelia.stores.wake import RequestTime, about_to_wait

_MOST_CANDIDATES = 64  # partitions that are tried at once, after some turned out to be leased or empty
_CONTENDED_SECONDS = 0.005
_LOOKS = 3
_MOST_TRIES = 1_000
_Lost = tuple[PoppedMessage, UUID]  # a message that cannot be decrypted, and the key that would
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Claim:
    """A request for messages, and the partitions where they may be."""

    request: PopRequest
    now: datetime
    lease_id: UUID
    places: list[tuple[int, int]]  # numbers of partition and consumer group


@dataclass(slots=True)
class _Claimed:
    """Rows of messages by partition, and what was found of each partition that was looked at."""

    messages: list[tuple[int, Row]] = field(default_factory=list)
    found: dict[int, Row] = field(default_factory=dict)
    paused: bool = False
    gone: bool = False


class _PopsPaused(Exception):
    """Pops are answered with nothing, during maintenance"""


class MessageClaims:
    """Hands out messages. A partition is leased to one consumer of a group at a time."""

    def __init__(
        self,
        ledger: Ledger,
        catalog: Catalog,
        payloads: Payloads,
        news: News,
        settlement: Settlement,
        activity: Activity,
    ) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._payloads = payloads
        self._news = news
        self._settlement = settlement
        self._activity = activity
        self._readiness = Readiness()
        self._commits: GroupCommit[_Claim, _Claimed] = GroupCommit(
            ledger.statement, _claim, most=64, weight=lambda claim: len(claim.places), most_weight=MOST_PARTITIONS
        )
        self._undoing: set[asyncio.Task[None]] = set()
        news.follow(self._readiness)

    async def pop(self, request: PopRequest, now: datetime, wait: float = 0.0) -> QueueDelivery | None:
        """Claims messages; None if there are none, also not within `wait` seconds."""
        scope = Scope(request.group, request.queue, request.partition, request.namespace, request.task)
        with self._readiness.used(scope) as ready:
            try:
                return await self._pop(ready, request, now, wait)
            except _PopsPaused:
                return None

    async def _pop(self, ready: Ready, request: PopRequest, now: datetime, wait: float) -> QueueDelivery | None:
        time_ = RequestTime(now)
        delivery = await self._at_once(ready, request, now)
        if delivery is not None or wait <= 0 or self._news.stopping:
            return delivery
        if await self._paused():
            return None
        about_to_wait()
        # Of queues that are made from now on, all messages are new.
        known = frozenset(ready.groups)
        with ready.waiting() as waiter:
            while True:
                at = time_.now()
                if ready.look_is_due() or not self._news.holds(ready.mark):
                    await self._look(ready, request, at, known)
                delivery = await self._attempt(ready, request, at, known)
                left = wait - time_.passed()
                if delivery is not None or left <= 0 or self._news.stopping:
                    return delivery
                await waiter.wait(min(left, ready.pause(at)))

    async def _paused(self) -> bool:
        async with self._ledger.lookups() as tx:
            return await store.pops_are_paused(tx)

    async def _at_once(self, ready: Ready, request: PopRequest, now: datetime) -> QueueDelivery | None:
        """Claims messages that are there: of partitions that this process knows of, then of those that the ledger has,
        if news may be missing here."""
        delivery = None
        if self._news.holds(ready.mark):
            delivery = await self._attempt(ready, request, now)
        for _ in range(_LOOKS):
            if delivery is not None:
                break
            if not self._news.holds(ready.mark) or ready.look_is_due() or not await self._news.caught_up():
                await self._look(ready, request, now)
            delivery = await self._attempt(ready, request, now)
            if self._news.holds(ready.mark):  # else the attempt found that a consumer group or partition was deleted
                break
        return delivery

    async def close(self) -> None:
        await self._commits.close()
        await asyncio.gather(*self._undoing)

    async def _look(
        self, ready: Ready, request: PopRequest, now: datetime, known: frozenset[str] | None = None
    ) -> None:
        """Asks the ledger which partitions have messages. Requests that come meanwhile share the answer."""
        asked_at = time.monotonic()
        async with ready.looking:
            if ready.looked_at > asked_at:
                return
            started, mark = time.monotonic(), await self._news.mark()
            queues = await self._queues(request)
            if not queues and request.queue is not None and request.mode == "new" and request.from_at is None:
                await self._catalog.expect(request.queue, request.group, now)
            for queue in queues:
                group_no = await self._joined(ready, queue, request, now, known)
                if group_no is None:
                    continue
                after: str | None = ""
                while after is not None:
                    async with self._ledger.reading() as tx:
                        waiting, after = await store.waiting(
                            tx, queue.queue_no, group_no, request.partition, now, after
                        )
                    for partition_no, until in waiting:
                        later = until if until is not None and until > now else None
                        ready.add(partition_no, Place(queue.name, queue.options.priority), later)
            ready.looked(mark, started)

    async def _queues(self, request: PopRequest) -> list[Queue]:
        if request.queue is None:
            return await self._catalog.queues_of(request.namespace, request.task)
        queue = await self._catalog.queue(request.queue)
        return [] if queue is None else [queue]

    async def _joined(
        self, ready: Ready, queue: Queue, request: PopRequest, now: datetime, known: frozenset[str] | None
    ) -> int | None:
        """The number of the request's consumer group in a queue. `known` are the queues that existed when the request
        began to wait: of others all messages are new."""
        new = known is not None and queue.name not in known
        mode, from_at = ("all", None) if new else (request.mode, request.from_at)
        group_no = await self._catalog.joined(queue, request.group, mode, from_at, now)
        if group_no is not None:
            ready.groups[queue.name] = group_no
        return group_no

    async def _attempt(
        self, ready: Ready, request: PopRequest, now: datetime, known: frozenset[str] | None = None
    ) -> QueueDelivery | None:
        """Claims messages of the partitions that may have some, until there are enough or no partition is left."""
        for tries in range(_MOST_TRIES):
            taken = ready.take(max(request.partitions, min(tries, _MOST_CANDIDATES)), now)
            if not taken:
                if not await ready.come_back():
                    return None
                continue
            try:
                claimed, delivery = await self._from(ready, request, taken, now, known)
            except BaseException:
                ready.put_back(taken)
                raise
            contended = self._note(ready, taken, claimed, auto_ack=request.auto_ack)
            if claimed.paused:
                raise _PopsPaused
            if delivery is not None:
                return delivery
            if contended:
                await asyncio.sleep(_CONTENDED_SECONDS)
        return None

    async def _from(
        self,
        ready: Ready,
        request: PopRequest,
        taken: dict[int, Place],
        now: datetime,
        known: frozenset[str] | None,
    ) -> tuple[_Claimed, QueueDelivery | None]:
        """Claims messages of these partitions."""
        places = []
        for partition_no, place in taken.items():
            group_no = ready.groups.get(place.queue)
            if group_no is None:
                queue = await self._catalog.queue(place.queue)
                group_no = await self._joined(ready, queue, request, now, known) if queue is not None else None
            if group_no is not None:
                places.append((partition_no, group_no))
        if not places:  # their queues were deleted
            return _Claimed(gone=True), None
        await self._catalog.by_no(taken)  # needed to deliver: if the ledger is away, nothing is claimed
        return await self._served(_Claim(request, now, uuid4(), places))

    async def _served(self, claim: _Claim) -> tuple[_Claimed, QueueDelivery | None]:
        """Claims messages. A caller that hangs up meanwhile gets no lease: what was claimed is given back."""
        serving = asyncio.ensure_future(self._serve(claim))
        try:
            return await asyncio.shield(serving)
        except asyncio.CancelledError:
            undoing = asyncio.create_task(self._undo(claim, serving))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            raise

    async def _serve(self, claim: _Claim) -> tuple[_Claimed, QueueDelivery | None]:
        claimed = await self._commits.submit(claim)
        try:
            delivery = await self._delivery(claim, claimed) if claimed.messages else None
        except AngeliaError:
            if not claim.request.auto_ack:
                await self._give_back(claim, claimed)
            raise
        return claimed, delivery if delivery is not None and delivery.messages else None

    async def _undo(self, claim: _Claim, serving: asyncio.Future[tuple[_Claimed, QueueDelivery | None]]) -> None:
        try:
            claimed, _ = await serving
            if claimed.messages and not claim.request.auto_ack:
                await self._give_back(claim, claimed)
        except AngeliaError as error:
            log.warning("a lease of a caller that hung up stays until it expires", error=error.message)

    async def _give_back(self, claim: _Claim, claimed: _Claimed) -> None:
        """Ends the lease in each partition: one message that is to be tried again ends it."""
        partitions = await self._catalog.by_no(partition_no for partition_no, _ in claimed.messages)
        firsts = dict(reversed(claimed.messages))
        messages = [_messages(partitions[no], row)[0] for no, row in firsts.items() if no in partitions]
        await self._settlement.ack([_ack(claim, message, "retry") for message in messages], claim.now)

    def _note(self, ready: Ready, taken: dict[int, Place], claimed: _Claimed, *, auto_ack: bool) -> bool:
        """Remembers what was found of each partition. Returns whether another transaction was at work on one."""
        contended = False
        ready.put_back({} if claimed.gone else {no: place for no, place in taken.items() if no not in claimed.found})
        for partition_no, row in claimed.found.items():
            place = taken[partition_no]
            match row["outcome"]:
                case "claimed" if auto_ack and row["more"]:
                    ready.add(partition_no, place)
                case "contended":
                    contended = True
                    ready.add(partition_no, place)
                case "gone":
                    self._catalog.forget_queue(place.queue)
                    self._catalog.forget_group(place.queue, ready.scope.group)
                    ready.doubt()
                case _ if row["until"] is not None:
                    ready.add(partition_no, place, row["until"])
        return contended

    async def _delivery(self, claim: _Claim, claimed: _Claimed) -> QueueDelivery:
        """The messages of a claim. One that cannot be decrypted becomes a dead letter."""
        partitions = await self._catalog.by_no(partition_no for partition_no, _ in claimed.messages)
        messages: list[PoppedMessage] = []
        lost: list[_Lost] = []
        for partition_no, row in claimed.messages:
            partition = partitions.get(partition_no)
            if partition is None:  # deleted in this moment
                continue
            of_row = _messages(partition, row)
            waited = (claim.now - row["created_at"]).total_seconds()
            self._activity.popped(partition.queue.queue_no, len(of_row), waited)
            if claim.request.auto_ack:
                self._activity.settled(partition.queue.queue_no, len(of_row), 0, 0)
            if row["key_id"] is not None:
                of_row = await self._opened(claim, partition, row["key_id"], of_row, lost)
            messages += of_row
        if lost:
            await self._bury(claim, lost)
        return QueueDelivery(
            "" if claim.request.auto_ack else str(claim.lease_id),
            claim.request.group,
            messages,
            len(partitions),
            None if claim.request.auto_ack else _lease_seconds(claimed, claim.now),
        )

    async def _opened(
        self, claim: _Claim, partition: Partition, key_id: UUID, sealed: list[PoppedMessage], lost: list[_Lost]
    ) -> list[PoppedMessage]:
        """Messages with their payloads decrypted. A key that cannot be had at the moment is an error, and the lease is
        given back; without a lease the messages become dead letters, since they count as delivered."""
        refused = (CorruptRecord, KeyRefused) if claim.request.auto_ack else CorruptRecord
        try:
            opener = await self._payloads.opener(key_id)
        except refused:
            lost += [(message, key_id) for message in sealed]
            return []
        opened = []
        for message in sealed:
            try:
                message.data = msgspec.Raw(opener.open(partition, message.id, bytes(message.data)))
                opened.append(message)
            except CorruptRecord:
                lost.append((message, key_id))
        return opened

    async def _bury(self, claim: _Claim, lost: Sequence[_Lost]) -> None:
        """Makes dead letters of messages; under a lease they are settled by it."""
        errors = [f"the payload cannot be decrypted by key {key_id}" for _, key_id in lost]
        if not claim.request.auto_ack:
            acks = [_ack(claim, message, "dlq", error) for (message, _), error in zip(lost, errors, strict=True)]
            await self._settlement.ack(acks, claim.now)
            return
        groups = dict(claim.places)
        async with self._ledger.statement() as tx:
            for _, some in groupby(zip(lost, errors, strict=True), key=lambda one: one[0][0].partition.partition_no):
                letters = [(message, error) for (message, _), error in some]
                partition = letters[0][0].partition
                positions, reasons = [one.position for one, _ in letters], [error for _, error in letters]
                await store.bury(tx, claim.now, partition, groups[partition.partition_no], positions, reasons)


def _ack(claim: _Claim, message: PoppedMessage, status: AckStatus, error: str | None = None) -> Ack:
    return Ack(
        transaction_id=message.transaction_id,
        partition_id=message.partition.partition_id,
        group=claim.request.group,
        lease_id=claim.lease_id,
        status=status,
        error=error,
    )


def _lease_seconds(claimed: _Claimed, now: datetime) -> int:
    """How long the lease lasts in all its partitions."""
    ends: list[datetime] = [row["until"] for row in claimed.found.values() if row["outcome"] == "claimed"]
    return int((min(ends) - now).total_seconds())


async def _claim(tx: Tx, claims: Sequence[_Claim]) -> list[_Claimed | AngeliaError]:
    """Claims messages for several requests in one call."""
    candidates = [(number, *place) for number, claim in enumerate(claims, 1) for place in claim.places]
    rows = await store.pop(
        tx,
        max(claim.now for claim in claims),
        [claim.request.batch for claim in claims],
        [claim.request.partitions for claim in claims],
        [claim.request.auto_ack for claim in claims],
        [claim.lease_id for claim in claims],
        [claim.request.consumer for claim in claims],
        [request for request, _, _ in candidates],
        [partition_no for _, partition_no, _ in candidates],
        [group_no for _, _, group_no in candidates],
    )
    results = [_Claimed() for _ in claims]
    for row in rows:
        if row["outcome"] == "paused":
            return [_Claimed(paused=True) for _ in claims]
        number, partition_no, _ = candidates[row["candidate"] - 1]
        if row["outcome"] == "messages":
            results[number - 1].messages.append((partition_no, row))
        else:
            results[number - 1].found[partition_no] = row
    return list(results)


def _messages(partition: Partition, row: Row) -> list[PoppedMessage]:
    """The messages of one chunk that are delivered."""
    _, _, _, _, start, created_at, first_id, number, _, producer, ids, traces, base, ends, body, open_ = row.values()
    chunk_ids, begin = ChunkIds(first_id), 0
    messages = []
    for at, (transaction_id, end) in enumerate(zip(ids, ends, strict=True)):
        end -= base
        messages.append(
            PoppedMessage(
                chunk_ids.text(number + at),
                transaction_id,
                traces[at] if traces else None,
                msgspec.Raw(body[begin:end]),
                producer,
                created_at,
                partition,
                start + at,
            )
        )
        begin = end
    if open_ is None:
        return messages
    return [one for one in messages if any(part.lower <= one.position < part.upper for part in open_)]
