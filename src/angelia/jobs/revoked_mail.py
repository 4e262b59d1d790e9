"""Fails what waits under keys that were revoked."""

from __future__ import annotations

from angelia.jobs.ticks import Tick
from angelia.mail.ticks import Upkeep


def tick(upkeep: Upkeep) -> Tick:
    return Tick("mail under revoked keys", 5.0, upkeep.fail_revoked)
