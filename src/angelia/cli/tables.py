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
    state: bool = False  # a state word, the only coloured thing
    long: bool = False  # may be cut on a terminal that is too narrow


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours text, or not; colour never replaces a word."""

    on: bool

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.on else text

    def state(self, text: str) -> str:
        code = _STATES.get(text.strip())
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and code else text


_STATES = {"ok": 32, "warn": 33, "fail": 31}


def table(columns: Sequence[Column[T]], rows: Sequence[T], *, paint: Paint, most: int | None) -> Iterator[str]:
    """The lines of a table; `most` is the width of the terminal, if there is one."""
    cells = [[escape_line(column.cell(row)) or "-" for column in columns] for row in rows]
    widths = [
        max(width(column.head), *(width(line[i]) for line in cells)) if cells else width(column.head)
        for i, column in enumerate(columns)
    ]
    if most is not None:
        widths = _narrowed(columns, widths, most)
        cells = [[cut(cell, widths[i]) for i, cell in enumerate(line)] for line in cells]
    heads = [_aligned(column, column.head, widths[i]) for i, column in enumerate(columns)]
    yield paint.bold(GAP.join(heads).rstrip())
    for line in cells:
        aligned = [_aligned(column, line[i], widths[i]) for i, column in enumerate(columns)]
        # Trailing blanks are stripped before colour is added: behind its end mark they would stay.
        aligned[-1] = aligned[-1].rstrip()
        yield GAP.join(
            paint.state(cell) if column.state else cell for column, cell in zip(columns, aligned, strict=True)
        )


def facts(pairs: Sequence[tuple[str, str]], *, least: int = 0) -> Iterator[str]:
    """The lines of one thing: a word and its text, in two columns."""
    widest = max(least, *(width(word) for word, _ in pairs))
    for word, text in pairs:
        yield f"{word}{' ' * (widest - width(word))}{GAP}{escape_line(text) or '-'}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 warning`, `1,204 warnings`, `2 entries`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _aligned(column: Column[T], text: str, columns: int) -> str:
    blank = " " * (columns - width(text))
    return blank + text if column.right else text + blank


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
