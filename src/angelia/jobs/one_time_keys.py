"""Drops one-time keys that nobody used in 30 days."""

from __future__ import annotations

from angelia.jobs.ticks import Tick
from angelia.keys.service import Keys


def tick(keys: Keys) -> Tick:
    return Tick("one-time keys", 600.0, keys.drop_old_one_time_keys)
