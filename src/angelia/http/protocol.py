"""uvicorn's HTTP protocol, with limits that it lacks: on the size of a head, and on slow peers."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from angelia.http.answers import ErrorText
from angelia.http.origin import SECURITY

HEAD_BYTES = 32 << 10
HEAD_FIELDS = 100
HEAD_SECONDS = 15.0
WRITE_SECONDS = 15.0


class BoundedProtocol(HttpToolsProtocol):
    """Refuses heads that are too large (431), and closes connections that send or read too slowly."""

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0
    _refusal = HTTPStatus.BAD_REQUEST

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._head_timer)
        self._stop(self._write_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._in_head
        super().data_received(data)
        if was_in_head and self._in_head:
            # The parser does not report an unfinished field, so count its bytes here; none of them is of an earlier
            # body.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self.send_400_response("")
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_head(len(name) + len(value))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES or len(self.headers) > HEAD_FIELDS:
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError("the head is too large")  # stops the parser, which then calls send_400_response

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop(self._head_timer)
        self._head_timer = None
        super().on_headers_complete()

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
