"""The `.sql` files beside the stores, where each named block is one statement; rows in and out of statements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_BLOCK = re.compile(r"^-- (name|part): (\w+)\n(.*?)(?=^-- (?:name|part): |\Z)", re.MULTILINE | re.DOTALL)
_PART = re.compile(r"\{(?:([a-z]\w*)\.)?([a-z]\w*)\}")
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


def statements(beside: str, name: str = "store.sql") -> Mapping[str, str]:
    """Returns the statements, by name, of the file `name` beside a module, given by its `__file__`.

    `{part}` in a statement stands for a block `-- part: …` of the file, such as the columns of a record; `{keys.part}`
    for one of `parts.sql` of the slice `keys`, so that one statement asks several slices, and each knows its tables."""
    package = Path(beside).parent
    named, own = blocks(package / name)
    shared = package / "parts.sql"
    if shared.exists():
        own |= blocks(shared)[1]

    def part(found: re.Match[str]) -> str:
        others, name = found.groups()
        if others is not None:
            return blocks(package.parent / others / "parts.sql")[1][name]
        return _PART.sub(part, own[name]) if name in own else found[0]  # another name is for the store to fill in

    return {block: _PART.sub(part, statement) for block, statement in named.items()}


def blocks(file: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The statements and the parts of a file, by name; parts without their comments."""
    named, parts = dict[str, str](), dict[str, str]()
    for kind, block, content in _BLOCK.findall(file.read_text("utf-8")):
        if kind == "name":
            named[block] = content.strip()
        else:
            parts[block] = _COMMENT.sub("", content.strip())
    return named, parts


def columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    """Rows as columns, for `unnest`; `width` empty ones if there are no rows."""
    return [[row[at] for row in rows] for at in range(width)]


def record_of(kind: type[T], row: Mapping[str, Any]) -> T:
    """A record (a msgspec struct or a dataclass) of the columns named like its fields; what is an enum in the record is
    its value in the row."""
    return msgspec.convert(dict(row), kind)
