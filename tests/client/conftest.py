from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from angelia.mailbox import identity
from angelia.mailbox.identity import Identity
from client.recorder import Recorder, recording


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


@pytest.fixture
def alice(tmp_path: Path) -> Identity:
    return identity.create(tmp_path / "home", "alice")
