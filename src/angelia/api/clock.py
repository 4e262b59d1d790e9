"""The time of a request, taken once at the edge."""

from __future__ import annotations

from datetime import UTC, datetime


def clock() -> datetime:
    """The present time in UTC."""
    return datetime.now(UTC)
