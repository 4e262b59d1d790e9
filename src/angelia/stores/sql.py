"""Reads the `.sql` files beside the stores: named, commented blocks become statements by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_BLOCK = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)


def statements(beside: str, name: str = "store.sql") -> Mapping[str, str]:
    """The statements of the file `name` that lies beside the module `beside` (its `__file__`)."""
    text = (Path(beside).parent / name).read_text("utf-8")
    return {found[1]: found[2].strip() for found in _BLOCK.finditer(text)}


def columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    """Rows as the arrays that `unnest` wants; also when there are none."""
    return [[row[at] for row in rows] for at in range(width)]
