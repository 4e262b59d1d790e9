"""uvicorn's HTTP protocol, with limits that it lacks: on the size of a head, and on slow peers. It also takes an answer
as a whole, which saves a system call and the check of each header."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from angelia.http.answers import ErrorText
from angelia.http.origin import SECURITY

HEAD_BYTES = 32 << 10
HEAD_FIELDS = 100
TRAILER_FIELDS = 10  # after a chunked body; nobody reads them
HEAD_SECONDS = 15.0
WRITE_SECONDS = 60.0
# The name of the ASGI extension by which an application hands over status, lines of the head, and body at once.
WHOLE_ANSWER = "angelia.whole_answer"
_MOST_JOINED = 64 << 10  # a larger body is not copied to stand behind its head


class BoundedProtocol(HttpToolsProtocol):
    """Refuses heads that are too large (431), and closes connections that send or read too slowly."""

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _idle_timer: asyncio.TimerHandle | None = None
    _idle_since: float | None = None
    _in_head = False
    _head_bytes = 0
    _refusal = HTTPStatus.BAD_REQUEST

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is None and transport.get_extra_info("socket").family != socket.AF_UNIX:
            # Reset by the peer before it was accepted. The kernel still hands over its request, but not its address, by
            # which it may be blocked.
            transport.abort()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._head_timer)
        self._stop(self._write_timer)
        self._stop(self._idle_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._in_head
        super().data_received(data)
        if self._in_head:
            # The parser does not report an unfinished head. What came with the end of an earlier request is not all of
            # this one, so of such a read only the fields count.
            self._head_bytes += len(data) if was_in_head else 0
            if max(self._head_bytes, self._size_of_head()) > HEAD_BYTES or len(self.headers) > HEAD_FIELDS:
                self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self.send_400_response("")
        elif len(self.headers) > TRAILER_FIELDS:
            self.transport.close()
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop(self._head_timer)
        self._head_timer = None
        # Counted here and not field by field: a call for each would cost as much as uvicorn's own.
        if self._size_of_head() > HEAD_BYTES or len(self.headers) > HEAD_FIELDS:
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("the head is too large")  # stops the parser, which then calls send_400_response
        super().on_headers_complete()
        # The parser reports the trailers of a chunked body as it does headers. They are no part of the head: a list of
        # their own keeps them out of it, and shows how many there are.
        self.headers = []
        # Its task has not begun yet, so it finds this. The value is a function, which uvicorn's types do not foresee.
        self.scope["extensions"] = {WHOLE_ANSWER: partial(_send_whole, self.cycle)}  # type: ignore[dict-item]

    def _size_of_head(self) -> int:
        return len(self.url) + sum([len(name) + len(value) for name, value in self.headers])

    def on_response_complete(self) -> None:
        """Begins the next pipelined request, or waits for one. uvicorn makes and cancels a timer for each request; this
        one looks, when it is due, for how long the connection has been idle."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._check_idle)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _check_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._check_idle)
        else:
            self.timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no valid request, in the form of the other errors."""
        if self.transport.is_closing():
            return
        words = {400: "this is no HTTP request", 431: "the request's head is too large"}
        body = msgspec.json.encode(ErrorText(words[self._refusal]))
        headers = SECURITY | {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        status = f"HTTP/1.1 {self._refusal.value} {self._refusal.phrase}\r\n"
        self.transport.write(f"{status}{lines}\r\n".encode("latin-1") + body)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._write_timer)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


async def _send_whole(cycle: RequestResponseCycle, status: int, lines: bytes, body: bytes) -> None:
    """Sends status, head and body in one write. `lines` name the length of the body."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    head = [STATUS_LINE[status]]
    for name, value in cycle.default_headers:
        head += (name, b": ", value, b"\r\n")
    head += (lines, b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
    if len(body) <= _MOST_JOINED:
        head.append(body)
        cycle.transport.write(b"".join(head))
    else:
        cycle.transport.write(b"".join(head))
        cycle.transport.write(body)
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
