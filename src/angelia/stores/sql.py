"""The `.sql` files beside the stores, where each named block is one statement; rows in and out of statements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_BLOCK = re.compile(r"^-- (name|part): (\w+)\n(.*?)(?=^-- (?:name|part): |\Z)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


def statements(beside: str, name: str = "store.sql") -> Mapping[str, str]:
    """Returns the statements, by name, of the file `name` beside a module, given by its `__file__`.

    `{part}` in a statement stands for a block `-- part: …` of the file, such as the columns of a record."""
    text = (Path(beside).parent / name).read_text("utf-8")
    blocks = [(kind, block, content.strip()) for kind, block, content in _BLOCK.findall(text)]
    found = {block: content for kind, block, content in blocks if kind == "name"}
    for kind, part, content in blocks:
        if kind == "part":
            text = _COMMENT.sub("", content)
            found = {block: statement.replace(f"{{{part}}}", text) for block, statement in found.items()}
    return found


def columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    """Rows as columns, for `unnest`; `width` empty ones if there are no rows."""
    return [[row[at] for row in rows] for at in range(width)]


def record_of(kind: type[T], row: Mapping[str, Any]) -> T:
    """A record (a msgspec struct or a dataclass) of the columns named like its fields; what is an enum in the record is
    its value in the row."""
    return msgspec.convert(dict(row), kind)
