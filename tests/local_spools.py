"""A spool in the process of a test, on the Unix socket that the application passes group logs on to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from angelia.keys.node_key import NodeKey
from angelia.listener import bind_local
from angelia.settings import Settings
from angelia.spool_app import SpoolApplication
from angelia.stores.embedded.datadir import DataDir
from probe_edge import listening


@asynccontextmanager
async def local_spool(settings: Settings, node: NodeKey, *, open_mode: bool) -> AsyncIterator[None]:
    data_dir = DataDir(settings.data_dir)
    data_dir.runtime.mkdir(parents=True, exist_ok=True)
    application = SpoolApplication(settings, node, open_mode=open_mode, token=None, behind_web=True)
    try:
        async with application.running(), listening(application, bind_local(data_dir.spool_socket)):
            # A signature names the second in which it was made, and those from before the start are refused.
            await asyncio.sleep(1 - time.time() % 1)
            yield
            application.stop_waiting()
    finally:
        data_dir.remove_runtime()
