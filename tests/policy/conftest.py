"""The policy slice by itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from angelia.policy.service import Policy
from angelia.policy.store import HotRates
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier


@pytest.fixture
def now() -> datetime:
    """The present: the audit has partitions for a few days only."""
    return datetime.now(UTC)


@pytest.fixture
async def policy(ledger: Ledger, hot: HotTier) -> Policy:
    """The rules as one process sees them; there are none."""
    return Policy(ledger, HotRates(hot))


@pytest.fixture
async def other_process(ledger: Ledger, hot: HotTier) -> Policy:
    return Policy(ledger, HotRates(hot))
