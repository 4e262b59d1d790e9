"""The sealer's thread goes on for as long as its server does, whatever one round met."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest
import structlog

from angelia import audit_sealer as sealer_module
from angelia import metrics
from angelia.audit import service
from angelia.audit_sealer import SealerThread
from angelia.keys.node_key import load_or_make
from angelia.settings import OUR_OWN, Loaded, Settings
from angelia.stores.ledger import Ledger
from angelia.stores.private_files import write_private
from small_disks import small_disk
from store_probes import until

_ENDED = "the audit's sealer ended, and is started again"


async def test_a_sealer_that_ended_is_started_again_and_seals_what_waited(
    ledger: Ledger,
    connection: asyncpg.Connection,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sealer_module, "_AGAIN_SECONDS", 0.05)
    node = load_or_make(tmp_path / "node.key")
    settings = Settings(data_dir=tmp_path, database_url=database_url, audit_witness=str(tmp_path / "witness"))
    async with ledger.transaction() as tx:
        await service.record(tx, [service.event("tested", datetime.now(UTC))])
    write_private(tmp_path / "node.signed", b"damaged")
    sealer = SealerThread(Loaded(settings, {"database_url": "given"}), node)
    with structlog.testing.capture_logs() as lines:
        sealer.start()
        try:
            await asyncio.to_thread(until, lambda: [line["event"] for line in lines].count(_ENDED) > 1)
            assert await connection.fetchval("SELECT count(*) FROM audit_chain") == 0
            (tmp_path / "node.signed").unlink()
            await asyncio.to_thread(until, lambda: node.signed() is not None)
        finally:
            await asyncio.to_thread(sealer.stop)
    assert not sealer._thread.is_alive()
    assert await connection.fetchval("SELECT position FROM audit_checkpoints") == 1


async def test_a_full_disk_of_our_own_ledger_holds_the_sealer_back_until_there_is_room(
    ledger: Ledger, connection: asyncpg.Connection, database_url: str, directory: Path, tmp_path: Path
) -> None:
    node = load_or_make(tmp_path / "node.key")
    async with ledger.transaction() as tx:
        await service.record(tx, [service.event("tested", datetime.now(UTC))])
    with small_disk(directory, 64) as disk:
        (disk.path / "postgres").mkdir()
        loaded = Loaded(Settings(data_dir=disk.path, database_url=database_url), {"database_url": OUR_OWN})
        sealer, began = SealerThread(loaded, node), refused_ticks()
        try:
            with disk.filled(leaving=1 << 20):
                sealer.start()
                await asyncio.to_thread(until, lambda: refused_ticks() > began or node.signed() is not None)
                assert await connection.fetchval("SELECT count(*) FROM audit_chain") == 0
            await asyncio.to_thread(until, lambda: node.signed() is not None)
        finally:
            await asyncio.to_thread(sealer.stop)


def refused_ticks() -> float:
    return metrics.TICK_FAILURES.labels("audit sealer")._value.get()
