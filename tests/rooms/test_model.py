"""Ids, names, bodies and what pages show of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.errors import InvalidArgument, Unprocessable
from angelia.rooms.model import MessageId, ago, message_body, preview, room_name

IDS = st.builds(MessageId, st.integers(0, (1 << 48) - 1), st.binary(min_size=10, max_size=10))


def test_an_id_is_a_ulid_as_the_specification_writes_it() -> None:
    assert str(MessageId(1469922850259, bytes(10))) == "01ARZ3NDEK" + "0" * 16
    assert MessageId.parse("01ARZ3NDEKTSV4RRFFQ69G5FAV") == MessageId(
        1469922850259, bytes.fromhex("d6764c61efb99302bd5b")
    )
    assert str(MessageId((1 << 48) - 1, b"\xff" * 10)) == "7" + "Z" * 25


@given(IDS)
def test_an_id_comes_back_from_its_text_and_its_bytes(id: MessageId) -> None:
    assert MessageId.parse(str(id)) == MessageId.unpack(id.packed) == id


@given(IDS, IDS)
def test_ids_are_in_the_order_of_their_texts(one: MessageId, other: MessageId) -> None:
    assert (one < other) == (str(one) < str(other))


@pytest.mark.parametrize(
    "text", ["", "0" * 25, "0" * 27, "8" + "0" * 25, "01arz3ndektsv4rrffq69g5fav", "0" * 25 + "I", "0" * 25 + "U"]
)
def test_other_texts_are_ids_of_nothing(text: str) -> None:
    assert MessageId.parse(text) is None


def test_a_room_name_is_trimmed_and_plain() -> None:
    assert room_name("  build-Talk_7 ") == "build-Talk_7"
    for text in ("", "   ", "two words", "x" * 51, "ümlaut", "a\nb", "a.b"):
        with pytest.raises(InvalidArgument):
            room_name(text)


def test_a_body_is_measured_in_bytes() -> None:
    assert message_body("é" * 2048, 4096) == "é" * 2048
    with pytest.raises(Unprocessable, match="max 4096 bytes"):
        message_body("é" * 2048 + "x", 4096)
    with pytest.raises(InvalidArgument, match="NUL"):
        message_body("a\0b", 4096)


def test_a_preview_is_cut_between_characters() -> None:
    assert preview("x" * 200) == "x" * 200
    assert preview("x" * 201) == "x" * 197 + "..."
    assert preview("é" * 101) == "é" * 98 + "..."
    assert preview("💡" * 60) == "💡" * 49 + "..."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"), (59, "just now"), (60, "1 minute ago"), (3_599, "59 minutes ago"), (3_600, "1 hour ago"),
        (86_399, "23 hours ago"), (86_400, "1 day ago"), (2 * 86_400, "2 days ago"),
    ],
)  # fmt: skip
def test_an_age_is_told_in_words(seconds: int, text: str) -> None:
    assert ago(seconds) == text
