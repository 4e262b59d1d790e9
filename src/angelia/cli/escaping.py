"""Makes untrusted text harmless on a terminal: characters that act or hide are shown as `\\x1b` or `\\u202e`."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator

# Joiners shape letters and emoji in honest text; the other format characters reorder or hide.
_JOINERS = "\u200c\u200d"
# Blank, though their Unicode category is a letter's.
_BLANK = "\u115f\u1160\u3164\uffa0\u2800"


def escape_line(text: str) -> str:
    """Text that stays on its line: line breaks and tabs are shown too."""
    return _escaped(text, _shown)


def escape_text(text: str) -> str:
    """Text of several lines: line breaks and tabs stay."""
    return _escaped(text, lambda c: c if c in "\n\t" else _shown(c))


def escape_json(text: str) -> str:
    """The same JSON with such characters escaped; they occur inside strings only."""
    return _escaped(text, _as_json)


def width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(c) for c in text)


def cut(text: str, columns: int) -> str:
    """The text cut to a number of columns, with `…` in place of the rest."""
    if width(text) <= columns:
        return text
    kept, used = [], 0
    for c in text:
        used += _columns(c)
        if used > columns - 1:
            break
        kept.append(c)
    return "".join(kept) + "…"


def folded(text: str, columns: int) -> Iterator[str]:
    """One line in pieces of at most `columns` columns; an empty line is one piece."""
    piece, used = "", 0
    for c in text:
        if piece and used + _columns(c) > columns:
            yield piece
            piece, used = "", 0
        piece, used = piece + c, used + _columns(c)
    yield piece


def _escaped(text: str, shown: Callable[[str], str]) -> str:
    if text.isprintable() and text.isascii():
        return text
    return "".join(shown(c) if _acts_or_hides(c) else c for c in text)


def _acts_or_hides(c: str) -> bool:
    if c in _BLANK:
        return True
    category = unicodedata.category(c)
    return category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and c not in _JOINERS)


def _shown(c: str) -> str:
    return c.encode("unicode_escape").decode()


def _as_json(c: str) -> str:
    if c == "\n":  # between objects, never inside a string
        return c
    units = c.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _columns(c: str) -> int:
    if unicodedata.category(c) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1
