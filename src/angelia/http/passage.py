"""Passes requests on to another process of this server over a local socket, without buffering them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpcore

from angelia.api import Answer
from angelia.errors import InvalidArgument, Starting, Unavailable
from angelia.http.request import IncomingRequest

CLIENT, REQUEST_ID = b"x-angelia-client", b"x-angelia-request-id"
_OURS = b"x-angelia-"
_HOP_BY_HOP = {b"connection", b"keep-alive", b"te", b"upgrade", b"expect", b"proxy-connection", b"proxy-authorization"}
_CHECKED_HERE = {b"authorization", b"cookie"}  # tokens are for this process alone
_ANSWERED = {b"content-type", b"content-length", b"retry-after", b"www-authenticate", b"allow"}
_TIMEOUTS = {"connect": 2.0, "read": 45.0, "write": 60.0}  # a stream says something every 20 s
_MOST_READ = 64 << 10  # an answer of this size is read at once, and sent in one write
_FAULTS = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


class Passage:
    """The way to a process that listens on a Unix socket, and believes what we say of the caller."""

    def __init__(self, socket: Path) -> None:
        self._pool, self._streams = _pool(socket), _pool(socket)

    async def aclose(self) -> None:
        await self._pool.aclose()
        await self._streams.aclose()

    async def send(self, request: IncomingRequest, limit: int, *, waits: bool) -> Answer:
        """Sends a request with its body as it comes. Returns the answer, whose body comes as a stream unless it is
        short. Those that wait are kept apart: their connections would count as too many idle ones."""
        target = f"{request.path}?{request.query}" if request.query else request.path
        passed = httpcore.Request(
            request.method,
            httpcore.URL(scheme=b"http", host=b"localhost", target=target.encode("latin-1")),
            headers=[
                *_passed_on(request.raw_headers),
                (CLIENT, request.client.text.encode()),
                (REQUEST_ID, request.id.encode()),
            ],
            content=request.chunks(limit) if request.has_body else None,
            extensions={"timeout": _TIMEOUTS},
        )
        with _explained():
            response = await (self._streams if waits else self._pool).handle_async_request(passed)
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in ((name.lower(), value) for name, value in response.headers)
            if name in _ANSWERED
        }
        media = headers.pop("content-type", "")
        length = int(headers.get("content-length", 0 if response.status == 204 else _MOST_READ + 1))
        if length > _MOST_READ:
            return Answer(response.status, headers=headers, content_type=media, stream=_Body(response))
        with _explained():
            body = await response.aread()
            await response.aclose()
        headers.pop("content-length", None)  # the edge counts it again
        return Answer(response.status, body, headers, media)

    async def check_health(self) -> None:
        """Unavailable if the process does not say that it is healthy."""
        with _explained():
            response = await self._pool.request("GET", "http://localhost/health", extensions={"timeout": _TIMEOUTS})
        if response.status != 200:
            raise Unavailable("the group log is not healthy")


def _pool(socket: Path) -> httpcore.AsyncConnectionPool:
    return httpcore.AsyncConnectionPool(
        uds=str(socket), max_connections=None, max_keepalive_connections=64, keepalive_expiry=30.0
    )


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    kept = ((name, value) for name, value in headers if name not in _HOP_BY_HOP | _CHECKED_HERE)
    return [(name, value) for name, value in kept if not name.startswith(_OURS)]


class _Body:
    """The body of an answer as it comes. To close it ends the other process's part too, whether it was begun or not."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response
        self._parts = self._make_parts()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._parts)

    async def aclose(self) -> None:
        await self._parts.aclose()
        await self._response.aclose()

    async def _make_parts(self) -> AsyncGenerator[bytes]:
        with _explained():
            async for part in self._response.aiter_stream():
                if part:
                    yield part


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except httpcore.LocalProtocolError as error:
        raise InvalidArgument("the request cannot be passed on") from error
    except httpcore.ConnectError as error:
        raise Starting("the group log is starting", retry_after=1) from error
    except _FAULTS as error:
        raise Unavailable("the group log broke off", hint="it may have happened or not", retry_after=1) from error
