"""The names of this machine's agents, read without their keys: shell completion asks for them at every press of Tab."""

from __future__ import annotations

from pathlib import Path

from angelia.envelope.ids import valid_handle

KEY = "key"  # the file that makes a directory of the home an agent


def names(home: Path) -> list[str]:
    """Returns the names of the agents of this home, in alphabetical order."""
    if not home.is_dir():
        return []
    return sorted(path.parent.name for path in home.glob(f"*/{KEY}") if valid_handle(path.parent.name))
