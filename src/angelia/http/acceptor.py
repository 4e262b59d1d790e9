"""Accepts connections so that web processes that share a listener share its connections too."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import structlog

# libuv accepts all that wait: of 64 clients that came at once, one process of two got 53 (median of twelve tries); in
# this way 41. A process that takes a few in each turn of its event loop leaves the rest to those that are less busy.
_AT_ONCE = 4
_PAUSE_SECONDS = 1.0
# Another process took the connection, or it failed on its way here, as accept(2) lists: the others may be well.
_NEXT_TIME = {
    errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.ENETDOWN, errno.EPROTO, errno.ENOPROTOOPT, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.EPERM,
}  # fmt: skip
log = structlog.get_logger(__name__)


class Acceptor:
    """Gives a protocol to each connection of a listener, until it is closed."""

    def __init__(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._listener = listener
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    async def close(self) -> None:
        """Accepts no more. Connections that were accepted have their protocol when this returns; the listener stays
        open."""
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        await asyncio.gather(*self._opening)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _NEXT_TIME:
                    return
                log.error("no connection can be accepted for a second", error=str(error))
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_PAUSE_SECONDS, self._loop.add_reader, self._listener, self._accept)
                return
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:
            connection.close()  # it broke before it was open
