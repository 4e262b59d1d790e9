"""Times as people write them."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.cli.times import age, duration, full, parse_duration, parse_time

NOW = datetime(2026, 11, 15, 20, 14, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", NOW),
        ("2026-11-15", datetime(2026, 11, 15, tzinfo=UTC)),
        ("2026-11-15T20:14:02Z", NOW),
        ("2026-11-15t20:14:02z", NOW),
        ("2026-11-15 20:14:02", NOW),
        ("2026-11-15T21:14:02+01:00", NOW),
        ("2026-11-15T20:14:02.5Z", NOW + timedelta(milliseconds=500)),
        ("2026-11-15T20:14:02.123456789Z", NOW + timedelta(microseconds=123456)),
        ("15m", NOW - timedelta(minutes=15)),
        ("2h ago", NOW - timedelta(hours=2)),
        (" 1h30m ago ", NOW - timedelta(minutes=90)),
        ("7d", NOW - timedelta(days=7)),
    ],
)
def test_a_time_is_read_as_it_is_meant(text: str, meant: datetime) -> None:
    assert parse_time(text, NOW) == meant


@pytest.mark.parametrize(
    "text",
    ["", "ago", "yesterday", "15", "15 m", "-5m", "m", "2026-13-01", "2026-02-30", "2026-11-15T25:00:00Z", "20261115",
     "2026-11-15T20:14:60Z", "2026-W01", "1m1h", "٣m", "0001-01-01T00:00:00+23:59", "2026-11-15T20:14Z", "5y"],
)  # fmt: skip
def test_what_is_no_time_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"no time|month|day|hour|second|calendar"):
        parse_time(text, NOW)


@given(st.integers(1, 36_525 * 86_400))
def test_a_duration_is_read_as_it_is_written(seconds: int) -> None:
    span = timedelta(seconds=seconds)
    assert parse_duration(duration(span)) == span


@given(st.text(max_size=20))
def test_any_text_is_a_time_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_time(text, NOW).tzinfo is UTC


def test_a_duration_has_a_bound() -> None:
    with pytest.raises(ValueError, match="hundred years"):
        parse_duration("999999999999w")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0s"),
        (0, "0s"),
        (4, "4s"),
        (59, "59s"),
        (60, "1m"),
        (720, "12m"),
        (3600, "1h"),
        (86_399, "23h"),
        (432_000, "5d"),
    ],
)
def test_an_age_is_one_number_and_one_unit(seconds: int, shown: str) -> None:
    assert age(timedelta(seconds=seconds)) == shown


def test_a_full_time_names_its_zone() -> None:
    assert full(NOW) == "2026-11-15 20:14:02Z"
