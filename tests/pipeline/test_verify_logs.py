"""Exports of all nodes of a group tell together what is missing, contradictory, repeated or damaged."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from angelia.cli.errors import TAMPERED, exit_code
from angelia.client import log_export
from angelia.errors import Conflict, InvalidArgument, NotFound
from angelia.grouplog.model.pieces import SIGNATURE, Manifest, ShardPlace
from angelia.grouplog.model.records import Record
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.verify_logs import LogFaults, verify_logs
from angelia.pipeline.lake import small_tables
from angelia.pipeline.lake.commit import opened
from angelia.pipeline.lake.tables import LOG_FINDINGS, LOG_GROUPS, LOG_NODES, RECEIPTS, Table
from angelia.pipeline.log_verification import COUNTS, LogFault
from angelia.pipeline.sources import log_exports
from angelia.stores.objects import Objects
from killed_jobs import Died, dies_at
from log_export_rows import GROUP, NODES, OTHER, SENDER, Row, damaged, shard, whole, write
from receipt_rows import NOW

Begin = Callable[..., JobContext]
A, B, C = NODES
NONE = dict.fromkeys(COUNTS.values(), 0)
# A sound log: updates on two nodes of three each, a snapshot as seq 4 in shards, and what another sender has left.
SOUND: dict[str, list[Row]] = {
    A: [whole(1), whole(2), shard(4, 0), whole(5), whole(9, sender=OTHER)],
    B: [whole(1), whole(3), shard(4, 1), whole(5), whole(7, sender=OTHER), whole(8, sender=OTHER)],
    C: [whole(2), whole(3), shard(4, 2), *(whole(seq, sender=OTHER) for seq in (7, 8, 9))],
}


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    return tmp_path / "exports"


def sound(directory: Path, more: Mapping[str, list[Row]] | None = None, *, group: str = GROUP) -> None:
    """The sound log of a group, with further records on its nodes."""
    for node, rows in SOUND.items():
        write(directory, node, [*rows, *(more or {}).get(node, ())], group=group)


def checked(work: Begin, directory: Path, **values: Any) -> dict[str, Any]:
    """What a check counts."""
    try:
        found = verify_logs(work(options={"exports": str(directory)}, **values)).figures["found"]
    except LogFaults as faults:
        found = faults.members["found"]
    return dict(found)


def rows(objects: Objects, table: Table) -> list[dict[str, Any]]:
    return small_tables.rows(objects, table)


def shown(objects: Objects) -> dict[str, list[Finding]]:
    """The findings that were kept, by group."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for row in rows(objects, LOG_FINDINGS):
        kind, first, last, number = (row[name] for name in ("kind", "seq", "last_seq", "number"))
        found[row["group_id"]].append((kind, first, last, number, row["nodes"], row["detail"]))
        assert row["sender"] == SENDER
    return {group: sorted(several, key=_kind) for group, several in found.items()}


def _kind(finding: Finding) -> tuple[str, int]:
    return finding[:2]


def test_the_job_reads_the_columns_that_the_exporter_writes() -> None:
    assert log_export.schema().equals(log_exports.SCHEMA)


def test_what_stands_before_a_shard_in_its_record_depends_on_the_number_of_shards_alone() -> None:
    manifest = Manifest(
        group=bytes(32), sender=bytes(8), seq=7, level=1, watermark_digest=bytes(32), length=9_999, digest=bytes(32),
        data_shards=2, places=(ShardPlace(bytes(32), bytes(32)),) * 3,
    )  # fmt: skip
    signed = manifest.encode(lambda _: bytes(SIGNATURE))
    record = Record(1, bytes(manifest.shard_length), 0, 2, 3, signed).encode()
    assert (Manifest.decode(signed), len(record)) == (manifest, shard(7, 0)["bytes"])


def test_a_sound_log_has_no_finding_and_is_measured(work: Begin, exports: Path, objects: Objects) -> None:
    sound(exports)
    write(exports, A, [], group="empty")
    report = verify_logs(work(options={"exports": str(exports)}))
    assert report.figures == {
        "groups": 2, "exports": 4, "messages": 7, "snapshots": 1, "stored_bytes": 14 * 120 + 3 * 5_422, "found": NONE,
    }  # fmt: skip
    assert report.summary == (
        "7 messages and 1 snapshots of 2 groups: nothing is missing, and no node contradicts another"
    )
    assert (report.rows, rows(objects, LOG_FINDINGS)) == (17, [])
    empty, full = sorted(rows(objects, LOG_GROUPS), key=lambda row: str(row["messages"]))
    assert full == {
        "day": NOW.date(), "checked_at": NOW, "group_id": GROUP, "nodes": 3, "messages": 7, "copies": 14,
        "snapshots": 1, "stored_bytes": 14 * 120 + 3 * 5_422, "snapshot_bytes": 3 * 5_422, "sharded": 1,
        "shard_bytes": 3 * 5_422, "sharded_bytes": 10_000, **NONE,
    }  # fmt: skip
    assert (empty["group_id"], empty["nodes"], empty["stored_bytes"]) == ("empty", 1, 0)
    nodes = {(row["group_id"], row["node_id"]): row for row in rows(objects, LOG_NODES)}
    assert nodes[GROUP, A] == {
        "day": NOW.date(), "checked_at": NOW, "group_id": GROUP, "node_id": A, "row_count": 5,
        "bytes": 4 * 120 + 5_422, "snapshot_bytes": 5_422, "whole": 4, "shards": 1, "damaged": 0,
        "levels": [4, 1, *[0] * 14],
    }  # fmt: skip
    assert (nodes["empty", A]["row_count"], nodes["empty", A]["levels"]) == (0, [0] * 16)


# One group for each fault: what its nodes hold beside the sound log, and what is found.
Finding = tuple[str, int, int, int, list[str], str | None]  # kind, first and last seq, number, nodes, detail
FAULTS: dict[str, tuple[dict[str, list[Row]], list[Finding]]] = {
    "hole": (
        {A: [whole(10), whole(14)], B: [whole(10), whole(14)], C: [whole(6), damaged(12)]},
        [("hole", 7, 9, 3, [], None), ("hole", 11, 11, 1, [], None), ("hole", 13, 13, 1, [], None),
         ("corrupt", 12, 12, 1, [C], "0 sound on other nodes"), ("thin_copy", 6, 6, 1, [C], None)],
    ),
    "content": (
        {A: [whole(6, content="one")], B: [whole(6, content="two")]},
        [("conflict", 6, 6, 1, [A, B], "different content")],
    ),
    "level": (
        {A: [whole(6, level=1)], B: [whole(6, level=2)]},
        [("conflict", 6, 6, 1, [A, B], "different levels")],
    ),
    "manifest": (
        {A: [shard(6, 0, 1, 1, manifest="one")], B: [shard(6, 0, 1, 1, manifest="two")]},
        [("conflict", 6, 6, 1, [A, B], "different manifests")],
    ),
    "kind": (
        {A: [whole(6, level=1)], B: [shard(6, 0, 1, 1)]},
        [("conflict", 6, 6, 1, [A, B], "whole and in shards")],
    ),
    "bytes": (
        {A: [shard(6, 0, 1, 1, content="one")], B: [shard(6, 0, 1, 1, content="two")]},
        [("conflict", 6, 6, 1, [A, B], "different bytes of one shard"),
         ("duplicate", 6, 6, 1, [A, B], "one shard on several nodes")],
    ),
    "twice": (
        {A: [whole(6), whole(6), whole(6)], B: [whole(6)]},
        [("duplicate", 6, 6, 2, [A, B], "in one node's export")],
    ),
    "index": (
        {A: [shard(6, 0)], B: [shard(6, 1)], C: [shard(6, 1)]},
        [("duplicate", 6, 6, 1, [A, C, B], "one shard on several nodes"),
         ("missing_shard", 6, 6, 1, [A, C, B], "2 of 3 shards, 2 are needed")],
    ),
    "missing": (
        {A: [shard(6, 0, 2, 4)], C: [shard(6, 3, 2, 4)]},
        [("missing_shard", 6, 6, 2, [A, C], "2 of 4 shards, 2 are needed")],
    ),
    "lost": (
        {A: [damaged(6)], B: [shard(6, 1)]},
        [("corrupt", 6, 6, 1, [A], "1 sound on other nodes"), ("lost", 6, 6, 1, [B], "1 of 3 shards, 2 are needed")],
    ),
    "thin": (
        {A: [whole(6)], B: [damaged(6)], C: [whole(7, level=1)]},
        [("corrupt", 6, 6, 1, [B], "1 sound on other nodes"), ("thin_copy", 6, 6, 1, [A], None)],
    ),
}  # fmt: skip


def test_every_fault_is_found_by_its_kind_and_named(
    work: Begin, exports: Path, objects: Objects, database_url: str
) -> None:
    for group, (more, _) in FAULTS.items():
        sound(exports, more, group=group)
    # Before 8, snapshots may have replaced what is missing; nothing tells of an update after 9.
    for node in (A, B):
        spans = [whole(3, level=1), whole(5, level=1), whole(8), whole(9), whole(12, level=1)]
        write(exports, node, spans, group="sound, with snapshots")
    write(exports, A, [whole(1), whole(2)], group="sound, with one node")
    write(exports, A, [whole(1), whole(2)], group="thin, with two nodes")
    write(exports, B, [], group="thin, with two nodes")
    with pytest.raises(LogFaults) as raised:
        verify_logs(work(options={"exports": str(exports)}))
    expected = {group: sorted(found, key=_kind) for group, (_, found) in FAULTS.items()}
    thin: list[Finding] = [("thin_copy", seq, seq, 1, [A], None) for seq in (1, 2)]
    assert shown(objects) == expected | {"thin, with two nodes": thin}
    total = {name: sum(row[name] for row in rows(objects, LOG_GROUPS)) for name in NONE}
    assert total == raised.value.members["found"] == {
        "holes": 5, "conflicts": 5, "duplicates": 4, "missing_shards": 3, "lost_snapshots": 1, "corrupt_records": 3,
        "thin_copies": 4,
    }  # fmt: skip
    assert raised.value.message.endswith(
        " of 14 groups: 5 holes, 5 conflicts, 4 duplicates, 3 missing shards, 1 lost snapshots, 3 corrupt records, "
        "4 thin copies"
    )
    assert raised.value.hint.startswith('angelia pipeline sql "SELECT * FROM log_findings')
    assert (exit_code(raised.value), raised.value.code) == (TAMPERED, "log_faults")
    with Database.open(database_url) as database:
        (run,) = database.rows("SELECT state, report->>'error' AS error FROM pipeline_runs WHERE job = 'verify logs'")
    assert run == {"state": "failed", "error": raised.value.message}


def test_duckdb_counts_the_same_in_a_random_log_of_which_the_first_findings_are_kept(
    work: Begin, exports: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.pipeline.jobs.verify_logs._KEPT", 3)
    dice = random.Random(20261118)
    for node in NODES:
        held = [
            _random(dice, seq, sender) for sender in (SENDER, OTHER) for seq in range(1, 200) if dice.random() < 0.5
        ]
        write(exports, node, held + dice.sample(held, 3))
    found = checked(work, exports)
    assert min(found.values()) > 0, "every kind occurs"
    kept = Counter(row["kind"] for row in rows(objects, LOG_FINDINGS))
    assert kept == dict.fromkeys(LogFault, 3), "the first of each kind"
    (recount,) = duckdb.sql(RECOUNT, params={"files": [str(path) for path in exports.iterdir()]}).fetchall()
    assert dict(zip((*COUNTS.values(), *MEASURED), recount, strict=True)) == found | {
        name: sum(row[name] for row in rows(objects, LOG_GROUPS)) for name in MEASURED
    }


def _random(dice: random.Random, seq: int, sender: str) -> Row:
    if dice.random() < 0.05:
        return damaged(seq, sender=sender)
    if seq % 5 == 0:
        manifest = dice.choice(["one", "one", "one", "two"])
        return {**shard(seq, dice.randrange(3), manifest=manifest, content=dice.choice("aab")), "sender": sender}
    level = 1 if dice.random() < 0.05 else 0
    return whole(seq, sender=sender, level=level, content=dice.choice(["", "", "", "other"]), size=seq)


MEASURED = ("messages", "copies", "snapshots", "stored_bytes", "snapshot_bytes", "sharded", "shard_bytes")
RECOUNT = """
WITH r AS (SELECT * FROM read_parquet($files)),
ids AS (SELECT DISTINCT sender, seq FROM r),
updates AS (SELECT sender, min(seq) AS low, max(seq) AS high FROM r WHERE level = 0 GROUP BY sender),
wanted AS (SELECT sender, unnest(generate_series(low, high)) AS seq FROM updates),
m AS (
  SELECT sender, seq, max(level) AS level, sum(bytes) AS bytes,
    count(DISTINCT node_id) FILTER (kind <> 'damaged') AS copies,
    count(DISTINCT digest) FILTER (kind = 'full') > 1 OR count(DISTINCT manifest_digest) > 1
      OR count(DISTINCT level) > 1 OR count(DISTINCT kind) FILTER (kind <> 'damaged') > 1 AS conflict
  FROM r GROUP BY sender, seq
),
p AS (
  SELECT sender, seq, manifest_digest, count(DISTINCT shard_index) AS held, max(data_shards) AS k,
    max(total_shards) AS n, sum(bytes) AS bytes
  FROM r WHERE kind = 'shard' GROUP BY ALL
),
i AS (
  SELECT manifest_digest, sender, seq, shard_index, count(DISTINCT node_id) AS nodes, count(DISTINCT digest) AS contents
  FROM r WHERE kind = 'shard' GROUP BY ALL
)
SELECT
  (SELECT count(*) FROM wanted ANTI JOIN ids USING (sender, seq)),
  (SELECT count(*) FROM m WHERE conflict)
    + (SELECT count(*) FROM (SELECT DISTINCT manifest_digest, sender, seq FROM i WHERE contents > 1)),
  (SELECT sum(n - 1) FROM (SELECT count(*) AS n FROM r GROUP BY node_id, sender, seq))
    + (SELECT sum(nodes - 1) FROM i),
  (SELECT sum(n - held) FROM p WHERE held >= k),
  (SELECT count(*) FROM p WHERE held < k),
  (SELECT count(*) FROM (SELECT DISTINCT node_id, sender, seq FROM r WHERE kind = 'damaged')),
  (SELECT count(*) FROM m WHERE level = 0 AND copies = 1),
  (SELECT count(*) FROM m WHERE level = 0), (SELECT sum(copies) FROM m WHERE level = 0),
  (SELECT count(*) FROM m WHERE level > 0), (SELECT sum(bytes) FROM m),
  (SELECT sum(bytes) FROM m WHERE level > 0), (SELECT count(*) FROM p), (SELECT sum(bytes) FROM p)
"""


def test_a_check_that_died_has_written_no_groups_and_so_is_not_reported(
    work: Begin, exports: Path, objects: Objects
) -> None:
    sound(exports)
    with pytest.raises(Died):
        verify_logs(work(options={"exports": str(exports)}, step=dies_at("wrote log_nodes")))
    assert (len(rows(objects, LOG_NODES)), rows(objects, LOG_GROUPS)) == (3, [])


@pytest.mark.parametrize("there", [True, False])
def test_a_directory_without_exports_is_not_found(work: Begin, exports: Path, there: bool) -> None:
    if there:
        exports.mkdir()
        (exports / "half.partial").touch()
    with pytest.raises(NotFound, match="there are no exports"):
        checked(work, exports)


def test_the_directory_has_to_be_named(work: Begin) -> None:
    with pytest.raises(InvalidArgument, match="which exports"):
        verify_logs(work())


def test_what_is_no_export_is_refused_by_its_name_columns_or_rows(work: Begin, exports: Path, objects: Objects) -> None:
    sound(exports)
    foreign = exports / "no-export.parquet"
    foreign.write_bytes(b"PAR1")
    with pytest.raises(InvalidArgument, match="is no export of a group log"):
        checked(work, exports)
    pq.write_table(pa.table({"seq": [1]}), foreign)
    with pytest.raises(InvalidArgument, match="is no export of a group log"):
        checked(work, exports)
    foreign.unlink()
    (exports / f"{GROUP}-copy.parquet").write_bytes((exports / f"{GROUP}-{A}.parquet").read_bytes())
    with pytest.raises(InvalidArgument, match="do not match"):
        checked(work, exports)
    assert rows(objects, LOG_GROUPS) == []


def test_a_simulated_archive_is_refused(work: Begin, exports: Path, objects: Objects) -> None:
    opened(objects, RECEIPTS.marked())
    with pytest.raises(Conflict, match="simulated"):
        checked(work, exports)
