"""Finds messages of public rooms by their words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from uuid import UUID

from angelia import metrics
from angelia.envelope.times import unix_ms
from angelia.rooms import word_index_store as index
from angelia.rooms.model import SearchHit
from angelia.rooms.word_index_store import CLASSES, PartPlaces, Walked
from angelia.rooms.words import MOST_QUERY_WORDS, room_hash, word_hash, words
from angelia.stores.ledger import Ledger

_AT_ONCE = 1_000  # rows of the index that one statement looks at, at most
_FIRST_PARTS = 4
_BYTES_AT_ONCE = 512 << 10  # of lists of places that one statement reads, about


class Search:
    """Searches the index of words, which is written with the messages and so is never behind them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def find(self, query: str, room_id: UUID | None, after: int, limit: int, now: datetime) -> list[SearchHit]:
        """The newest messages that have all words of a query, of one room if that is given, after a time."""
        metrics.ROOM_SEARCHES.inc()
        wanted = words(query)[:MOST_QUERY_WORDS]
        if not wanted:
            return []
        hashes = [word_hash(word) for word in wanted] + ([] if room_id is None else [room_hash(room_id)])
        walk = _Walk(self._ledger, hashes, after, unix_ms(now), limit)
        # In this order: what is packed meanwhile is found twice rather than never.
        await walk.through_unpacked()
        await walk.through_parts()
        return sorted(walk.found.values(), key=lambda hit: (hit.ts, hit.room_id), reverse=True)[:limit]


class _Walk:
    """A walk through the index, the newest places first. Places are taken in the order of posts, so the newest messages
    are found first, but for those that were committed within the same moment; what was imported comes last. Each
    statement borrows a connection for itself: posts wait for no search."""

    def __init__(self, ledger: Ledger, hashes: list[int], after: int, now_ms: int, limit: int) -> None:
        self._ledger = ledger
        self._hashes = hashes
        self._after = after
        self._now_ms = now_ms
        self._limit = limit
        self.found: dict[int, SearchHit] = {}

    async def through_unpacked(self) -> None:
        until: int | None = CLASSES[-1].ends
        while until is not None:
            async with self._ledger.lookups() as tx:
                places, until = await index.unpacked(tx, self._hashes, until, self._after, _AT_ONCE)
            await self._take(iter(places), stop_at_older=False)

    async def through_parts(self) -> None:
        """Until each kind of parts has given as many as are wanted. A part that was merged meanwhile begins earlier, so
        it is looked at again."""
        until = {Walked(one.begins, late): one.ends for one in CLASSES for late in (False, True)}
        ordered = {Walked(one.begins, late=False) for one in CLASSES if not one.imported}
        most = _FIRST_PARTS
        while until:
            async with self._ledger.lookups() as tx:
                parts = await index.packed(tx, self._hashes, until, self._after, most)
            for kind in list(until):
                own = [part for part in parts if part.kind == kind]
                enough = await self._take(_places(own), stop_at_older=kind in ordered)
                if enough or len(own) < most:
                    del until[kind]
                else:
                    until[kind] = own[-1].first_place
            fitting = most * _BYTES_AT_ONCE // max(1, sum(part.size for part in parts))
            most = max(1, min(2 * most, fitting, _AT_ONCE // len(self._hashes) // (2 * len(CLASSES))))

    async def _take(self, places: Iterator[int], *, stop_at_older: bool) -> bool:
        """Reads messages at these places until there are enough. Returns whether there are: as many as are wanted, or
        one that is too old, behind which there are only older ones."""
        taken, at_once = 0, 2 * self._limit
        while some := list(islice(places, at_once)):
            async with self._ledger.lookups() as tx:
                read = await index.messages(tx, some, self._now_ms)
            new = {hit.place: hit for hit in read if hit.ts > self._after}
            self.found |= new
            taken += len(new)
            if taken >= self._limit or (stop_at_older and len(new) < len(read)):
                return True
            at_once = min(2 * at_once, _AT_ONCE)
            await asyncio.sleep(0)  # to intersect long lists takes milliseconds
        return False


def _places(parts: Sequence[PartPlaces]) -> Iterator[int]:
    return (place for part in parts for place in part.newest_first())
