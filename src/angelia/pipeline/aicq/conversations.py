"""Imports messages of rooms, and direct messages: each once, at its own time or the next one that is free."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from angelia.envelope.times import unix_ms
from angelia.errors import InvalidArgument, Unprocessable
from angelia.pipeline.aicq.importing import Import
from angelia.pipeline.aicq.rows import ImportedMessage, free_times, message_of
from angelia.pipeline.aicq.sorted_sets import INBOX, ROOM, AicqRedis
from angelia.pipeline.import_tally import ImportTally
from angelia.rooms.model import DM_LIFE, MOST_BODY, MOST_DM, MOST_HELD, RETENTION, MessageId
from angelia.rooms.words import found_by

Row = dict[str, Any]
Known = Mapping[str, Row]  # messages that were imported before, by their ids in hex
_EXPIRED = "it has expired"
_DM_LIFE_MS = int(DM_LIFE.total_seconds()) * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A room or an inbox, and the statements that lock it, look for its times and store its messages."""

    id: UUID
    what: str
    most: int  # bytes of a body
    expired_ms: int  # messages of this time and before have expired
    tally: ImportTally
    locks: tuple[str, ...]
    times: str
    store: str
    searched: UUID | None = None  # the room, if it is public


def import_messages(into: Import, source: AicqRedis) -> None:
    """Imports the messages of rooms that have not expired, under whatever spelling of the room's id they are kept."""
    into.work.progress.stage("importing messages")
    for room_id, keys in sorted(source.keys(ROOM).items()):
        room = into.found.get(room_id)
        if room is None:
            _skip_all(into.messages, source, keys, room_id, "its room was not imported")
            continue
        private, life_ms = room.key_hash is not None, int(RETENTION.total_seconds()) * 1000
        here = into.database.row(into.sql("rooms")["room"], str(room_id))
        if here is not None:  # without a run it may still have to be made
            private, life_ms = here["is_private"], here["retention_seconds"] * 1000
        expired = _now_ms(into) - life_ms
        place = _Place(
            id=room_id,
            what="messages",
            most=MOST_BODY,
            expired_ms=expired,
            tally=into.messages,
            locks=("lock_room",),
            times="room_times",
            store="store_messages",
            searched=None if private else room_id,
        )
        into.messages.skip(room_id, _EXPIRED, source.count_until(keys, expired))
        _import_place(into, place, source.batches(keys, expired))


def import_dms(into: Import, source: AicqRedis) -> None:
    """Imports direct messages that have not expired, of each inbox the newest."""
    into.work.progress.stage("importing direct messages")
    for agent_id, keys in sorted(source.keys(INBOX).items()):
        recipient = into.holders.get(agent_id)
        if recipient is None:
            _skip_all(into.dms, source, keys, agent_id, "its recipient was not imported")
            continue
        expired = _now_ms(into) - _DM_LIFE_MS
        place = _Place(
            id=recipient,
            what="dms",
            most=MOST_DM,
            expired_ms=expired,
            tally=into.dms,
            locks=("make_inbox", "lock_inbox"),
            times="inbox_times",
            store="store_dms",
        )
        after = max(expired, *(source.newest(key, MOST_HELD) - 1 for key in keys))
        into.dms.skip(agent_id, _EXPIRED, source.count_until(keys, expired))
        beyond = source.count_until(keys, after) - source.count_until(keys, expired)
        into.dms.skip(agent_id, f"its inbox has {MOST_HELD:,} newer ones", beyond)
        _import_place(into, place, source.batches(keys, after))


def _import_place(into: Import, place: _Place, batches: Iterable[Sequence[bytes]]) -> None:
    for members in batches:
        offered = _checked(into, place, members)
        known = _known(into, place, offered)
        new = [one for one in offered if one.id.packed.hex() not in known]
        if new and into.run is not None:
            # Before the place is locked, since it takes most of the time.
            words = [_words(place, one) for one in new]
            into.batch(place.what, functools.partial(_write, into, place, known, new, words))
        place.tally.imported += len(new)
        place.tally.there += len(offered) - len(new)
        into.work.progress.advance(len(members))


def _checked(into: Import, place: _Place, members: Sequence[bytes]) -> list[ImportedMessage]:
    """The messages that can be imported, with their authors here, in the order of their times."""
    now_ms = _now_ms(into)
    found: dict[MessageId, ImportedMessage] = {}
    for member in members:
        try:
            message = message_of(member, place.most)
            if message.id in found:
                raise InvalidArgument("its id occurs twice")
            if message.author not in into.holders:
                raise InvalidArgument("its author was not imported")
            if message.at_ms <= place.expired_ms:  # it stands in the set at another time than its own
                raise InvalidArgument(_EXPIRED)
            if message.at_ms > now_ms:
                raise InvalidArgument("its time is in the future")
            found[message.id] = message
        except (InvalidArgument, Unprocessable) as error:
            place.tally.skip(place.id, error.message)
    return sorted(found.values(), key=lambda message: (message.at_ms, message.id))


def _known(into: Import, place: _Place, offered: Sequence[ImportedMessage]) -> Known:
    """Those of the messages, and of what they answer, that were imported before. Only another import could add to
    them, and there is none."""
    asked = {id_.packed.hex() for one in offered for id_ in (one.id, one.parent) if id_ is not None}
    rows = into.database.rows(into.sql("rooms")["known"], str(place.id), json.dumps(sorted(asked)))
    return {row["id"]: row for row in rows}


def _words(place: _Place, message: ImportedMessage) -> list[int]:
    """The words by which a message is found, as a post stores them."""
    return [] if place.searched is None else found_by(message.body, place.searched)


def _write(
    into: Import, place: _Place, known: Known, new: Sequence[ImportedMessage], words: Sequence[list[int]]
) -> None:
    sql, id_ = into.sql("rooms"), str(place.id)
    for lock in place.locks:
        into.database.execute(sql[lock], id_)
    times = free_times([one.at_ms for one in new], functools.partial(_taken, into, place))
    rows = [
        {
            "id": one.id.packed.hex(),
            "ts": ts,
            "author": str(into.holders[one.author]),
            "body": one.body,
            "about": None if parent is None else parent.packed.hex(),
            "depth": depth,
            "words": found,
        }
        for one, ts, (parent, depth), found in zip(new, times, _threaded(new, times, known), words, strict=True)
    ]
    into.database.execute(sql[place.store], id_, json.dumps(rows))


def _taken(into: Import, place: _Place, times: Sequence[int]) -> dict[int, int]:
    found = into.database.rows(into.sql("rooms")[place.times], str(place.id), json.dumps(list(times)))
    return {row["ts"]: row["free"] for row in found}


def _threaded(
    messages: Sequence[ImportedMessage], times: Sequence[int], known: Known
) -> list[tuple[MessageId | None, int]]:
    """For each message what it answers, by the id that has here, and how deep in a thread it is."""
    placed: dict[MessageId, tuple[MessageId, int]] = {}
    answers: list[tuple[MessageId | None, int]] = []
    for one, ts in zip(messages, times, strict=True):
        parent, depth = _answered(one, placed, known)
        if parent is not None and parent.ts >= ts:  # no thread may lead back to itself
            parent, depth = None, 0
        placed[one.id] = (MessageId(ts, one.id.noise), depth)
        answers.append((parent, depth))
    return answers


def _answered(
    message: ImportedMessage, placed: Mapping[MessageId, tuple[MessageId, int]], known: Known
) -> tuple[MessageId | None, int]:
    """The message that one answers, as it is here, and the depth of the answer. A message that is gone keeps its id, as
    after its deletion."""
    if message.parent is None:
        return None, 0
    if message.parent in placed:
        parent, depth = placed[message.parent]
        return parent, depth + 1
    if (row := known.get(message.parent.packed.hex())) is not None:
        return MessageId(row["ts"], message.parent.noise), (row["depth"] or 0) + 1
    return message.parent, 1


def _skip_all(tally: ImportTally, source: AicqRedis, keys: Sequence[str], which: UUID, why: str) -> None:
    tally.skip(which, why, source.count_until(keys, 1 << 62))


def _now_ms(into: Import) -> int:
    return unix_ms(into.work.clock())
