"""Fills a ledger with any number of receipts, and reads the receipts of ledger and archive."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import asyncpg
import psutil
from deltalake import DeltaTable

from angelia.mail.receipts_store import DAILY
from angelia.pipeline.lake.tables import RECEIPTS
from angelia.settings import Settings
from angelia.stores.embedded import EmbeddedStores
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.ledger import Ledger
from angelia.stores.objects import Objects
from angelia.stores.partitions import make

NOW = datetime(2026, 11, 16, 9, tzinfo=UTC)
OLD = date(2026, 10, 1)

_FILL = """
INSERT INTO delivery_receipts (receipt_id, message_id, replay_key, sender_nhi, recipient_nhi, priority, wire_bytes,
  status, attested_by, delivery_attempts, sent_at, accepted_at, expires_at, delivered_at, acknowledged_at,
  failure_reason, bucket)
SELECT gen_random_uuid(), gen_random_uuid(), sha256(($1::text || i)::bytea), 'sender-' || i % 7, r, i % 4,
  5000 + i % 100, $4, 'recipient', 1, ts, ts + interval '1 ms', ts + interval '7 d', ts + interval '1 s',
  ts + interval '2 s', CASE WHEN i % 10 = 0 THEN 'it broke' END, get_byte(sha256(convert_to(r, 'UTF8')), 0)
FROM (SELECT i, 'recipient-' || i % 501 AS r, $2::timestamptz + i * interval '1 ms' AS ts
      FROM generate_series(1, $3) AS i) AS g
"""


@dataclass(frozen=True)
class Held:
    """Returns the receipts in the ledger, and those in the archive."""

    ledger: list[str]
    archive: list[str]


class OwnLedger:
    """A PostgreSQL of one test, which may be killed."""

    def __init__(self, directory: Path) -> None:
        self._data_dir = DataDir(directory)
        self._data_dir.prepare()
        self._data_dir.lock()
        settings = Settings(data_dir=directory, redis_url="unix:///none")
        self._stores = EmbeddedStores(settings, self._data_dir)
        self.url = self._stores.start()[0]

    def kill(self) -> None:
        """Kills all its processes: one that is left would finish its statement."""
        postmaster = psutil.Process(self._stores.pids["postgres"])
        for process in (postmaster, *postmaster.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def restart(self) -> None:
        """Starts it again after a kill, on the files that the crash left, as a server does."""
        self._stores.stop()
        self._stores.start()

    def stop(self) -> None:
        self._stores.stop()
        self._data_dir.release()


async def fill(database_url: str, day: date, rows: int, *, status: str = "delivered", partition: bool = True) -> None:
    """Inserts receipts of a day, into its partition or the default partition."""
    ledger = await Ledger.open(database_url)
    try:
        if partition:
            async with ledger.transaction() as tx:
                await make(tx, DAILY, day)
        async with ledger.transaction() as tx:
            start = datetime(day.year, day.month, day.day, tzinfo=UTC)
            await tx.execute(_FILL, f"{day}{rows}{status}", start, rows, status)
    finally:
        await ledger.close()


async def held(database_url: str, objects: Objects) -> Held:
    connection = await asyncpg.connect(database_url)
    try:
        here = [str(row[0]) for row in await connection.fetch("SELECT receipt_id FROM delivery_receipts")]
    finally:
        await connection.close()
    return Held(here, archived(objects))


def archived(objects: Objects) -> list[str]:
    uri = objects.table(RECEIPTS.name)
    if not DeltaTable.is_deltatable(uri, dict(objects.options)):
        return []
    table = DeltaTable(uri, storage_options=dict(objects.options))
    found: list[str] = table.to_pyarrow_table(columns=[RECEIPTS.id])[RECEIPTS.id].to_pylist()
    return found


def days_before(count: int) -> list[date]:
    return [OLD + timedelta(days=offset) for offset in range(count)]
