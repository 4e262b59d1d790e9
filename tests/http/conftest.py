"""Doorways for the tests of the edge. Unless a test brings its own, the ledger behind them has no tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from doorways import dead_hot_tier, dead_ledger, make

__all__ = ["dead_hot_tier", "dead_ledger", "make"]


@pytest.fixture(autouse=True)
def captured_log() -> Iterator[list[Any]]:
    """Failures are provoked here; their tracebacks stay out of the terminal."""
    with structlog.testing.capture_logs() as lines:
        yield lines
