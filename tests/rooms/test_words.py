"""The words by which messages are found: one tokenizer for posts and queries, for every script."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.rooms.words import found_by, room_hash, word_hash, words

ROOM = UUID(int=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Build 418 is GREEN, ok?", ["build", "418", "green", "ok"]),
        ("The cat and the dog", ["cat", "dog"]),
        ("wait... a b c", ["wait"]),
        ("snake_case and kebab-case", ["snake", "case", "kebab"]),
        ("", []),
        ("the of a", []),
        ("Straße STRASSE", ["strasse"]),
        ("Ünïcødé ünïcødé", ["ünïcødé"]),
        ("ﬁle Ｗｉｄｅ", ["file", "wide"]),
        ("привет Мир", ["привет", "мир"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("日本語です", ["日本", "本語", "語で", "です"]),
        ("ask東京now", ["ask", "東京", "now"]),
        ("x1 1x 42", ["x1", "1x", "42"]),
    ],
)
def test_the_words_of_a_text(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_composed_and_decomposed_letters_are_the_same_word() -> None:
    assert words("caf\u00e9") == words("cafe\u0301")


@given(st.text())
def test_every_word_of_a_text_finds_it(text: str) -> None:
    found = words(text)
    assert len(found) == len(set(found))
    for word in found:
        assert words(word), word
        assert set(words(word)) <= set(found), "a word that is asked for alone is one of the words of the text"


def test_a_message_is_found_by_its_words_and_its_room() -> None:
    assert found_by("two words", ROOM) == [word_hash("two"), word_hash("words"), room_hash(ROOM)]
    assert found_by("the", ROOM) == [], "without words nothing is asked that could find it"
    assert room_hash(ROOM) != word_hash(str(ROOM)), "no query names a room by its words"
