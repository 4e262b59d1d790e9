"""Puts a tiny application in the place of `angelia.app`, `angelia.start` and the sealer, for tests of the processes
around it.

Every Python process with this directory on PYTHONPATH loads it. STUB_FAILS makes workers fail: in `build`, or in
the `lifespan`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import types
from typing import Any

FAILS = os.environ.get("STUB_FAILS", "")


async def prepare(loaded: Any, node: Any, *, rotate_master_key: bool) -> bool:
    assert loaded.settings.data_dir.is_dir()
    return bool(loaded.settings.loopback)


class SealerThread:
    def __init__(self, loaded: Any, node: Any) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


def Application(  # noqa: N802 - it stands for a class
    *, loaded: Any, open_mode: bool, worker: int, node: Any
) -> Any:
    if FAILS == "build":
        raise ValueError("the stub was told to fail")

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        await asyncio.sleep(1.0 if scope["path"] == "/slow" else 0.0)
        shown = {one.name: (one.value, one.origin) for one in loaded.shown()}
        answer = {"pid": os.getpid(), "worker": worker, "open_mode": open_mode, "settings": shown}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async def lifespan(receive: Any, send: Any) -> None:
        await receive()
        if FAILS == "lifespan":
            raise OSError("the stub was told to fail")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    application.stop_waiting = lambda: None  # type: ignore[attr-defined]
    return application


for name, members in {
    "angelia.app": {"Application": Application},
    "angelia.start": {"prepare": prepare},
    "angelia.audit_sealer": {"SealerThread": SealerThread},
}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(members)
