"""A tick: periodic background work of a slice."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Tick:
    """A bounded piece of work, and how often it is due. `run` returns whether more is left to do: then the next round
    comes as soon as the other ticks had their turn."""

    name: str
    every_seconds: float
    run: Callable[[datetime], Awaitable[bool | None]]
    everywhere: bool = False  # in each process, for what a process caches; else in one process at a time

    @property
    def lock(self) -> int:
        return int.from_bytes(hashlib.sha256(f"angelia/tick/{self.name}".encode()).digest()[:8], "big", signed=True)
