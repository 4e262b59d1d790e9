"""Forgets the ids of messages that ended long enough ago."""

from __future__ import annotations

from angelia.jobs.ticks import Tick
from angelia.mail.ticks import Upkeep


def tick(upkeep: Upkeep) -> Tick:
    return Tick("sent ids", 60.0, upkeep.forget_ids)
