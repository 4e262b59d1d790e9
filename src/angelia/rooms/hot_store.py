"""What rooms count in the hot tier: bytes of messages by agent, and wrong room keys by address."""

from __future__ import annotations

import hashlib
from collections import deque
from contextlib import suppress
from datetime import datetime

from angelia.api import random_id
from angelia.envelope.times import unix_ms
from angelia.errors import RateLimited, Unavailable
from angelia.rooms.model import MOST_BODIES
from angelia.stores.valkey import HotTier, Script

_WINDOW = Script.read(__file__, "window.lua")
_MINUTE_MS = 60_000
_MOST_WRONG_KEYS = 10
_MOST_SUBJECTS = 10_000


class HotRooms:
    """The windows that rooms count in."""

    def __init__(self, hot: HotTier) -> None:
        refusal = "message byte rate limit exceeded (32KB/min)"
        self.bytes = Window(hot, "bytes", MOST_BODIES, _MINUTE_MS, refusal)
        self.wrong_keys = Window(hot, "wrong-keys", _MOST_WRONG_KEYS, _MINUTE_MS, "too many wrong room keys")


class Window:
    """A sliding window of amounts for each subject. While the hot tier is away, this process counts alone."""

    def __init__(self, hot: HotTier, what: str, most: int, window_ms: int, refusal: str) -> None:
        self._hot = hot
        self._what = what
        self._most = most
        self._window_ms = window_ms
        self._refusal = refusal
        self._local: dict[str, deque[tuple[int, int]]] = {}

    async def reserve(self, subject: str, amount: int, now: datetime) -> str | None:
        """Reserves an amount; RateLimited if the window has no room for it. Returns what `release` takes: None if this
        process counted it."""
        unique, at = random_id().hex(), unix_ms(now)
        reserved: str | None = f"{unique}:{amount}"
        try:
            args = (at, self._most, self._window_ms, amount, unique)
            free_at = int(await self._hot.run(_WINDOW, [self._key(subject)], args))
        except Unavailable:
            free_at, reserved = self._spend_locally(subject, amount, at), None
        if free_at:
            seconds = max(1, -(-(free_at - at) // 1000))
            raise RateLimited(self._refusal, hint=f"try again in {seconds} s", retry_after=seconds)
        return reserved

    async def release(self, subject: str, reserved: str | None) -> None:
        """Gives back what was reserved for something that did not happen."""
        if reserved is not None:
            with suppress(Unavailable):  # what the hot tier forgot needs no release
                await self._hot.remove_member(self._key(subject), reserved)
        elif held := self._local.get(subject):
            held.pop()

    def _spend_locally(self, subject: str, amount: int, at: int) -> int:
        if len(self._local) >= _MOST_SUBJECTS:
            self._local.clear()
        held = self._local.setdefault(subject, deque())
        while held and held[0][0] <= at - self._window_ms:
            held.popleft()
        if sum(size for _, size in held) + amount > self._most:
            return at + self._window_ms if not held else held[0][0] + self._window_ms
        held.append((at, amount))
        return 0

    def _key(self, subject: str) -> str:
        return f"ang:rooms:{{{hashlib.sha256(subject.encode()).hexdigest()[:32]}}}:{self._what}"
