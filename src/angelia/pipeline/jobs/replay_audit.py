"""Looks for duplicate messages and for faults of the audit chain in everything that was ever accepted.

A replay key belongs to one message, and a sender uses a message id once. The server enforces that while it remembers
them; this job looks further back, in ledger and archive together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from angelia.audit.model import Floor, entry_hash
from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs import archive_receipts
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.lake import listing, simulated
from angelia.pipeline.lake.audit_chain import archive_floor
from angelia.pipeline.lake.tables import AUDIT, RECEIPTS
from angelia.pipeline.sources import archive, ledger
from angelia.runs.model import RunState

JOB = "replay audit"
_SHOWN = 100  # of each kind in the report
_KEYS = {"replay_key": ("replay_key",), "message_id": ("sender_nhi", "message_id")}
_FAULTS = ("gap", "repeat", "disorder")
_SPAN = 65_536  # positions that are sorted together


def replay_audit(work: JobContext) -> JobReport:
    """Counts duplicates and faults of the chain, and names the first of each kind. It changes nothing."""
    report = JobReport(job=JOB)
    simulated.only_real(work.objects, work.settings, JOB)
    with (
        runs.only_one(work.database_url, archive_receipts.JOB),
        runs.one_run(work.database_url, JOB, work.clock) as (database, run),
        # Taken before the archive is read: a row that moves meanwhile is seen in both, never in none.
        ledger.one_snapshot(work.database_url) as (then, snapshot),
    ):
        work.progress.stage("looking for messages that are there twice")
        rows, doubles = _doubles(work, snapshot)
        work.progress.stage("looking through the chain")
        faults = _chain_faults(work, then)
        found = {
            "duplicates": sum(one.count for one in doubles.values()),
            "chain_faults": sum(one.count for one in faults.values()),
        }
        # Without names of agents: an erasure does not look into reports of runs.
        run = runs.advance(database, run, RunState.DONE, work.clock(), row_count=rows, report=found)
    report.add(run)
    report.figures |= found | {kind: asdict(one) for kind, one in {**doubles, **faults}.items()}
    report.summary = (
        f"{rows:,} receipts: {found['duplicates']:,} keys or ids are there twice; "
        f"the audit chain has {found['chain_faults']:,} faults"
    )
    return report


@dataclass(frozen=True, slots=True)
class Offenders:
    """The number of duplicates or faults of a kind, and the first of them."""

    count: int
    first: list[dict[str, Any]]


def _doubles(work: JobContext, snapshot: ledger.Snapshot) -> tuple[int, Mapping[str, Offenders]]:
    """Counts by hashes alone first; only keys whose hash occurs twice are compared themselves."""
    rows = _receipts(work, snapshot)
    hashed = f.array(
        *(f.struct(f.lit(kind).alias("kind"), f.xxhash64(*key).alias("hash")) for kind, key in _KEYS.items())
    )
    counted = rows.select(f.explode(hashed).alias("one")).groupBy("one.kind", "one.hash").count()
    twice = counted.where(f.col("count") > 1)
    sums = counted.groupBy("kind").agg(f.sum("count").alias("rows"), f.count_if(f.col("count") > 1).alias("twice"))
    seen = {row["kind"]: row for row in sums.collect()}
    found = {
        kind: _looked_at(rows, kind, twice) if kind in seen and seen[kind]["twice"] else Offenders(0, [])
        for kind in _KEYS
    }
    return max((int(row["rows"]) for row in seen.values()), default=0), found


def _looked_at(rows: DataFrame, kind: str, twice: DataFrame) -> Offenders:
    """Compares keys whose hash occurs twice. A receipt that a dead run left in both places is one receipt, and two keys
    may have one hash."""
    key = _KEYS[kind]
    groups = (
        rows.withColumn("hash", f.xxhash64(*key))
        .join(twice.where(f.col("kind") == kind), "hash", "left_semi")
        .groupBy(*key)
        .agg(f.sort_array(f.collect_set("receipt_id")).alias("receipts"))
        .where(f.size("receipts") > 1)
    ).cache()
    first = groups.orderBy(*key).limit(_SHOWN).collect()
    found = Offenders(groups.count(), [row.asDict() for row in first])
    groups.unpersist()
    return found


def _receipts(work: JobContext, snapshot: ledger.Snapshot) -> DataFrame:
    columns = ("receipt_id", "message_id", "replay_key", "sender_nhi")
    here = ledger.read(work, work.sql("mail")["receipts"], RECEIPTS.schema, snapshot)
    there = archive.read(work.spark, work.objects, RECEIPTS, listing.files(work.objects, RECEIPTS))
    return here.select(*columns).unionAll(there.select(*columns))


def _chain_faults(work: JobContext, then: Database) -> Mapping[str, Offenders]:
    """Finds missing, duplicate and unlinked entries: in the archive, then in the ledger."""
    there, head = _archive_faults(work, archive_floor(work.objects))
    behind = then.rows(work.sql("audit")["chain_faults"], head.position, bytes.fromhex(head.entry_hash), _SHOWN)
    return {kind: _together(there[kind], [row for row in behind if row["kind"] == kind]) for kind in _FAULTS}


def _together(there: Offenders, behind: Sequence[Mapping[str, Any]]) -> Offenders:
    first = [*there.first, *({"before": row["before"], "position": row["position"]} for row in behind)]
    return Offenders(there.count + (behind[0]["of_kind"] if behind else 0), first[:_SHOWN])


def _archive_faults(work: JobContext, floor: Floor) -> tuple[Mapping[str, Offenders], Floor]:
    """Finds faults of the archive: Spark inside spans of positions, the driver between them. Also returns the last
    entry."""
    files = listing.files(work.objects, AUDIT)
    if not files:
        return {kind: Offenders(0, []) for kind in _FAULTS}, floor
    rows = archive.read(work.spark, work.objects, AUDIT, files)
    links = rows.select("position", "event_hash", "entry_hash", f.floor(f.col("position") / _SPAN).alias("span"))
    order = Window.partitionBy("span").orderBy("position")
    linked = links.withColumns(
        {"before": f.lag("position").over(order), "hash_before": f.lag("entry_hash").over(order)}
    )
    follows = f.unhex(f.sha2(f.concat("hash_before", f.unhex(f.lpad(f.hex("position"), 16, "0")), "event_hash"), 256))
    kind = (
        f.when(f.col("position") == f.col("before"), "repeat")
        .when(f.col("position") > f.col("before") + 1, "gap")
        .when(follows != f.col("entry_hash"), "disorder")
    )
    inside = linked.withColumn("kind", kind).where(f.col("kind").isNotNull()).select("kind", "before", "position")
    counted = inside.groupBy("kind").agg(f.count("*").alias("number")).collect()
    counts = {row["kind"]: int(row["number"]) for row in counted}
    edges, head = _edges(links, floor)
    found = {}
    for name in _FAULTS:
        shown = edges[name]
        if name in counts:
            first = inside.where(f.col("kind") == name).select("before", "position").orderBy("position").limit(_SHOWN)
            shown = sorted([*(row.asDict() for row in first.collect()), *shown], key=lambda one: one["position"])
        found[name] = Offenders(counts.get(name, 0) + len(edges[name]), shown[:_SHOWN])
    return found, head


def _edges(links: DataFrame, floor: Floor) -> tuple[Mapping[str, list[dict[str, int]]], Floor]:
    """Compares the edges of spans, from the floor on. Also returns the last entry."""
    ends = links.groupBy("span").agg(
        f.min_by(f.struct("position", "event_hash", "entry_hash"), "position").alias("first"),
        f.max_by(f.struct("position", "entry_hash"), "position").alias("last"),
    )
    faults: dict[str, list[dict[str, int]]] = {kind: [] for kind in _FAULTS}
    head = floor
    for row in sorted(ends.collect(), key=lambda row: int(row["span"])):
        first, last = row["first"], row["last"]
        at = {"before": head.position, "position": first["position"]}
        follows = entry_hash(bytes.fromhex(head.entry_hash), first["position"], bytes(first["event_hash"]))
        if first["position"] != head.position + 1:
            faults["gap"].append(at)
        elif follows != bytes(first["entry_hash"]):
            faults["disorder"].append(at)
        head = Floor(last["position"], bytes(last["entry_hash"]).hex())
    return faults, head
