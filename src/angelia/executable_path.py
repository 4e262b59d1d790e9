"""The path of `angelia`, for the commands that a server prints for its operator."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def own() -> str | None:
    """Returns the virtual environment of `angelia`, quoted for a shell in this directory; None if `angelia` is on the
    path."""
    if shutil.which("angelia") is not None or sys.prefix == sys.base_prefix:
        return None
    prefix = Path(sys.prefix)
    inside = prefix.is_relative_to(Path.cwd())
    return shlex.quote(f"./{prefix.relative_to(Path.cwd())}" if inside else str(prefix))
