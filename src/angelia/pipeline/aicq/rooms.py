"""Imports rooms with the ids, keys and counts that they had."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from uuid import UUID

from angelia.errors import InvalidArgument
from angelia.pipeline.aicq.database import AicqDatabase, Rows
from angelia.pipeline.aicq.importing import Import
from angelia.pipeline.aicq.rows import ImportedRoom, room_of


def import_rooms(into: Import, source: AicqDatabase) -> None:
    """Makes rooms that are new here. What AICQ counted in a room is added to the room's count, once."""
    into.work.progress.stage("importing rooms")
    for rows in source.rooms():
        wanted = _checked(into, rows)
        new = into.batch("rooms", functools.partial(_write, into, wanted))
        into.rooms.imported += len(new)
        into.rooms.there += len(wanted) - len(new)
        into.work.progress.advance(len(rows))


def _checked(into: Import, rows: Rows) -> list[ImportedRoom]:
    wanted: list[ImportedRoom] = []
    for row in rows:
        try:
            room = room_of(row)
            if room.room_id in into.found:
                raise InvalidArgument("its id occurs twice")
        except InvalidArgument as error:
            into.rooms.skip(row["id"], error.message)
            continue
        into.found[room.room_id] = room
        if room.name != row["name"]:
            into.renamed[str(room.room_id)] = room.name
        wanted.append(room)
    return wanted


def _write(into: Import, wanted: Sequence[ImportedRoom]) -> list[ImportedRoom]:
    """Returns the rooms that are new."""
    sql, given = into.sql("rooms"), _given(into, wanted)
    here = {UUID(row["room_id"]) for row in into.database.rows(sql["rooms_here"], given)}
    new = [room for room in wanted if room.room_id not in here]
    if into.run is None:
        return new
    if new:
        into.database.execute(sql["create_rooms"], _given(into, new))
        for room in new:
            into.record("room_created", str(room.room_id), {"private": room.key_hash is not None})
    into.database.rows(sql["lock_rooms"], given)
    into.database.execute(sql["count_rooms"], given)
    return new


def _given(into: Import, rooms: Sequence[ImportedRoom]) -> str:
    return json.dumps([_document(into, room) for room in rooms])


def _document(into: Import, room: ImportedRoom) -> dict[str, str | int | None]:
    """The room as JSON. Its creator is the agent here; none if it was not imported."""
    creator = None if room.creator is None else into.holders.get(room.creator)
    return {
        "room_id": str(room.room_id),
        "name": room.name,
        "key_hash": room.key_hash,
        "created_by": None if creator is None else str(creator),
        "created_at": room.created_at.isoformat(),
        "last_active": min(room.last_active, into.work.clock()).isoformat(),
        "message_count": room.message_count,
    }
