"""The words by which messages are found: one tokenizer for what is posted and for what is asked."""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from uuid import UUID

MOST_QUERY_WORDS = 5
_SHORTEST = 2
_ASCII_RUN = re.compile("[a-z0-9]+")
_STOP_WORDS = frozenset(
    "the a an and or is are was were be to of in for on it that this with at by from as into like".split()  # noqa: SIM905
)
# Scripts without spaces between words: their runs are cut into pairs of characters that overlap.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def words(text: str) -> list[str]:
    """The words of a text in their order, each once: runs of letters and digits, case-folded, of at least two
    characters; words that nearly every text has are left out."""
    return list(dict.fromkeys(_words(unicodedata.normalize("NFKC", text).casefold())))


def found_by(text: str, room_id: UUID) -> list[int]:
    """By what the index finds a message: its words, and its room as one more. None for a text without words."""
    found = [word_hash(word) for word in words(text)]
    return [*found, room_hash(room_id)] if found else []


@lru_cache(maxsize=10_000)
def word_hash(word: str) -> int:
    return _hash(f"word:{word}")


@lru_cache(maxsize=1_000)
def room_hash(room_id: UUID) -> int:
    """The room as one more word of each of its messages."""
    return _hash(f"room:{room_id}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def _words(text: str) -> Iterator[str]:
    if text.isascii():
        for run in _ASCII_RUN.findall(text):
            yield from _kept(run)
        return
    for run in _any_run().findall(text):
        rest = 0
        for unspaced in _UNSPACED.finditer(run):
            yield from _kept(run[rest : unspaced.start()])
            yield from _pairs(unspaced[0])
            rest = unspaced.end()
        yield from _kept(run[rest:])


def _kept(word: str) -> Iterator[str]:
    if len(word) >= _SHORTEST and word not in _STOP_WORDS:
        yield word


def _pairs(run: str) -> Iterator[str]:
    return (run[at : at + 2] for at in range(len(run) - 1))


def prepare() -> None:
    """Makes what texts beyond ASCII need, which takes a tenth of a second, before the first of them is posted."""
    _any_run()


@cache
def _any_run() -> re.Pattern[str]:
    """Letters and digits, and the marks that many scripts write their vowels with."""
    marks = "".join(chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(f"(?:[^\\W_]|[{re.escape(marks)}])+")
