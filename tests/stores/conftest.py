"""A ledger for tests that bring their own tables and take them away again: cheaper than a database of one's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from angelia.stores.ledger import Ledger


@pytest.fixture
async def bare(stores: Any) -> AsyncIterator[Ledger]:
    """The stores' default database, to which no other test writes."""
    ledger = await Ledger.open(stores.database_url)
    yield ledger
    await ledger.close()
