"""Text of others cannot act on a terminal, nor hide in it."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.cli.escaping import cut, escape_json, escape_line, escape_text, width

any_text = st.text(st.characters(exclude_categories=()), max_size=60)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Grün 漢字 👩\u200d💻", "Grün 漢字 👩\u200d💻"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\x9b2J", "\\x9b2J"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x00\x7f", "\\x00\\x7f"),
        ("\u2028\ufeff\u200b", "\\u2028\\ufeff\\u200b"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("\u3164", "\\u3164"),
    ],
)
def test_what_acts_or_hides_is_shown(text: str, shown: str) -> None:
    assert escape_line(text) == shown


@given(any_text)
def test_nothing_that_acts_is_left(text: str) -> None:
    shown = escape_line(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert not [c for c in shown if unicodedata.category(c) == "Cf" and c not in "\u200c\u200d"]
    assert escape_line(shown) == shown


@given(any_text)
def test_a_text_of_lines_keeps_its_lines_and_nothing_else(text: str) -> None:
    shown = escape_text(text)
    assert shown.count("\n") == text.count("\n")
    assert {c for c in shown if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}


@given(any_text)
def test_json_means_the_same_and_shows_what_it_holds(text: str) -> None:
    raw = json.dumps(text, ensure_ascii=False)
    shown = escape_json(raw)
    assert json.loads(shown) == text
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]


@given(any_text.map(escape_line), st.integers(2, 40))
def test_a_cut_text_fits(text: str, columns: int) -> None:
    assert width(cut(text, columns)) <= columns
    if width(text) <= columns:
        assert cut(text, columns) == text


def test_wide_letters_take_two_columns_and_marks_none() -> None:
    assert width("漢字") == 4
    assert width("e\u0301") == 1
    assert cut("漢字漢字", 5) == "漢字…"
