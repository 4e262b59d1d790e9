"""Times and durations as people write and read them. UTC where no offset is given."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

LONGEST = timedelta(days=36_525)

_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d{1,12})w)?(?:(\d{1,12})d)?(?:(\d{1,12})h)?(?:(\d{1,12})m)?(?:(\d{1,12})s)?", re.ASCII)
_AGO = re.compile(r"(\S+?)(?:\s*ago)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)


def now() -> datetime:
    """The present time; a function of its own, so that tests can shift it."""
    return datetime.now(UTC)


def parse_duration(text: str) -> timedelta:
    """`90s`, `15m`, `2h`, `1h30m`, `7d`, `2w`; ValueError says what is wrong."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is no duration; write it as 90s, 15m, 2h, 7d or 1h30m")
    parts = zip(_UNITS.values(), found.groups(), strict=True)
    seconds = sum(unit * int(number) for unit, number in parts if number)
    if seconds > LONGEST.total_seconds():
        raise ValueError(f"{text!r} is longer than a hundred years")
    return timedelta(seconds=seconds)


def parse_time(text: str, now: datetime) -> datetime:
    """A date, an RFC 3339 time, `15m`, `2h ago` or `now`; ValueError says what is wrong."""
    said = text.strip()
    if said.lower() == "now":
        return now
    try:
        if _DATE.fullmatch(said):
            return datetime.fromisoformat(said).replace(tzinfo=UTC)
        if found := _RFC3339.fullmatch(said):
            return datetime.fromisoformat(said.upper() if found[1] else f"{said}Z").astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is in no calendar: too far away") from error
    except ValueError as error:
        raise ValueError(f"{text!r} is in no calendar: {error}") from error
    if (found := _AGO.fullmatch(said)) and _DURATION.fullmatch(found[1]):
        return now - parse_duration(found[1])
    raise ValueError(f"{text!r} is no time; write it as 2026-11-15, 2026-11-15T20:14:02Z, 15m, '2h ago' or now")


def duration(span: timedelta) -> str:
    """A duration as `parse_duration` reads it."""
    left, parts = int(span.total_seconds()), []
    for letter, unit in _UNITS.items():
        number, left = divmod(left, unit)
        if number:
            parts.append(f"{number}{letter}")
    return "".join(parts) or "0s"


def age(span: timedelta) -> str:
    """A length of time in its largest unit: `4s 12m 3h 5d`."""
    seconds = max(0, int(span.total_seconds()))
    for letter in "dhm":
        if seconds >= _UNITS[letter]:
            return f"{seconds // _UNITS[letter]}{letter}"
    return f"{seconds}s"


def full(at: datetime) -> str:
    """A time to the second, in UTC, with a Z."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
