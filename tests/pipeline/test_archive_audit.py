"""The sealed audit reaches the archive once, and leaves the ledger when the archive proves that it has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from angelia.audit.model import Verdict, Verifier
from angelia.audit.service import Audit
from angelia.errors import AuditBroken
from angelia.keys.node_key import load_or_make
from angelia.pipeline.jobs.archive_audit import archive_audit
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.verify_audit import verify_audit
from angelia.pipeline.runs import JobRun
from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.objects import Objects
from audit_chains import chained, positions
from receipt_rows import NOW

OLD = NOW - timedelta(days=40)
YOUNG = NOW - timedelta(days=3)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


async def verified(database_url: str, data_dir: Path) -> Verdict:
    """What `angelia audit verify` finds in the ledger."""
    ledger = await Ledger.open(database_url)
    audit, node = Audit(ledger), load_or_make(data_dir / "node.key")
    verifier = Verifier(node.key_id, node.public_key, node.signed())
    verifier.expect(await audit.checkpoints(0, 1000), (await audit.unsealed(1000))[1])
    page = await audit.chain(0, 1000)
    while page.entries:
        verifier.feed(page.entries, page.floor)
        page = await audit.chain(verifier.position, 1000)
    verifier.feed([], page.floor)
    verdict = verifier.finish(page.sealed_to, *await audit.unsealed(1000))
    await ledger.close()
    return verdict


async def test_old_entries_leave_the_ledger_and_both_halves_still_verify(
    work: Callable[..., JobContext], database_url: str, objects: Objects, data_dir: Path
) -> None:
    old = await chained(database_url, data_dir, OLD, 300)
    last = await chained(database_url, data_dir, YOUNG, 200)
    settings = Settings(data_dir=data_dir)
    report = archive_audit(work(settings=settings))
    assert (report.rows, report.figures["trimmed"]) == (last, old) == (500, 300)
    assert positions(objects) == list(range(1, 501))
    verdict = await verified(database_url, data_dir)
    assert (verdict.broken, verdict.archived, verdict.sealed) == ([], 300, 500)
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("SELECT count(*) FROM audit_events WHERE event_type = 'message_sent'") == 200
    assert await connection.fetchval(f"SELECT to_regclass('audit_events_{OLD:%Y%m%d}')") is None
    await connection.close()
    proof = verify_audit(work(settings=settings))
    assert (proof.rows, proof.figures["broken"], proof.figures["checkpoints"]) == (500, [], 2)
    # Nothing new: nothing is done, and no entry is archived twice.
    again = archive_audit(work(settings=settings, now=NOW + timedelta(seconds=1)))
    assert (again.rows, len(positions(objects))) == (0, 500)


async def test_a_floor_has_its_checkpoint_however_the_node_signs_meanwhile(
    work: Callable[..., JobContext], database_url: str, data_dir: Path
) -> None:
    """The newest checkpoint is the target; while the archive proves it, a later one takes its place."""
    await chained(database_url, data_dir, OLD, 150)
    assert await chained(database_url, data_dir, OLD, 150) == 300
    signed = []

    def sign(name: str, _run: JobRun) -> None:
        if name == "verified" and not signed:
            with ThreadPoolExecutor(1) as other:
                signed.append(other.submit(asyncio.run, chained(database_url, data_dir, OLD, 1)).result())

    report = archive_audit(work(settings=Settings(data_dir=data_dir), step=sign))
    assert (signed, report.figures["trimmed"]) == ([301], 150)
    assert (await verified(database_url, data_dir)).broken == []
    # And the node goes on from a ledger that begins there.
    await chained(database_url, data_dir, NOW, 1)
    assert (await verified(database_url, data_dir)).broken == []


async def test_an_event_that_no_entry_explains_stays_when_its_day_leaves(
    work: Callable[..., JobContext], database_url: str, data_dir: Path
) -> None:
    await chained(database_url, data_dir, OLD, 50)
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        """INSERT INTO audit_events (event_id, occurred_at, xid, event_type, detail, event_hash)
           VALUES (gen_random_uuid(), $1, '3', 'forged', '{}', sha256('x'))""",
        OLD + timedelta(seconds=1),
    )
    archive_audit(work(settings=Settings(data_dir=data_dir)))
    left = [row[0] for row in await connection.fetch("SELECT event_type FROM audit_events")]
    await connection.close()
    assert sorted(left) == ["archive_run", "forged"]
    assert [fault.what for fault in (await verified(database_url, data_dir)).broken] == [
        "was inserted among the sealed events"
    ]


async def test_what_was_changed_in_the_archive_is_named_and_keeps_the_ledger_from_letting_go(
    work: Callable[..., JobContext], database_url: str, objects: Objects, data_dir: Path
) -> None:
    settings = Settings(data_dir=data_dir)
    await chained(database_url, data_dir, YOUNG, 120)
    archive_audit(work(settings=settings))
    changed = forge(objects, 77)
    with pytest.raises(
        AuditBroken, match=r"entry 77 of the archive does not match its hash; the 76 before it are sound"
    ):
        verify_audit(work(settings=settings))
    assert changed
    later = NOW + timedelta(days=40)
    with pytest.raises(AuditBroken, match="entry 77 does not match its hash"):
        archive_audit(work(settings=settings, now=later))
    verdict = await verified(database_url, data_dir)
    assert (verdict.archived, verdict.broken) == (0, [])


def forge(objects: Objects, position: int) -> bool:
    """Change an archived event where it lies, as somebody with access to the store can."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    for path in Path(objects.root, "audit_events").rglob("*.parquet"):
        table = pq.ParquetFile(path).read()
        hit = pc.equal(table["position"], position)
        if pc.any(hit).as_py():
            actors = pc.if_else(hit, pa.scalar("mallory"), table["actor_nhi"])
            at = table.schema.get_field_index("actor_nhi")
            pq.write_table(table.set_column(at, table.schema.field(at), actors), path)
            return True
    return False


async def test_a_ledger_that_claims_a_floor_nobody_signed_is_found(
    work: Callable[..., JobContext], database_url: str, data_dir: Path
) -> None:
    await chained(database_url, data_dir, YOUNG, 30)
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        """UPDATE audit_floor f SET (position, entry_hash) = (c.position, c.entry_hash)
           FROM audit_chain c WHERE c.position = 10"""
    )
    await connection.execute(
        "DELETE FROM audit_events e USING audit_chain c WHERE e.event_id = c.event_id AND position <= 10"
    )
    await connection.execute("DELETE FROM audit_chain WHERE position <= 10")
    await connection.close()
    faults = (await verified(database_url, data_dir)).broken
    assert [(fault.position, fault.what) for fault in faults] == [
        (10, "is where the ledger begins, and no checkpoint vouches for it"),
        (10, "is where the ledger begins, and no archive run says so"),
    ]


async def test_a_ledger_that_was_cut_at_a_signed_entry_without_an_archive_run_is_found(
    database_url: str, data_dir: Path
) -> None:
    cut = await chained(database_url, data_dir, YOUNG, 15)
    await chained(database_url, data_dir, YOUNG + timedelta(hours=1), 15)
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        """UPDATE audit_floor f SET (position, entry_hash) = (c.position, c.entry_hash)
           FROM audit_chain c WHERE c.position = $1""",
        cut,
    )
    await connection.execute(
        "DELETE FROM audit_events e USING audit_chain c WHERE e.event_id = c.event_id AND position <= $1", cut
    )
    await connection.execute("DELETE FROM audit_chain WHERE position <= $1", cut)
    await connection.close()
    faults = (await verified(database_url, data_dir)).broken
    assert [(fault.position, fault.what) for fault in faults] == [
        (15, "is where the ledger begins, and no archive run says so")
    ]


async def test_an_archive_of_another_chain_is_refused_and_a_new_one_begins_where_the_ledger_does(
    work: Callable[..., JobContext], database_url: str, objects: Objects, data_dir: Path, tmp_path: Path
) -> None:
    settings = Settings(data_dir=data_dir)
    await chained(database_url, data_dir, OLD, 40)
    archive_audit(work(settings=settings))
    connection = await asyncpg.connect(database_url)
    await connection.execute("UPDATE audit_floor SET entry_hash = sha256('another')")
    with pytest.raises(AuditBroken, match="entry 40 of the archive is another one than the ledger's"):
        archive_audit(work(settings=settings))
    await connection.execute("UPDATE audit_floor SET entry_hash = (SELECT entry_hash FROM audit_checkpoints)")
    await connection.close()
    last = await chained(database_url, data_dir, YOUNG, 20)
    fresh = Objects.at(str(tmp_path / "fresh"))
    archive_audit(work(settings=settings, objects=fresh))
    assert positions(fresh) == list(range(41, last + 1))
    assert verify_audit(work(settings=settings, objects=fresh)).figures["broken"] == []
    archive_audit(work(settings=settings))
    assert positions(objects) == list(range(1, last + 1))


async def test_an_entry_that_lost_its_event_stops_the_archive_before_it(
    work: Callable[..., JobContext], database_url: str, objects: Objects, data_dir: Path
) -> None:
    await chained(database_url, data_dir, YOUNG, 30)
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "DELETE FROM audit_events WHERE event_id = (SELECT event_id FROM audit_chain WHERE position = 9)"
    )
    await connection.close()
    with pytest.raises(AuditBroken, match="entry 9 of the chain has lost its event"):
        archive_audit(work(settings=Settings(data_dir=data_dir)))
    assert positions(objects) == []
