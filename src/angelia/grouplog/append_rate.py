"""How fast a member may append to one node: a bucket of tokens for each."""

from __future__ import annotations

from collections import OrderedDict

from angelia.errors import RateLimited

RATE, BURST = 200.0, 1_000.0  # messages a second, and at once
_MOST_MEMBERS = 100_000


class AppendRate:
    def __init__(self, rate: float = RATE, burst: float = BURST) -> None:
        self._rate = rate
        self._burst = burst
        self._left: OrderedDict[tuple[bytes, bytes], tuple[float, float]] = OrderedDict()

    def spend(self, group: bytes, sender: bytes, count: int, now: float) -> None:
        """Takes so many tokens; RateLimited, and none taken, if fewer are left."""
        left, since = self._left.pop((group, sender), (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        allowed = left >= count
        self._left[group, sender] = (left - count if allowed else left, now)
        if len(self._left) > _MOST_MEMBERS:
            self._left.popitem(last=False)
        if not allowed:
            raise RateLimited(
                f"a member appends {self._rate:.0f} messages a second, {self._burst:.0f} at once",
                hint="send fewer, or wait",
                retry_after=max(1, -(-int(count - left) // int(self._rate))),
            )
