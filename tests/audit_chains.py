"""Makes an audit chain of any length in a ledger, and reads its positions from the archive."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from deltalake import DeltaTable

from angelia.audit import service
from angelia.audit.model import Event
from angelia.audit.service import Audit
from angelia.keys.node_key import load_or_make
from angelia.pipeline.lake.tables import AUDIT
from angelia.stores.ledger import Ledger
from angelia.stores.objects import Objects
from angelia.stores.partitions import make


async def chained(database_url: str, data_dir: Path, at: datetime, count: int, *, kind: str = "message_sent") -> int:
    """Records events of a time and seals them. Returns the position of the last."""
    events = [
        service.event(kind, at + timedelta(milliseconds=n), actor=f"alice-{n % 5}", object="bob", detail={"n": n})
        for n in range(count)
    ]
    return await sealed(database_url, data_dir, at, events)


async def sealed(database_url: str, data_dir: Path, at: datetime, events: Sequence[Event]) -> int:
    """Records events and seals them. Returns the position of the last."""
    ledger = await Ledger.open(database_url)
    node = load_or_make(data_dir / "node.key")
    try:
        async with ledger.transaction() as tx:
            await make(tx, service._DAILY, at.date())
        for start in range(0, len(events), 1000):
            async with ledger.transaction() as tx:
                await service.record(tx, events[start : start + 1000])
        audit = Audit(ledger)
        while (outcome := await audit.seal(node, at + timedelta(minutes=2))).entries:
            pass
    finally:
        await ledger.close()
    return outcome.position


def positions(objects: Objects) -> list[int]:
    """Returns the positions in the archive, in order."""
    uri = objects.table(AUDIT.name)
    if not DeltaTable.is_deltatable(uri, dict(objects.options)):
        return []
    table = DeltaTable(uri, storage_options=dict(objects.options))
    found: list[int] = table.to_pyarrow_table(columns=["position"])["position"].to_pylist()
    return sorted(found)
