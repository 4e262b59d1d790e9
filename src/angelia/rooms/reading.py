"""Reads rooms: pages, threads, and the stream of what happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.envelope.times import unix_ms
from angelia.errors import NotFound
from angelia.rooms import store
from angelia.rooms.model import MessageId, Room, RoomEntry
from angelia.rooms.service import room_topic
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.wake import RECHECK_SECONDS, RequestTime, Wake

MOST_OF_THREAD = 1_000
_STREAM_PAGE = 100
_NEWEST = 1 << 62


@dataclass(frozen=True, slots=True)
class _Look:
    """What a stream asks for: the entries of a room after a time."""

    room_id: UUID
    after: int
    now_ms: int


class RoomReaders:
    """Reads the rooms of this ledger."""

    def __init__(self, ledger: Ledger, wake: Wake) -> None:
        self._ledger = ledger
        self._wake = wake
        self._looks: GroupCommit[_Look, list[RoomEntry]] = GroupCommit(ledger.lookups, _look_together)

    async def close(self) -> None:
        await self._looks.close()

    async def page(self, room: Room, before: int | None, limit: int, now: datetime) -> tuple[list[RoomEntry], bool]:
        """The newest messages before a time, and whether there are more."""
        async with self._ledger.lookups() as tx:
            found = await store.page(tx, room.room_id, unix_ms(now), before or _NEWEST, limit + 1)
        return found[:limit], len(found) > limit

    async def thread(self, room: Room, text: str, now: datetime) -> tuple[list[RoomEntry], bool]:
        """A message and the replies under it in the order of a tree; and whether there are more than a thread
        shows."""
        id_ = MessageId.parse(text)
        async with self._ledger.reading() as tx:
            found = await store.thread(tx, room.room_id, unix_ms(now), id_, MOST_OF_THREAD + 1) if id_ else []
        if not found:
            raise NotFound("message not found")
        return found[:MOST_OF_THREAD], len(found) > MOST_OF_THREAD

    async def newest(self, room: Room) -> int:
        """The time of the newest entry of a room."""
        async with self._ledger.reading() as tx:
            return await store.newest(tx, room.room_id)

    async def follow(
        self, room: Room, after: int, now: datetime, heartbeat: float
    ) -> AsyncGenerator[list[RoomEntry], None]:
        """Yields the entries after a time as they come, without an end; none at the beginning, and after `heartbeat`
        seconds without an entry."""
        clock, quiet_since = RequestTime(now), -heartbeat
        async with self._wake.listening(room_topic(room.room_id)) as bell:
            while True:
                found = await self._looks.submit(_Look(room.room_id, after, unix_ms(clock.now())))
                quiet = clock.passed() - quiet_since
                if found:
                    after = found[-1].ts
                    yield found
                elif quiet >= heartbeat:
                    yield []
                elif self._wake.stopping:
                    return
                else:
                    await bell.wait(min(RECHECK_SECONDS, heartbeat - quiet))
                    continue
                quiet_since = clock.passed()


async def _look_together(tx: Tx, looks: Sequence[_Look]) -> Sequence[list[RoomEntry]]:
    """An entry wakes all readers of its room at once: one read serves those that are at the same place."""
    now_ms = max(look.now_ms for look in looks)
    places = dict.fromkeys((look.room_id, look.after) for look in looks)
    found = {place: await store.after(tx, place[0], now_ms, place[1], _STREAM_PAGE) for place in places}
    return [found[look.room_id, look.after] for look in looks]
