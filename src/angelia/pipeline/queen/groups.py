"""Imports consumer groups and their cursors: what was consumed in Queen is not delivered here again."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from angelia.pipeline.queen.database import CANDIDATES, QueenDatabase
from angelia.pipeline.queen.importing import ImportedPartition, QueenImport

_MODES = {"new": "new", "timestamp": "time"}
_LEFT_OUT = "the messages behind it were left out"

Row = dict[str, Any]


def import_groups(into: QueenImport, source: QueenDatabase) -> None:
    """Makes groups that are new here, and moves cursors forward to where they are in Queen."""
    into.work.progress.stage("importing consumer groups")
    for rows in source.groups():
        wanted = [_group(into, row) for row in rows if row["queue"] in into.queue_nos]
        into.batch("groups", functools.partial(make_groups, into, wanted))
    for rows in source.cursors():
        offered = [(into.partitions[id_], row) for row in rows if (id_ := UUID(row["partition_id"])) in into.partitions]
        # Of a partition without messages there is nothing to consume.
        offered = [(partition, row) for partition, row in offered if partition.reached is not None]
        moved = into.batch("cursors", functools.partial(_move, into, offered))
        into.cursors.imported += moved
        into.cursors.there += len(offered) - moved
        into.work.progress.advance(len(rows))


def _group(into: QueenImport, row: Row) -> Row:
    mode = _MODES.get(row["mode"] or "", "all")
    return {
        "queue_no": into.queue_nos[row["queue"]],
        "name": row["name"],
        "mode": mode,
        "from_at": None if mode == "all" else row["from_at"].isoformat(),
        "created_at": (row["created_at"] or into.work.now).isoformat(),
    }


def make_groups(into: QueenImport, wanted: Sequence[Row]) -> None:
    """Makes groups, unless they are here, and notes their numbers."""
    given = json.dumps(list(wanted))
    if into.run is not None:
        into.database.execute(into.statements["make_groups"], given)
    for row in into.database.rows(into.statements["groups_here"], given):
        into.group_nos[row["queue_no"], row["name"]] = row["group_no"]


def _move(into: QueenImport, offered: Sequence[tuple[ImportedPartition, Row]]) -> int:
    """Returns how many cursors were moved. A cursor is at the first message that its group has not consumed."""
    known = into.known(
        {
            (partition.partition_no, id_)
            for partition, row in offered
            if partition.partition_no is not None
            for id_ in row["next"]
        }
    )
    wanted = []
    for partition, row in offered:
        found = [known[key][0] for id_ in row["next"] if (key := (partition.partition_no or 0, id_)) in known]
        if not found and len(row["next"]) == CANDIDATES:
            into.cursors.skip(partition.id, _LEFT_OUT)
            continue
        group_no = into.group_nos.get((partition.queue_no or 0, row["consumer_group"]))
        if group_no is not None:
            position = found[0] if found else partition.end_position
            wanted.append(
                {
                    "partition_no": partition.partition_no,
                    "group_no": group_no,
                    "position": position,
                    "consumed": row["consumed"],
                    "attempts": row["attempts"],
                }
            )
    sql, given = into.statements, json.dumps(wanted)
    if into.run is None:
        return int(into.database.rows(sql["cursors_behind"], given)[0]["row_count"])
    into.database.rows(sql["lock_cursors"], given)
    return int(into.database.rows(sql["move_cursors"], given, into.work.clock())[0]["row_count"])
