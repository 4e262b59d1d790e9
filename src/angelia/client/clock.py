"""The clock of the SDK, which its callers ask by `clock.now()`."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Returns the present time in UTC."""
    return datetime.now(UTC)
