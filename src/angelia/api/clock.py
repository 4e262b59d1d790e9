"""The clock. The edge reads it once per request and passes the time on."""

from __future__ import annotations

from datetime import UTC, datetime


def clock() -> datetime:
    """The present time in UTC."""
    return datetime.now(UTC)
