"""Measurements of the present, which cannot be computed later: the size of the stores, and keys in their grace
period."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import redis

from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.lake import listing, small_tables
from angelia.pipeline.lake.tables import DAY, KEY_DAYS, KEY_GRACE, STORAGE, TABLES
from angelia.pipeline.runs import JobRun
from angelia.stores.sql import statements

_SQL = statements(__file__, "ledger.sql")
_PATIENCE = 2.0


def measure(work: JobContext, database: Database, run: JobRun) -> dict[str, int]:
    """Writes the size of every store and the keys in grace; returns the bytes of each tier. A simulated fleet has an
    archive only."""
    found = [*_archive(work)] if work.simulated else [*_hot(work), *_ledger(database), *_archive(work)]
    stamped = [{DAY: work.now.date(), "measured_at": work.now, **row} for row in found]
    small_tables.put(work.objects, STORAGE, pa.Table.from_pylist(stamped, STORAGE.schema), run)
    grace = [] if work.simulated else database.rows(work.sql("keys")["keys_in_grace"], work.now)
    if grace:
        aged = [{DAY: work.now.date(), "measured_at": work.now, **row} for row in grace]
        small_tables.put(work.objects, KEY_GRACE, pa.Table.from_pylist(aged, KEY_GRACE.schema), run)
    totals: dict[str, int] = {}
    for row in found:
        totals[row["tier"]] = totals.get(row["tier"], 0) + row["bytes"]
    return totals


def rotations(work: JobContext, database: Database, run: JobRun) -> None:
    """Writes the rotations of keys by day, if they have changed."""
    found = _ordered(database.table(work.sql("keys")["rotations_by_day"]))
    table = listing.find(work.objects, KEY_DAYS)
    before = _ordered(KEY_DAYS.schema.empty_table() if table is None else table.to_pyarrow_table())
    if before == found:
        return
    days = [*before[DAY].to_pylist(), *found[DAY].to_pylist()]
    small_tables.put(work.objects, KEY_DAYS, found, run, replacing=(min(days), max(days) + timedelta(days=1)))


def _ordered(table: pa.Table) -> pa.Table:
    given = table.select(KEY_DAYS.schema.names).cast(KEY_DAYS.schema).combine_chunks()
    return given.sort_by([(name, "ascending") for name in (DAY, "reason", "key_type")])


def _hot(work: JobContext) -> Iterator[dict[str, Any]]:
    if work.settings.redis_url is None:
        return
    try:
        with redis.Redis.from_url(work.settings.redis_url, socket_timeout=_PATIENCE, protocol=2) as client:
            used = client.info("memory")["used_memory"]
    except redis.RedisError:
        return  # a missing measurement is a gap in the chart, and must not fail the rest
    yield {"tier": "hot", "name": "memory", "row_count": None, "files": None, "bytes": int(used)}


def _ledger(database: Database) -> Iterator[dict[str, Any]]:
    for row in database.rows(_SQL["ledger_sizes"]):
        yield {"tier": "ledger", "files": None, **row}


def _archive(work: JobContext) -> Iterator[dict[str, Any]]:
    for table in TABLES.values():
        size = listing.size(work.objects, table)
        if size.files:
            counted = {"row_count": size.rows, "files": size.files, "bytes": size.bytes}
            yield {"tier": "archive", "name": table.name, **counted}
