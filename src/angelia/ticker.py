"""Runs the background ticks of a process. Of several processes, an advisory lock lets one at a time run a tick."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from angelia import metrics
from angelia.api import Tick, clock
from angelia.errors import AngeliaError, DiskFull
from angelia.stores.ledger import GONE, Ledger, StatementError

log = structlog.get_logger(__name__)


class Ticker:
    """The ticks of one process. They run until its `async with` block ends, and take turns in the order in which they
    are due: one that always has more to do goes to the end of the line after each round, and holds up no other."""

    def __init__(self, ledger: Ledger, ticks: Sequence[Tick]) -> None:
        self._ledger = ledger
        self._ticks = ticks
        self._tasks: list[asyncio.Task[None]] = []
        # A tick that works alone holds one connection for its lock and needs others; so few at a time. A semaphore
        # serves in order of arrival.
        self._turns = asyncio.Semaphore(2)

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(self._repeat(tick), name=f"tick {tick.name}") for tick in self._ticks]

    async def __aexit__(self, *error: object) -> None:
        left = set(self._tasks)
        while left:
            # More than once: on its way through a time limit a cancellation can meet the end of what was limited, and
            # be lost.
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=0.2)

    async def _repeat(self, tick: Tick) -> None:
        while True:
            more = False
            try:
                more = await self._once(tick)
            except DiskFull:
                metrics.TICK_FAILURES.labels(tick.name).inc()  # the disk logs it, once
            except (AngeliaError, StatementError, *GONE) as error:
                metrics.TICK_FAILURES.labels(tick.name).inc()
                log.warning("a tick failed and will be tried again", tick=tick.name, error=str(error))
            except Exception:  # an error in one round must not end the tick
                metrics.TICK_FAILURES.labels(tick.name).inc()
                log.exception("a tick failed and will be tried again", tick=tick.name)
            await asyncio.sleep(0 if more else tick.every_seconds)

    async def _once(self, tick: Tick) -> bool:
        if tick.everywhere:
            return bool(await tick.run(clock()))
        # This transaction only holds the lock. It takes no xid, so it does not hold the audit's sealer back.
        async with self._turns, self._ledger.lasting_transaction() as tx:
            if not await tx.fetchval("SELECT pg_try_advisory_xact_lock($1)", tick.lock):
                return False
            return bool(await tick.run(clock()))
