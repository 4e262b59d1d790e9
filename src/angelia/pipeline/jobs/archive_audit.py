"""Copies the sealed audit to the archive, and trims old entries from the ledger."""

from __future__ import annotations

import functools

from angelia.audit.model import Floor
from angelia.errors import AuditBroken
from angelia.mail.model import closed_before
from angelia.pipeline import chain_verification, runs
from angelia.pipeline.database import Busy, Database
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.jobs.verify_audit import node_key
from angelia.pipeline.lake import commit, simulated
from angelia.pipeline.lake.audit_chain import files_within, properties
from angelia.pipeline.lake.tables import AUDIT
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import audit
from angelia.runs.model import RunState

JOB = "archive audit"
_BATCH_ROWS = 2_000_000  # of one commit
_TRIM_ROWS = 1_000_000  # of one transaction
_DEFAULT = "audit_events_default"


class _Replaced(Exception):
    """The checkpoint to trim to is gone: it was the newest, and the node has signed a newer one meanwhile."""


def archive_audit(work: JobContext) -> JobReport:
    """Appends all sealed entries to the archive; then removes from the ledger what is archived, verified and old."""
    report = JobReport(job=JOB)
    if work.dry_run:
        return _foreseen(work, report)
    with runs.one_run(work.database_url, JOB, work.clock) as (database, run):
        go_on(work, database)
        work.step("planned", run)
        rows = _catch_up(work, database, run)
        work.step("committed", run)
        run = runs.advance(database, run, RunState.COMMITTED, work.clock(), row_count=rows)
        trimmed = 0
        while step := trim(work, database, run):
            trimmed += step
        said = {"rows": rows, "trimmed": trimmed}
        run = runs.advance(database, run, RunState.DONE, work.clock(), report=said)
        report.add(run)
        report.figures = {"archived_to": audit.archived_to(work.objects), "trimmed": trimmed}
    report.summary = f"{rows:,} events archived, {trimmed:,} left the ledger"
    return report


def _foreseen(work: JobContext, report: JobReport) -> JobReport:
    with Database.open(work.database_url) as database:
        have = audit.archived_to(work.objects)
        sealed = database.rows(work.sql("audit")["sealed_to"])[0]["position"]
        target, floor = _trim_target(work, database), ledger_floor(work, database)
    rows, trimmed = max(0, sealed - have), 0 if target is None else target.position - floor.position
    return report.foreseen(rows, f"{rows:,} events would be archived", archived_to=have, trimmed=trimmed)


def _catch_up(work: JobContext, database: Database, run: JobRun) -> int:
    sql = work.sql("audit")
    began = after = audit.archived_to(work.objects)
    sealed = int(database.rows(sql["sealed_to"])[0]["position"])
    work.progress.stage("archiving", sealed - after)
    while after < sealed:
        last = min(sealed, after + _BATCH_ROWS)
        if lost := database.row(sql["lost"], after, last):
            raise AuditBroken(
                f"entry {lost['position']:,} of the chain has lost its event",
                hint="nothing behind it is archived; angelia audit verify",
            )
        given = audit.options(work.objects, work.database_url, sql, run.run_id)
        work.spark.dataSource.register(audit.AuditSource)
        frame = work.spark.read.format(audit.NAME).options(**given, after=after, last=last).load()
        frame.write.format(audit.NAME).mode("append").options(**given).save()
        work.progress.advance(last - after)
        after = last
    return after - began


def trim(work: JobContext, database: Database, run: JobRun) -> int:
    """Removes the oldest entries that the archive has from the ledger, up to a signed one; returns how many."""
    target = _trim_target(work, database)
    if target is None:
        return 0
    floor = ledger_floor(work, database)
    _prove(work, database, floor, target)
    work.step("verified", run)

    def act() -> None:
        _remove(work, database, target)
        work.record_run(database, run, {"from": floor.position + 1, "to": target.position})
        work.step("purging", run)

    try:
        database.patiently(act)
    except _Replaced:
        return trim(work, database, run)  # to an earlier checkpoint, which will stay
    work.step("trimmed", run)
    return target.position - floor.position


def _prove(work: JobContext, database: Database, floor: Floor, target: Floor) -> None:
    """Verifies that the archive's rows make the hash that the node signed, and syncs them to disk."""
    sql = work.sql("audit")
    signed = functools.partial(database.table, sql["checkpoints"])
    node = node_key(work.settings.data_dir)
    found = chain_verification.verify(work.spark, work.objects, floor, target.position, signed, node)
    if found.faults:
        first = found.faults[0]
        raise AuditBroken(f"entry {first.position:,} {first.what}", hint="angelia pipeline run verify audit")
    left = database.rows(sql["redacted_sum"], floor.position, target.position)[0]
    redacted = (left["row_count"], int(left["hash_sum"]))
    if found.head.hex() != target.entry_hash or redacted != (found.redactions.count, found.redactions.hash_sum):
        raise AuditBroken(
            f"the archive's chain is another one than the ledger's at entry {target.position:,}",
            hint="nothing left the ledger; angelia audit verify",
        )
    commit.settle(work.objects, AUDIT, files_within(work.objects, floor.position, target.position))


def _remove(work: JobContext, database: Database, target: Floor) -> None:
    """Removes entries and events up to a position. Slow statements come first: while the table is locked, every writer
    waits."""
    sql = work.sql("audit")
    database.execute(sql["trimmed"])
    database.execute(sql["trim_entries"], target.position)
    whole: dict[str, int] = {}
    for row in database.rows(sql["trim_partitions"]):
        name = row["partition"]
        counts = database.rows(sql["trim_counts"].format(partition=name))[0]
        if name != _DEFAULT and counts["events"] == counts["trimmed"]:
            whole[name] = counts["events"]
        else:
            database.execute(sql["trim_events"].format(partition=name))
    database.execute(sql["patience"])
    database.rows(sql["hold_sealer"])
    if database.row(sql["checkpoint"], target.position) is None:
        raise _Replaced
    database.execute(sql["raise_floor"], target.position, bytes.fromhex(target.entry_hash))
    database.execute(sql["trim_lock"])
    for name, counted in whole.items():
        if database.rows(sql["trim_count"].format(partition=name))[0]["events"] != counted:
            raise Busy  # an old event was written meanwhile: retry
        database.execute(sql["trim_drop"].format(partition=name))


def go_on(work: JobContext, database: Database) -> None:
    """Makes sure that the archive continues the ledger's chain: a new archive begins where the ledger does, and one of
    another chain is refused."""
    simulated.only_real(work.objects, work.settings, JOB)
    simulated.only_one_kind(work.objects, work.settings, AUDIT)
    have, floor = audit.archived_to(work.objects), ledger_floor(work, database)
    if have == 0 and floor.position:
        commit.opened(work.objects, AUDIT).alter.set_table_properties(
            dict(properties(floor)), raise_if_not_exists=False
        )
        return
    if have < floor.position:
        raise AuditBroken(
            f"the archive ends at entry {have:,}, and the ledger begins behind {floor.position:,}",
            hint="restore the archive from a back-up, or begin another one with --lake",
        )
    if not have:
        return
    row = database.row(work.sql("audit")["entry"], have)
    here = floor.entry_hash if have == floor.position else None if row is None else row["entry_hash"].hex()
    if here != audit.archived_head(work.objects):
        raise AuditBroken(
            f"entry {have:,} of the archive is another one than the ledger's",
            hint="is this the archive of another server? name the right one with --lake; angelia audit verify",
        )


def ledger_floor(work: JobContext, database: Database) -> Floor:
    row = database.rows(work.sql("audit")["floor"])[0]
    return Floor(row["position"], row["entry_hash"].hex())


def _trim_target(work: JobContext, database: Database) -> Floor | None:
    cutoff = closed_before(work.now, work.settings.max_ttl_seconds)
    row = database.row(work.sql("audit")["trim_to"], audit.archived_to(work.objects), cutoff, _TRIM_ROWS)
    return None if row is None else Floor(row["position"], row["entry_hash"].hex())
