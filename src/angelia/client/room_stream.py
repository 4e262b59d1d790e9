"""The stream of a room: messages and deletions as they come."""

from __future__ import annotations

from uuid import UUID

import msgspec

from angelia.api import EVENT_STREAM
from angelia.client.event_stream import EventStream
from angelia.client.exchange import BadAnswer, Request
from angelia.client.operation_requests import request_for
from angelia.client.room_calls import RoomEvent, sent_key
from angelia.client.transport import Line
from angelia.rooms import api
from angelia.rooms.api import DeletedMessage, MessageRecord
from angelia.rooms.model import NOISE_BYTES, MessageId

_EVENTS: dict[str, type[RoomEvent]] = {"message": MessageRecord, "deleted": DeletedMessage}


def place_of(event: str | RoomEvent | None) -> str | None:
    """Returns the id after which a stream goes on, given the last event or the id of the last message."""
    if isinstance(event, DeletedMessage):  # `id` is that of the message which is gone, and `ts` the deletion's time
        return str(MessageId(event.ts, bytes(NOISE_BYTES)))
    return event.id if isinstance(event, MessageRecord) else event


def room_stream(line: Line, room_id: UUID, key: str | None, after: str | None) -> EventStream[RoomEvent]:
    """The stream of a room: what comes after an event, or from now on."""

    def request(last: str | None) -> Request:
        query = api.RoomStreamQuery(after=last or after)
        return request_for(api.STREAM, room_id, query=query, accept=EVENT_STREAM, room_key=sent_key(key))

    return EventStream(line, request, _room_event)


def _room_event(name: str, data: str) -> RoomEvent | None:
    kind = _EVENTS.get(name)
    try:
        return None if kind is None else msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"the event {name} of a room cannot be read: {error}") from error
