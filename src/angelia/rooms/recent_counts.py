"""A value that is counted now and then, since to count it for every request would cost more with every room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_KEPT_SECONDS = 2.0
_SHARE = 20  # of the time, at most one part of so many is spent on counting


class RecentCount(Generic[T]):
    """Counts, and keeps the result for a moment; for longer where counting takes long."""

    def __init__(self) -> None:
        self._until = 0.0
        self._value: T | None = None
        self._counting = asyncio.Lock()

    async def get(self, count: Callable[[], Awaitable[T]]) -> T:
        async with self._counting:
            began = time.monotonic()
            if self._value is None or self._until <= began:
                self._value = await count()
                ended = time.monotonic()
                self._until = ended + max(_KEPT_SECONDS, _SHARE * (ended - began))
            return self._value
