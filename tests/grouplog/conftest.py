"""A log with one group of three members."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from grouplog.open_logs import Log, opened


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    async with opened(tmp_path) as log:
        yield log
