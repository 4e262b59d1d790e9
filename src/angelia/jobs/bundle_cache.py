"""Says again to the hot tier which bundles are old, where it could not be told when they changed."""

from __future__ import annotations

from angelia.jobs.ticks import Tick
from angelia.keys.service import Keys


def tick(keys: Keys) -> Tick:
    return Tick("bundle cache", 5.0, keys.repeat_invalidations, everywhere=True)
