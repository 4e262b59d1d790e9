"""The archive's chain is proved without trust in whoever can write the archive; cut anywhere, it is the same chain."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.audit.model import GENESIS, Checkpoint, Event, Floor, Verifier, checkpoint_bytes, entry_hash
from angelia.errors import AuditBroken
from angelia.pipeline import chain_verification
from angelia.pipeline.chain_verification import MOST_LISTED, ChainResult, NodePublicKey, _Piece
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.archive_audit import archive_audit
from angelia.pipeline.jobs.erase import erase
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.verify_audit import NodeKeyUnreadable, node_key, verify_audit
from angelia.settings import Settings
from angelia.stores.objects import Objects
from audit_chains import chained
from receipt_rows import NOW

YOUNG = NOW - timedelta(days=3)
OURS, THEIRS = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
NODE = NodePublicKey("ours", OURS.public_key().public_bytes_raw())
NO_SIGNATURE = {"signed_hash": None, "node_key_id": None, "signed_at": None, "signature": None}


def entries(count: int) -> list[dict[str, Any]]:
    """A sound chain, as a task gets it."""
    rows, head = [], GENESIS
    for position in range(1, count + 1):
        event = Event(event_id=UUID(int=position), occurred_at=NOW, event_type="message_sent", actor="alice")
        head = entry_hash(head, position, event.hash())
        row = {"position": position, "event_id": str(event.event_id), "occurred_at": NOW, "event_type": "message_sent"}
        row |= {"actor_nhi": "alice", "object_nhi": None, "message_id": None, "replay_key": None, "detail": "{}"}
        rows.append({**row, "event_hash": event.hash(), "entry_hash": head, "redacted_at": None, **NO_SIGNATURE})
    return rows


def sign(row: dict[str, Any], key: Ed25519PrivateKey, key_id: str) -> None:
    signed = checkpoint_bytes(row["position"], row["entry_hash"], NOW)
    row |= {"signed_hash": row["entry_hash"], "node_key_id": key_id, "signed_at": NOW, "signature": key.sign(signed)}


def verified(*pieces: list[dict[str, Any]], node: NodePublicKey | None = NODE) -> ChainResult:
    result = ChainResult(head=GENESIS)
    told = [row for rows in pieces for row in chain_verification._check(iter([pa.RecordBatch.from_pylist(rows)]), node)]
    found = [msgspec.json.decode(row["piece"], type=_Piece) for batch in told for row in batch.to_pylist()]
    chain_verification._join(result, found)
    return result


def faults(result: ChainResult) -> list[tuple[int, str]]:
    return [(fault.position, fault.what) for fault in result.faults]


@pytest.mark.parametrize("node", [NODE, None], ids=["another key is here", "no key is here"])
def test_a_checkpoint_of_another_node_must_still_be_of_this_chain(node: NodePublicKey | None) -> None:
    rows = entries(3)
    sign(rows[1], THEIRS, "theirs")
    assert faults(verified(rows, node=node)) == []
    rows[1]["signed_hash"] = hashlib.sha256(b"another chain").digest()
    assert faults(verified(rows, node=node)) == [(2, "is not what its checkpoint signed")]
    assert verified(rows, node=node).foreign == 1


def test_the_ledgers_verifier_compares_what_another_node_signed_as_well() -> None:
    verifier = Verifier(UUID(int=1), NODE.public_key)
    other = hashlib.sha256(b"another chain").digest()
    signed = Checkpoint(position=1, entry_hash=other.hex(), node_key_id=UUID(int=2), signed_at=NOW, signature=b"".hex())
    verifier.expect([signed])
    verifier.feed([], Floor(1, GENESIS.hex()))
    assert "is not what its checkpoint signed" in [fault.what for fault in verifier.finish(1, [], []).broken]


def test_what_is_missing_between_two_spans_is_told_once() -> None:
    rows = entries(9)
    assert faults(verified(rows[:4], rows[4:])) == []
    assert faults(verified(rows[:3], rows[5:])) == [(4, "is missing from the archive, with the 1 after it")]


def test_redactions_are_listed_and_summed_over_all_that_is_left_of_them() -> None:
    rows = entries(250)
    for row in rows:
        row |= {"actor_nhi": None, "redacted_at": NOW}
    result = verified(rows[:120], rows[120:])
    assert (result.redacted, result.redactions.positions) == (250, list(range(1, MOST_LISTED + 1)))
    assert result.redactions.times == {NOW: (1, 250)}
    rows[200]["event_type"] = "another"
    assert verified(rows).redactions.hash_sum != result.redactions.hash_sum


def blank(objects: Objects) -> None:
    """Empty every archived event where it lies, and call it redacted, as somebody with access to the store can."""
    for path in Path(objects.root, "audit_events").rglob("*.parquet"):
        table = pq.ParquetFile(path).read()
        emptied = [
            {**row, "actor_nhi": None, "object_nhi": None, "detail": "{}", "redacted_at": row["redacted_at"] or NOW}
            for row in table.to_pylist()
        ]
        pq.write_table(pa.Table.from_pylist(emptied, table.schema), path)


async def test_a_redaction_needs_an_erasure_on_record_and_what_is_broken_is_told_in_the_run(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    await chained(database_url, tmp_path, YOUNG, 20)
    archive_audit(work(settings=settings))
    at = NOW - timedelta(hours=1)
    erase(work(settings=settings, now=at, options={"agent": "alice-1", "reason": "request 7"}))
    # The erasure is in the ledger alone, and then in the archive alone.
    found = verify_audit(work(settings=settings)).figures
    assert (found["redacted"], len(found["redacted_positions"]), found["broken"]) == (4, 4, [])
    await chained(database_url, tmp_path, NOW - timedelta(minutes=5), 1)
    archive_audit(work(settings=settings))
    connection = await asyncpg.connect(database_url)
    await connection.execute("DELETE FROM audit_events WHERE event_type = 'erased'")
    assert verify_audit(work(settings=settings)).figures["broken"] == []
    blank(objects)
    with pytest.raises(AuditBroken, match="entry 1 of the archive is redacted, and no erasure") as broken:
        verify_audit(work(settings=settings))
    state, told = await connection.fetchrow(
        "SELECT state, report FROM pipeline_runs WHERE job = 'verify audit' ORDER BY version DESC LIMIT 1"
    )
    await connection.close()
    assert state == "failed"
    assert json.loads(told)["broken"] == broken.value.members["broken"]
    assert len(json.loads(told)["broken"]) == 2  # those of the erasure as well, whose record is blank by now


async def test_ledger_and_archive_make_the_same_sum_of_redactions(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    last = await chained(database_url, tmp_path, YOUNG, 12)
    archive_audit(work(settings=settings))
    begun = work(settings=settings, options={"agent": "alice-1", "reason": "request 7"})
    erase(begun)
    with Database.open(database_url) as database:
        signed = functools.partial(database.table, begun.sql("audit")["checkpoints"])
        there = chain_verification.verify(begun.spark, objects, Floor(), last, signed, None).redactions
        here = database.rows(begun.sql("audit")["redacted_sum"], 0, last)[0]
    assert (here["row_count"], int(here["hash_sum"])) == (there.count, there.hash_sum)
    assert there.count == 3


async def test_a_chain_is_verified_span_by_span_with_the_same_result(
    work: Callable[..., JobContext], database_url: str, objects: Objects, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    last = await chained(database_url, tmp_path, YOUNG, 50)
    begun = work(settings=settings)
    archive_audit(begun)
    asked: list[tuple[int, int]] = []
    with Database.open(database_url) as database:

        def signed(after: int, end: int) -> pa.Table:
            asked.append((after, end))
            return database.table(begun.sql("audit")["checkpoints"], after, end)

        node = node_key(tmp_path)
        whole = chain_verification.verify(begun.spark, objects, Floor(), last, signed, node)
        cut = chain_verification.verify(begun.spark, objects, Floor(), last, signed, node, span_rows=20)
    assert asked == [(0, 50), (0, 20), (20, 40), (40, 50)]
    assert (cut, cut.rows, cut.checkpoints, cut.faults) == (whole, 50, 1, [])


async def test_where_no_signature_can_be_checked_the_report_says_so(
    work: Callable[..., JobContext], database_url: str, tmp_path: Path
) -> None:
    await chained(database_url, tmp_path, YOUNG, 5)
    archive_audit(work(settings=Settings(data_dir=tmp_path)))
    report = verify_audit(work(settings=Settings(data_dir=tmp_path / "elsewhere")))
    assert report.figures["warning"] == "no signature could be checked: there is no node key here"
    assert report.figures["warning"] in report.summary


def test_a_node_key_that_is_there_and_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    assert node_key(tmp_path) is None
    key = tmp_path / "node.key"
    key.write_bytes(b"too short")
    with pytest.raises(NodeKeyUnreadable, match="damaged"):
        node_key(tmp_path)
    key.unlink()
    key.mkdir()  # which nobody can read as a file, whoever it is
    with pytest.raises(NodeKeyUnreadable, match="cannot be read"):
        node_key(tmp_path)
