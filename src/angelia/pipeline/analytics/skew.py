"""How evenly load spreads over buckets."""

from __future__ import annotations

from collections.abc import Sequence

from angelia.envelope.ids import BUCKETS


def peak(loads: Sequence[int]) -> float | None:
    """The load of the fullest bucket, divided by the mean of all; None without load."""
    total = sum(loads)
    return max(loads) * BUCKETS / total if total else None


def gini(loads: Sequence[int]) -> float | None:
    """Gini's coefficient: 0 when all buckets are equally full, near 1 when one has all the load. Buckets that are not
    listed are empty."""
    total = sum(loads)
    if not total:
        return None
    ordered = [0] * (BUCKETS - len(loads)) + sorted(loads)
    weighted = sum(place * load for place, load in enumerate(ordered, 1))
    return 2 * weighted / (BUCKETS * total) - (BUCKETS + 1) / BUCKETS
