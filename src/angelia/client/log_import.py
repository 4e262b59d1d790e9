"""Imports a log in the old format: a file of frames, each a sender, a seq and a ciphertext."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from angelia.client.exchange import Exchange, Request
from angelia.client.log_nodes import OpenLog, ask_nodes, node_request
from angelia.errors import AngeliaError, Conflict, InvalidArgument
from angelia.grouplog import api
from angelia.grouplog.api import ImportQuery
from angelia.grouplog.model.editions import EditionNode
from angelia.grouplog.model.frames import FrameReader, LogMessage, Type
from angelia.grouplog.model.records import Record

_ROWS, _BYTES = 1_000, 12 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class FileImported:
    """How many rows of a file each node has, and the nodes that could not take them."""

    rows: dict[bytes, int]
    failed: dict[bytes, AngeliaError]


def import_file(log: OpenLog, path: str | Path) -> Exchange[FileImported]:
    """Stores the rows of a file on every node, a thousand in a request. An import that was interrupted goes on where
    each node is, and a file that is imported twice is stored once."""
    file = Path(path)
    with file.open("rb") as content:
        source = hashlib.file_digest(content, "sha256").hexdigest()
    rows: dict[bytes, int] = {}
    failed: dict[bytes, AngeliaError] = {}
    for node in log.nodes:
        try:
            rows[node.id] = yield from _import_to(log, node, file, source)
        except AngeliaError as error:
            failed[node.id] = error
    return FileImported(rows, failed)


def _import_to(log: OpenLog, node: EditionNode, file: Path, source: str) -> Exchange[int]:
    done, known = 0, False
    while True:
        for part in _parts(file, done):
            query = ImportQuery(source=source, before=done)
            body = b"".join(message.encode() for message in part)
            request = node_request(api.IMPORT, node, log.gid, query=query, body=body)
            outcome = (yield from ask_nodes(log, [node], partial(_same, request)))[node.id]
            if isinstance(outcome, Conflict) and "rows" in outcome.members and not known:
                said = outcome.members["rows"]
                if not isinstance(said, int) or said < 0:
                    raise outcome
                done, known = said, True
                break  # an earlier import came so far
            if isinstance(outcome, AngeliaError):
                raise outcome
            done += len(part)
        else:
            return done


def _same(request: Request, _: EditionNode) -> Request:
    return request


def _parts(file: Path, skip: int) -> Iterator[list[LogMessage]]:
    """The rows behind the first ones, in requests."""
    rows = islice(_rows(file), skip, None)
    part: list[LogMessage] = []
    size = 0
    for row in rows:
        if part and (len(part) == _ROWS or size + len(row.record) > _BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row.record)
    if part:
        yield part


def _rows(file: Path) -> Iterator[LogMessage]:
    reader = FrameReader()
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            for type_, body in reader.feed(chunk):
                if type_ != Type.MESSAGE:
                    raise InvalidArgument(f"{file} has a frame of type {type_}", hint="an export has messages only")
                row = LogMessage.decode(body)  # what is the record here is the bare ciphertext there
                yield LogMessage(row.sender, row.seq, Record(0, row.record).encode())
    if not reader.empty:
        raise InvalidArgument(f"{file} ends inside a frame")
