"""Imports messages: each once, in Queen's order, behind what its partition has here."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any
from uuid import UUID

import pyarrow as pa

from angelia.envelope.times import unix_ms
from angelia.errors import Conflict, InvalidArgument
from angelia.pipeline.queen.database import MOST_ROWS, NOTHING, QueenDatabase
from angelia.pipeline.queen.importing import ImportedPartition, Moment, QueenImport
from angelia.queues.model import CHUNK_BYTES, CHUNK_MESSAGES, ChunkIds, check_id

_MOST_BYTES = 8 << 20  # of a batch
_TOGETHER = timedelta(milliseconds=100)  # messages of one chunk share a time, and Queen gives each its own
# A push here has a later time than this, even if the clock of its server is a little slow.
_BEFORE_PUSHES = timedelta(minutes=1)
_BEGINNING: Moment = (datetime(1970, 1, 1, tzinfo=UTC), NOTHING)
_LATER = "it is newer than an open transaction of Queen's database; run it again"
_TIME = pa.timestamp("us", tz="UTC")
_CHUNKS = pa.schema(
    {
        "partition_no": pa.int64(),
        "end_position": pa.int64(),
        "count": pa.int32(),
        "stored_at": _TIME,
        "created_at": _TIME,
        "first_id": pa.string(),
        "key_id": pa.string(),
        "producer": pa.string(),
        "transaction_ids": pa.string(),
        "trace_ids": pa.string(),
        "ends": pa.string(),
        "body": pa.binary(),
    }
)


@dataclass(frozen=True, slots=True)
class ImportedContent:
    """A message of Queen, decrypted."""

    transaction_id: str
    trace_id: str | None
    payload: bytes
    producer: str | None
    created_at: datetime
    secret: bool  # whether it was encrypted


@dataclass(slots=True)
class _Part:
    """Messages of one partition in a batch, and how far Queen's partition was read."""

    partition: ImportedPartition
    messages: list[ImportedContent] = field(default_factory=list)
    until: Moment = _BEGINNING


@dataclass(slots=True)
class _Batch:
    """Messages of several partitions that are stored in one transaction."""

    parts: list[_Part] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    @property
    def full(self) -> bool:
        return self.rows >= MOST_ROWS or self.size >= _MOST_BYTES

    def of(self, partition: ImportedPartition) -> _Part:
        if not self.parts or self.parts[-1].partition is not partition:
            self.parts.append(_Part(partition))
        return self.parts[-1]


def import_messages(into: QueenImport, source: QueenDatabase) -> None:
    """Imports the messages behind those that were imported before."""
    into.work.progress.stage("importing messages")
    batch = _Batch()
    for partition in into.partitions.values():
        if partition.newest is None or (partition.reached is not None and partition.newest <= partition.reached):
            continue
        for rows in source.messages(partition.id, partition.reached or _BEGINNING):
            for row in rows:
                _add(into, batch, partition, row)
                if batch.full:
                    batch = _finish(into, batch)
            into.work.progress.advance(len(rows))
        if partition.newest[0] >= source.horizon:
            into.messages.skip(partition.id, _LATER, source.count_later(partition.id))
    _finish(into, batch)


def content_of(into: QueenImport, row: dict[str, Any]) -> ImportedContent:
    """A message of a row; raises InvalidArgument if it cannot be imported."""
    secret = row["is_encrypted"]
    return ImportedContent(
        transaction_id=check_id(row["transaction_id"], "its transaction id"),
        trace_id=row["trace_id"],
        payload=into.payloads.opened(row["payload"]) if secret else row["payload"].encode(),
        producer=row["producer"],
        created_at=row["created_at"],
        secret=secret,
    )


def _add(into: QueenImport, batch: _Batch, partition: ImportedPartition, row: dict[str, Any]) -> None:
    if row["is_encrypted"]:
        into.payloads.require()
    part = batch.of(partition)
    part.until = (row["created_at"], UUID(row["id"]))
    batch.rows += 1
    try:
        part.messages.append(content_of(into, row))
        batch.size += len(part.messages[-1].payload)
    except InvalidArgument as error:
        into.messages.skip(partition.id, error.message)


def _finish(into: QueenImport, batch: _Batch) -> _Batch:
    """Stores a batch, and counts it; returns the next one."""
    if batch.parts:
        for part, (new, end_position) in zip(
            batch.parts, into.batch("messages", functools.partial(_write, into, batch.parts)), strict=True
        ):
            into.messages.imported += new
            into.messages.there += len(part.messages) - new
            part.partition.reached, part.partition.end_position = part.until, end_position
    return _Batch()


def _write(into: QueenImport, parts: Sequence[_Part]) -> list[tuple[int, int]]:
    """Returns for each part how many messages are new, and the position behind the last one that was imported."""
    sql, numbers = into.statements, [part.partition.partition_no for part in parts]
    ends: dict[int, dict[str, Any]] = {}
    if into.run is not None:
        into.database.rows(sql["lock_partitions"], json.dumps(numbers))
        ends = {row["partition_no"]: row for row in into.database.rows(sql["ends"], json.dumps(numbers))}
    known = into.known(
        (part.partition.partition_no, one.transaction_id)
        for part in parts
        if part.partition.partition_no is not None
        for one in part.messages
    )
    chunks, results = list[dict[str, Any]](), list[tuple[int, int]]()
    for part in parts:
        place = part.partition
        new = [one for one in part.messages if (place.partition_no, one.transaction_id) not in known]
        end_position = place.end_position
        if new and into.run is not None:
            made = _chunks(into, place, new, ends.get(place.partition_no or 0))
            end_position = made[-1]["end_position"]
            chunks += made
        results.append((len(new), end_position))
    if into.run is not None:
        if chunks:
            table = pa.Table.from_pylist(chunks, _CHUNKS)
            into.database.ingest("imported_chunks", table.to_reader())
            into.database.execute(sql["store_chunks"])
        into.database.execute(sql["reached"], json.dumps([*map(_reached, parts, results)]))
    return results


def _reached(part: _Part, result: tuple[int, int]) -> dict[str, Any]:
    at, id_ = part.until
    return {
        "partition_id": str(part.partition.id),
        "partition_no": part.partition.partition_no,
        "created_at": at.isoformat(),
        "message_id": str(id_),
        "end_position": result[1],
    }


def _chunks(
    into: QueenImport, place: ImportedPartition, messages: Sequence[ImportedContent], end: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Chunks behind the end of a partition. Their times rise with their positions, as those of pushes do."""
    if end is None:
        raise Conflict(f"the queue {place.queue} was deleted here in this moment", hint="run it again")
    now, position = end["now"], end["end_position"]
    created = end["created_at"] or _BEGINNING[0]
    stored = max(end["stored_at"] or _BEGINNING[0], now - _BEFORE_PUSHES)
    made = []
    for some in _together(messages):
        created = max(created, min(some[0].created_at, now))
        stored, position = max(stored, created), position + len(some)
        ids, payloads, key_id = ChunkIds.made(unix_ms(now), os.urandom(10)), [one.payload for one in some], None
        if place.encrypted or some[0].secret:
            key_id, payloads = into.payloads.sealed(place.queue, place.name, ids, payloads)
        made.append(
            {
                "partition_no": place.partition_no,
                "end_position": position,
                "count": len(some),
                "stored_at": stored,
                "created_at": created,
                "first_id": str(ids.first),
                "key_id": None if key_id is None else str(key_id),
                "producer": some[0].producer,
                "transaction_ids": json.dumps([one.transaction_id for one in some]),
                "trace_ids": json.dumps([one.trace_id for one in some]),
                "ends": json.dumps([*accumulate(map(len, payloads))]),
                "body": b"".join(payloads),
            }
        )
    return made


def _together(messages: Sequence[ImportedContent]) -> Iterator[list[ImportedContent]]:
    """Messages that fit into one chunk: of one producer, of about one time, and encrypted or not."""
    some: list[ImportedContent] = []
    size = 0
    for one in messages:
        if some and not (
            (one.producer, one.secret) == (some[0].producer, some[0].secret)
            and one.created_at - some[0].created_at <= _TOGETHER
            and len(some) < CHUNK_MESSAGES
            and size + len(one.payload) <= CHUNK_BYTES
        ):
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one.payload)
    if some:
        yield some
