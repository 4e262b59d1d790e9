"""Verifies group logs from the exports of their nodes, which no single node could do: what all of them together lack,
contradict each other in, or store once too often. Measures what they store on the way."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from angelia.errors import AngeliaError, InvalidArgument
from angelia.pipeline import log_verification, runs
from angelia.pipeline.analytics import logs
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.lake import simulated, small_tables
from angelia.pipeline.lake.tables import DAY, LOG_FINDINGS, LOG_GROUPS, LOG_NODES, Table
from angelia.pipeline.log_verification import COUNTS
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import log_exports
from angelia.runs.model import RunState

JOB = "verify logs"
_KEPT = 1_000  # findings of each kind


class LogFaults(AngeliaError, code="log_faults"):
    """The nodes of a group log do not hold all of it, or not the same"""


def verify_logs(work: JobContext) -> JobReport:
    """Checks every group of which there are exports; raises LogFaults if anything is found. The archive keeps the
    measurements and the first findings either way."""
    report, directory = JobReport(job=JOB), work.options.get("exports")
    if not directory:
        raise InvalidArgument("which exports?", hint="--exports DIR, where `angelia log export GROUP DIR` wrote")
    simulated.only_real(work.objects, work.settings, JOB)
    exports = log_exports.find(Path(directory))
    with runs.one_run(work.database_url, JOB, work.clock) as (database, run):
        work.rows = sum(one.rows for one in exports)
        found = _checked(work, run, exports)
        report.figures = _figures(found)
        faults = _faults(report.figures)
        said = report.figures if faults is None else {"error": faults.message, **report.figures}
        state = RunState.DONE if faults is None else RunState.FAILED
        run = runs.advance(database, run, state, work.clock(), row_count=int(work.rows), report=said)
        report.add(run)
    if faults is not None:
        # Outside of the run, which would overwrite its report with the error.
        faults.members = report.figures
        raise faults
    report.summary = f"{_scope(report.figures)}: nothing is missing, and no node contradicts another"
    return report


def _checked(work: JobContext, run: JobRun, exports: list[log_exports.LogExport]) -> pa.Table:
    """Writes what each node stores, what was found, and the groups last: a check without them was never finished.
    Returns the groups."""
    exported, rows = log_exports.by_node(work.spark, exports), log_exports.read(work.spark, exports)
    work.progress.stage("measuring nodes", sum(one.rows for one in exports))
    nodes = logs.nodes(rows, exported)
    _check_names(nodes)
    by_message = log_verification.messages(rows, exported).persist()
    by_manifest = log_verification.sharded(rows).persist()
    found = log_verification.findings(by_message, by_manifest).persist()
    try:
        work.progress.stage("comparing nodes")
        groups = logs.groups(by_message, by_manifest, found, exported)
        first = log_verification.first(found, _KEPT).toArrow()
    finally:
        for frame in (found, by_manifest, by_message):
            frame.unpersist()
    for table, measured in ((LOG_FINDINGS, first), (LOG_NODES, nodes), (LOG_GROUPS, groups)):
        _put(work, run, table, measured)
        work.step(f"wrote {table.name}", run)
    return groups


def _check_names(nodes: pa.Table) -> None:
    """Raises InvalidArgument if a file has rows of another group or node than it is named after."""
    other = nodes.filter(pc.fill_null(pc.not_equal(nodes["exported"], nodes["row_count"]), True))
    if other.num_rows:
        group, node = (other[name][0].as_py() for name in ("group_id", "node_id"))
        raise InvalidArgument(
            f"the file {group}-{node}.parquet and the rows of that group and node do not match",
            hint="export into a directory of its own: angelia log export GROUP DIR",
        )


def _put(work: JobContext, run: JobRun, table: Table, measured: pa.Table) -> None:
    if measured.num_rows:
        stamped = measured.append_column(DAY, pa.repeat(pa.scalar(work.now.date()), measured.num_rows))
        stamped = stamped.append_column("checked_at", pa.repeat(pa.scalar(work.now), measured.num_rows))
        small_tables.put(work.objects, table, stamped, run)


def _figures(groups: pa.Table) -> dict[str, object]:
    names = ("messages", "snapshots", "stored_bytes")
    sums = {name: pc.sum(groups[name]).as_py() for name in (*names, *COUNTS.values())}
    return {
        "groups": groups.num_rows,
        "exports": pc.sum(groups["nodes"]).as_py(),
        **{name: sums[name] for name in names},
        "found": {name: sums[name] for name in COUNTS.values()},
    }


def _faults(figures: dict[str, object]) -> LogFaults | None:
    found = figures["found"]
    assert isinstance(found, dict)
    named = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in found.items() if number)
    if not named:
        return None
    latest = "checked_at = (SELECT max(checked_at) FROM log_groups)"
    return LogFaults(
        f"{_scope(figures)}: {named}",
        hint=f'angelia pipeline sql "SELECT * FROM log_findings WHERE {latest}"',  # noqa: S608
    )


def _scope(figures: dict[str, object]) -> str:
    return f"{figures['messages']:,} messages and {figures['snapshots']:,} snapshots of {figures['groups']:,} groups"
