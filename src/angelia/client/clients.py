"""The two clients: the same namespaces, once to be awaited and once blocking."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar, TypeVarTuple

import httpx

from angelia.client import mail_stream, mailbox_server, verbs
from angelia.client.exchange import Exchange
from angelia.client.mail_stream import Event
from angelia.client.namespaces import Awaited, Blocking, Mode, Run
from angelia.client.transport import Body, Line, Observer, Outcome, Pause, Signer, Step, described, is_loopback, origin
from angelia.mailbox.mailbox import Mailbox

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Namespaces(Generic[Mode]):
    """The namespaces of a client, one per slice."""

    def __init__(self, run: Run) -> None:
        self.agents: verbs.AgentVerbs[Mode] = verbs.AgentVerbs(run)
        self.tokens: verbs.TokenVerbs[Mode] = verbs.TokenVerbs(run)
        self.guard: verbs.GuardVerbs[Mode] = verbs.GuardVerbs(run)
        self.policy: verbs.PolicyVerbs[Mode] = verbs.PolicyVerbs(run)
        self.keys: verbs.KeyVerbs[Mode] = verbs.KeyVerbs(run)
        self.channels: verbs.ChannelVerbs[Mode] = verbs.ChannelVerbs(run)
        self.audit: verbs.AuditVerbs[Mode] = verbs.AuditVerbs(run)
        self.runs: verbs.RunVerbs[Mode] = verbs.RunVerbs(run)
        self.server: verbs.ServerVerbs[Mode] = verbs.ServerVerbs(run)


class AsyncClient(_Namespaces[Awaited]):
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
        self._http = httpx.AsyncClient(trust_env=not is_loopback(url))
        # One thread: what an exchange does between two requests is not interleaved with another's.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="angelia-client")
        super().__init__(self._run)
        self.mail = AsyncMail(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections, after the work in hand."""
        await self._http.aclose()
        await asyncio.to_thread(self._worker.shutdown)

    async def _run(self, exchange: Exchange[T]) -> T:
        # A context of its own: which pair signs is a matter of one exchange, and others share the thread meanwhile.
        steps, outcome, context = self._line.run(exchange), None, contextvars.copy_context()
        while True:
            step = await self._aside(context.run, _next, steps, outcome)
            if isinstance(step, StopIteration):
                answer: T = step.value
                return answer
            outcome = await self._take(step)

    async def _aside(self, work: Callable[[*Ts], T], /, *args: *Ts) -> T:
        """Runs work on the client's own thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *args)

    async def _take(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        body = Body(step)
        try:
            async with self._http.stream(**step.arguments) as answer:
                async for chunk in answer.aiter_bytes():
                    if (problem := body.take(chunk)) is not None:
                        return problem
                return body.response(answer)
        except httpx.RequestError as error:
            return described(error, timeout=step.allowed)


class AsyncMail(verbs.MailVerbs[Awaited]):
    """Mail, with what goes on without an end."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client._run)
        self._client = client

    def stream(self, *, lease_seconds: int = 30) -> AsyncGenerator[Event, None]:
        """Yields mail as it comes, and events about the agent's keys and sent mail; opened again when it breaks off.

        `take_in` opens and acknowledges what comes; `contextlib.aclosing` ends the listening in time."""
        client = self._client
        return mail_stream.events(client._line, client._http, client._aside, lease_seconds)

    async def serve(self, mailbox: Mailbox, handler: mailbox_server.Handler) -> None:
        """Serves a mailbox until cancelled: mail goes to the handler one by one, also mail that was held and whose
        sender is allowed by now; the outbox is sent, receipts are fetched, keys are kept fresh. Passing faults are
        waited for.

        An exception of the handler ends it. The message is in the inbox and was acknowledged, so the handler does not
        get it again."""
        client = self._client

        def listen(connected: Callable[[], None]) -> AsyncGenerator[Event, None]:
            return mail_stream.events(client._line, client._http, client._aside, connected=connected)

        await mailbox_server.Serving(mailbox, handler, client._run, client._aside, listen).forever()


class Client(_Namespaces[Blocking]):
    """Speaks to one server as one agent, with one token, or anonymously, and blocks until it answers."""

    def __init__(
        self,
        url: str,
        identity: Signer | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        observer: Observer | None = None,
    ) -> None:
        self._line = Line(origin(url), identity, token, timeout, observer)
        self._http = httpx.Client(trust_env=not is_loopback(url))
        super().__init__(self._run)
        self.mail = BlockingMail(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _run(self, exchange: Exchange[T]) -> T:
        steps, outcome = self._line.run(exchange), None
        while not isinstance(step := _next(steps, outcome), StopIteration):
            outcome = self._take(step)
        answer: T = step.value
        return answer

    def _take(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        body = Body(step)
        try:
            with self._http.stream(**step.arguments) as answer:
                for chunk in answer.iter_bytes():
                    if (problem := body.take(chunk)) is not None:
                        return problem
                return body.response(answer)
        except httpx.RequestError as error:
            return described(error, timeout=step.allowed)


class BlockingMail(verbs.MailVerbs[Blocking]):
    """Mail, with what goes on without an end."""

    def __init__(self, client: Client) -> None:
        super().__init__(client._run)
        self._client = client

    def stream(self, *, lease_seconds: int = 30) -> Generator[Event, None, None]:
        """Yields mail as it comes, and events about the agent's keys and sent mail; opened again when it breaks off.

        `take_in` opens and acknowledges what comes; `contextlib.closing` ends the listening in time."""
        return mail_stream.blocking_events(self._client._line, self._client._http, lease_seconds)


def _next(steps: Generator[Step, Outcome, Any], outcome: Outcome) -> Step | StopIteration:
    """Returns the next step of an exchange, or its end with the answer, which is not raised: a StopIteration would not
    survive the way back from a thread."""
    try:
        return steps.send(outcome)
    except StopIteration as done:
        return done
