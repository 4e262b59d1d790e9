"""The peer of a request: uvicorn with an application that answers `{}`, in a process of its own.

It gets the listening socket's descriptor as its argument, and has the same loop, parser and settings as a web process
of Angelia.
"""

from __future__ import annotations

import socket
import sys

import uvicorn
from starlette.types import Receive, Scope, Send

HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"2")]


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": b"{}"})


if __name__ == "__main__":
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=60,
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
