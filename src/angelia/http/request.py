"""A request as ASGI gives it: its head, the body while it arrives, and whether its caller is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.types import Receive, Scope

from angelia.api import JSON, Caller, ClientAddress, Operation, Surface, random_id
from angelia.errors import AngeliaError, InvalidArgument, TooLarge, UnsupportedMediaType
from angelia.guard.model import Network, client_address
from angelia.http.answer_head import SharedHead

READ_SECONDS = 15.0
_LONGEST_LENGTH = 20  # digits: more than any 64-bit number has
_MOST_CLIENTS = 10_000
_LONGEST_REMEMBERED = 200


class Clients:
    """The addresses of callers, remembered by what they are read from: the socket's peer, and what proxies say."""

    def __init__(self, proxies: tuple[Network, ...]) -> None:
        self._proxies = proxies
        self._known: dict[tuple[str, str | None], ClientAddress] = {}

    def of(self, peer: str, forwarded: str | None) -> ClientAddress:
        if not self._proxies:
            forwarded = None  # it counts for nothing
        elif forwarded is not None and len(forwarded) > _LONGEST_REMEMBERED:
            return ClientAddress.of(client_address(peer, forwarded, self._proxies))
        known = self._known.get((peer, forwarded))
        if known is None:
            known = ClientAddress.of(client_address(peer, forwarded, self._proxies))
            if len(self._known) >= _MOST_CLIENTS:
                self._known.clear()
            self._known[peer, forwarded] = known
        return known


class IncomingRequest:
    """One request on its way through the edge."""

    __slots__ = (
        "_ended",
        "_receive",
        "_task",
        "_watcher",
        "answer_headers",
        "caller",
        "client",
        "failure",
        "gone",
        "has_body",
        "head",
        "headers",
        "id",
        "method",
        "path",
        "query",
        "raw_headers",
        "surface",
        "waits_as",
    )

    def __init__(self, scope: Scope, receive: Receive, clients: Clients, head: SharedHead) -> None:
        """The surface is that of its route, or of its path; the edge sets it."""
        self.id: str = scope.get("angelia.request_id") or random_id().hex()
        self.method: str = scope["method"]
        # As sent, with its percent-encoding: this is what was signed. `Call.path` decodes parameters, once.
        self.path: str = scope["raw_path"].decode("latin-1")
        self.query: str = scope["query_string"].decode("latin-1")
        self.raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.headers = _combined(self.raw_headers)
        self.has_body = self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers
        self.surface = Surface.ROOT
        peer = scope.get("client")
        self.client = clients.of(peer[0] if peer else "", self.headers.get("x-forwarded-for"))
        self.head = head  # what its answer shares with others
        self.answer_headers: dict[str, str] = {}
        self.caller: Caller | None = None
        self.failure: AngeliaError | None = None
        self.waits_as: tuple[str, str] | None = None  # caller and address, while it is a long poll or a stream
        self.gone = False  # whether the caller hung up while it waited
        self._receive = receive
        self._ended = False
        self._watcher: asyncio.Task[None] | None = None
        self._task: asyncio.Task[Any] | None = None

    def check_declared_body(self, operation: Operation[Any] | None, limit: int) -> None:
        """Refuses a body by its headers: too large (413), or of a media type that the route does not read (415)."""
        if not self.has_body:
            return
        length = self.headers.get("content-length", "0")
        if not length.isdecimal():
            raise InvalidArgument("Content-Length is not a number")
        if len(length) > _LONGEST_LENGTH or int(length) > limit:
            raise TooLarge("request body too large", hint=f"this path takes at most {limit:,} bytes")
        if self.method in ("POST", "PUT", "PATCH"):
            media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
            reads = operation.reads if operation else (JSON,)
            if media_type not in reads:
                raise UnsupportedMediaType(f"content-type must be {' or '.join(reads)}", hint="send JSON")

    async def body(self, limit: int) -> bytes:
        """Reads the body, and counts its bytes: a body without a declared length is limited too."""
        return b"".join([chunk async for chunk in self.chunks(limit)])

    async def chunks(self, limit: int) -> AsyncIterator[bytes]:
        """The body in pieces, as they come."""
        size, until = 0, asyncio.get_running_loop().time() + READ_SECONDS
        while not self._ended:
            try:
                async with asyncio.timeout_at(until):
                    message = await self._receive()
            except TimeoutError as error:
                raise InvalidArgument("failed to read request body", hint="the body came too slowly") from error
            if message["type"] == "http.disconnect":
                raise InvalidArgument("failed to read request body")
            chunk = message.get("body", b"")
            size += len(chunk)
            self._ended = not message.get("more_body", False)
            if size > limit:
                raise TooLarge("request body too large", hint=f"this path takes at most {limit:,} bytes")
            yield chunk

    def watch_caller(self) -> None:
        """From now on the present task is cancelled when the caller hangs up; `gone` says that this was the reason."""
        self._task = asyncio.current_task()
        self._watcher = asyncio.create_task(self._cancel_when_gone())

    def end(self) -> None:
        """Ends a request whose caller is watched, as if it had hung up."""
        self.gone = True
        assert self._task is not None, "only a watched request is ended"
        self._task.cancel()

    def watch_no_more(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    def survive_cancellation(self) -> bool:
        """Called when the task was cancelled: whether the caller hung up, which ends its work but not the task."""
        task = asyncio.current_task()
        if self.gone and task is not None:
            task.uncancel()
        return self.gone

    async def _cancel_when_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.end()


def _combined(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name. Lines of one name are joined to a list (RFC 9110 section 5.3), so that none is ignored."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
