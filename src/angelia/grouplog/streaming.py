"""The stream of one subscriber: what it lacks, then what comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Self

from angelia import metrics
from angelia.errors import AngeliaError, DamagedRecord, Lagged, NotMember, Unavailable
from angelia.grouplog import store
from angelia.grouplog.commit import CommitThread
from angelia.grouplog.damage import DamagedPart
from angelia.grouplog.model import frames
from angelia.grouplog.model.frames import PING, CaughtUp, Failure, Hole, LogMessage
from angelia.grouplog.model.groups import LogFloor
from angelia.grouplog.model.records import is_sound, level_of
from angelia.grouplog.subscriptions import LogSubscriber, Renew, Subscriptions
from angelia.grouplog.walk import Row, lacking_rows
from angelia.stores.rocks import Rocks

PING_SECONDS = 20.0
OLDEST_ITERATOR = 30.0  # seconds; an older one keeps deleted files on the disk
_PART_BYTES = 256 << 10

Read = Callable[[Callable[[], bytes]], Awaitable[bytes]]  # runs a function that reads the disk in a thread


class Stream:
    """The frames of a subscriber: an iterator that is closed when its peer is gone, whether it was begun or not."""

    def __init__(
        self, subscriber: LogSubscriber, subscriptions: Subscriptions, rocks: Rocks, commits: CommitThread, read: Read
    ) -> None:
        self._subscriber = subscriber
        self._group = subscriber.group
        self._subscriptions = subscriptions
        self._rocks = rocks
        self._commits = commits
        self._read = read
        self._rows: Iterator[Row] | None = None
        self._cursor = b""
        self._caught_up = False
        self._parts = self._make_parts()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._parts)

    async def aclose(self) -> None:
        await self._parts.aclose()
        self._end_walk()
        self._subscriptions.leave(self._subscriber)

    async def _make_parts(self) -> AsyncGenerator[bytes]:
        """Yields frames until the peer leaves, lags behind, or is no member any more."""
        try:
            while not self._caught_up:
                part = await self._read(self._backfill_part)
                self._check_member()
                if part:
                    yield part
                if not self._caught_up and time.monotonic() - self._subscriber.opened > OLDEST_ITERATOR:
                    await self._renew()
            self._end_walk()
            yield CaughtUp(self._subscriptions.boot, self._subscriber.position).encode()
            while True:
                yield await self._live_part()
        except AngeliaError as error:
            yield Failure(error.code, error.message).encode()
        finally:
            self._end_walk()
            self._subscriptions.leave(self._subscriber)

    async def _renew(self) -> None:
        """Goes on with a new iterator, from where the old one stands."""
        if self._cursor:
            self._end_walk()
            await self._commits.run(Renew(self._subscriptions, self._subscriber, self._cursor))

    def _end_walk(self) -> None:
        # The database cannot close while an iterator lives.
        self._rows = self._subscriber.iterator = None

    def _check_member(self) -> None:
        if self._subscriptions.stopping:
            raise Unavailable("the node is stopping")
        self._group.check_live()
        if self._group.member(self._subscriber.key_id) is None:
            raise NotMember("no member of the group has this key any more")
        if self._subscriber.lagged:
            metrics.LOG_LAGGED.inc()
            raise Lagged

    def _backfill_part(self) -> bytes:
        subscriber = self._subscriber
        if self._rows is None:
            assert subscriber.iterator is not None, "a subscription begins with an iterator"
            self._rows = lacking_rows(
                subscriber.iterator,
                self._group.ordinal,
                subscriber.wanted,
                self._cursor,
                DamagedPart(self._rocks, self._group),
            )
        part = bytearray()
        for id_, record in self._rows:
            part += self._framed(*store.message_id(id_), record)
            self._cursor = id_
            if len(part) >= _PART_BYTES:
                return bytes(part)
        self._caught_up = True
        return bytes(part)

    async def _live_part(self) -> bytes:
        subscriber = self._subscriber
        while True:
            subscriber.changed.clear()
            if subscriber.queue and (part := await self._read(self._queued_part)):
                self._check_member()
                return part
            self._check_member()
            if subscriber.queue:
                continue
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await subscriber.changed.wait()
            except TimeoutError:
                return PING

    def _queued_part(self) -> bytes:
        part = bytearray()
        while len(part) < _PART_BYTES and (entry := self._subscriber.take()) is not None:
            if isinstance(entry, LogFloor):
                part += frames.floor_frame(entry)
            elif self._subscriber.wanted.lacks(*entry):
                part += self._queued(*entry)
        return bytes(part)

    def _queued(self, sender: bytes, seq: int) -> bytes:
        """The frame of a message that was stored since: nothing if it is deleted by now."""
        try:
            record = store.record(self._rocks, self._group.ordinal, sender, seq)
        except DamagedRecord:
            return self._framed(sender, seq, None)
        return b"" if record is None else self._framed(sender, seq, record)

    def _framed(self, sender: bytes, seq: int, record: bytes | None) -> bytes:
        """The frame of a stored message: nothing if it is superseded by now, a hole if it is damaged."""
        if record is None or not is_sound(record):
            self._group.note_corrupt(sender, seq)
            return Hole(sender, seq).encode()
        if self._group.is_superseded(sender, seq, level_of(record)):
            return b""
        metrics.LOG_BACKFILL_ROWS.inc()
        metrics.LOG_BACKFILL_BYTES.inc(len(record))
        return LogMessage(sender, seq, record).encode()
