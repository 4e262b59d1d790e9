"""Imports dead letters, each once, with copies of their messages."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa

from angelia.envelope.times import unix_ms
from angelia.errors import InvalidArgument
from angelia.pipeline.queen.database import QueenDatabase
from angelia.pipeline.queen.groups import make_groups
from angelia.pipeline.queen.importing import ImportedPartition, QueenImport
from angelia.pipeline.queen.messages import ImportedContent, content_of
from angelia.queues.model import ChunkIds

_GONE = -1  # the position of a dead letter whose message is not here any more
_TIME = pa.timestamp("us", tz="UTC")
_LETTERS = pa.schema(
    {
        "queue_no": pa.int64(),
        "partition_no": pa.int64(),
        "group_no": pa.int64(),
        "position": pa.int64(),
        "message_id": pa.string(),
        "transaction_id": pa.string(),
        "trace_id": pa.string(),
        "producer": pa.string(),
        "key_id": pa.string(),
        "body": pa.binary(),
        "error": pa.string(),
        "attempts": pa.int32(),
        "created_at": _TIME,
        "failed_at": _TIME,
        "letter_id": pa.string(),
        "queen_partition": pa.string(),
    }
)


@dataclass(frozen=True, slots=True)
class _Letter:
    partition: ImportedPartition
    content: ImportedContent
    row: dict[str, Any]


def import_letters(into: QueenImport, source: QueenDatabase) -> None:
    """Imports the dead letters behind those that were imported before."""
    into.work.progress.stage("importing dead letters")
    for rows in source.letters():
        offered = _checked(into, rows)
        into.batch("dead letters", functools.partial(_write, into, offered))
        into.letters.imported += len(offered)
        for one in offered:
            one.partition.letters = (one.row["failed_at"], UUID(one.row["letter_id"]))
        into.work.progress.advance(len(rows))


def _checked(into: QueenImport, rows: Sequence[dict[str, Any]]) -> list[_Letter]:
    offered = []
    for row in rows:
        partition = into.partitions.get(UUID(row["partition_id"]))
        if partition is None:
            into.letters.skip(row["partition_id"], "its queue was not imported")
        elif partition.letters is not None and (row["failed_at"], UUID(row["letter_id"])) <= partition.letters:
            into.letters.there += 1
        else:
            try:
                offered.append(_Letter(partition, content_of(into, row), row))
            except InvalidArgument as error:
                into.letters.skip(partition.id, error.message)
    return offered


def _write(into: QueenImport, letters: Sequence[_Letter]) -> None:
    if into.run is None or not letters:
        return
    keys = [(one.partition.partition_no or 0, one.content.transaction_id) for one in letters]
    known = into.known(set(keys))
    _make_groups(into, letters)
    rows = []
    for one, key in zip(letters, keys, strict=True):
        # An encrypted payload is bound to the id of its message.
        position, message_id = known.get(key) or (_GONE, str(_new_id(into)))
        rows.append(_row(into, one, position, UUID(message_id)))
    into.database.ingest("imported_letters", pa.Table.from_pylist(rows, _LETTERS).to_reader())
    into.database.execute(into.statements["store_letters"])


def _make_groups(into: QueenImport, letters: Sequence[_Letter]) -> None:
    """Makes the groups of dead letters that have no cursor any more."""
    missing = {
        (one.partition.queue_no or 0, one.row["consumer_group"]): one.row["failed_at"]
        for one in letters
        if (one.partition.queue_no or 0, one.row["consumer_group"]) not in into.group_nos
    }
    wanted = [
        {"queue_no": queue_no, "name": name, "mode": "all", "from_at": None, "created_at": at.isoformat()}
        for (queue_no, name), at in missing.items()
    ]
    if wanted:
        make_groups(into, wanted)


def _row(into: QueenImport, letter: _Letter, position: int, message_id: UUID) -> dict[str, Any]:
    place, content, row = letter.partition, letter.content, letter.row
    body, key_id = content.payload, None
    if place.encrypted or content.secret:
        key_id, [body] = into.payloads.sealed(place.queue, place.name, ChunkIds(message_id), [body])
    return {
        "queue_no": place.queue_no,
        "partition_no": place.partition_no,
        "group_no": into.group_nos[place.queue_no or 0, row["consumer_group"]],
        "position": position,
        "message_id": str(message_id),
        "transaction_id": content.transaction_id,
        "trace_id": content.trace_id,
        "producer": content.producer,
        "key_id": None if key_id is None else str(key_id),
        "body": body,
        "error": row["error"] or "Retries exhausted",
        "attempts": row["attempts"],
        "created_at": content.created_at,
        "failed_at": row["failed_at"],
        "letter_id": row["letter_id"],
        "queen_partition": str(place.id),
    }


def _new_id(into: QueenImport) -> UUID:
    return ChunkIds.made(unix_ms(into.work.clock()), os.urandom(10)).first
