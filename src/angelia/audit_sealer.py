"""Seals and signs the audit in the main process: the only one that holds the node key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from angelia.api import Tick
from angelia.audit.service import Audit, sealing_tick
from angelia.audit.witness_client import CheckpointHandover, witness_at
from angelia.keys.node_key import NodeKey
from angelia.settings import Loaded
from angelia.stores.ledger import Ledger
from angelia.stores.open_stores import disk_of
from angelia.ticker import Ticker

log = structlog.get_logger(__name__)
_FAREWELL_SECONDS = 10.0
_AGAIN_SECONDS = 5.0


@asynccontextmanager
async def sealing(loaded: Loaded, node: NodeKey) -> AsyncIterator[None]:
    """Runs the sealer's ticks until the block ends."""
    settings = loaded.settings
    assert settings.database_url
    ledger = await Ledger.open(settings.database_url, connections=3, disk=disk_of(loaded))
    work = [sealing_tick(Audit(ledger), node)]
    if settings.audit_witness is not None:
        handing = CheckpointHandover(node, witness_at(settings.audit_witness, begins=node.signed() is None))
        work.append(Tick("audit witness", 1.0, handing.hand_over, everywhere=True))
    try:
        async with Ticker(ledger, work):
            yield
    finally:
        await ledger.close()


class SealerThread:
    """A thread with an event loop of its own, because the main loop, which starts processes, must not wait for the
    ledger."""

    def __init__(self, loaded: Loaded, node: NodeKey) -> None:
        self._loaded = loaded
        self._node = node
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Waits for the present round. One that hangs ends with the process, and PostgreSQL rolls it back."""
        self._stopped.set()
        self._thread.join(_FAREWELL_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                asyncio.run(self._seal())
            except Exception:  # no error of one round may end the sealer
                log.exception("the audit's sealer ended, and is started again")
                self._stopped.wait(_AGAIN_SECONDS)

    async def _seal(self) -> None:
        async with sealing(self._loaded, self._node):
            await asyncio.to_thread(self._stopped.wait)
