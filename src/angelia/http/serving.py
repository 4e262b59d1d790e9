"""Serves an application on a listening socket until a signal ends the process."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from typing import Protocol

import uvicorn
from starlette.types import Receive, Scope, Send

from angelia.http.acceptor import Acceptor
from angelia.http.protocol import BoundedProtocol


class ServedApplication(Protocol):
    """What is served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def stop_waiting(self) -> None:
        """Called before the server stops: long polls and streams end now."""


def serve(
    application: ServedApplication,
    listener: socket.socket,
    *,
    drain_seconds: int,
    on_ready: Callable[[], None],
    protocol: type[BoundedProtocol] = BoundedProtocol,
) -> bool:
    """Returns at the end whether the application had started; why it had not is in the log."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=[])
            if self.should_exit:
                return
            self._acceptor = Acceptor(listener, lambda: protocol(config, self.server_state, self.lifespan.state))
            # What exists by now stays. The collector would look through it again and again: 4 to 7 µs for each request,
            # in long pauses.
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000)  # a request makes few cycles, and hundreds of objects that need no collector
            on_ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await self._acceptor.close()
            application.stop_waiting()
            await super().shutdown(sockets=sockets)

    config = uvicorn.Config(
        application,
        loop="uvloop",
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=drain_seconds,
    )
    server = Server(config)
    server.run(sockets=[listener])
    return server.started
