"""Tables and lists of facts as lines of text: no boxes, two spaces between columns, a dash for an empty cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from angelia.cli.escaping import cut, escape_line, width

T = TypeVar("T")
GAP = "  "
NARROWEST = 8


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column: its head, what it shows of a row, and how."""

    head: str
    cell: Callable[[T], str]
    right: bool = False  # numbers
    long: bool = False  # may be cut on a terminal that is too narrow


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours text, or not; colour never replaces a word."""

    on: bool

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.on else text

    def state(self, text: str) -> str:
        code = _STATES.get(text)
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and code else text


_STATES = {"ok": 32, "warn": 33, "fail": 31}


def table(columns: Sequence[Column[T]], rows: Sequence[T], *, paint: Paint, most: int | None) -> Iterator[str]:
    """The lines of a table; `most` is the width of the terminal, if there is one."""
    heads = [column.head for column in columns]
    cells = [[escape_line(column.cell(row)) or "-" for column in columns] for row in rows]
    widths = [max(map(width, texts)) for texts in zip(heads, *cells, strict=True)]
    if most is not None:
        widths = _narrowed(columns, widths, most)
        cells = [[cut(cell, size) for cell, size in zip(line, widths, strict=True)] for line in cells]
    yield paint.bold(_aligned(columns, heads, widths))
    for line in cells:
        yield _aligned(columns, line, widths)


def facts(pairs: Sequence[tuple[str, str]], *, least: int = 0) -> Iterator[str]:
    """The lines of one thing: a word and its text, in two columns."""
    widest = max(least, *(width(word) for word, _ in pairs))
    for word, text in pairs:
        yield f"{word}{' ' * (widest - width(word))}{GAP}{escape_line(text) or '-'}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 warning`, `1,204 warnings`, `2 entries`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _aligned(columns: Sequence[Column[T]], texts: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table, without blanks at its end."""
    padded = []
    for column, text, size in zip(columns, texts, widths, strict=True):
        blank = " " * (size - width(text))
        padded.append(blank + text if column.right else text + blank)
    return GAP.join(padded).rstrip()


def _narrowed(columns: Sequence[Column[T]], widths: list[int], most: int) -> list[int]:
    over = sum(widths) + len(GAP) * (len(widths) - 1) - most
    narrowed = list(widths)
    while over > 0:
        cuttable = [i for i, column in enumerate(columns) if column.long and narrowed[i] > NARROWEST]
        if not cuttable:
            break
        widest = max(cuttable, key=lambda i: narrowed[i])
        narrowed[widest] -= 1
        over -= 1
    return narrowed
