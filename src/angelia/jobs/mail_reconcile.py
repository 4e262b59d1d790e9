"""Finds messages that a crash left out of their queue."""

from __future__ import annotations

from angelia.jobs.ticks import Tick
from angelia.mail.ticks import Upkeep


def tick(upkeep: Upkeep) -> Tick:
    return Tick("mail reconcile", 10.0, upkeep.reconcile)
