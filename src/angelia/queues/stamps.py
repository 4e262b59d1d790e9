"""Times as the wire of queues has them."""

from __future__ import annotations

from datetime import datetime


def stamp(at: datetime) -> str:
    """A time in UTC, in milliseconds."""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"


def stamp_or_none(at: datetime | None) -> str | None:
    return None if at is None else stamp(at)
