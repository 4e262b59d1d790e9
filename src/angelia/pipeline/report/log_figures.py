"""What the report says of group logs, read from what `verify logs` wrote."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from angelia.pipeline.lake import small_tables as lake
from angelia.pipeline.lake.tables import LOG_GROUPS, LOG_NODES
from angelia.stores.objects import Objects

_TOP = 10
# What the report calls findings, and their column.
FINDINGS = {
    "holes": "holes",
    "conflicts": "conflicts",
    "duplicates": "duplicates",
    "missing shards": "missing_shards",
    "lost snapshots": "lost_snapshots",
    "corrupt records": "corrupt_records",
    "thin copies": "thin_copies",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGroupFigures:
    """A group, as its last check found it."""

    checked_at: datetime
    group_id: str
    nodes: int
    messages: int
    copies: int
    snapshots: int
    stored_bytes: int
    snapshot_bytes: int
    shard_bytes: int
    sharded_bytes: int
    found: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNodeFigures:
    """What a node stores of a group, or of all groups."""

    node_id: str
    row_count: int
    bytes: int
    snapshot_bytes: int
    damaged: int
    levels: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigures:
    """Everything about group logs that is on the page: each group by its last check, the largest first."""

    groups: list[LogGroupFigures]
    nodes: list[LogNodeFigures]  # of all groups together, the fullest first

    @property
    def checked_at(self) -> datetime:
        """When a group was last checked."""
        return max(group.checked_at for group in self.groups)

    @property
    def largest(self) -> list[LogGroupFigures]:
        return self.groups[:_TOP]

    @property
    def fullest(self) -> list[LogNodeFigures]:
        return self.nodes[:_TOP]

    @property
    def found(self) -> dict[str, int]:
        return {name: sum(group.found[name] for group in self.groups) for name in FINDINGS}

    @property
    def levels(self) -> list[int]:
        """Records of each level on all nodes, up to the highest that there is."""
        summed = [sum(counts) for counts in zip(*(node.levels for node in self.nodes), strict=True)]
        while summed and not summed[-1]:
            summed.pop()
        return summed

    def total(self, name: str) -> int:
        return sum(getattr(group, name) for group in self.groups)


def read(objects: Objects) -> LogFigures:
    """The last check of each group; no groups if none was checked."""
    last: dict[str, dict[str, Any]] = {}
    for row in sorted(lake.rows(objects, LOG_GROUPS), key=lambda row: row["checked_at"]):
        last[row["group_id"]] = row
    names = [field.name for field in fields(LogGroupFigures) if field.name != "found"]
    groups = [
        LogGroupFigures(
            **{name: row[name] for name in names},
            found={name: row[column] for name, column in FINDINGS.items()},
        )
        for row in sorted(last.values(), key=lambda row: (-row["stored_bytes"], row["group_id"]))
    ]
    checks = {(row["group_id"], row["checked_at"]) for row in last.values()}
    stored = [row for row in lake.rows(objects, LOG_NODES) if (row["group_id"], row["checked_at"]) in checks]
    return LogFigures(groups=groups, nodes=_nodes(stored))


def _nodes(rows: list[dict[str, Any]]) -> list[LogNodeFigures]:
    by_node: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_node.setdefault(row["node_id"], []).append(row)
    counts = ("row_count", "bytes", "snapshot_bytes", "damaged")
    nodes = [
        LogNodeFigures(
            node_id=node_id,
            levels=[sum(level) for level in zip(*(row["levels"] for row in found), strict=True)],
            **{name: sum(row[name] for row in found) for name in counts},
        )
        for node_id, found in by_node.items()
    ]
    return sorted(nodes, key=lambda node: (-node.bytes, node.node_id))
