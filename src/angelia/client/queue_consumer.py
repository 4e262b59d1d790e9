"""Consumes queues: claims messages, has them handled, settles them, and extends their leases meanwhile.

Each partition has a lane, in which its messages are handled one after the other. Three tasks run beside the lanes. One
claims messages while lanes are free. One settles messages: those that end while a request is on its way go together in
the next one. One extends leases at half of their time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypedDict

from angelia.client.event_stream import BackOff, is_passing
from angelia.client.exchange import Exchange
from angelia.client.mailbox_server import RunExchange
from angelia.client.queue_calls import MOST_ITEMS, Settlement, Start, claim, extend_lease, settle_all
from angelia.client.queue_messages import ClaimedMessages, QueueMessage
from angelia.errors import AngeliaError, InvalidArgument, LeaseLost
from angelia.queues.model import AckStatus

WAIT = 20.0  # seconds that the server waits for messages
SOON, PAUSE = 0.5, 1.0  # an answer without messages that comes so soon is not asked for again at once
ON_ITS_WAY = 0.1  # seconds in which an answer may arrive when a consumer stops
SHORTEST_LEASE = 1.0  # of a queue whose lease time is not known yet
LAST_WORDS = 10.0  # seconds for the acknowledgments when a consumer stops
LONGEST_ERROR = 2_000

Handler: TypeAlias = Callable[[QueueMessage], Awaitable[object] | object]
log = logging.getLogger("angelia.queues")


class ConsumeOptions(TypedDict, total=False):
    """Which messages a consumer wants beside the queue, as `pop` takes it. `batch` are fetched at once (100)."""

    group: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    start: Start | None
    batch: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The messages that a consumer wants."""

    queue: str | None
    group: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    start: Start | None = None
    batch: int = 100

    def claim(self, batch: int, partitions: int, wait: float) -> Exchange[ClaimedMessages]:
        """Claims so many messages of so many partitions at most."""
        return claim(
            self.queue,
            partition=self.partition,
            group=self.group,
            batch=batch,
            partitions=partitions,
            wait=wait,
            start=self.start,
            namespace=self.namespace,
            task=self.task,
        )


@dataclass(slots=True, eq=False)
class _Lease:
    """A lease, and how many of its messages are not settled yet."""

    id: str
    queues: frozenset[str]
    seconds: float
    open: int
    due: float = 0.0  # when it is extended next
    lost: bool = False
    back_off: BackOff = field(default_factory=BackOff)

    def begin(self, seconds: float) -> None:
        self.seconds = seconds
        self.due = time.monotonic() + seconds / 2
        self.back_off.reset()


@dataclass(slots=True, eq=False)
class _Lane:
    """The messages of one partition that wait, and the task that handles them."""

    waiting: deque[tuple[_Lease, QueueMessage]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class QueueConsumer:
    """Consumes messages with a handler: completed when it returns, failed with the exception's text when it raises.

    It works on at most `concurrency` partitions at a time. After `stop`, handlers have `grace` seconds to finish; what
    they do not finish is given back, and so is what waits."""

    def __init__(self, run: RunExchange, wanted: Wanted, handler: Handler, concurrency: int, grace: float) -> None:
        if concurrency < 1 or wanted.batch < 1:
            raise InvalidArgument("a consumer has a concurrency and a batch of 1 or more")
        self._run = run
        self._wanted = wanted
        self._handler = handler
        self._concurrency = concurrency
        self._grace = grace
        self._lanes: dict[str, _Lane] = {}
        self._leases: list[_Lease] = []
        self._settlements: deque[tuple[_Lease, Settlement]] = deque()
        self._lease_seconds: dict[str, float] = {}  # by queue
        self._stopping = asyncio.Event()
        self._lane_free, self._leased = asyncio.Event(), asyncio.Event()
        self._unsettled, self._all_settled = asyncio.Event(), asyncio.Event()
        self._lane_free.set()
        self._all_settled.set()

    def stop(self) -> None:
        """Claims no more messages, and lets `forever` return when those in hand are settled."""
        self._stopping.set()

    async def forever(self) -> None:
        """Consumes until it is stopped or cancelled, or until an error that is not temporary ends it."""
        claiming, stopping = asyncio.create_task(self._claim_messages()), asyncio.create_task(self._stopping.wait())
        settling, keeping = asyncio.create_task(self._settle_messages()), asyncio.create_task(self._keep_leases())
        try:
            ended, _ = await asyncio.wait((claiming, settling, keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
            for one in ended - {stopping}:
                one.result()
        finally:
            self.stop()
            try:
                await _cancel(claiming)
                await self._finish(settling)
            finally:
                lanes = [lane.task for lane in self._lanes.values() if lane.task is not None]
                await _cancel(stopping, settling, keeping, *lanes)

    async def _finish(self, settling: asyncio.Task[None]) -> None:
        """Waits for the handlers, and settles all messages in hand."""
        lanes = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if lanes and self._grace:
            await asyncio.wait(lanes, timeout=self._grace)
        await _cancel(*lanes)
        for lane in self._lanes.values():
            # One message for each lease that waits: it ends the lease, so all behind it are given back.
            for lease, message in {id(lease): (lease, message) for lease, message in reversed(lane.waiting)}.values():
                self._settle(lease, message, "retry")
        sent = asyncio.create_task(self._all_settled.wait())
        await asyncio.wait((sent, settling), timeout=LAST_WORDS, return_when=asyncio.FIRST_COMPLETED)
        await _cancel(sent)

    # Claiming.

    async def _claim_messages(self) -> None:
        back_off, batch = BackOff(), self._wanted.batch
        while True:
            await self._lane_free.wait()
            began = time.monotonic()
            try:
                found = await self._claimed(batch)
            except AngeliaError as error:
                if not is_passing(error):
                    raise
                batch = max(1, batch // 2)  # the answer may have been too long
                await asyncio.sleep(back_off.next(error.retry_after or 0.0))
                continue
            back_off.reset()
            batch = min(2 * batch, self._wanted.batch)
            if found.messages:
                self._take(found)
            elif time.monotonic() - began < SOON:  # pops are paused, or the server is stopping
                await asyncio.sleep(PAUSE)

    async def _claimed(self, batch: int) -> ClaimedMessages:
        """Claims messages for the lanes that are free. Messages that arrive while it is cancelled are taken as well: so
        they are given back, and do not wait for the end of their lease."""
        claiming = self._run(self._wanted.claim(batch, self._concurrency - len(self._lanes), WAIT))
        asked = asyncio.ensure_future(claiming)
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            await asyncio.wait((asked,), timeout=ON_ITS_WAY)
            asked.cancel()
            if asked.done() and not asked.cancelled() and asked.exception() is None:
                self._take(asked.result())
            raise

    def _take(self, found: ClaimedMessages) -> None:
        if not found.messages:
            return
        queues = frozenset(one.queue for one in found.messages)
        seconds = found.lease_seconds or min(self._lease_seconds.get(one, SHORTEST_LEASE) for one in queues)
        lease = _Lease(found.lease_id, queues, seconds, len(found.messages))
        lease.begin(seconds)
        self._leases.append(lease)
        self._leased.set()
        for message in found.messages:
            lane = self._lanes.get(message.partition_id)
            if lane is None:
                lane = self._lanes[message.partition_id] = _Lane()
                lane.task = asyncio.create_task(self._work(message.partition_id, lane))
            lane.waiting.append((lease, message))
        if len(self._lanes) >= self._concurrency:
            self._lane_free.clear()

    # Handling.

    async def _work(self, partition_id: str, lane: _Lane) -> None:
        """Handles the messages of a partition in their order."""
        while lane.waiting and not self._stopping.is_set():
            lease, message = lane.waiting.popleft()
            if lease.lost:
                lease.open -= 1
                continue
            status, error = await self._handled(lease, message)
            self._settle(lease, message, status, error)
            if status in ("failed", "retry"):  # which ends the lease: what is behind it is delivered again
                self._drop(lane, lease)
        if not lane.waiting:
            del self._lanes[partition_id]
            self._lane_free.set()

    async def _handled(self, lease: _Lease, message: QueueMessage) -> tuple[AckStatus, str | None]:
        """Has a message handled. Returns how that ended; a handler may also have settled the message itself."""
        try:
            result = self._handler(message)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError:
            if message.settled_as is None:
                self._settle(lease, message, "retry")
            else:
                lease.open -= 1
            raise
        except Exception as error:  # whatever a handler raises, its message failed, and the others go on
            if message.settled_as is None:
                log.exception("message %s of %s failed", message.id, message.queue)
                return "failed", _told(error)
            log.exception("message %s of %s was settled before this error", message.id, message.queue)
        return message.settled_as or "completed", None

    def _settle(self, lease: _Lease, message: QueueMessage, status: AckStatus, error: str | None = None) -> None:
        if message.settled_as is not None:
            lease.open -= 1
            return
        self._settlements.append((lease, (message, status, error)))
        self._all_settled.clear()
        self._unsettled.set()

    @staticmethod
    def _drop(lane: _Lane, lease: _Lease) -> None:
        """Leaves out the messages of a lease that wait."""
        kept = [one for one in lane.waiting if one[0] is not lease]
        lease.open -= len(lane.waiting) - len(kept)
        lane.waiting = deque(kept)

    # Settling.

    async def _settle_messages(self) -> None:
        back_off = BackOff()
        while True:
            await self._unsettled.wait()
            some = [self._settlements[at] for at in range(min(MOST_ITEMS, len(self._settlements)))]
            try:
                records = await self._run(settle_all([settlement for _, settlement in some]))
            except AngeliaError as error:
                if not is_passing(error):
                    raise
                await asyncio.sleep(back_off.next(error.retry_after or 0.0))
                continue
            back_off.reset()
            for (lease, (message, status, _)), record in zip(some, records, strict=True):
                self._settlements.popleft()
                lease.open -= 1
                if not record.success:
                    log.warning("message %s of %s is not %s: %s", message.id, message.queue, status, record.error)
            if not self._settlements:
                self._unsettled.clear()
                self._all_settled.set()

    # Leases.

    async def _keep_leases(self) -> None:
        while True:
            self._leased.clear()
            self._leases = [one for one in self._leases if one.open > 0 and not one.lost]
            now = time.monotonic()
            due = [one for one in self._leases if one.due <= now]
            if due:
                await asyncio.gather(*map(self._extend, due))
                continue
            try:
                async with asyncio.timeout(min((one.due - now for one in self._leases), default=None)):
                    await self._leased.wait()
            except TimeoutError:
                pass

    async def _extend(self, lease: _Lease) -> None:
        """Extends a lease. If it is over, its messages that wait are left out: another consumer may have them."""
        try:
            _, seconds = await self._run(extend_lease(lease.id))
        except LeaseLost:
            lease.lost = True
        except AngeliaError as error:
            if not is_passing(error):
                raise
            lease.due = time.monotonic() + min(lease.back_off.next(error.retry_after or 0.0), lease.seconds / 4)
        else:
            # The server's clock is known to two seconds: its Date has whole ones, and is made once a second.
            lease.begin(max(seconds - 2, SHORTEST_LEASE))
            self._lease_seconds.update(dict.fromkeys(lease.queues, lease.seconds))


def _told(error: Exception) -> str:
    """Returns what is told of an exception, also if it has no text."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  a fault of the handler's own exception
        said = "its text cannot be made"
    return f"{type(error).__name__}: {said}"[:LONGEST_ERROR]


async def _cancel(*tasks: asyncio.Task[object]) -> None:
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
