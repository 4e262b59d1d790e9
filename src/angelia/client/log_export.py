"""Exports what every node holds of a group: one Parquet file for each node, which the pipeline checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from angelia.client.exchange import Exchange, Request
from angelia.client.log_nodes import OpenLog, ask_nodes, node_request
from angelia.client.log_reading import page_of
from angelia.envelope.json_form import to_text
from angelia.errors import AngeliaError, DamagedRecord, Unprocessable
from angelia.grouplog import api
from angelia.grouplog.model import records
from angelia.grouplog.model.editions import EditionNode
from angelia.grouplog.model.frames import Backfill, Hello, LogMessage
from angelia.grouplog.model.records import WHOLE, Kind
from angelia.mailbox.private_files import make_directory

if TYPE_CHECKING:
    import pyarrow as arrow

_LIMIT, _PAGE_BYTES = 5_000, 8 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that were written, with their rows, by node; and the nodes that could not be read."""

    files: dict[bytes, tuple[Path, int]]
    unread: dict[bytes, AngeliaError]


def export(log: OpenLog, directory: str | Path) -> Exchange[Exported]:
    """Writes what each node holds into a file of its own: no content, only ids, levels, shards, digests and sizes."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise Unprocessable(
            "an export needs pyarrow", hint="in your clone of Angelia: pip install '.[pipeline]'"
        ) from error
    place = Path(directory)
    make_directory(place)
    columns = schema()
    files: dict[bytes, tuple[Path, int]] = {}
    unread: dict[bytes, AngeliaError] = {}
    for node in log.nodes:
        path = place / f"{log.gid}-{to_text(node.id)}.parquet"
        partial, rows = path.with_suffix(".partial"), 0
        try:
            with parquet.ParquetWriter(partial, columns) as writer:
                cursor, more = b"", True
                while more:
                    page, cursor, more = yield from _page(log, node, cursor)
                    rows += len(page)
                    if page:
                        writer.write_table(arrow.Table.from_pylist(page, schema=columns))
        except AngeliaError as error:
            for file in (partial, path):  # an older export would be compared with new ones of other nodes
                file.unlink(missing_ok=True)
            unread[node.id] = error
        else:
            partial.replace(path)
            files[node.id] = path, rows
    return Exported(files, unread)


def schema() -> arrow.Schema:
    """The columns of an export."""
    import pyarrow as arrow

    return arrow.schema(
        [
            ("group_id", arrow.string()),
            ("node_id", arrow.string()),
            ("sender", arrow.string()),
            ("seq", arrow.int64()),
            ("kind", arrow.string()),
            ("level", arrow.int32()),
            ("shard_index", arrow.int32()),
            ("data_shards", arrow.int32()),
            ("total_shards", arrow.int32()),
            ("manifest_digest", arrow.string()),
            ("digest", arrow.string()),
            ("bytes", arrow.int64()),
        ]
    )


def _page(log: OpenLog, node: EditionNode, cursor: bytes) -> Exchange[tuple[Sequence[dict[str, Any]], bytes, bool]]:
    def request(node: EditionNode) -> Request:
        wanted = Backfill(Hello({}, {}), _LIMIT, _PAGE_BYTES, cursor)
        return node_request(api.BACKFILL, node, log.gid, body=wanted.encode())

    outcomes = yield from ask_nodes(log, [node], request)
    outcome = outcomes[node.id]
    if isinstance(outcome, AngeliaError):
        raise outcome
    messages, holes, end = page_of(outcome, cursor, _LIMIT)
    names = {"group_id": log.gid, "node_id": to_text(node.id)}
    rows = [names | _row(message) for message in messages]
    rows += [names | _damaged(hole.sender, hole.seq, 0) for hole in holes]
    return rows, end.cursor, end.has_more


def _row(message: LogMessage) -> dict[str, Any]:
    try:
        record = records.decode(message.record)
    except DamagedRecord:
        return _damaged(message.sender, message.seq, len(message.record))
    is_shard = record.kind is Kind.SHARD
    return {
        "sender": message.sender.hex(),
        "seq": message.seq,
        "kind": "shard" if is_shard else "full",
        "level": record.level,
        "shard_index": record.index if record.index != WHOLE else None,
        "data_shards": record.data_shards if is_shard else None,
        "total_shards": record.total_shards if is_shard else None,
        "manifest_digest": sha256(record.manifest).hexdigest() if is_shard else None,
        "digest": sha256(record.data).hexdigest(),
        "bytes": len(message.record),
    }


def _damaged(sender: bytes, seq: int, size: int) -> dict[str, Any]:
    return {"sender": sender.hex(), "seq": seq, "kind": "damaged", "bytes": size}
