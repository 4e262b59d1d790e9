"""One connection to the hot tier on which nobody waits for anybody else: answers come in the order of the questions."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, RedisError, ResponseError

ANSWER_SECONDS = 2.0
_NOT_YET = object()

Word = str | int | bytes  # what a command is made of


class HotLine(asyncio.Protocol):
    """Writes what is asked in one go per turn of the event loop, and never asks twice: whether a command has run before
    its line broke, only its caller knows what to do about."""

    def __init__(self, connection: AbstractConnection) -> None:
        """Take over a connection that was made and greeted by the client library, which knows URLs, TLS and names."""
        writer = connection._writer  # it has no other way to hand its transport on
        assert writer is not None, "it was connected just now"
        self._connection = connection  # it would close what it lost
        self._transport = writer.transport
        self._loop = asyncio.get_running_loop()
        self._answers = hiredis.Reader(replyError=_refusal, notEnoughData=_NOT_YET)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None
        self.open = True
        self._transport.set_protocol(self)

    def ask(self, *words: Word) -> asyncio.Future[Any]:
        """One command; its answer, or what the server or the line has against it."""
        mine: asyncio.Future[Any] = self._loop.create_future()
        if not self.open:
            mine.set_exception(ConnectionError("the line to the hot tier is broken"))
            return mine
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(hiredis.pack_command(words))  # type: ignore[arg-type] # of any length
        self._waiting.append((mine, self._loop.time() + ANSWER_SECONDS))
        if self._watch is None:
            self._watch = self._loop.call_later(ANSWER_SECONDS, self._look)
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
                    continue  # whoever asked has gone away
                if isinstance(answer, RedisError):
                    mine.set_exception(answer)
                else:
                    mine.set_result(answer)
        except hiredis.HiredisError:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Whoever waits is told; what was written may have been done."""
        self.open = False
        self._unsent.clear()
        if self._watch is not None:
            self._watch.cancel()
        while self._waiting:
            mine, _ = self._waiting.popleft()
            if not mine.done():
                mine.set_exception(ConnectionError("the line to the hot tier broke"))

    def _send(self) -> None:
        if self._unsent:
            self._transport.writelines(self._unsent)
            self._unsent.clear()

    def _look(self) -> None:
        """The oldest question is the first to be answered: if it waits too long, so does everybody."""
        self._watch = None
        if not self._waiting:
            return
        left = self._waiting[0][1] - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look)
        else:
            self._transport.abort()
            self.connection_lost(None)


def _refusal(text: str) -> ResponseError:
    return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)
