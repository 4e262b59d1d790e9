"""Times of sealed formats: whole milliseconds, exact both ways."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.times import moment, unix_ms
from angelia.errors import InvalidArgument


@given(at_ms=st.integers(0, 253_402_300_799_999))
def test_milliseconds_survive_the_way_to_a_time_and_back(at_ms: int) -> None:
    assert unix_ms(moment(at_ms)) == at_ms


def test_a_time_between_two_milliseconds_is_rounded_down() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert unix_ms(at + timedelta(microseconds=999)) == unix_ms(at)


def test_a_time_beyond_the_year_9999_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="9999"):
        moment(1 << 60)
