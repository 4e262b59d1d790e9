"""Compares what the nodes of a group hold: finds holes, contradictions, repetitions, and records that are missing or
damaged. All of it in Spark; the driver gets counts, and the first findings."""

from __future__ import annotations

from enum import StrEnum

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from angelia.pipeline.sources.log_exports import DAMAGED, FULL, SHARD

MESSAGE = ("group_id", "sender", "seq")
_FINDING = (*MESSAGE, "last_seq", "kind", "number", "nodes", "detail")


class LogFault(StrEnum):
    """What can be wrong with a message, or between two of them."""

    HOLE = "hole"
    CONFLICT = "conflict"
    DUPLICATE = "duplicate"
    MISSING_SHARD = "missing_shard"
    LOST = "lost"
    CORRUPT = "corrupt"
    THIN_COPY = "thin_copy"


# The names of the counts of findings, which are columns of `log_groups`.
COUNTS = {
    LogFault.HOLE: "holes",
    LogFault.CONFLICT: "conflicts",
    LogFault.DUPLICATE: "duplicates",
    LogFault.MISSING_SHARD: "missing_shards",
    LogFault.LOST: "lost_snapshots",
    LogFault.CORRUPT: "corrupt_records",
    LogFault.THIN_COPY: "thin_copies",
}


def messages(rows: DataFrame, exported: DataFrame) -> DataFrame:
    """One row for each message, with `found`: what is wrong with it as a whole.

    A conflict is one id with different content, levels or manifests, or whole on one node and in shards on another. A
    duplicate is one id twice in one node's export. A copy is thin if it is the only sound one of a message of level 0
    though several nodes of its group were exported. A damaged record has no level and counts as no copy.
    """
    kind, node = f.col("kind"), f.col("node_id")
    seen = rows.groupBy(*MESSAGE).agg(
        f.max("level").alias("level"),
        f.count("*").alias("records"),
        f.sum("bytes").alias("bytes"),
        f.array_sort(f.collect_set(node)).alias("holders"),
        f.array_sort(f.collect_set(f.when(kind == DAMAGED, node))).alias("unreadable"),
        f.array_sort(f.collect_set(f.when(kind != DAMAGED, node))).alias("sound"),
        f.count_if(kind == FULL).alias("whole"),
        f.count_if(kind == SHARD).alias("shards"),
        _different(f.when(kind == FULL, f.col("digest"))).alias("contents"),
        _different(f.col("manifest_digest")).alias("manifests"),
        _different(f.col("level")).alias("levels"),
    )
    there = seen.join(f.broadcast(exported.groupBy("group_id").agg(f.count("*").alias("nodes"))), "group_id", "left")
    copies, unreadable = f.size("sound"), f.size("unreadable")
    conflict = _named(
        {
            "different content": f.col("contents") > 1,
            "different manifests": f.col("manifests") > 1,
            "whole and in shards": (f.col("whole") > 0) & (f.col("shards") > 0),
            "different levels": f.col("levels") > 1,
        }
    )
    twice = f.col("records") - f.size("holders")
    thin = (f.col("level") == 0) & (copies == 1) & (f.col("nodes") > 1)
    elsewhere = f.concat(copies.cast("string"), f.lit(" sound on other nodes"))
    found = f.array(
        f.when(conflict != "", _finding(LogFault.CONFLICT, f.lit(1), "holders", conflict)),
        f.when(twice > 0, _finding(LogFault.DUPLICATE, twice, "holders", f.lit("in one node's export"))),
        f.when(unreadable > 0, _finding(LogFault.CORRUPT, unreadable, "unreadable", elsewhere)),
        f.when(thin, _finding(LogFault.THIN_COPY, f.lit(1), "sound", f.lit(None))),
    )
    return there.select(*MESSAGE, "level", "bytes", copies.alias("copies"), f.array_compact(found).alias("found"))


def sharded(rows: DataFrame) -> DataFrame:
    """One row for each manifest, with the number of its shards, and `found`: what is wrong with them.

    A snapshot is lost if fewer different shards are sound, over all nodes, than are needed to read it; else shards may
    be missing. One shard on two nodes is a duplicate, with different bytes on them a conflict.
    """
    index = f.col("shard_index")
    seen = (
        rows.where(f.col("kind") == SHARD)
        .groupBy(*MESSAGE, "manifest_digest")
        .agg(
            f.max("data_shards").cast("long").alias("needed"),
            f.max("total_shards").cast("long").alias("total"),
            f.array_sort(f.collect_set("node_id")).alias("holders"),
            _different(index).alias("held"),
            _different(f.struct(index, "node_id")).alias("places"),
            _different(f.struct(index, "digest")).alias("contents"),
            f.sum("bytes").alias("bytes"),
            f.max("bytes").alias("largest"),
        )
    )
    held, total, needed = (f.col(name) for name in ("held", "total", "needed"))
    words = f.format_string("%d of %d shards, %d are needed", held, total, needed)
    found = f.array(
        f.when(held < needed, _finding(LogFault.LOST, f.lit(1), "holders", words)),
        f.when((held >= needed) & (held < total), _finding(LogFault.MISSING_SHARD, total - held, "holders", words)),
        f.when(
            f.col("places") > held,
            _finding(LogFault.DUPLICATE, f.col("places") - held, "holders", f.lit("one shard on several nodes")),
        ),
        f.when(
            f.col("contents") > held,
            _finding(LogFault.CONFLICT, f.lit(1), "holders", f.lit("different bytes of one shard")),
        ),
    )
    return seen.select(*MESSAGE, "needed", "total", "bytes", "largest", f.array_compact(found).alias("found"))


def findings(by_message: DataFrame, by_manifest: DataFrame) -> DataFrame:
    """Everything that was found, with its kind, what it is about and the nodes concerned."""
    frames = (
        one.select(*MESSAGE, f.col("seq").alias("last_seq"), f.inline("found")) for one in (by_message, by_manifest)
    )
    whole, shards = (frame.select(*_FINDING) for frame in frames)
    return whole.unionByName(shards).unionByName(_holes(by_message))


def _holes(by_message: DataFrame) -> DataFrame:
    """Runs of seqs of which no node has any record, inside the span of a sender's messages of level 0: from the lowest
    such seq that a node still has to the highest.

    Below the span, snapshots may have replaced what is missing; above it, nothing tells that there was more. Exports
    have no floors, so inside the span the following look like holes, too: messages that all nodes but one have deleted
    after a snapshot; messages that came while one node after the other was exported; a seq that its sender reserved and
    never sent.
    """
    sender = Window.partitionBy("group_id", "sender")
    update, seq, before = f.when(f.col("level") == 0, f.col("seq")), f.col("seq"), f.col("before")
    placed = by_message.select(
        *MESSAGE,
        f.lag("seq").over(sender.orderBy("seq")).alias("before"),
        f.min(update).over(sender).alias("first"),
        f.max(update).over(sender).alias("last"),
    )
    gaps = placed.where((seq > before + 1) & (before >= f.col("first")) & (seq <= f.col("last")))
    return gaps.select(
        "group_id",
        "sender",
        (before + 1).alias("seq"),
        (seq - 1).alias("last_seq"),
        f.lit(LogFault.HOLE.value).alias("kind"),
        (seq - before - 1).alias("number"),
        f.array().cast("array<string>").alias("nodes"),
        f.lit(None).cast("string").alias("detail"),
    )


def first(found: DataFrame, most: int) -> DataFrame:
    """So many findings of each kind, in the order of groups and messages."""
    place = f.row_number().over(Window.partitionBy("kind").orderBy(*MESSAGE, "detail"))
    return found.withColumn("place", place).where(f.col("place") <= most).drop("place")


def _different(value: Column) -> Column:
    # Sets of one message are small. Several distinct counts would make Spark copy every row for each of them.
    return f.size(f.collect_set(value))


def _named(conditions: dict[str, Column]) -> Column:
    """The names of the conditions that are true."""
    return f.array_join(f.array(*(f.when(true, f.lit(name)) for name, true in conditions.items())), ", ")


def _finding(kind: LogFault, number: Column, nodes: str, detail: Column) -> Column:
    return f.struct(
        f.lit(kind.value).alias("kind"),
        number.cast("long").alias("number"),
        f.col(nodes).alias("nodes"),
        detail.cast("string").alias("detail"),
    )
