"""The client whose verbs are awaited."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Self, TypeVar, TypeVarTuple

import httpx

from angelia.client.client_namespaces import ClientNamespaces, next_step
from angelia.client.exchange import Exchange, Response
from angelia.client.namespaces import Awaited
from angelia.client.transport import (
    Body,
    Branches,
    BranchOutcome,
    Line,
    Observer,
    Outcome,
    Pause,
    Signer,
    Step,
    connecting,
    described,
    origin,
    origin_of,
)
from angelia.errors import AngeliaError

if TYPE_CHECKING:
    from angelia.client.mail_verbs import AsyncMail
    from angelia.client.queue_verbs import AsyncQueues
    from angelia.client.room_verbs import AsyncRooms

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class AsyncClient(ClientNamespaces[Awaited]):
    """Speaks to one server as one agent, with one token, or anonymously.

    Files, SQLite and signatures are worked on in a thread of the client's own, never on the event loop."""

    def __init__(
        self,
        url: str,
        identity: Signer | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        observer: Observer | None = None,
    ) -> None:
        self._line = Line(origin(url), identity, token, timeout, observer)
        self._http = httpx.AsyncClient(**connecting(url))
        self._others: dict[str, httpx.AsyncClient] = {}  # for servers that an exchange names itself
        # One thread: what an exchange does between two requests is not interleaved with another's.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="angelia-client")
        super().__init__(self.run)

    @cached_property
    def mail(self) -> AsyncMail:
        from angelia.client.mail_verbs import AsyncMail

        return AsyncMail(self)

    @cached_property
    def rooms(self) -> AsyncRooms:
        from angelia.client.room_verbs import AsyncRooms

        return AsyncRooms(self)

    @cached_property
    def queues(self) -> AsyncQueues:
        from angelia.client.queue_verbs import AsyncQueues

        return AsyncQueues(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends loops over queues, and closes the connections, after the work in hand."""
        if "queues" in vars(self):
            await self.queues.close()
        for http in (self._http, *self._others.values()):
            await http.aclose()
        await asyncio.to_thread(self._worker.shutdown)

    async def run(self, exchange: Exchange[T]) -> T:
        """Takes an exchange to its end and returns its answer; the verbs of the namespaces do this with theirs."""
        # A context of its own: which pair signs is a matter of one exchange, and others share the thread meanwhile.
        return await self._finish(self._line.run(exchange), contextvars.copy_context())

    async def _finish(self, steps: Generator[Step, Outcome, T], context: contextvars.Context) -> T:
        outcome: Outcome = None
        while True:
            step = await self._aside(context.run, next_step, steps, outcome)
            if isinstance(step, StopIteration):
                answer: T = step.value
                return answer
            outcome = await self._take(step, context)

    async def _branch(self, steps: Generator[Step, Outcome, Response], context: contextvars.Context) -> BranchOutcome:
        try:
            return await self._finish(steps, context)
        except (AngeliaError, OSError) as error:
            return error

    def _http_to(self, url: str) -> httpx.AsyncClient:
        if url.startswith(self._line.url + "/"):
            return self._http
        server = origin_of(url)
        if server not in self._others:
            self._others[server] = httpx.AsyncClient(**connecting(server))
        return self._others[server]

    async def _aside(self, work: Callable[[*Ts], T], /, *args: *Ts) -> T:
        """Runs work on the client's own thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *args)

    async def _take(self, step: Step, context: contextvars.Context) -> Outcome:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        if isinstance(step, Branches):
            return tuple(await asyncio.gather(*(self._branch(branch, context) for branch in step.branches)))
        body = Body(step)
        try:
            async with self._http_to(step.url).stream(**step.arguments) as answer:
                async for chunk in answer.aiter_bytes():
                    if (problem := body.take(chunk)) is not None:
                        return problem
                return body.response(answer)
        except httpx.RequestError as error:
            return described(error, timeout=step.allowed)
