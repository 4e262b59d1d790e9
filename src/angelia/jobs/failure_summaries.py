"""Writes down how often strangers failed beyond what was recorded one by one."""

from __future__ import annotations

from angelia.audit.failures import Failures
from angelia.jobs.ticks import Tick


def tick(failures: Failures) -> Tick:
    return Tick("failure summaries", 30.0, failures.summarise)
