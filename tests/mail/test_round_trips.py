"""What a message that comes alone costs on its way to a signed receipt: round trips to ledger and hot tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from angelia.envelope.times import unix_ms
from angelia.stores.connections import LedgerConnection
from angelia.stores.valkey import HotTier
from mail_agents import Correspondent
from mail_office import PostOffice


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts statements, with those that begin and end transactions, and scripts."""
    count = Counter[str]()

    def counted(store: str, real: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            count[store] += 1
            return await real(*args, **kwargs)

        return call

    monkeypatch.setattr(LedgerConnection, "fetch", counted("ledger", LedgerConnection.fetch))
    monkeypatch.setattr(asyncpg.Connection, "execute", counted("ledger", asyncpg.Connection.execute))
    monkeypatch.setattr(HotTier, "run", counted("hot tier", HotTier.run))
    return count


async def test_a_message_makes_no_more_round_trips_than_it_needs(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, trips: Counter[str]
) -> None:
    for _ in range(2):  # the first one finds caches empty
        trips.clear()
        envelope = await office.sent(alice, bob, now)
        assert trips["hot tier"] == 1
        sent = trips["ledger"]
        (leased,) = await office.poll(bob, now)
        received = trips["ledger"]
        await office.ack(bob, leased, now, bob.receipt(envelope, at=unix_ms(now)))
    assert (sent, received - sent, trips["ledger"] - received) == (2, 1, 2)
    assert trips["hot tier"] == 4
