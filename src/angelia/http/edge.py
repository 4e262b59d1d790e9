"""The edge: takes a request from the socket to its handler and back. The order of its checks decides which error
wins."""

from __future__ import annotations

import asyncio
import functools
import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from angelia import metrics
from angelia.api import JSON, PARAMETER, Answer, Call, Caller, Operation, Route, Surface, clock, sse
from angelia.errors import (
    AngeliaError,
    InvalidArgument,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    TooLarge,
    Unavailable,
    UnsupportedMediaType,
)
from angelia.guard.model import ClientAddress, Network, client_address
from angelia.guard.service import Guard, UnverifiedRequest
from angelia.http import answers, origin

T = TypeVar("T")

READ_SECONDS = 15.0
MOST_WAITS = 20  # long polls and streams of one caller at a time
# A longer stream is ended: the client connects again, and its credential is verified again.
STREAM_SECONDS = 3600.0
# Without these headers a proxy such as nginx buffers or compresses a stream, and so delays its events.
UNBUFFERED = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
CALLER_GONE = 499  # the caller hung up; for the log and the metrics only
_LONGEST_LENGTH = 20  # digits: more than any 64-bit number has
log = structlog.get_logger("angelia.request")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A path with parameters, and the route of each method."""

    regex: re.Pattern[str]
    names: tuple[str, ...]
    methods: dict[str, Route]


class RouteTable:
    """Finds the route of a request. Exact paths win over patterns; a trailing slash makes another path."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[str, _Pattern] = {}
        for route in routes:
            operation, names = route.operation, route.operation.path_names
            if not names:
                methods = self._exact.setdefault(operation.path, {})
            else:
                literals = PARAMETER.split(operation.path)[::2]  # between them are the names
                regex = re.compile("([^/]+)".join(re.escape(literal) for literal in literals))
                pattern = self._patterns.setdefault(regex.pattern, _Pattern(regex, names, {}))
                if pattern.names != names:
                    raise ValueError(f"{operation.path} is declared with other parameter names too")
                methods = pattern.methods
            if operation.method in methods:
                raise ValueError(f"{operation.method} {operation.path} is declared twice")
            methods[operation.method] = route

    def match(self, path: str) -> tuple[dict[str, Route], Sequence[str], Sequence[str]]:
        """Returns the routes of a path by method, and the raw values and names of its parameters."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact, (), ()
        for pattern in self._patterns.values():
            found = pattern.regex.fullmatch(path)
            if found is not None:
                return pattern.methods, found.groups(), pattern.names
        return {}, (), ()


class Edge:
    """The ASGI application for HTTP requests."""

    def __init__(
        self, routes: Sequence[Route], guard: Guard, *, open_mode: bool, loopback: bool, proxies: tuple[Network, ...]
    ) -> None:
        self._table = RouteTable(routes)
        self._guard = guard
        self._open_mode = open_mode
        self._loopback = loopback
        self._proxies = proxies
        self._waits: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        request = _Request(scope, receive, self._proxies)
        methods, values, names = self._table.match(request.path)
        route = methods.get(request.method)
        try:
            answer = await self._answer(request, methods, route, values, names)
            # Inside the try, so that a body that cannot be encoded counts as an error of its handler.
            answer.body = answers.encoded(answer, request.surface)
        except AngeliaError as error:
            answer = answers.of_error(error, request.surface, request.id)
            request.failure = error
            if isinstance(error, Unavailable):
                metrics.STORE_UNAVAILABLE.inc()
        except Exception:
            log.exception("a handler failed", request_id=request.id, path=request.path)
            request.failure = AngeliaError("something went wrong on the server", hint="the log has this request's id")
            answer = answers.of_error(request.failure, request.surface, request.id)
        try:
            await self._send(send, request, answer)
            if answer.stream is not None:
                await self._send_stream(send, request, answer.stream)
        finally:
            if request.waits is not None:
                self._waits -= Counter([request.waits])  # this also drops zero counts
        self._observe(request, route, answer.status, time.perf_counter() - started)

    async def _answer(
        self,
        request: _Request,
        methods: dict[str, Route],
        route: Route | None,
        values: Sequence[str],
        names: Sequence[str],
    ) -> Answer:
        operation = route.operation if route else None
        if "," in request.headers.get("host", ""):
            raise InvalidArgument("a request names one Host")
        if self._open_mode:
            origin.check_open_mode(request.headers, operation, loopback=self._loopback)
        request.check_declared_body(operation)
        now = clock()
        request.answer_headers |= await self._guard.check_address(operation, request.client, now)
        request.answer_headers |= origin.cors(request.surface, open_mode=self._open_mode)
        if route is None or operation is None:
            return self._unrouted(request, methods)
        unverified = UnverifiedRequest(
            operation, request.path, request.query, request.headers, request.client, request.surface, now
        )
        caller, body, headers = await self._guard.identify(unverified, lambda: request.body(operation.limit))
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
            path_names=names,
        )
        if not operation.waits:
            return await route.handler(call)
        self._check_waits(caller)
        request.waits = caller.known_as
        self._waits[caller.known_as] += 1
        answer = await request.unless_gone(route.handler(call))
        return Answer(CALLER_GONE) if answer is None else answer

    def _check_waits(self, caller: Caller) -> None:
        """Limits the waiting requests of one caller, because each wake-up costs work for every one of them."""
        if self._waits[caller.known_as] >= MOST_WAITS:
            raise RateLimited(
                f"you wait in {MOST_WAITS} requests already", hint="end some of them, or use one stream", retry_after=5
            )

    def _unrouted(self, request: _Request, methods: dict[str, Route]) -> Answer:
        if request.method == "OPTIONS":
            status, headers = origin.preflight(request.surface, open_mode=self._open_mode)
            return Answer(status, headers=headers)
        if methods:
            error = MethodNotAllowed("method not allowed", hint=f"this path takes {', '.join(sorted(methods))}")
            error.headers = {"allow": ", ".join(sorted(methods))}
            raise error
        raise NotFound("404 page not found", hint="the routes are listed at /docs and /openapi.json")

    async def _send_stream(self, send: Send, request: _Request, stream: AsyncIterator[bytes]) -> None:
        """Sends a stream of events until it ends, the caller hangs up, or it has run for an hour."""
        parts, until = aiter(stream), time.monotonic() + STREAM_SECONDS
        try:
            while (part := await request.unless_gone(anext(parts, b""))) and time.monotonic() < until:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except AngeliaError as error:
            # The answer has begun, so an event is the only way to say why it ends.
            request.failure = error
            said = sse("error", msgspec.json.encode({"code": error.code, "title": error.message}))
            await send({"type": "http.response.body", "body": said, "more_body": True})
        except Exception:
            # The headers are sent, so breaking off is the only way to show that the answer is incomplete.
            log.exception("a stream broke off", request_id=request.id, path=request.path)
            raise
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, request: _Request, answer: Answer) -> None:
        body = answers.encoded(answer, request.surface)
        headers = {**origin.SECURITY, "x-request-id": request.id, **request.answer_headers, **answer.headers}
        if answer.stream is not None:
            headers |= {"content-type": answer.content_type, **UNBUFFERED}
        elif body or answer.status not in (204, 304):
            headers["content-length"] = str(len(body))
        if body:
            headers.setdefault("content-type", answer.content_type)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})
        if answer.stream is None:
            await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})

    def _observe(self, request: _Request, route: Route | None, status: int, seconds: float) -> None:
        # The path is the route's template, with its parameters as AICQ writes them.
        path = PARAMETER.sub(r":\1", route.operation.path) if route else "other"
        method = request.method if route else "other"
        metrics.HTTP_REQUESTS.labels(method, path, str(status)).inc()
        metrics.HTTP_SECONDS.labels(method, path).observe(seconds)
        failure = request.failure
        log.info(
            "request",
            request_id=request.id,
            method=request.method,
            path=request.path,
            status=status,
            ms=round(seconds * 1000, 2),
            address=request.client.text,
            caller=request.caller.known_as if request.caller else None,
            code=failure.code if failure else None,
            cause=repr(failure.__cause__) if failure and status >= 500 else None,
        )


class _Request:
    """A request as ASGI gives it: headers, address, and the body while it arrives."""

    def __init__(self, scope: Scope, receive: Receive, proxies: tuple[Network, ...]) -> None:
        self.id = uuid.uuid4().hex
        self.method: str = scope["method"]
        # As sent, with its percent-encoding: this is what was signed. `Call.path` decodes parameters, once.
        self.path: str = scope["raw_path"].decode("latin-1")
        self.query: str = scope["query_string"].decode("latin-1")
        self.headers = _combined(scope["headers"])
        self.surface = Surface.of(self.path)
        peer = scope.get("client")
        self.client = ClientAddress.of(
            client_address(peer[0] if peer else "", self.headers.get("x-forwarded-for"), proxies)
        )
        self.answer_headers: dict[str, str] = {}
        self.caller: Caller | None = None
        self.failure: AngeliaError | None = None
        self.waits: str | None = None  # the caller, while the request is a long poll or a stream
        self._receive = receive
        self._ended = False

    def check_declared_body(self, operation: Operation[Any] | None) -> None:
        """Refuses a body by its headers: too large (413), or of a media type that the route does not read (415)."""
        length = self.headers.get("content-length", "0")
        limit = operation.limit if operation else self.surface.body_limit
        if not length.isdecimal():
            raise InvalidArgument("Content-Length is not a number")
        if len(length) > _LONGEST_LENGTH or int(length) > limit:
            raise TooLarge("request body too large", hint=f"this path takes at most {limit:,} bytes")
        has_body = length != "0" or "transfer-encoding" in self.headers
        if self.method in ("POST", "PUT", "PATCH") and has_body:
            media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
            reads = operation.reads if operation else (JSON,)
            if media_type not in reads:
                raise UnsupportedMediaType(f"content-type must be {' or '.join(reads)}", hint="send JSON")

    async def unless_gone(self, work: Awaitable[T]) -> T | None:
        """Returns the result of some work; cancels it and returns None when the caller hangs up before."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def body(self, limit: int) -> bytes:
        """Reads the body, and counts its bytes: a body without a declared length is limited too."""
        chunks, size = [], 0
        try:
            async with asyncio.timeout(READ_SECONDS):
                while not self._ended:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise InvalidArgument("failed to read request body")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    self._ended = not message.get("more_body", False)
                    if size > limit:
                        raise TooLarge("request body too large", hint=f"this path takes at most {limit:,} bytes")
                    chunks.append(chunk)
        except TimeoutError as error:
            raise InvalidArgument("failed to read request body", hint="the body came too slowly") from error
        return b"".join(chunks)


def _combined(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name. Lines of one name are joined to a list (RFC 9110 section 5.3), so that none is ignored."""
    lines: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        lines.setdefault(name, []).append(value)
    return {name.decode("latin-1"): b", ".join(values).decode("latin-1") for name, values in lines.items()}
