"""Subscriptions without gap or repeat: what was stored before a subscription began comes from an iterator, what is
stored later from a queue of ids. Both begin in the commit section, so no message is in both or in neither."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque

from angelia.errors import RateLimited
from angelia.grouplog import store
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.model.frames import Hello
from angelia.grouplog.model.groups import GroupMember, LogFloor
from angelia.grouplog.walk import Lacking
from angelia.stores.rocks import Rocks, RocksBatch, RocksIterator

MOST_SUBSCRIBERS = 1_000  # of one group
MOST_OF_MEMBER = 8
MOST_QUEUED = 65_536

Entry = tuple[bytes, int] | LogFloor


class LogSubscriber:
    """One open stream. The writer thread fills its queue; the event loop empties it."""

    def __init__(self, group: LiveGroup, member: GroupMember, hello: Hello) -> None:
        self.group = group
        self.sender = member.sender
        self.key_id = member.key_id
        self.wanted = Lacking(hello)
        self.queue: deque[Entry] = deque()
        self.lagged = False
        self.changed = asyncio.Event()
        self.iterator: RocksIterator | None = None
        self.opened = 0.0
        self.position = 0
        self.woken = False  # it is in the list of those to wake
        self.gone = False

    def offer(self, entry: Entry) -> None:
        if len(self.queue) >= MOST_QUEUED:
            self.lagged = True
            self.queue.clear()
        elif not self.lagged:
            self.queue.append(entry)

    def take(self) -> Entry | None:
        try:
            return self.queue.popleft()
        except IndexError:
            return None


class Subscriptions:
    """All subscribers of a node."""

    def __init__(self, boot: bytes) -> None:
        self.boot = boot
        self._positions: dict[bytes, int] = {}  # messages of each group stored since the node started
        self._by_group: dict[bytes, list[LogSubscriber]] = {}
        self._woken: deque[LogSubscriber] = deque()
        self.stopping = False
        self._changing = threading.Lock()  # subscribers enter in the writer thread, and leave in the event loop

    def __len__(self) -> int:
        return sum(map(len, self._by_group.values()))

    @property
    def longest_queue(self) -> int:
        every = (subscriber for group in list(self._by_group.values()) for subscriber in list(group))
        return max((len(subscriber.queue) for subscriber in every), default=0)

    def of(self, group: bytes) -> list[LogSubscriber]:
        return self._by_group.get(group, [])

    def position(self, group: bytes) -> int:
        return self._positions.get(group, 0)

    # In the writer thread.

    def publish(self, group: bytes, sender: bytes, seq: int) -> None:
        self._positions[group] = self.position(group) + 1
        self._offer(group, (sender, seq))

    def announce(self, group: bytes, floor: LogFloor) -> None:
        self._offer(group, floor)

    def stir(self, group: bytes) -> None:
        """Lets the subscribers of a group look again whether they are still members."""
        for subscriber in self.of(group):
            self._wake_later(subscriber)

    def enter(self, subscriber: LogSubscriber) -> None:
        with self._changing:
            if subscriber.gone:  # its caller hung up meanwhile
                return
            others = self._by_group.get(subscriber.group.id, [])
            if len(others) >= MOST_SUBSCRIBERS:
                raise RateLimited(f"the group has {MOST_SUBSCRIBERS:,} subscribers on this node", retry_after=30)
            if sum(other.sender == subscriber.sender for other in others) >= MOST_OF_MEMBER:
                raise RateLimited(f"you have {MOST_OF_MEMBER} subscriptions of this group", retry_after=30)
            subscriber.position = self.position(subscriber.group.id)
            # A new list, since others may be walking over the present one.
            self._by_group[subscriber.group.id] = [*others, subscriber]

    def _offer(self, group: bytes, entry: Entry) -> None:
        for subscriber in self._by_group.get(group, ()):
            subscriber.offer(entry)
            self._wake_later(subscriber)

    def _wake_later(self, subscriber: LogSubscriber) -> None:
        """Lets it be woken after the commit, once for all that it got."""
        if not subscriber.woken:
            subscriber.woken = True
            self._woken.append(subscriber)

    # In the event loop.

    def stop(self) -> None:
        """Ends all streams."""
        self.stopping = True
        for group in list(self._by_group):
            self.stir(group)
        self.wake()

    def leave(self, subscriber: LogSubscriber) -> None:
        with self._changing:
            subscriber.gone = True
            left = [other for other in self.of(subscriber.group.id) if other is not subscriber]
            if left:
                self._by_group[subscriber.group.id] = left
            else:
                self._by_group.pop(subscriber.group.id, None)

    def wake(self) -> None:
        """Wakes the streams that got something since the last call."""
        while self._woken:
            subscriber = self._woken.popleft()
            subscriber.woken = False  # before it looks into its queue
            subscriber.changed.set()


class Begin:
    """Opens a subscriber's iterator and enters it, both before the next message is stored. Messages of the same commit
    are published when it is synced, so they come by the queue."""

    alone, messages, size = False, 0, 0

    def __init__(self, subscriptions: Subscriptions, subscriber: LogSubscriber) -> None:
        self._subscriptions = subscriptions
        self._subscriber = subscriber

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        subscriber = self._subscriber
        subscriber.group.check_live()
        iterator = store.messages(rocks, subscriber.group.ordinal)
        self._subscriptions.enter(subscriber)
        if not subscriber.gone:
            subscriber.iterator = iterator
            subscriber.opened = time.monotonic()

    def finish(self) -> None:
        return None

    def undo(self) -> None:
        self._subscriptions.leave(self._subscriber)


class Renew:
    """Replaces an iterator that is old. The new one meets all that lies behind the cursor, so of the queue only what
    lies before it stays."""

    alone, messages, size = True, 0, 0

    def __init__(self, subscriptions: Subscriptions, subscriber: LogSubscriber, cursor: bytes) -> None:
        self._subscriptions = subscriptions
        self._subscriber = subscriber
        self._cursor = cursor

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        subscriber = self._subscriber
        subscriber.iterator = store.messages(rocks, subscriber.group.ordinal, self._cursor)
        subscriber.opened = time.monotonic()
        subscriber.position = self._subscriptions.position(subscriber.group.id)
        upto = store.message_id(self._cursor)
        # Only the writer thread adds to it, and its reader waits for this.
        kept = [entry for entry in subscriber.queue if isinstance(entry, LogFloor) or entry <= upto]
        subscriber.queue = deque(kept)

    def finish(self) -> None:
        return None

    def undo(self) -> None:
        return None
