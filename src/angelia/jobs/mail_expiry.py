"""Ends messages whose time is over, in small batches, and tells their senders."""

from __future__ import annotations

from angelia.jobs.ticks import Tick
from angelia.mail.ticks import Upkeep


def tick(upkeep: Upkeep) -> Tick:
    return Tick("mail expiry", 2.0, upkeep.expire)
