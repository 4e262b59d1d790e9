"""Imports queues with their options, and their partitions, both with the ids that they had."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from angelia.errors import Conflict, InvalidArgument
from angelia.pipeline.queen.database import MOST_ROWS, QueenDatabase
from angelia.pipeline.queen.importing import ImportedPartition, QueenImport
from angelia.queues.model import Options, changed_options, check_name

# Columns of Queen's by the options that they are.
_OPTIONS = {
    "leaseTime": "lease_time",
    "retryLimit": "retry_limit",
    "retryDelay": "retry_delay",
    "priority": "priority",
    "delayedProcessing": "delayed_processing",
    "windowBuffer": "window_buffer",
    "maxSize": "max_queue_size",
    "ttl": "ttl",
    "deadLetterQueue": "dead_letter_queue",
    "dlqAfterMaxRetries": "dlq_after_max_retries",
    "encryptionEnabled": "encryption_enabled",
    "retentionEnabled": "retention_enabled",
    "retentionSeconds": "retention_seconds",
    "completedRetentionSeconds": "completed_retention_seconds",
    "maxWaitTimeSeconds": "max_wait_time_seconds",
}
_ROWS = "rows"  # the storage that this import reads; versions from 1.0 on know others

QueueRow = dict[str, Any]


def import_queues(into: QueenImport, source: QueenDatabase) -> None:
    """Makes queues and partitions that are new here. A queue that is here keeps its options."""
    into.work.progress.stage("importing queues")
    names = set[str]()
    for rows in source.queues():
        wanted = _checked(into, [json.loads(row["queue"]) for row in rows])
        names.update(one["name"] for one in wanted)
        new = into.batch("queues", functools.partial(_write, into, wanted))
        into.queues.imported += new
        into.queues.there += len(wanted) - new
    found = [_partition(row) for rows in source.partitions() for row in rows if row["queue"] in names]
    for start in range(0, len(found), MOST_ROWS):
        some = found[start : start + MOST_ROWS]
        here = into.batch("partitions", functools.partial(_write_partitions, into, some))
        for partition in some:
            _place(into, partition, here[partition.id])


def _checked(into: QueenImport, rows: Sequence[QueueRow]) -> list[QueueRow]:
    """The queues that can be imported, as the ledger takes them."""
    if any(row["encryption_enabled"] for row in rows):
        into.payloads.require()
    wanted = []
    for row in rows:
        try:
            if row.get("storage", _ROWS) != _ROWS:
                raise InvalidArgument("its messages are in segments, which only Queen 1.0 and later has")
            wanted.append(
                {
                    "queue_id": row["id"],
                    "name": check_name(row["name"], "its name"),
                    "namespace": row["namespace"] or "",
                    "task": row["task"] or "",
                    "created_at": row["created_at"] or into.work.now.isoformat(),
                    "options": _options(row),
                }
            )
        except InvalidArgument as error:
            into.queues.skip(row["id"], error.message)
    return wanted


def _options(row: QueueRow) -> dict[str, Any]:
    """The options of a queue; one that is out of range here has its default."""
    found: dict[str, Any] = msgspec.to_builtins(Options())
    for name, column in _OPTIONS.items():
        try:
            found = changed_options(found, {name: row.get(column)})
        except InvalidArgument:
            continue
    return found


def _write(into: QueenImport, wanted: Sequence[QueueRow]) -> int:
    """Returns how many queues are new."""
    sql, given = into.statements, json.dumps(wanted)
    here = {row["name"] for row in into.database.rows(sql["queues_here"], given)}
    new = [one for one in wanted if one["name"] not in here]
    if into.run is not None and new:
        into.database.execute(sql["make_queues"], json.dumps(new))
        for one in new:
            into.record("queue_configured", one["name"], {"imported": True})
    return len(new)


def _write_partitions(into: QueenImport, wanted: Sequence[ImportedPartition]) -> dict[UUID, dict[str, Any]]:
    """Returns where the partitions are here, and how far they were imported."""
    sql, given = into.statements, json.dumps([one.document() for one in wanted])
    if into.run is not None:
        into.database.rows(sql["hold_queues"], given)
        into.database.execute(sql["make_partitions"], given)
    return {UUID(row["partition_id"]): row for row in into.database.rows(sql["partitions_here"], given)}


def _partition(row: dict[str, Any]) -> ImportedPartition:
    return ImportedPartition(
        id=UUID(row["id"]),
        queue=row["queue"],
        name=row["name"],
        created_at=row["created_at"],
        newest=None if row["newest_at"] is None else (row["newest_at"], UUID(row["newest_id"])),
    )


def _place(into: QueenImport, partition: ImportedPartition, here: dict[str, Any]) -> None:
    if into.run is not None and here["partition_no"] is None:
        raise Conflict(f"the queue {partition.queue} was deleted here in this moment", hint="run it again")
    partition.queue_no, partition.partition_no = here["queue_no"], here["partition_no"]
    partition.encrypted = bool(here["encrypted"])
    if here["created_at"] is not None:
        partition.reached = (here["created_at"], UUID(here["message_id"]))
        partition.end_position = here["end_position"]
    if here["failed_at"] is not None:
        partition.letters = (here["failed_at"], UUID(here["letter_id"]))
    if here["queue_no"] is not None:
        into.queue_nos[partition.queue] = here["queue_no"]
    into.partitions[partition.id] = partition
