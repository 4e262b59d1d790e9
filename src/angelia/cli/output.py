"""What goes to stdout and what to stderr. A terminal changes only colour and width, never the words."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO, TypeVar

from angelia.cli.escaping import escape_json, escape_line, escape_text
from angelia.cli.tables import Column, Paint, facts, table

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """The flags that shape output."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"


def open_closed_streams() -> None:
    """Opens /dev/null in place of a closed stdin, stdout or stderr (`>&-`): the next file would get its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


class Remarks(io.TextIOWrapper):
    """stderr that flushes stdout first, so that both in one pipe keep the order in which they were written."""

    def __init__(self, descriptor: int) -> None:
        stream = open(descriptor, "wb", closefd=False)  # noqa: SIM115
        super().__init__(stream, encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True)

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):  # the last flush of stdout reports it
            sys.stdout.flush()
        return super().write(text)


class Output:
    """Data on stdout, everything else on stderr."""

    def __init__(self, manner: Manner, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.manner = manner
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or sys.stderr
        self.aim: Callable[[str], str] = str  # completes commands in notes, so that they work when pasted
        self.paint = Paint(_colours(manner.color, self.stdout))

    def line(self, text: str) -> None:
        """One line of data."""
        self.stdout.write(escape_line(text) + "\n")

    def text(self, text: str) -> None:
        """Data of several lines, such as a message's body."""
        self.stdout.write(escape_text(text) + ("" if text.endswith("\n") else "\n"))

    def raw(self, data: bytes) -> bool:
        """Writes data that is no text byte for byte; returns False, without writing, on a terminal."""
        buffer = getattr(self.stdout, "buffer", None)
        if buffer is None or self.stdout.isatty():
            return False
        self.stdout.flush()
        buffer.write(data)
        buffer.flush()
        return True

    def painted(self, lines: Iterable[str]) -> None:
        """Lines that were escaped and painted already."""
        self.stdout.writelines(line + "\n" for line in lines)

    def records(self, records: Iterable[object]) -> None:
        """One JSON object per line."""
        import msgspec

        for record in records:
            self.stdout.write(escape_json(msgspec.json.encode(record).decode()) + "\n")
        self.stdout.flush()

    def rows(self, rows: Sequence[T], columns: Sequence[Column[T]]) -> None:
        """A list, as a table or as one JSON object per row."""
        if self.manner.json:
            self.records(rows)
        elif rows:
            width = shutil.get_terminal_size().columns if self.stdout.isatty() else None
            self.painted(table(columns, rows, paint=self.paint, most=width))

    def thing(self, record: object, pairs: Sequence[tuple[str, str]], *, quietly: str = "", least: int = 0) -> None:
        """One thing, as its facts or its JSON object; with -q only `quietly`."""
        if self.manner.json:
            self.records([record])
        elif self.manner.quiet and quietly:
            self.line(quietly)
        else:
            self.painted(facts(pairs, least=least))

    def done(self, record: object, *lines: str, quietly: str = "") -> None:
        """What was done; with -q only `quietly`, if that is given."""
        if self.manner.json:
            self.records([record])
        elif not self.manner.quiet:
            for line in lines:
                self.line(line)
        elif quietly:
            self.line(quietly)

    def note(self, text: str) -> None:
        """A note beside the data; -q drops it."""
        if not self.manner.quiet:
            self.stderr.write(escape_line(self.aim(text)) + "\n")

    def detail(self, text: str) -> None:
        """A note that only -v prints."""
        if self.manner.verbose:
            self.stderr.write(escape_line(text) + "\n")

    def prompt(self, text: str) -> None:
        """Text on stderr that is seen at once, though its line goes on."""
        self.stderr.write(text)
        self.stderr.flush()


def _colours(wish: str, stream: TextIO) -> bool:
    if wish != "auto":
        return wish == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
