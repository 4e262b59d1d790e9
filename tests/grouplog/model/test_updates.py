"""Updates under their seal: a time that a calendar has, and content that goes through as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.times import moment
from angelia.errors import InvalidArgument
from angelia.grouplog.model.updates import LATEST, OVERHEAD, Update


@given(st.integers(0, LATEST - 1), st.binary(max_size=500))
def test_an_update_is_read_as_it_was_written(written_at: int, content: bytes) -> None:
    body = Update(written_at, content).encode()
    assert len(body) == len(content) + OVERHEAD
    assert Update.decode(body) == Update(written_at, content)


@given(st.binary(max_size=40))
def test_each_update_that_is_read_has_a_time_that_can_be_shown(body: bytes) -> None:
    try:
        update = Update.decode(body)
    except InvalidArgument:
        return
    assert moment(update.written_at).year <= 9999
    assert update.encode() == body


def test_an_update_that_is_cut_short_is_refused() -> None:
    for length in range(OVERHEAD):
        with pytest.raises(InvalidArgument):
            Update.decode(bytes(length))


@pytest.mark.parametrize("written_at", [LATEST, LATEST + 1, (1 << 64) - 1])
def test_a_time_that_no_calendar_has_is_refused(written_at: int) -> None:
    with pytest.raises(InvalidArgument):
        Update.decode(Update(written_at, b"later").encode())
