"""Ends grace periods: a key that was rotated out is retired once nothing admitted can need it any more."""

from __future__ import annotations

from angelia.jobs.ticks import Tick
from angelia.keys.service import Keys


def tick(keys: Keys) -> Tick:
    return Tick("grace periods", 60.0, keys.end_grace)
