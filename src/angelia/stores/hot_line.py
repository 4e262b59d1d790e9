"""One pipelined connection to the hot tier: commands are sent without waiting, replies come in the order of
commands."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, RedisError, ResponseError

ANSWER_SECONDS = 2.0
_NOT_YET = object()

Word = str | int | bytes  # one part of a command


def take_over(connection: AbstractConnection, protocol: asyncio.Protocol) -> asyncio.WriteTransport:
    """Gives a connection to a protocol of ours. The client library opened it, because it knows URLs, TLS and
    passwords."""
    writer = connection._writer  # the library has no other way to give its transport away
    assert writer is not None, "it was connected just now"
    writer.transport.set_protocol(protocol)
    return writer.transport


class HotLine(asyncio.Protocol):
    """Sends all commands of one turn of the event loop together. Never sends one twice: after a broken connection it
    may have run or not, and only its caller knows whether a retry is safe."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection  # kept alive, or it would close the transport
        self._transport = take_over(connection, self)
        self._loop = asyncio.get_running_loop()
        self._answers = hiredis.Reader(replyError=_reply_error, notEnoughData=_NOT_YET)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.open = True

    def ask(self, *words: Word) -> asyncio.Future[Any]:
        """Sends one command. The future gets its reply, or the error of the server or of the connection."""
        mine: asyncio.Future[Any] = self._loop.create_future()
        if not self.open:
            mine.set_exception(ConnectionError("the line to the hot tier is broken"))
            return mine
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(hiredis.pack_command(words))  # type: ignore[arg-type] # a tuple of any length
        self._waiting.append((mine, self._loop.time() + ANSWER_SECONDS))
        if self._timer is None:
            self._timer = self._loop.call_later(ANSWER_SECONDS, self._check_oldest)
        return mine

    def close(self) -> None:
        self._transport.close()
        self.connection_lost(None)

    def data_received(self, data: bytes) -> None:
        self._answers.feed(data)
        try:
            while (answer := self._answers.gets()) is not _NOT_YET:
                if isinstance(answer, hiredis.PushNotification):
                    continue
                mine, _ = self._waiting.popleft()
                if mine.done():
                    continue  # its caller was cancelled
                if isinstance(answer, RedisError):
                    mine.set_exception(answer)
                else:
                    mine.set_result(answer)
        except hiredis.HiredisError:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Fails all commands that wait for a reply; they may have run."""
        self.open = False
        self._unsent.clear()
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            mine, _ = self._waiting.popleft()
            if not mine.done():
                mine.set_exception(ConnectionError("the line to the hot tier broke"))

    def _send(self) -> None:
        if self._unsent:
            self._transport.writelines(self._unsent)
            self._unsent.clear()

    def _check_oldest(self) -> None:
        """Drops the connection when the oldest command has no reply in time: all later ones wait behind it."""
        self._timer = None
        if not self._waiting:
            return
        left = self._waiting[0][1] - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_oldest)
        else:
            self._transport.abort()
            self.connection_lost(None)


def _reply_error(text: str) -> ResponseError:
    return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)
