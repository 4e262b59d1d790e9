"""The report shows each group log as its last check found it, and says nothing of group logs before a check."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from angelia.pipeline import report
from angelia.pipeline.lake import small_tables
from angelia.pipeline.lake.tables import LOG_GROUPS, LOG_NODES, ROOM_DAYS, Table
from angelia.pipeline.log_verification import COUNTS
from angelia.pipeline.report.log_figures import FINDINGS, read
from angelia.pipeline.runs import JobRun
from angelia.runs.model import RunState
from angelia.settings import Settings
from angelia.stores.objects import Objects

NOW = datetime(2026, 11, 16, 9, tzinfo=UTC)
NONE = dict.fromkeys(FINDINGS.values(), 0)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(str(tmp_path / "lake"))


def put(objects: Objects, table: Table, *given: dict[str, Any]) -> None:
    run = JobRun(
        run_id=str(uuid.uuid4()), job="verify logs", app_id="verify logs", version=1, lo=None, hi=None, cutoff=None,
        state=RunState.PLANNED, row_count=None, id_hash_sum=None, started_at=NOW,
    )  # fmt: skip
    small_tables.put(objects, table, pa.Table.from_pylist(list(given), table.schema), run)


def checked(objects: Objects, group: str, at: datetime, messages: int = 300, **found: int) -> None:
    """A check of a group on two nodes, of which the second stores snapshots alone."""
    stamp = {"day": at.date(), "checked_at": at, "group_id": group}
    put(objects, LOG_GROUPS, {
        **stamp, **NONE, "nodes": 2, "messages": messages, "copies": 2 * messages, "snapshots": 4,
        "stored_bytes": 1_000 * messages, "snapshot_bytes": 400 * messages, "sharded": 2, "shard_bytes": 16_000,
        "sharded_bytes": 10_000, **found,
    })  # fmt: skip
    node = {**stamp, "row_count": 2 * messages, "whole": messages, "shards": 2, "damaged": 0}
    levels = [2 * messages, 7, *[0] * 14]
    put(objects, LOG_NODES,
        {**node, "node_id": "n1", "bytes": 600 * messages, "snapshot_bytes": 0, "levels": levels},
        {**node, "node_id": "n2-with-a-long-id", "bytes": 400 * messages, "snapshot_bytes": 400 * messages,
         "levels": [0] * 16})  # fmt: skip


def charts(text: str) -> list[str]:
    return re.findall(r'role="img" aria-labelledby="(\w+)"', text)


def test_every_count_of_findings_is_reported() -> None:
    assert [*FINDINGS.values()] == [*COUNTS.values()]


def test_a_page_about_group_logs_alone_says_what_was_found_what_is_stored_and_what_snapshots_cost(
    objects: Objects,
) -> None:
    checked(objects, "largegroup", NOW, holes=3, lost_snapshots=1)
    checked(objects, "small", NOW - timedelta(days=1), messages=100)
    text = report.page(objects, Settings(), NOW)
    for said in ("Group logs: 400 messages and 8 snapshots of 2 groups, checked until 2026-11-16 09:00Z: "
                 "3 holes, 1 lost snapshots",
                 "2 nodes store 400 kB of group logs, 40.00 % of it in snapshots; a message has 2.0 copies",
                 "50.0 messages are left for each snapshot; shards store 1.60 times the bytes of their snapshots",
                 "<td>2026-11-16 09:00Z</td><td>3</td><td>0</td><td>0</td><td>0</td><td>1</td><td>0</td><td>0</td>",
                 ">largegroup</bdi></th><td>2</td><td>300</td><td>2.00</td><td>4</td><td>75.00</td><td>300 kB</td>",
                 ">n1</bdi></th><td>800</td><td>240 kB</td><td>0.00 %</td><td>0</td>", "n2-with-a-lo…",
                 '<th scope="row">1</th><td>14</td><td>1.72 %</td>',
                 "<dt>messages in group logs</dt><dd>400</dd>"):  # fmt: skip
        assert said in text, said
    assert charts(text) == ["log_findings", "log_storage", "log_levels"]


def test_a_later_check_of_a_group_takes_the_place_of_the_one_before(objects: Objects) -> None:
    checked(objects, "first", NOW - timedelta(days=2), holes=3)
    checked(objects, "other", NOW - timedelta(days=1), corrupt_records=1)
    checked(objects, "first", NOW, messages=500)
    figures = read(objects)
    assert [(group.group_id, group.messages) for group in figures.groups] == [("first", 500), ("other", 300)]
    assert {name: count for name, count in figures.found.items() if count} == {"corrupt records": 1}
    assert [(node.node_id, node.row_count) for node in figures.nodes] == [("n1", 1_600), ("n2-with-a-long-id", 1_600)]
    assert figures.levels == [1_600, 14]


def test_a_page_of_an_archive_without_checks_says_nothing_of_group_logs(objects: Objects) -> None:
    made = {"messages": 5, "private_messages": 0, "replies": 0, "agents": 1, "rooms": 1, "rooms_made": 0}
    put(objects, ROOM_DAYS, {"day": NOW.date(), "computed_at": NOW, **made})
    text = report.page(objects, Settings(), NOW)
    assert ("roup log" in text, charts(text)) == (False, ["room_messages", "room_agents"])


def test_a_group_of_which_nothing_is_stored_is_named_without_charts_of_it(objects: Objects) -> None:
    put(objects, LOG_GROUPS, {"day": NOW.date(), "checked_at": NOW, "group_id": "<b>", "nodes": 1, **NONE}
        | dict.fromkeys(("messages", "copies", "snapshots", "stored_bytes", "snapshot_bytes", "sharded", "shard_bytes",
                         "sharded_bytes"), 0))  # fmt: skip
    text = report.page(objects, Settings(), NOW)
    assert ("nothing is missing or contradictory" in text, "<b>" in text, "&lt;b&gt;" in text) == (True, False, True)
    assert charts(text) == ["log_findings"]
