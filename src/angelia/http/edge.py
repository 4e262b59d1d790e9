"""The edge: takes a request from the socket to its handler and back. The order of its checks decides which error
wins."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from angelia import metrics
from angelia.api import (
    EVENT_STREAM,
    Admission,
    Answer,
    Call,
    Handler,
    Operation,
    Route,
    Surface,
    UnverifiedRequest,
    clock,
    sse,
)
from angelia.errors import AngeliaError, InvalidArgument, MethodNotAllowed, NotFound, RateLimited, Unavailable
from angelia.guard.model import Network
from angelia.http import answer_head, answers, logs, origin
from angelia.http.answer_head import SharedHead
from angelia.http.passage import Passage
from angelia.http.protocol import WHOLE_ANSWER
from angelia.http.request import Clients, IncomingRequest
from angelia.http.route_table import Match, RouteMetrics, RouteTable, ServedRoute
from angelia.stores.wake import on_wait

_GROUPS = "/v1/groups/"
MOST_WAITS = 20  # long polls and streams of one caller at one address at a time
MOST_QUEUE_WAITS = 1_000  # the same on the queue surface, where a whole fleet may share one token
# A longer stream is ended: the client connects again, and its credential is verified again.
STREAM_SECONDS = 3600.0
# Without these headers a proxy such as nginx buffers or compresses a stream, and so delays its events.
UNBUFFERED = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
CALLER_GONE = 499  # the caller hung up; for the log and the metrics only
log = structlog.get_logger("angelia.request")


class Edge:
    """The ASGI application for HTTP requests."""

    def __init__(
        self,
        routes: Sequence[Route],
        guard: Admission,
        *,
        open_mode: bool,
        loopback: bool,
        proxies: tuple[Network, ...],
        passed_on: Sequence[Operation[Any]] = (),
        passage: Passage | None = None,
        most_waits: int = MOST_WAITS,
        counts: bool = True,
    ) -> None:
        """The operations that are `passed_on` are those of another process, behind the passage. That one counts no
        requests: they are counted here."""
        self._table = RouteTable(routes, passed_on)
        self._guard = guard
        self._passage = passage
        self._passed_streams: set[IncomingRequest] = set()
        self._most_waits = most_waits
        self._counts = counts
        self._open_mode = open_mode
        self._loopback = loopback
        self._clients = Clients(proxies)
        self._waits: Counter[tuple[str, str]] = Counter()
        self._unrouted_metrics = RouteMetrics("other", "other")
        # Answers from the CORS step on let other origins read them, or say that they do not; earlier ones say nothing.
        self._early_head = SharedHead(origin.SECURITY)
        self._heads = {
            surface: SharedHead(origin.SECURITY | origin.cors(surface, open_mode=open_mode)) for surface in Surface
        }

    def stop_waiting(self) -> None:
        """Ends the streams of other processes; those of this one have their own way to end."""
        for request in self._passed_streams:
            request.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        request = IncomingRequest(scope, receive, self._clients, self._early_head)
        match = self._table.match(request.path)
        route = match[0].get(request.method)
        request.surface = route.surface if route else Surface.of(request.path)
        try:
            try:
                answer = await self._answer(request, route, match)
                # Inside the try, so that an answer that cannot be encoded counts as an error of its handler.
                answer.body = answers.encoded(answer, request.surface)
                if answer.headers:
                    answer_head.check(answer.headers)
            except AngeliaError as error:
                answer = self._error(request, error)
            except Exception:
                log.exception("a handler failed", request_id=request.id, path=route.operation.path if route else "")
                hint = "the log has this request's id"
                answer = self._error(request, AngeliaError("something went wrong on the server", hint=hint))
            if answer.stream is None:
                await _send_whole(scope, send, request, answer)
            else:
                await _send_stream(send, request, answer, answer.stream)
        finally:
            self._passed_streams.discard(request)
            if request.waits_as is not None:
                request.watch_no_more()
                self._waits -= Counter([request.waits_as])  # this also drops zero counts
        self._observe(request, route, answer.status, time.perf_counter() - started)

    async def _answer(self, request: IncomingRequest, route: ServedRoute | None, match: Match) -> Answer:
        operation = route.operation if route else None
        if "," in request.headers.get("host", ""):
            raise InvalidArgument("a request names one Host")
        if self._open_mode:
            origin.check_open_mode(request.headers, operation, loopback=self._loopback)
        request.check_declared_body(operation, route.limit if route else request.surface.body_limit)
        now = clock()
        request.answer_headers |= await self._guard.check_address(operation, request.client, now)
        request.head = self._heads[request.surface]
        methods, values, names = match
        if route is None or operation is None:
            return self._unrouted(request, methods)
        unverified = UnverifiedRequest(
            operation, request.path, values, request.query, request.headers, request.client, request.surface, now
        )
        if route.handler is None:
            return await self._pass_on(request, route, unverified)
        read_body = functools.partial(request.body, route.limit) if request.has_body else _no_body
        caller, body, headers = await self._guard.identify(unverified, read_body)
        request.answer_headers |= headers
        request.caller = caller

        call = Call(
            caller=caller,
            now=now,
            request_id=request.id,
            surface=request.surface,
            raw_path=values,
            raw_query=request.query,
            body=body,
            headers=request.headers,
            prove=functools.partial(self._guard.prove_possession, unverified, body),
            author_proof=functools.partial(self._guard.author_proof, unverified, caller, body),
            path_names=names,
        )
        return await (self._wait_for(request, route.handler, call) if operation.waits else route.handler(call))

    async def _pass_on(self, request: IncomingRequest, route: ServedRoute, unverified: UnverifiedRequest) -> Answer:
        """Lets another process answer, which verifies the signature itself."""
        assert self._passage is not None, "what is passed on has a passage"
        if route.operation.with_token:
            await self._guard.check_token(unverified)
        answer = await self._passage.send(request, route.limit, waits=route.operation.waits)
        if answer.status == answers.STATUS["unauthenticated"]:
            await self._guard.count_refusal(unverified, "unauthenticated")
        if answer.stream is not None and route.operation.waits:
            self._passed_streams.add(request)
            request.watch_caller()
        return answer

    async def _wait_for(self, request: IncomingRequest, handler: Handler, call: Call) -> Answer:
        """Runs a handler that may wait. It is a waiter from the moment when it does: counted, and cancelled when its
        caller hangs up. What is answered at once, as most polls of a busy mailbox are, is like any other request."""
        before, streams = on_wait.set(functools.partial(self._begin_to_wait, request)), False
        try:
            answer = await handler(call)
            if answer.stream is not None:
                try:
                    self._begin_to_wait(request)
                except RateLimited:
                    await _close(answer.stream)
                    raise
                streams = True
            return answer
        except asyncio.CancelledError:
            if request.survive_cancellation():
                return Answer(CALLER_GONE)
            raise
        finally:
            on_wait.reset(before)
            if not streams:
                request.watch_no_more()

    def _begin_to_wait(self, request: IncomingRequest) -> None:
        """Limits the waiting requests of one caller, because each wake-up costs work for every one of them."""
        if request.waits_as is not None:
            return
        assert request.caller is not None, "handlers run for known callers"
        waits_as = (request.caller.counted_as, request.client.subject)
        most = MOST_QUEUE_WAITS if request.surface is Surface.QUEUES else self._most_waits
        if self._waits[waits_as] >= most:
            raise RateLimited(
                f"you wait in {most:,} requests already", hint="end some of them, or use one stream", retry_after=5
            )
        self._waits[waits_as] += 1
        request.waits_as = waits_as
        request.watch_caller()

    def _unrouted(self, request: IncomingRequest, methods: dict[str, ServedRoute]) -> Answer:
        if request.method == "OPTIONS":
            status, headers = origin.preflight(request.surface, open_mode=self._open_mode)
            return Answer(status, headers=headers)
        if methods:
            error = MethodNotAllowed("method not allowed", hint=f"this path takes {', '.join(sorted(methods))}")
            error.headers = {"allow": ", ".join(sorted(methods))}
            raise error
        raise NotFound("404 page not found", hint="the routes are listed at /docs and /openapi.json")

    def _error(self, request: IncomingRequest, error: AngeliaError) -> Answer:
        request.failure = error
        if isinstance(error, Unavailable):
            metrics.STORE_UNAVAILABLE.inc()
        answer = answers.of_error(error, request.surface, request.id)
        answer.body = answers.encoded(answer, request.surface)
        return answer

    def _observe(self, request: IncomingRequest, route: ServedRoute | None, status: int, seconds: float) -> None:
        if self._counts:
            (route.metrics if route else self._unrouted_metrics).observe(status, seconds)
        if not logs.requests.wanted:
            return
        failure, private = request.failure, route is not None and route.operation.private_path
        path = route.operation.path if route and private else request.path
        if route is None and path.startswith(_GROUPS):
            path = _GROUPS + "…"  # a log names no group
        logs.requests.write(
            request_id=request.id,
            method=request.method,
            path=path,
            status=status,
            seconds=seconds,
            address=request.client.text,
            caller=request.caller.known_as if request.caller else None,
            code=failure.code if failure else None,
            cause=repr(failure.__cause__) if failure and status >= 500 else None,
        )


async def _no_body() -> bytes:
    """By HTTP/1.1 a request has no body if no header declares one: it needs neither a read nor a timer."""
    return b""


async def _send_whole(scope: Scope, send: Send, request: IncomingRequest, answer: Answer) -> None:
    """Sends an answer that is no stream; in one write, if the server offers that."""
    body: bytes = answer.body
    own = {"x-request-id": request.id, **request.answer_headers, **answer.headers}
    if body or answer.status not in (204, 304):
        own["content-length"] = str(len(body))
    if body:
        own.setdefault("content-type", answer.content_type)
    if request.method == "HEAD":
        body = b""
    whole = scope.get("extensions", {}).get(WHOLE_ANSWER)
    if whole is not None:
        await whole(answer.status, request.head.lines_with_own(own), body)
        return
    headers = answer_head.raw(request.head.with_own(own))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _close(stream: AsyncIterator[bytes]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


async def _send_stream(send: Send, request: IncomingRequest, answer: Answer, stream: AsyncIterator[bytes]) -> None:
    """Sends a stream of events until it ends, the caller hangs up, or it has run for an hour."""
    own = {"x-request-id": request.id, **request.answer_headers, **answer.headers}
    own |= {"content-type": answer.content_type, **UNBUFFERED}
    headers = answer_head.raw(request.head.with_own(own))
    parts, until = aiter(stream), time.monotonic() + STREAM_SECONDS
    try:
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        while (part := await anext(parts, b"")) and time.monotonic() < until:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except asyncio.CancelledError:
        if not request.survive_cancellation():
            raise
    except AngeliaError as error:
        request.watch_no_more()
        request.failure = error
        if answer.content_type != EVENT_STREAM:
            return  # the server closes the connection, which shows that the answer is not complete
        # The answer has begun, so an event is the only way to say why it ends.
        said = sse("error", msgspec.json.encode({"code": error.code, "title": error.message}))
        await send({"type": "http.response.body", "body": said, "more_body": True})
    except Exception:
        # The headers are sent, so breaking off is the only way to show that the answer is incomplete.
        log.exception("a stream broke off", request_id=request.id)
        raise
    finally:
        request.watch_no_more()  # a hang-up must not cut the stream's own clean-up short
        await _close(stream)
    await send({"type": "http.response.body", "body": b""})
