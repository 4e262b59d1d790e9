"""Waiting times of queues: counts by classes, which the server keeps by the minute; they can be added."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

# The upper bounds of the classes in seconds, as the server counts them; the last class has none.
BOUNDS = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 86_400.0)
CLASSES = len(BOUNDS) + 1


def added(counts: Iterable[Sequence[int]]) -> list[int]:
    """The sum of counts by class."""
    total = [0] * CLASSES
    for one in counts:
        total = [a + b for a, b in zip(total, one, strict=True)]
    return total


def percentile_ms(counts: Sequence[int], share: float, longest_ms: float) -> float | None:
    """The time in milliseconds that this share of the messages waited at most; None without messages.

    The class is exact. Within it times count as evenly spread, up to the longest time that is known."""
    wanted, passed = max(1, math.ceil(share * sum(counts))), 0
    for count, lower, upper in zip(counts, (0.0, *BOUNDS), (*BOUNDS, math.inf), strict=True):
        if passed + count >= wanted:
            end = max(min(upper * 1000, longest_ms), lower * 1000)
            return round(lower * 1000 + (end - lower * 1000) * (wanted - passed) / count, 3)
        passed += count
    return None
