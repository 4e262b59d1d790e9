"""Times as sealed formats write them, and how far two clocks may differ."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from angelia.errors import InvalidArgument

SKEW = timedelta(seconds=300)  # how far the clocks of two machines may differ
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(at_ms: int) -> datetime:
    """Unix milliseconds as a time; exact, unlike a float."""
    try:
        return _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        raise InvalidArgument("a time is beyond the year 9999") from None


def unix_ms(at: datetime) -> int:
    """A time as Unix milliseconds, rounded down."""
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
