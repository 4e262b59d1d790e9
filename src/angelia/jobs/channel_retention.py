"""Takes away what channels need not keep any more: messages past their time, and what deleted channels left."""

from __future__ import annotations

from angelia.channels.service import Channels
from angelia.jobs.ticks import Tick


def tick(channels: Channels) -> Tick:
    return Tick("channel retention", 5.0, channels.tidy)
