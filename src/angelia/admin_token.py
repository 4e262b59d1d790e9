"""The admin token of a data directory: the operator of this machine has it from its file."""

from __future__ import annotations

from pathlib import Path

from angelia.guard.tokens import new_text
from angelia.stores.private_files import read_private, write_private


def load_or_make(path: Path) -> str:
    """Returns the token in the file; makes one on first use. The file is written before the ledger: after a crash
    between the two, the next start records the token."""
    try:
        return read_private(path, 200).decode("ascii").strip()
    except FileNotFoundError:
        text = new_text()
        write_private(path, f"{text}\n".encode())
        return text
