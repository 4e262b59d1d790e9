"""Ids of groups and senders, and seqs: exact lengths, and one text form each."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from angelia.errors import InvalidArgument
from angelia.grouplog.model.ids import MAX_SEQ, base58, from_base58, parse_group, parse_sender, parse_seq, sender_id

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"Hello World!", "2NEpo7TZRRrLZSi2U"),
        (
            b"The quick brown fox jumps over the lazy dog.",
            "USm3fpXnKG5EUBx2ndxBDMPVciP5hGey2Jh4NDv6gmeo1LkMeiKrLJUUBk6Z",
        ),
        (bytes.fromhex("0000287fb4cd"), "11233QC4"),
    ],
)
def test_base58_is_that_of_the_published_examples(raw: bytes, text: str) -> None:
    assert base58(raw) == text
    assert from_base58(text) == raw


@given(st.binary(min_size=32, max_size=32))
def test_a_group_id_is_read_as_it_was_written(group: bytes) -> None:
    assert parse_group(base58(group)) == group


@given(st.integers(1, 32))
def test_leading_zeros_of_a_group_id_survive(zeros: int) -> None:
    group = bytes(zeros) + b"\xff" * (32 - zeros)
    text = base58(group)
    assert text.startswith("1" * zeros)
    assert parse_group(text) == group


@given(st.binary(max_size=40))
def test_a_group_id_has_exactly_32_bytes(raw: bytes) -> None:
    assume(len(raw) != 32)
    with pytest.raises(InvalidArgument, match="32 bytes"):
        parse_group(base58(raw))


@given(st.text(alphabet=ALPHABET, min_size=30, max_size=46))
def test_a_group_id_has_one_text_form(text: str) -> None:
    try:
        group = parse_group(text)
    except InvalidArgument:
        return
    assert base58(group) == text


@pytest.mark.parametrize("text", ["", "0" * 43, "l" * 43, " " + "1" * 32, "1" * 32 + "\n", "é" * 43, "1" * 1_000_000])
def test_other_text_is_no_group_id(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_group(text)


@given(st.binary(min_size=8, max_size=8))
def test_a_sender_id_is_sixteen_lower_case_digits(sender: bytes) -> None:
    assert parse_sender(sender.hex()) == sender


@pytest.mark.parametrize("text", ["", "ab" * 7, "ab" * 9, "AB" * 8, "0x" + "ab" * 7, "ab" * 8 + "\n", "１" * 16])
def test_other_text_is_no_sender_id(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_sender(text)


@pytest.mark.parametrize("seq", [1, 2, MAX_SEQ])
def test_a_seq_counts_from_1(seq: int) -> None:
    assert parse_seq(str(seq)) == seq


@pytest.mark.parametrize("text", ["0", "-1", "", "1.0", "1e3", "²", "１", str(MAX_SEQ + 1), "9" * 5000, " 1"])
def test_0_and_what_is_no_number_are_no_seq(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_seq(text)


def test_the_largest_seq_is_exact_in_a_double() -> None:
    assert MAX_SEQ == 2**53 - 1


def test_a_sender_id_is_made_of_group_key_and_binding() -> None:
    group, key = bytes(range(32)), bytes(range(32, 64))
    expected = hashlib.sha256(group + key + (7).to_bytes(8, "little")).digest()[:8]
    assert sender_id(group, key, 7) == expected


def test_one_key_has_other_sender_ids_in_other_groups_and_entries() -> None:
    key = bytes(range(32))
    assert len({sender_id(group, key, binding) for group in (b"a" * 32, b"b" * 32) for binding in (1, 2)}) == 4
