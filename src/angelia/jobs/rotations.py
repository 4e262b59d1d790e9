"""Announces the rotations that are due; the agents make the keys, this server never has a private one."""

from __future__ import annotations

from angelia.jobs.ticks import Tick
from angelia.keys.schedules import Schedules


def tick(schedules: Schedules) -> Tick:
    return Tick("rotations", 5.0, schedules.announce_due)
