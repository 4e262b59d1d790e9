"""How a test starts a command, and how the command ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Angelia = Callable[..., Ended]
PROGRAM = [sys.executable, "-c", "from angelia.cli.main import main; main()"]
