"""Writes exports of group logs, as `angelia log export` does, with the rows that a test asks for."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from angelia.client import log_export

GROUP = "7Xw2group"
SENDER, OTHER = "0a" * 8, "0b" * 8
NODES = ("node-A", "node_B", "nodeC")
HEAD, SHARD_HEAD = 20, 26 + 204  # bytes of a record before its data; of a shard 64 more for each in its manifest

Row = dict[str, Any]


def whole(seq: int, *, sender: str = SENDER, level: int = 0, content: str = "", size: int = 100) -> Row:
    """A record of a whole message, of so many bytes of content."""
    digest = sha256((content or f"{sender}{seq}").encode()).hexdigest()
    known = {"sender": sender, "seq": seq, "kind": "full", "level": level}
    return {**known, "digest": digest, "bytes": HEAD + size}


def shard(
    seq: int, index: int, needed: int = 2, total: int = 3, *, manifest: str = "", content: str = "", size: int = 5_000
) -> Row:
    """A record of one shard of a snapshot of level 1, of so many bytes."""
    return {
        "sender": SENDER,
        "seq": seq,
        "kind": "shard",
        "level": 1,
        "shard_index": index,
        "data_shards": needed,
        "total_shards": total,
        "manifest_digest": sha256((manifest or f"manifest {seq}").encode()).hexdigest(),
        "digest": sha256((content or f"{seq} {index}").encode()).hexdigest(),
        "bytes": SHARD_HEAD + 64 * total + size,
    }


def damaged(seq: int, *, sender: str = SENDER) -> Row:
    return {"sender": sender, "seq": seq, "kind": "damaged", "bytes": 0}


def write(directory: Path, node: str, rows: Sequence[Row], *, group: str = GROUP) -> Path:
    """The export of a node, in the exporter's own schema; a column that a row leaves out is null."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{group}-{node}.parquet"
    named = [{"group_id": group, "node_id": node, **row} for row in rows]
    pq.write_table(pa.Table.from_pylist(named, schema=log_export.schema()), path)
    return path
