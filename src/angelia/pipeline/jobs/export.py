"""Exports what ledger and archive hold about one agent, without the content of sealed messages and without secrets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from angelia.errors import AlreadyExists, InvalidArgument, NotFound
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.export_files import FORMATS, ExportFile, private_file
from angelia.pipeline.jobs.agent_rows import NAMING, AgentNames, about, asked_about, in_ledger, names_of
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.lake import listing, simulated
from angelia.pipeline.lake.tables import AGENTS, Table
from angelia.pipeline.runs import JobRun
from angelia.pipeline.sources import archive, ledger
from angelia.runs.model import RunState

JOB = "export"
_BATCH = 10_000

# Kinds of records that only the ledger has: slice and block.
_LEDGER = (
    ("agents", "agents_about_agent"),
    ("agents", "former_keys_about_agent"),
    ("agents", "blocks_about_agent"),
    ("guard", "tokens_about_agent"),
    ("policy", "policies_about_agent"),
    ("keys", "key_records_about_agent"),
    ("keys", "bundles_about_agent"),
    ("keys", "one_time_keys_about_agent"),
    ("keys", "rotation_events_about_agent"),
    ("mail", "envelopes_about_agent"),
    ("channels", "channels_about_agent"),
    ("channels", "subscriptions_about_agent"),
    ("channels", "allowlist_about_agent"),
    ("channels", "channel_messages_about_agent"),
    ("channels", "channel_epochs_about_agent"),
    ("rooms", "rooms_made_about_agent"),
    ("rooms", "direct_messages_about_agent"),
    ("queues", "queue_traces_about_agent"),
    ("queues", "queue_buffered_about_agent"),
)
_LEFT_OUT = (
    "the content of sealed messages: the server cannot read it",
    "private keys: they never were here",
    "encrypted fields, and secrets of tokens, which are kept as hashes",
    "one-time keys themselves, and places of waiting messages",
    "ids of messages that were sent of late, by which a repetition is known: the receipts have them",
    "what the hot tier remembers for minutes",
    "rules whose patterns cover the agent without naming it",
    "what others posted in rooms, keys of private rooms, and group logs",
    "payloads of encrypted queues in the clear: they are as they are stored, and in traces they are left out",
    "logs and backups",
)
# The driver streams only statements without parameters, so the agent is bound to a setting of the transaction.
_BIND = "SELECT set_config('pipeline.agent', $1, true)"
_BOUND = "current_setting('pipeline.agent')"


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of an export."""

    agent: str
    out: Path
    format: str


def export(work: JobContext) -> JobReport:
    """Makes one directory with a file for each kind of record and a manifest; it appears when it is complete."""
    asked, report = _asked(work), JobReport(job=JOB)
    simulated.only_real(work.objects, work.settings, JOB)
    with runs.one_run(work.database_url, JOB, work.clock) as (database, run):
        asked = replace(asked, agent=names_of(work, database, asked.agent).handle)
        partial = _begun(asked, run)
        try:
            counts = _written(work, asked, partial)
            _manifest(work, asked, run, partial, counts)
            work.step("written", run)
            # Without the handle: an event that names the agent would be one more record about it.
            work.record_run(database, run, {"rows": sum(counts.values())})
            partial.rename(asked.out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        rows = sum(counts.values())
        run = runs.advance(database, run, RunState.DONE, work.clock(), row_count=rows, report={"kinds": counts})
    report.add(run)
    report.figures |= {"out": str(asked.out), "kinds": counts}
    report.summary = f"{rows:,} records about {asked.agent} in {asked.out}"
    return report


def _asked(work: JobContext) -> Asked:
    agent, out = asked_about(work), work.options.get("out")
    if not out:
        raise InvalidArgument("where to?", hint="--out PATH, a directory that is not there yet")
    wanted = str(work.options.get("format") or "parquet")
    if wanted not in FORMATS:
        raise InvalidArgument(f"{wanted} is no format of an export", hint=f"--format {' or --format '.join(FORMATS)}")
    asked = Asked(agent, Path(out).absolute(), wanted)
    if asked.out.exists() or asked.out.is_symlink():
        raise AlreadyExists(f"{asked.out} is there already", hint="name a directory that is not there yet")
    if not asked.out.parent.is_dir():
        raise InvalidArgument(f"{asked.out.parent} is no directory", hint=f"mkdir -p {asked.out.parent}")
    return asked


def _begun(asked: Asked, run: JobRun) -> Path:
    """Makes the directory to be renamed when complete; removes those of exports that were killed."""
    name = f".{asked.out.name}.partial-"
    for old in asked.out.parent.iterdir():
        if old.name.startswith(name):
            shutil.rmtree(old)
    partial = asked.out.parent / f"{name}{run.run_id}"
    partial.mkdir(mode=0o700)
    return partial


def _written(work: JobContext, asked: Asked, directory: Path) -> dict[str, int]:
    counts = {}
    # The snapshot is taken before the archive is read: a row that moves meanwhile is seen in both, never in none.
    with ledger.one_snapshot(work.database_url) as (then, _):
        then.table(_BIND, asked.agent)
        for slice_name, block in _LEDGER:
            kind = block.removesuffix("_about_agent")
            work.progress.stage(f"writing {kind}")
            counts[kind] = _ledger(then, work.sql(slice_name)[block], asked, kind, directory)
        names = names_of(work, then, asked.agent)
        for table in NAMING:
            work.progress.stage(f"writing {table.name}")
            counts[table.name] = _both(work, then, asked, names, table, directory)
    counts[AGENTS.name] = _figures(work, asked, directory)
    if not any(counts.values()):
        raise NotFound(f"nothing is held about {asked.agent}", hint=f"angelia agent show {asked.agent}")
    return counts


def _ledger(then: Database, statement: str, asked: Asked, kind: str, directory: Path) -> int:
    """Exports a kind of record that only the ledger has; returns the number of rows."""
    schema = then.table(f"SELECT * FROM ({statement}) AS r LIMIT 0", asked.agent).schema  # noqa: S608
    with ExportFile.open(directory, kind, schema, asked.format) as sink:
        for rows in _streamed(then, statement):
            sink.add(rows)
        return sink.rows


def _figures(work: JobContext, asked: Asked, directory: Path) -> int:
    """Exports what analytics counted of the agent a day; returns the number of rows."""
    table = listing.find(work.objects, AGENTS)
    with ExportFile.open(directory, AGENTS.name, AGENTS.schema, asked.format) as sink:
        if table is not None:
            of_agent = pc.field("agent") == asked.agent
            found = table.to_pyarrow_dataset().scanner(columns=AGENTS.schema.names, filter=of_agent).to_table()
            sink.add(found.cast(AGENTS.schema))
        return sink.rows


def _streamed(then: Database, statement: str) -> Iterator[pa.Table]:
    """The rows about the agent, in batches."""
    for batch in then.batches(statement.replace("$1", _BOUND)):
        yield pa.Table.from_batches([batch])


def _both(work: JobContext, then: Database, asked: Asked, names: AgentNames, table: Table, directory: Path) -> int:
    """Exports the rows of the ledger, and those that only the archive has; returns their number."""
    here: set[str] = set()  # the ids of one agent's rows in the ledger fit into memory
    schema = pa.schema(
        [field.with_nullable(True) for field in table.schema]
    )  # an event that is not sealed has no position
    with ExportFile.open(directory, table.name, schema, asked.format) as sink:
        for given in _streamed(then, in_ledger(work, table)):
            rows = given.select(schema.names).cast(schema)
            here.update(rows[table.id].to_pylist())
            sink.add(rows)
        for rows in _archived(work, names, table, schema):
            sink.add(pa.Table.from_pylist([row for row in rows if row[table.id] not in here], schema=schema))
        return sink.rows


def _archived(work: JobContext, agent: AgentNames, table: Table, schema: pa.Schema) -> Iterator[list[dict[str, Any]]]:
    """Rows of the archive, one partition in memory at a time: all of an agent may not fit."""
    files = listing.files(work.objects, table)
    if not files:
        return
    found = archive.read(work.spark, work.objects, table, files).where(about(table, agent))
    rows: list[dict[str, Any]] = []
    for row in found.select(*schema.names).toLocalIterator(prefetchPartitions=True):
        rows.append(row.asDict())
        if len(rows) == _BATCH:
            yield rows
            rows = []
    yield rows


def _manifest(work: JobContext, asked: Asked, run: JobRun, directory: Path, counts: dict[str, int]) -> None:
    said = {
        "agent": asked.agent,
        "made_at": work.now.isoformat(),
        "run": run.run_id,
        "format": asked.format,
        "kinds": {kind: {"file": f"{kind}.{asked.format}", "rows": rows} for kind, rows in counts.items()},
        "left_out": _LEFT_OUT,
    }
    with private_file(directory / "manifest.json") as file:
        file.write(json.dumps(said, indent=2, ensure_ascii=False).encode())
