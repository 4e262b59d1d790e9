"""A page of a backfill: what a device lacks, as far as the page has room, and where the next one begins."""

from __future__ import annotations

import struct

from angelia.grouplog import store
from angelia.grouplog.damage import DamagedPart
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.model.frames import CURSOR_BYTES, Backfill, End, Hole, Type
from angelia.grouplog.model.records import is_sound
from angelia.grouplog.walk import Lacking, lacking_rows
from angelia.stores.rocks import Rocks

_MESSAGE_HEAD = struct.Struct(">IB16s")  # as `frames.message_head`, with an id that is not parsed


def page(rocks: Rocks, group: LiveGroup, wanted: Backfill) -> tuple[bytes, int]:
    """Returns message frames, holes and an end frame, and how many rows that is."""
    iterator, damage = store.messages(rocks, group.ordinal, wanted.cursor), DamagedPart(rocks, group)
    found = lacking_rows(iterator, group.ordinal, Lacking(wanted.hello), wanted.cursor, damage)
    parts: list[bytes] = []
    limit, max_bytes = wanted.limit, wanted.max_bytes
    rows, size, cursor, has_more = 0, 0, b"", False
    for id_, record in found:
        length = 0 if record is None else len(record)
        if rows == limit or (rows and size + length > max_bytes):
            has_more = True
            break
        if record is not None and is_sound(record):
            parts.append(_MESSAGE_HEAD.pack(1 + CURSOR_BYTES + length, Type.MESSAGE, id_))
            parts.append(record)
        else:
            sender, seq = store.message_id(id_)
            group.note_corrupt(sender, seq)
            parts.append(Hole(sender, seq).encode())
        rows, size, cursor = rows + 1, size + length, id_
    parts.append(End(has_more, cursor, group.floors()).encode())
    return b"".join(parts), rows
