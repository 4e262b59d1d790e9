"""The addresses whose credentials failed a short while ago, in any process: only these are asked about in the hot
tier."""

from __future__ import annotations

import time

from angelia.guard.store import Publication
from angelia.stores.wake import Wake, wake_topic

TOPIC = wake_topic("guard", "failures")
_MOST = 100_000
_CLOCK_SECONDS = 5.0  # by so much the clocks of two servers may differ


class RecentFailures:
    """Remembers addresses for as long as their failures count. A process that may have missed a failure, because it has
    just started or its wake-ups were interrupted, takes any address for one of them."""

    def __init__(self, wake: Wake, window_seconds: float) -> None:
        self._wake = wake
        self._kept_seconds = window_seconds + _CLOCK_SECONDS
        self._kept_until: dict[str, float] = {}  # by subject; the end that comes first is first
        self._forgot_until = 0.0
        wake.follow(TOPIC, self)

    def may_include(self, subject: str) -> bool:
        now = time.monotonic()
        heard_since = self._wake.heard_since(TOPIC)
        if heard_since is None or now < heard_since + self._kept_seconds or now < self._forgot_until:
            return True
        return self._kept_until.get(subject, 0.0) > now

    def ring(self, message: bytes = b"") -> None:
        """Another process names an address. An empty message says that some may be missing: `heard_since` knows."""
        if message:
            self.note(message.decode())

    def publication(self, subject: str) -> Publication:
        """What the script that counts a failure tells the other processes."""
        return TOPIC, self._wake.tagged(subject.encode())

    def note(self, subject: str) -> None:
        now = time.monotonic()
        self._kept_until.pop(subject, None)
        self._kept_until[subject] = now + self._kept_seconds
        while self._kept_until and next(iter(self._kept_until.values())) <= now:
            del self._kept_until[next(iter(self._kept_until))]
        if len(self._kept_until) > _MOST:
            self._kept_until.clear()
            self._forgot_until = now + self._kept_seconds
