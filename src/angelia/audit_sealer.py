"""Seals and signs the audit in the main process, which alone holds the node key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from angelia.api import Tick
from angelia.app import disk_of
from angelia.audit.service import Audit, sealing_tick
from angelia.audit.witness_client import CheckpointHandover, witness_at
from angelia.keys.node_key import NodeKey
from angelia.settings import Loaded
from angelia.stores.ledger import Ledger
from angelia.ticker import Ticker

log = structlog.get_logger(__name__)
_FAREWELL_SECONDS = 10.0
_AGAIN_SECONDS = 5.0


@asynccontextmanager
async def sealing(loaded: Loaded, data_dir: Path, node: NodeKey) -> AsyncIterator[None]:
    """The sealer's ticks at work, in the one process that holds the node key."""
    settings = loaded.settings
    assert settings.database_url
    ledger = await Ledger.open(settings.database_url, connections=3, disk=disk_of(loaded, data_dir))
    work = [sealing_tick(Audit(ledger), node)]
    if settings.audit_witness is not None:
        handing = CheckpointHandover(node, witness_at(settings.audit_witness, begins=node.signed() is None))
        work.append(Tick("audit witness", 1.0, handing.hand_over, everywhere=True))
    ticker = Ticker(ledger, work)
    ticker.start()
    try:
        yield
    finally:
        await ticker.stop()
        await ledger.close()


class SealerThread:
    """A thread with an event loop of its own: the main loop starts processes and must never wait for the ledger."""

    def __init__(self, loaded: Loaded, data_dir: Path, node: NodeKey) -> None:
        self._loaded = loaded
        self._data_dir = data_dir
        self._node = node
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let a round that is under way finish; one that hangs ends with the process, and the ledger undoes it."""
        self._stopped.set()
        self._thread.join(_FAREWELL_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                asyncio.run(self._seal())
            except Exception:  # the audit must go on, whatever one round met
                log.exception("the audit's sealer ended, and is started again")
                self._stopped.wait(_AGAIN_SECONDS)

    async def _seal(self) -> None:
        async with sealing(self._loaded, self._data_dir, self._node):
            await asyncio.to_thread(self._stopped.wait)
