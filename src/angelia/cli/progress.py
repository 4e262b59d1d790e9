"""Progress of long work on stderr: after 2 s, a line that repaints; without a terminal one every 30 s."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from angelia.cli.escaping import cut
from angelia.cli.output import Output
from angelia.cli.times import age

QUIET_SECONDS, REPAINT_SECONDS, PLAIN_SECONDS = 2.0, 0.2, 30.0
BAR = 20


class Progress:
    """Counts what is done; says nothing about work that ends soon."""

    def __init__(
        self,
        out: Output,
        doing: str,
        unit: str,
        total: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._doing, self._unit, self._total = doing, unit, total
        self._clock = clock
        self._done = 0
        self._began = self._said = clock()
        self._painted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._painted:
            self._out.stderr.write("\r\x1b[K")
            self._out.stderr.flush()

    def advance(self, by: int = 1, *, total: int | None = None) -> None:
        """So many more are done; the total may become known on the way."""
        self._done += by
        self._total = self._total if total is None else total
        if self._out.manner.quiet:
            return
        now = self._clock()
        terminal = self._out.stderr.isatty()
        if now - self._began < QUIET_SECONDS:
            return
        if now - self._said < (REPAINT_SECONDS if terminal else PLAIN_SECONDS):
            return
        self._said = now
        line = self._line(now - self._began)
        self._out.stderr.write(f"\r\x1b[K{cut(line, 79)}" if terminal else f"{line}\n")
        self._out.stderr.flush()
        self._painted = terminal

    def _line(self, seconds: float) -> str:
        rate = self._done / seconds
        speed = f"{rate:,.0f} {self._unit}/s"
        if not self._total:
            return f"{self._doing}  {self._done:,} {self._unit}   {speed}"
        filled = min(BAR, BAR * self._done // self._total)
        bar = "█" * filled + "░" * (BAR - filled)
        left = age(timedelta(seconds=max(0, self._total - self._done) / rate)) if rate else "?"
        return f"{self._doing}  {bar}  {self._done:,} / {self._total:,}   {speed}   {left} left"
