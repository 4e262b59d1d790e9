"""Loops over the messages of a queue, and handlers for them: in an event loop, or in threads beside the caller's."""

from __future__ import annotations

import asyncio
import contextlib
import queue as queues
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from angelia.client.async_client import AsyncClient
from angelia.client.mailbox_server import RunExchange
from angelia.client.queue_consumer import Handler, QueueConsumer, Wanted
from angelia.client.queue_messages import QueueMessage
from angelia.client.transport import Line

BlockingHandler: TypeAlias = Callable[[QueueMessage], object]
_LOOK = 0.1  # seconds, at which an event of another thread is looked at


class AsyncLoops:
    """The loops and handlers of one client that is awaited."""

    def __init__(self, run: RunExchange) -> None:
        self._run = run
        self._tasks: dict[asyncio.Task[None], QueueConsumer] = {}

    async def each(self, wanted: Wanted) -> AsyncGenerator[QueueMessage, None]:
        """Yields messages, each of which is completed when the next one is asked for. The last one is given back."""
        given: asyncio.Queue[tuple[QueueMessage, asyncio.Future[None]]] = asyncio.Queue()

        async def hand_over(message: QueueMessage) -> None:
            done = asyncio.get_running_loop().create_future()
            given.put_nowait((message, done))
            await done

        task = self._begin(QueueConsumer(self._run, wanted, hand_over, 1, 0.0))
        try:
            while True:
                getting = asyncio.ensure_future(given.get())
                try:
                    await asyncio.wait((getting, task), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    getting.cancel()
                if not getting.done() or getting.cancelled():
                    break
                message, done = getting.result()
                yield message
                if not done.done():
                    done.set_result(None)
        finally:
            await self._end(task)

    async def serve(
        self, wanted: Wanted, handler: Handler, concurrency: int, grace: float, stop: asyncio.Event | None
    ) -> None:
        """Has messages handled until it is cancelled, or until the event is set."""
        consumer = QueueConsumer(self._run, wanted, handler, concurrency, grace)
        stopping = asyncio.ensure_future(_stop_after(stop, consumer)) if stop is not None else None
        task = self._begin(consumer)
        try:
            await asyncio.shield(task)
        finally:
            if stopping is not None:
                stopping.cancel()
            await self._end(task)

    async def close(self) -> None:
        """Ends all loops: what is in hand is finished or given back."""
        for task in list(self._tasks):
            with contextlib.suppress(Exception):  # its loop raises it
                await self._end(task)

    def _begin(self, consumer: QueueConsumer) -> asyncio.Task[None]:
        task = asyncio.create_task(consumer.forever())
        self._tasks[task] = consumer
        return task

    async def _end(self, task: asyncio.Task[None]) -> None:
        consumer = self._tasks.pop(task, None)
        if consumer is not None:
            consumer.stop()
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():  # the caller is cancelled once more: without further grace
                task.cancel()
            raise


async def _stop_after(stop: asyncio.Event, consumer: QueueConsumer) -> None:
    await stop.wait()
    consumer.stop()


class BlockingLoops:
    """The loops and handlers of one client that blocks. Each has an event loop in a thread of its own, which claims,
    settles and extends leases while the caller's thread works."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._running: set[_Beside] = set()

    def each(self, wanted: Wanted) -> Generator[QueueMessage, None, None]:
        """Yields messages, each of which is completed when the next one is asked for. The last one is given back."""
        given: queues.SimpleQueue[tuple[QueueMessage, asyncio.Future[None]] | None] = queues.SimpleQueue()

        async def hand_over(message: QueueMessage) -> None:
            done = asyncio.get_running_loop().create_future()
            given.put((message, done))
            await done

        beside = self._begin(wanted, hand_over, 1, 0.0, lambda: given.put(None))
        try:
            while (came := given.get()) is not None:
                message, done = came
                yield message
                beside.call(_finish, done)
        finally:
            self._end(beside)

    def serve(
        self, wanted: Wanted, handler: BlockingHandler, concurrency: int, grace: float, stop: threading.Event | None
    ) -> None:
        """Has messages handled, each in one of so many threads, until Ctrl-C or until the event is set."""
        threads = ThreadPoolExecutor(max(1, concurrency), thread_name_prefix="angelia-handler")

        async def hand_over(message: QueueMessage) -> None:
            await asyncio.get_running_loop().run_in_executor(threads, handler, message)

        beside = self._begin(wanted, hand_over, concurrency, grace, lambda: None)
        try:
            while not beside.is_over(0.0 if stop is not None else _LOOK) and not (
                stop is not None and stop.wait(_LOOK)
            ):
                pass
        finally:
            try:
                self._end(beside)
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Ends all loops: what is in hand is finished or given back."""
        for beside in list(self._running):
            with contextlib.suppress(Exception):  # its loop raises it
                self._end(beside)

    def _begin(
        self, wanted: Wanted, handler: Handler, concurrency: int, grace: float, ended: Callable[[], None]
    ) -> _Beside:
        beside = _Beside(self._line, wanted, handler, concurrency, grace, ended)
        self._running.add(beside)
        beside.start()
        return beside

    def _end(self, beside: _Beside) -> None:
        self._running.discard(beside)
        beside.end()


class _Beside:
    """A consumer in a thread of its own."""

    def __init__(
        self,
        line: Line,
        wanted: Wanted,
        handler: Handler,
        concurrency: int,
        grace: float,
        ended: Callable[[], None],
    ) -> None:
        self._line = line
        self._made = (wanted, handler, concurrency, grace)
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._consumer: QueueConsumer | None = None
        self._begun, self._over = threading.Event(), threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="angelia-consumer", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._begun.wait()

    def is_over(self, wait: float) -> bool:
        """Returns whether the consumer has ended, or ends within so many seconds."""
        return self._over.wait(wait)

    def call(self, act: Callable[..., object], *args: object) -> None:
        """Has the consumer's thread do something, unless that has ended."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(act, *args)

    def end(self) -> None:
        """Stops the consumer, waits for its end and raises the error that ended it, if any."""
        if self._consumer is not None:
            self.call(self._consumer.stop)
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        try:
            asyncio.run(self._consume())
        except BaseException as error:  # noqa: BLE001  it is raised where the caller waits
            self._failure = error
        finally:
            self._begun.set()
            self._over.set()
            self._ended()

    async def _consume(self) -> None:
        line = self._line
        async with AsyncClient(line.url, line.signer, line.token, line.timeout, line.observer) as client:
            self._consumer = QueueConsumer(client.run, *self._made)
            self._loop = asyncio.get_running_loop()
            self._begun.set()
            await self._consumer.forever()


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
