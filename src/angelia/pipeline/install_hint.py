"""The command that installs the pipeline. It is on no package index, so it comes from a clone of the repository."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import angelia

_CLONE = Path(angelia.__file__).parents[2]  # if this runs from a clone


def command(clone: Path = _CLONE) -> str:
    """The command line that installs what the pipeline needs, for the Python that runs now."""
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    if (clone / "pyproject.toml").is_file() and (clone / "dev").is_file():
        return f"{pip} -e {shlex.quote(f'{clone}[pipeline]')}"
    return f"in your clone of Angelia: {pip} '.[pipeline]'"
