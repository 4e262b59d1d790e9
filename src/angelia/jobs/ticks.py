"""Runs the background ticks of a server. Any number of processes may; an advisory lock lets one work at a time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from angelia import metrics
from angelia.api import clock
from angelia.errors import AngeliaError, DiskFull
from angelia.stores.ledger import GONE, Ledger, StatementError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tick:
    """Something that is done again and again; `run` says whether more waits, and then does not wait itself."""

    name: str
    every_seconds: float
    run: Callable[[datetime], Awaitable[bool]]
    everywhere: bool = False  # in each process, for what a process remembers

    @property
    def lock(self) -> int:
        return int.from_bytes(hashlib.sha256(f"angelia/tick/{self.name}".encode()).digest()[:8], "big", signed=True)


class Ticks:
    """The running ticks of one process."""

    def __init__(self, ledger: Ledger, ticks: Sequence[Tick]) -> None:
        self._ledger = ledger
        self._ticks = ticks
        self._tasks: list[asyncio.Task[None]] = []
        # A tick that works alone holds one connection for its lock and needs others; so few at a time.
        self._turns = asyncio.Semaphore(2)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._repeat(tick), name=f"tick {tick.name}") for tick in self._ticks]

    async def stop(self) -> None:
        left = set(self._tasks)
        while left:
            # More than once: on its way through a time limit a cancellation can meet the end of what was limited, and
            # be lost.
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=1)

    async def _repeat(self, tick: Tick) -> None:
        while True:
            more = False
            try:
                more = await self._once(tick)
            except DiskFull:
                metrics.TICK_FAILURES.labels(tick.name).inc()  # the log has it once, from whom it happened to
            except (AngeliaError, StatementError, *GONE) as error:
                metrics.TICK_FAILURES.labels(tick.name).inc()
                log.warning("a tick failed and will be tried again", tick=tick.name, error=str(error))
            except Exception:  # a fault in one round must not end the tick for as long as the process lives
                metrics.TICK_FAILURES.labels(tick.name).inc()
                log.exception("a tick failed and will be tried again", tick=tick.name)
            if not more:
                await asyncio.sleep(tick.every_seconds)

    async def _once(self, tick: Tick) -> bool:
        if tick.everywhere:
            return await tick.run(clock())
        # This transaction only holds the lock. It takes no xid, so it does not hold the audit's sealer back.
        async with self._turns, self._ledger.transaction() as tx:
            if not await tx.fetchval("SELECT pg_try_advisory_xact_lock($1)", tick.lock):
                return False
            return await tick.run(clock())
