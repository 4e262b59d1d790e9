"""Every SQL statement about the index of words: lists of the places at which each word stands, in parts that are merged
into larger ones, as log-structured trees do."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from sys import byteorder
from typing import NamedTuple

from angelia.rooms.model import MOST_RETENTION, SearchHit
from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "word_index.sql")
CLASS_BITS, BLOCK_BITS = 48, 16
PART_MESSAGES, PART_WORDS = 1_024, 100_000
_LATE = -1
_MERGED_TOGETHER = 8
_MERGED_WORDS = 500_000  # a merge of more words would take seconds; such parts stay as they are


@dataclass(frozen=True, slots=True)
class IndexClass:
    """Messages that are kept about equally long, as `next_room_place` tells them apart. Places of those that were
    imported do not rise with their times."""

    begins: int
    kept: timedelta
    imported: bool

    @property
    def ends(self) -> int:
        return self.begins + (1 << CLASS_BITS)


_KEPT = (timedelta(days=1), timedelta(days=30), MOST_RETENTION)
CLASSES = [
    IndexClass(number << CLASS_BITS, kept, imported)
    for number, (imported, kept) in enumerate((imported, kept) for imported in (False, True) for kept in _KEPT)
]


class Walked(NamedTuple):
    """Parts that a search walks through by themselves: those of a class, or of its late messages, whose places lie
    among the others."""

    begins: int
    late: bool


@dataclass(frozen=True, slots=True)
class PartPlaces:
    """A part of the index, and where in it each word of a query stands; None if it lacks one of them."""

    kind: Walked
    first_place: int
    lists: list[bytes] | None

    @property
    def size(self) -> int:
        return sum(map(len, self.lists or []))

    def newest_first(self) -> Iterator[int]:
        """The places that have all words."""
        begins = self.first_place >> BLOCK_BITS << BLOCK_BITS
        return (begins + low for low in reversed(_common(sorted(map(_unpacked, self.lists or []), key=len))))


async def unpacked(tx: Tx, words: Sequence[int], before: int, after: int, most: int) -> tuple[list[int], int | None]:
    """Looks at the newest messages that are in no part, before a place. Returns the places of those that have all
    words, and where the look ended; None: there are no more."""
    row = await tx.fetchrow(SQL["unpacked"], words, before, most, after)
    assert row is not None, "an aggregate has one row"
    return row["places"], row["until"]


async def packed(tx: Tx, words: Sequence[int], until: Mapping[Walked, int], after: int, most: int) -> list[PartPlaces]:
    """The next parts of each kind, at most so many, and where all words stand in them. `until` is the place before
    which to look, for each kind of parts."""
    begins, late = [kind.begins for kind in until], [kind.late for kind in until]
    rows = await tx.fetch(SQL["packed"], words, begins, late, list(until.values()), after, most)
    return [PartPlaces(Walked(row["begins"], row["late"]), row["first_place"], row["places"]) for row in rows]


async def messages(tx: Tx, places: Sequence[int], now_ms: int) -> list[SearchHit]:
    """The messages at these places that can be read, in no order."""
    return [record_of(SearchHit, row) for row in await tx.fetch(SQL["messages"], places, now_ms)]


async def waiting(tx: Tx) -> list[tuple[int, int]]:
    """The blocks of places in which messages wait to be packed, and how many."""
    return [(row["block"], row["count"]) for row in await tx.fetch(SQL["waiting"])]


async def pack(tx: Tx, block: int) -> None:
    """Packs messages of a block into a new part."""
    begins, ends = block << BLOCK_BITS, (block + 1) << BLOCK_BITS
    until: int | None = await tx.fetchval(SQL["packed_until"], block)
    if until is not None:
        # What was committed after its neighbours were packed is in no order with them.
        await tx.execute(SQL["pack"], begins, until + 1, PART_MESSAGES, _LATE, PART_WORDS)
        begins = until + 1
    await tx.execute(SQL["pack"], begins, ends, PART_MESSAGES, 0, PART_WORDS)


async def merge(tx: Tx) -> bool:
    """Merges some parts, if there are any to merge. Returns whether there were."""
    row = await tx.fetchrow(SQL["mergeable"], _MERGED_TOGETHER)
    if row is None:
        return False
    parts = await tx.fetch(SQL["parts_of_level"], row["block"], row["level"], _MERGED_TOGETHER)
    first_places = [part["first_place"] for part in parts]
    if sum(part["words"] for part in parts) > _MERGED_WORDS:
        await tx.execute(SQL["too_large"], first_places)
    else:
        await tx.execute(SQL["merge_late" if row["level"] == _LATE else "merge"], first_places)
    return True


async def drop_old(tx: Tx, now_ms: int, most: int) -> bool:
    """Removes a part whose messages have expired, or so many words of it. Returns whether there was one."""
    begins = [one.begins for one in CLASSES]
    expired = [now_ms - int(one.kept.total_seconds()) * 1000 for one in CLASSES]
    part = await tx.fetchval(SQL["old_part"], begins, expired)
    if part is None:
        return False
    if await tx.execute(SQL["drop_words"], part, most) != f"DELETE {most}":
        await tx.execute(SQL["drop_part"], part)
    return True


async def size(tx: Tx) -> int:
    """Bytes of the index in the ledger."""
    return int(await tx.fetchval(SQL["size"]))


def _common(lists: Sequence[array[int]]) -> Sequence[int]:
    """What is in all lists. They rise, and the shortest comes first: in a much longer one each number is looked up."""
    found: Sequence[int] = lists[0] if lists else []
    for other in lists[1:]:
        if len(other) > 16 * len(found):
            found = [low for low in found if (at := bisect_left(other, low)) < len(other) and other[at] == low]
        else:
            found = sorted(set(found).intersection(other))
    return found


def _unpacked(raw: bytes) -> array[int]:
    numbers = array("H", raw)
    if byteorder == "little":
        numbers.byteswap()
    return numbers
