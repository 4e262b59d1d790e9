"""The background work of rooms, in small batches: removes what has expired, and packs the index of words."""

from __future__ import annotations

from datetime import datetime

import structlog

from angelia import metrics
from angelia.envelope.times import unix_ms
from angelia.rooms import store, word_index_store
from angelia.rooms.dms import DirectMessages
from angelia.rooms.word_index_store import BLOCK_BITS, CLASS_BITS, PART_MESSAGES
from angelia.stores.ledger import Ledger

_ROOMS_AT_ONCE, _ENTRIES_AT_ONCE = 20, 200
_DMS_AT_ONCE = 1_000
_WORDS_AT_ONCE = 5_000
log = structlog.get_logger(__name__)


class RoomTicks:
    """Sweeps rooms and inboxes."""

    def __init__(self, ledger: Ledger, dms: DirectMessages) -> None:
        self._ledger = ledger
        self._dms = dms

    async def sweep(self, now: datetime) -> bool:
        """Removes expired entries of some rooms. Returns whether more may wait."""
        now_ms, more = unix_ms(now), False
        async with self._ledger.transaction() as tx:
            due = await store.due_rooms(tx, now_ms, _ROOMS_AT_ONCE)
            for room in due:
                entries, messages = await store.sweep(tx, room, now_ms, _ENTRIES_AT_ONCE)
                more = more or entries == _ENTRIES_AT_ONCE
                if room.archive and messages:
                    log.warning(
                        "messages waited a week for the archive and are gone", room=str(room.room_id), messages=messages
                    )
                metrics.ROOM_ENTRIES_SWEPT.inc(entries)
        return more or len(due) == _ROOMS_AT_ONCE

    async def pack_words(self, now: datetime) -> bool:
        """Packs messages that wait for it into the index of words, merges parts of it, or removes what has expired: one
        of them, in a transaction of its own. Returns whether there may be more to do."""
        async with self._ledger.reading() as tx:
            waiting = await word_index_store.waiting(tx)
        # A block that a later one of its class follows gets no more messages.
        newest = {block >> (CLASS_BITS - BLOCK_BITS): block for block, _ in waiting}.values()
        due = [block for block, count in waiting if count >= PART_MESSAGES or block not in newest]
        async with self._ledger.transaction() as tx:
            if due:
                await word_index_store.pack(tx, due[0])
                return True
            return await word_index_store.merge(tx) or await word_index_store.drop_old(tx, unix_ms(now), _WORDS_AT_ONCE)

    async def measure_index(self, now: datetime) -> None:
        async with self._ledger.reading() as tx:
            metrics.ROOM_INDEX_BYTES.set(await word_index_store.size(tx))

    async def expire_dms(self, now: datetime) -> bool:
        return await self._dms.expire(now, _DMS_AT_ONCE) == _DMS_AT_ONCE
