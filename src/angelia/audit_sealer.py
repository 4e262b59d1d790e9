"""Seals and signs the audit in the main process, which alone holds the node key."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import structlog

from angelia import app
from angelia.keys.node_key import NodeKey
from angelia.settings import Loaded

log = structlog.get_logger(__name__)
_FAREWELL_SECONDS = 10.0
_AGAIN_SECONDS = 5.0


class Sealer:
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
        async with app.sealing(self._loaded, self._data_dir, self._node):
            await asyncio.to_thread(self._stopped.wait)
