"""Maintenance: pushes are buffered, and stored in their order before pushes are taken again; pops return nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
import structlog

from angelia.audit import service as audit
from angelia.keys.master_key import CorruptRecord
from angelia.queues import maintenance_store as store
from angelia.queues.catalog import Catalog
from angelia.queues.maintenance_store import BufferCounts, BufferedMessage, Modes
from angelia.queues.model import CHUNK_BYTES, CHUNK_MESSAGES, PushItem
from angelia.queues.news import News
from angelia.queues.payloads import Payloads
from angelia.queues.pushing import Pushes, PushSlice, QueueChanged
from angelia.stores.ledger import Ledger, Tx

_AT_ONCE, _BYTES_AT_ONCE = 1_000, 8 << 20  # messages that one transaction stores
_ANSWER_SECONDS = 5.0  # how long a request stores messages; the tick stores the rest
_RETRY = timedelta(seconds=30)
_ROUNDS = 10
_PER_MESSAGE = 200  # bytes that a message takes beside its payload, at most
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenanceState:
    """The modes, and the messages that wait."""

    modes: Modes
    buffered: BufferCounts


@dataclass(frozen=True, slots=True)
class _Opened:
    """A buffered message, and what is pushed; None if its payload cannot be decrypted."""

    message: BufferedMessage
    item: PushItem | None

    @property
    def place(self) -> tuple[str, str]:
        return self.message.queue_name, self.message.partition_name


@dataclass(slots=True)
class _Portion:
    """Messages of one partition and producer that make one chunk, and so are stored or refused together."""

    messages: list[_Opened]
    size: int
    is_open: bool = True
    transaction_ids: set[str] = field(default_factory=set)

    def takes(self, one: _Opened) -> bool:
        """Whether a message belongs to it. One that does not ends it, since a partition keeps its order."""
        self.is_open = (
            self.is_open
            and one.message.producer == self.messages[0].message.producer
            and one.message.transaction_id not in self.transaction_ids
            and len(self.messages) < CHUNK_MESSAGES
            and self.size + len(one.message.body) + _PER_MESSAGE <= CHUNK_BYTES
        )
        return self.is_open

    def add(self, one: _Opened) -> None:
        self.messages.append(one)
        self.size += len(one.message.body) + _PER_MESSAGE
        self.transaction_ids.add(one.message.transaction_id)


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
            await store.set_push(tx, paused=True, resuming=False)
            if not before.push_paused:
                await _record(tx, "queue_pushes_paused", by, now)
        return await self.state()

    async def resume_pushes(self, now: datetime, *, by: str = "anonymous") -> MaintenanceState:
        """Stores what was buffered, then takes pushes again. If that takes long, the tick goes on with it."""
        async with self._changing, self._ledger.transaction() as tx:
            before = await store.lock_mode(tx)
            if before.push_paused:
                await store.set_push(tx, paused=True, resuming=True)
            if before.push_paused and not before.push_resuming:
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
            found = await store.due(tx, now, _AT_ONCE, _BYTES_AT_ONCE)
        if not modes.push_resuming and (modes.push_paused or not found):
            return False
        # All that needs another connection comes before the transaction: pushes that wait for its end hold some.
        opened = await self._opened(found, now)
        async with self._ledger.transaction() as tx:
            modes = await store.lock_mode(tx)
            if modes.push_paused and not modes.push_resuming:
                return False
            if modes.push_paused:
                # Only this transaction sees this. If more is left, it is taken back before the commit.
                await store.set_push(tx, paused=False, resuming=False)
            present = await store.present(tx, [one.message_no for one in found])
            stored = await self._store(tx, [one for one in opened if one.message.message_no in present], now)
            more = await store.any_due(tx, now)
            if modes.push_paused and more:
                await store.set_push(tx, paused=True, resuming=True)
        if stored:
            await self._pushes.told(stored)
        return more

    async def _opened(self, found: Sequence[BufferedMessage], now: datetime) -> list[_Opened]:
        """Messages with their payloads decrypted."""
        partitions = await self._catalog.made({(one.queue_name, one.partition_name) for one in found}, now)
        if any(one.options.encryption_enabled for one in partitions.values()):
            await self._payloads.ready(now)
        opened = []
        for one in found:
            partition, payload = partitions.get((one.queue_name, one.partition_name)), one.body
            if partition is None:
                raise QueueChanged
            item = None
            with suppress(CorruptRecord):
                if one.key_id is not None:
                    opener = await self._payloads.opener(one.key_id)
                    payload = opener.open(partition, str(one.message_id), payload)
                names = (one.queue_name, one.partition_name)
                item = PushItem(*names, msgspec.Raw(payload), one.transaction_id, one.trace_id)
            opened.append(_Opened(one, item))
        return opened

    async def _store(self, tx: Tx, waiting: Sequence[_Opened], now: datetime) -> list[PushSlice]:
        """Stores messages. Returns what was stored. A partition of which a message cannot be stored waits from there
        on."""
        refused: dict[tuple[str, str], str | None] = {}
        stored: list[PushSlice] = []
        done: list[int] = []
        while waiting:
            portions, waiting = _portions(waiting, refused)
            for portion in portions:
                stored += await self._store_portion(tx, portion.messages, now, refused, done)
        await store.done(tx, done)
        if refused:
            log.warning("buffered messages cannot be stored", partitions=len(refused), why=next(iter(refused.values())))
            await store.hold_back(tx, [(*place, error) for place, error in refused.items()], now + _RETRY)
        return stored

    async def _store_portion(
        self,
        tx: Tx,
        messages: list[_Opened],
        now: datetime,
        refused: dict[tuple[str, str], str | None],
        done: list[int],
    ) -> list[PushSlice]:
        """Stores the messages of a portion: those that are no duplicates, and as many as the queue has room for."""
        stored: list[PushSlice] = []
        while messages:
            items = [one.item for one in messages if one.item is not None]
            slices, results = await self._pushes.prepared(items, messages[0].message.producer, now)
            await self._pushes.stored(tx, slices, results)
            again = []
            for one, result in zip(messages, results, strict=True):
                if result is None:
                    again.append(one)
                elif result.status == "failed":
                    refused.setdefault(one.place, result.error)
                else:
                    done.append(one.message.message_no)
            if any(result is not None and result.status == "queued" for result in results):
                stored += slices
            messages = again
        return stored


def _portions(
    waiting: Sequence[_Opened], refused: dict[tuple[str, str], str | None]
) -> tuple[list[_Portion], list[_Opened]]:
    """One portion of each partition, and the messages that come after them."""
    portions: dict[tuple[str, str], _Portion] = {}
    later = []
    for one in waiting:
        if one.item is None:
            refused.setdefault(one.place, f"the payload cannot be decrypted by key {one.message.key_id}")
        if one.place in refused:
            continue
        portion = portions.get(one.place)
        if portion is None:
            portion = portions[one.place] = _Portion([], 0)
        elif not portion.takes(one):
            later.append(one)
            continue
        portion.add(one)
    return list(portions.values()), later


async def _record(tx: Tx, event: str, by: str, now: datetime) -> None:
    await audit.record(tx, [audit.event(event, now, actor=by, object="queues")])
