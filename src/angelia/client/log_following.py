"""Following a group log: a stream from every node, opened again whenever it breaks off, and what is due beside them."""

from __future__ import annotations

import asyncio
import contextlib
import queue as queues
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import httpx

from angelia.client.event_stream import SILENCE, EventStream, events
from angelia.client.exchange import BadAnswer, Exchange, Request
from angelia.client.log_compacting import compact_if_due
from angelia.client.log_completions import tell_completions
from angelia.client.log_nodes import OpenLog, node_request
from angelia.client.log_reading import hello, look_for_editions
from angelia.client.log_writing import deliver
from angelia.client.transport import Line, Send
from angelia.errors import AngeliaError, GroupDropped, InvalidArgument, NotMember
from angelia.grouplog import api
from angelia.grouplog.model.editions import EditionNode
from angelia.grouplog.model.frames import MEDIA, Failure, FrameReader, LogMessage, Type
from angelia.mailbox.log_application import LogEntry

if TYPE_CHECKING:
    from angelia.client.async_client import AsyncClient

TICK = 1.0
ROUND = 10.0  # seconds between two looks at what is due
_MOST_TOGETHER = 500
_FOR_GOOD = {NotMember.code: NotMember, GroupDropped.code: GroupDropped}
_Arrived: TypeAlias = tuple[bytes, int, bytes]  # node, type and body of a frame


class FrameStream(EventStream[_Arrived]):
    """The subscription at one node. Each time it is opened it begins with what this device lacks then."""

    def __init__(self, line: Line, log: OpenLog, node: EditionNode) -> None:
        self._log = log
        self._node = node
        self._reader = FrameReader()
        super().__init__(line, lambda _: self._subscription(), lambda *_: None)
        self.timeout = httpx.Timeout(line.timeout, read=SILENCE)

    def begin(self) -> Send:
        self._reader = FrameReader()
        return super().begin()

    @staticmethod
    def is_stream(answer: httpx.Response) -> bool:
        kind = answer.headers.get("content-type", "")
        return answer.status_code == 200 and kind.partition(";")[0].strip().lower() == MEDIA

    def hear(self, chunk: bytes) -> Iterator[_Arrived]:
        """Yields the messages that a piece of the stream completes."""
        try:
            for type_, body in self._reader.feed(chunk):
                if type_ == Type.ERROR:
                    failure = Failure.decode(body)
                    error = _FOR_GOOD.get(failure.code)
                    raise BadAnswer(failure.title) if error is None else error(failure.title)
                self._back_off.reset()
                if type_ == Type.MESSAGE:
                    yield self._node.id, type_, body
        except InvalidArgument as error:
            raise BadAnswer(f"the stream of a node cannot be read: {error.message}") from error

    def _subscription(self) -> Request:
        wanted = hello(self._log, self._log.replica.me.sender)
        return node_request(api.SUBSCRIBE, self._node, self._log.gid, body=wanted.encode())


class Follower:
    """The streams of all nodes, on one event loop."""

    def __init__(self, client: AsyncClient, log: OpenLog) -> None:
        self._client = client
        self._log = log
        self._arrived: asyncio.Queue[_Arrived] = asyncio.Queue(4 * _MOST_TOGETHER)
        self._pumps: dict[EditionNode, asyncio.Task[None]] = {}
        self._ended: dict[bytes, AngeliaError] = {}

    async def batches(self) -> AsyncGenerator[list[LogEntry], None]:
        """Yields what was applied, an empty list at least every second. Raises the error for which every node refuses
        this agent."""
        due = look = 0.0
        self._log.heard = []
        try:
            await self._begin()
            while True:
                if time.monotonic() >= due:
                    await self._client.run(chores(self._log))
                    due = time.monotonic() + ROUND
                before = self._log.replica.edition
                taken = await self._client._aside(self._log.replica.take_in, await self._messages())
                self._log.untrue.extend((*taken.untrue, *taken.strangers))
                beside, self._log.heard = self._log.heard or [], []
                yield [*beside, *taken.entries]
                if taken.later and time.monotonic() >= look:
                    look = time.monotonic() + ROUND
                    await self._client.run(look_for_editions(self._log))
                if self._log.replica.refresh() != before:  # other nodes, or keys for what could not be opened
                    await self._end()
                    await self._begin()
                if len(self._ended) == len(self._pumps):
                    raise next(iter(self._ended.values()))
        finally:
            self._log.heard = None
            await self._end()

    async def _begin(self) -> None:
        self._ended.clear()
        for node in self._log.nodes:
            self._pumps[node] = asyncio.create_task(self._pump(node))

    async def _end(self) -> None:
        for task in self._pumps.values():
            task.cancel()
        await asyncio.gather(*self._pumps.values(), return_exceptions=True)
        self._pumps.clear()

    async def _pump(self, node: EditionNode) -> None:
        client = self._client
        try:
            stream = await client._aside(FrameStream, client._line, self._log, node)
            frames = events(stream, client._http_to(node.url + "/"), client._aside)
            async with contextlib.aclosing(frames):
                async for one in frames:
                    await self._arrived.put(one)
        except AngeliaError as error:
            self._ended[node.id] = error
        except Exception as error:  # noqa: BLE001  of an answer that no parser foresaw: it ends this node's part alone
            self._ended[node.id] = BadAnswer(f"the stream of a node cannot be read: {error!r}")

    async def _messages(self) -> Sequence[tuple[bytes, LogMessage]]:
        """What has come; nothing after a second without any."""
        found: list[_Arrived] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK):
                found.append(await self._arrived.get())
        while found and len(found) < _MOST_TOGETHER and not self._arrived.empty():
            found.append(self._arrived.get_nowait())
        messages = []
        for node, _, body in found:
            with contextlib.suppress(InvalidArgument):  # an honest node sends no such frame
                messages.append((node, LogMessage.decode(body)))
        return messages


def chores(log: OpenLog) -> Exchange[None]:
    """Sends what waits here, and takes the snapshot that is due if it is this agent's turn."""
    for act in (look_for_editions, deliver, tell_completions, compact_if_due):
        with contextlib.suppress(AngeliaError):  # it is tried again, and must not end the reading
            yield from act(log)


def blocking_batches(line: Line, log: OpenLog) -> Generator[list[LogEntry], None, None]:
    """Does what `Follower.batches` does, in a thread with an event loop of its own."""
    given: queues.Queue[list[LogEntry] | BaseException] = queues.Queue(16)
    beside = _Beside(line, log, given)
    beside.start()
    try:
        while not isinstance(came := given.get(), BaseException):
            yield came
        raise came
    finally:
        beside.end()


class _Beside(threading.Thread):
    def __init__(self, line: Line, log: OpenLog, given: queues.Queue[list[LogEntry] | BaseException]) -> None:
        super().__init__(name="angelia-follower", daemon=True)
        self._line = line
        self._log = log
        self._given = given
        self._stopping = threading.Event()
        self._cancel: Callable[[], None] | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._follow())
        except BaseException as error:  # noqa: BLE001  it is raised where the caller waits
            self._give(error)

    def end(self) -> None:
        """Ends the streams, and waits for the thread."""
        self._stopping.set()
        if self._cancel is not None:
            self._cancel()
        self.join()

    async def _follow(self) -> None:
        from angelia.client.async_client import AsyncClient

        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine that runs has a task"
        self._cancel = lambda: _unless_closed(loop, task)
        line = self._line
        async with (
            AsyncClient(line.url, line.signer, line.token, line.timeout, line.observer) as client,
            contextlib.aclosing(Follower(client, self._log).batches()) as batches,
        ):
            async for batch in batches:
                if not await asyncio.to_thread(self._give, batch):
                    return

    def _give(self, one: list[LogEntry] | BaseException) -> bool:
        """Hands something over. Returns whether the caller still listens."""
        while not self._stopping.is_set():
            with contextlib.suppress(queues.Full):
                self._given.put(one, timeout=0.1)
                return True
        return False


def _unless_closed(loop: asyncio.AbstractEventLoop, task: asyncio.Task[object]) -> None:
    with contextlib.suppress(RuntimeError):  # it has ended by itself
        loop.call_soon_threadsafe(task.cancel)
