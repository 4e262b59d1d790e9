"""The lifespan protocol of ASGI: what an application opens before its first request and closes after the last."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from starlette.types import Receive, Send


async def follow(receive: Receive, send: Send, running: AbstractAsyncContextManager[None]) -> None:
    """Enters `running` when the server starts, and leaves it when the server stops."""
    await receive()
    async with running:
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})
