"""The sections of the report about group logs."""

from __future__ import annotations

from collections.abc import Iterator

from angelia.pipeline.report import formatting
from angelia.pipeline.report.log_charts import log_findings, log_levels, log_storage, short
from angelia.pipeline.report.log_figures import FINDINGS, LogFigures, LogGroupFigures, LogNodeFigures
from angelia.pipeline.report.markup import chart, html_table

_COUNTED = (
    '<p class="muted">Each group is shown as the last check of its exports found it. Only nodes that were exported'
    " count.</p>"
)


def sections(logs: LogFigures) -> Iterator[str]:
    """The sections; none if no group was checked."""
    if not logs.groups:
        return
    yield chart(logs, log_findings, _findings_title, _findings_table, 2.1)
    if logs.total("stored_bytes"):
        yield chart(logs, log_storage, _storage_title, _storage_table, _height(len(logs.fullest)))
    if logs.levels:
        yield chart(logs, log_levels, _levels_title, _levels_table, _height(len(logs.levels)))


def _height(bars: int) -> float:
    return 0.7 + 0.22 * bars


def _findings_title(logs: LogFigures) -> str:
    named = ", ".join(f"{count:,} {name}" for name, count in logs.found.items() if count)
    checked = (
        f"Group logs: {logs.total('messages'):,} messages and {logs.total('snapshots'):,} snapshots of"
        f" {len(logs.groups):,} groups, checked until {formatting.time(logs.checked_at)}"
    )
    return f"{checked}: {named}" if named else f"{checked}: nothing is missing or contradictory"


def _findings_table(logs: LogFigures) -> str:
    worst = sorted(logs.groups, key=lambda group: -sum(group.found.values()))[: len(logs.largest)]
    rows = (
        [_id(group.group_id), formatting.time(group.checked_at), *(f"{group.found[name]:,}" for name in FINDINGS)]
        for group in worst
    )
    return html_table("What was found in group logs", ["group", "checked", *FINDINGS], rows) + _COUNTED


def _storage_title(logs: LogFigures) -> str:
    stored, snapshots = logs.total("stored_bytes"), logs.total("snapshot_bytes")
    nodes = f"{len(logs.nodes):,} nodes store" if len(logs.nodes) > 1 else "One node stores"
    title = f"{nodes} {formatting.size(stored)} of group logs, {formatting.share(snapshots, stored)} of it in snapshots"
    if messages := logs.total("messages"):
        title += f"; a message has {logs.total('copies') / messages:.1f} copies"
    return title


def _storage_table(logs: LogFigures) -> str:
    groups = html_table(
        "The largest groups",
        ["group", "nodes", "messages", "copies of one", "snapshots", "messages to a snapshot", "bytes",
         "in snapshots", "shards against snapshots"],
        map(_group, logs.largest),
    )  # fmt: skip
    columns = ["node", "records", "bytes", "in snapshots", "damaged"]
    return groups + html_table("The fullest nodes", columns, map(_node, logs.fullest))


def _group(group: LogGroupFigures) -> list[str]:
    return [
        _id(group.group_id),
        f"{group.nodes:,}",
        f"{group.messages:,}",
        _ratio(group.copies, group.messages),
        f"{group.snapshots:,}",
        _ratio(group.messages, group.snapshots),
        formatting.size(group.stored_bytes),
        formatting.share(group.snapshot_bytes, group.stored_bytes),
        _ratio(group.shard_bytes, group.sharded_bytes),
    ]


def _node(node: LogNodeFigures) -> list[str]:
    share = formatting.share(node.snapshot_bytes, node.bytes)
    return [_id(node.node_id), f"{node.row_count:,}", formatting.size(node.bytes), share, f"{node.damaged:,}"]


def _levels_title(logs: LogFigures) -> str:
    if not logs.total("snapshots"):
        return "No group has a snapshot yet"
    title = f"{logs.total('messages') / logs.total('snapshots'):,.1f} messages are left for each snapshot"
    if sharded := logs.total("sharded_bytes"):
        title += f"; shards store {logs.total('shard_bytes') / sharded:.2f} times the bytes of their snapshots"
    return title


def _levels_table(logs: LogFigures) -> str:
    total = sum(logs.levels)
    rows = ([f"{level}", f"{count:,}", formatting.share(count, total)] for level, count in enumerate(logs.levels))
    return html_table("Records by level, on all nodes", ["level", "records", "share"], rows)


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def _id(text: str) -> str:
    return formatting.foreign(short(text))
