"""Looks for agents that are running out of one-time keys, and tells them."""

from __future__ import annotations

from angelia.jobs.ticks import Tick
from angelia.keys.service import Keys


def tick(keys: Keys) -> Tick:
    return Tick("prekey alert", 10.0, keys.alert_low_one_time_keys)
