"""Which snapshots of a group are known on this device: by them it counts what no snapshot has replaced yet."""

from __future__ import annotations

import msgspec

from angelia.grouplog.model.groups import Vector
from angelia.mailbox.database import MailboxTx


def note_snapshot(tx: MailboxTx, sender: bytes, seq: int, level: int, watermark: Vector) -> None:
    """Remembers a snapshot, and forgets those of lower levels that it replaces."""
    for other, other_seq, other_level, _ in tx.rows("log_snapshots"):
        if other_level < level and other_seq <= watermark.get(other, 0):
            tx.write("drop_log_snapshot", other, other_seq)
    tx.write("put_log_snapshot", sender, seq, level, packed(watermark))


def packed(watermark: Vector) -> bytes:
    return msgspec.msgpack.encode(dict(watermark))


def unpacked(watermark: bytes) -> dict[bytes, int]:
    return msgspec.msgpack.decode(watermark, type=dict[bytes, int])
