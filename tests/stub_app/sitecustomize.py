"""Puts a tiny application in the place of `angelia.app`, for tests of the processes around it.

Loaded by every Python process that has this directory on PYTHONPATH. STUB_CRASH names a file whose presence makes
a starting worker fail.
"""

import asyncio
import os
import signal
import sys
import types
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Prepared:
    open_mode: bool


async def prepare(settings, data_dir):
    return Prepared(open_mode=settings.loopback)


def build(*, loaded, open_mode, worker, data_dir):
    async def application(scope, receive, send):
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        await asyncio.sleep(0.7 if scope["path"] == "/slow" else 0)
        if scope["path"] == "/crash":
            os.kill(os.getpid(), signal.SIGKILL)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        answer = f"{os.getpid()} {worker} {open_mode} {data_dir} {loaded.settings.context}"
        await send({"type": "http.response.body", "body": answer.encode()})

    async def lifespan(receive, send):
        await receive()
        if "STUB_CRASH" in os.environ and Path(os.environ["STUB_CRASH"]).exists():
            await send({"type": "lifespan.startup.failed", "message": "the stub was told to fail"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    return application


module = types.ModuleType("angelia.app")
module.prepare, module.build, module.Prepared = prepare, build, Prepared
sys.modules["angelia.app"] = module
