"""Measures group logs from their exports: what each node stores, copies of messages, and what snapshots cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from angelia.grouplog.model.groups import MAX_LEVEL
from angelia.grouplog.model.pieces import SIGNATURE, Manifest, ShardPlace
from angelia.grouplog.model.records import SHARD_HEADER
from angelia.pipeline.log_verification import COUNTS
from angelia.pipeline.sources.log_exports import DAMAGED, FULL, SHARD

_KINDS = {FULL: "whole", SHARD: "shards", DAMAGED: "damaged"}


def nodes(rows: DataFrame, exported: DataFrame) -> pa.Table:
    """What each node stores of each group, also of those of which it has nothing. `exported` is the number of rows of
    its file, null if no file is named after the group and node of these rows."""
    level, size = f.col("level"), f.col("bytes")
    counts = {
        "row_count": f.lit(1),
        "bytes": size,
        "snapshot_bytes": f.when(level > 0, size),
        **{name: f.col("kind") == kind for kind, name in _KINDS.items()},
    }
    levels = [f"level_{one}" for one in range(MAX_LEVEL + 1)]
    stored = _counted(rows, ("group_id", "node_id"), counts | {name: level == n for n, name in enumerate(levels)})
    both = exported.unionByName(stored, allowMissingColumns=True).groupBy("group_id", "node_id")
    summed = both.agg(f.sum("exported").alias("exported"), *(_sum(name) for name in (*counts, *levels)))
    return _in_order(summed.select("*", f.array(*levels).alias("levels")).drop(*levels), "group_id", "node_id")


def groups(by_message: DataFrame, by_manifest: DataFrame, found: DataFrame, exported: DataFrame) -> pa.Table:
    """What is stored of each group on all its nodes, and how many findings it has."""
    update, size, snapshot = f.col("level") == 0, f.col("bytes"), f.col("level") > 0
    of_messages = {
        "messages": update,
        "copies": f.when(update, f.col("copies")),
        "snapshots": snapshot,
        "stored_bytes": size,
        "snapshot_bytes": f.when(snapshot, size),
    }
    # An export has no length of the snapshot itself: it is that of a shard, without what stands before it, times the
    # number of shards that are needed. The last of these may end with zeros, less than that number.
    shard = f.greatest(f.col("largest") - _record_head(f.col("total")), f.lit(1))
    of_manifests = {"sharded": f.lit(1), "shard_bytes": size, "sharded_bytes": f.col("needed") * shard}
    of_findings = {name: f.when(f.col("kind") == kind.value, f.col("number")) for kind, name in COUNTS.items()}
    # One sum over all, because a join of several sums would shuffle each of them.
    parts = ((by_message, of_messages), (by_manifest, of_manifests), (found, of_findings))
    everything = _counted(exported, ("group_id",), {"nodes": f.lit(1)})
    for frame, counts in parts:
        everything = everything.unionByName(_counted(frame, ("group_id",), counts), allowMissingColumns=True)
    names = ("nodes", *of_messages, *of_manifests, *of_findings)
    return _in_order(everything.groupBy("group_id").agg(*(_sum(name) for name in names)), "group_id")


def _counted(frame: DataFrame, keys: Sequence[str], counts: Mapping[str, Column]) -> DataFrame:
    return frame.select(*keys, *(count.cast("long").alias(name) for name, count in counts.items()))


def _sum(name: str) -> Column:
    return f.coalesce(f.sum(name), f.lit(0)).alias(name)


def _in_order(frame: DataFrame, *keys: str) -> pa.Table:
    """A table with a row for each group, or group and node."""
    return frame.toArrow().sort_by([(key, "ascending") for key in keys])


def _record_head(total: Column) -> Column:
    """The bytes of a shard's record before the shard: header and manifest, which has a place for each shard."""
    empty, one = _manifest_length(0), _manifest_length(1)
    return f.lit(SHARD_HEADER + empty) + total * (one - empty)


def _manifest_length(places: int) -> int:
    manifest = Manifest(
        group=bytes(32), sender=bytes(8), seq=1, level=1, watermark_digest=bytes(32), length=1, digest=bytes(32),
        data_shards=1, places=(ShardPlace(bytes(32), bytes(32)),) * places,
    )  # fmt: skip
    return len(manifest.encode(lambda _: bytes(SIGNATURE)))
