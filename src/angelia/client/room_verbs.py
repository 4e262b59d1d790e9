"""The verbs of rooms and direct messages, and the stream of a room, which each client follows in its own way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING
from uuid import UUID

from angelia.client import author_proofs, dm_calls, room_calls
from angelia.client.namespaces import Awaited, Batches, Blocking, Iteration, Mode, Namespace, Verb
from angelia.client.operation_requests import asking, plain
from angelia.client.room_calls import RoomEvent
from angelia.rooms import api as rooms
from angelia.rooms.api import MessageRecord

if TYPE_CHECKING:
    from angelia.client.async_client import AsyncClient
    from angelia.client.blocking_client import Client


class RoomVerbs(Namespace[Mode]):
    """Rooms that the server can read. A room is named by its id, or by its name if that is public and the only one of
    this name. `key` is that of a private room."""

    create = Verb(room_calls.create)
    list = Verb(asking(rooms.LIST, rooms.RoomQuery))
    show = Verb(room_calls.show)
    change = Verb(room_calls.change)
    post = Verb(room_calls.post)
    read = Verb(room_calls.read)
    thread = Verb(room_calls.thread)
    search = Verb(room_calls.search)
    delete = Verb(room_calls.delete)
    verify = Verb(author_proofs.verify)
    find = Verb(room_calls.find_room)
    stats = Verb(plain(rooms.STATS))

    @Iteration
    def history(self, room: str | UUID, *, key: str | None = None) -> Batches[MessageRecord]:
        """Yields all messages of a room, the newest first. Rate limits are waited out."""
        return room_calls.History(room, key)


class BlockingRooms(RoomVerbs[Blocking]):
    """Rooms, with their streams."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.run)
        self._client = client

    def tail(
        self, room: str | UUID, *, after: str | RoomEvent | None = None, key: str | None = None
    ) -> Generator[RoomEvent, None, None]:
        """Yields messages and deletions as they come, without end, each once: after the event or message id `after`, or
        from now on. A stream that breaks off is opened again where it was."""
        from angelia.client.event_stream import blocking_events
        from angelia.client.room_stream import place_of, room_stream

        client, room_id = self._client, self.find(room)
        stream = room_stream(client._line, room_id, key, place_of(after))
        yield from blocking_events(stream, client._http)


class AsyncRooms(RoomVerbs[Awaited]):
    """Rooms, with their streams."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client.run)
        self._client = client

    async def tail(
        self, room: str | UUID, *, after: str | RoomEvent | None = None, key: str | None = None
    ) -> AsyncGenerator[RoomEvent, None]:
        """Yields messages and deletions as they come, without end, each once: after the event or message id `after`, or
        from now on. A stream that breaks off is opened again where it was."""
        from contextlib import aclosing

        from angelia.client.event_stream import events
        from angelia.client.room_stream import place_of, room_stream

        client, room_id = self._client, await self.find(room)
        stream = room_stream(client._line, room_id, key, place_of(after))
        async with aclosing(events(stream, client._http, client._aside)) as coming:
            async for event in coming:
                yield event


class DmVerbs(Namespace[Mode]):
    """Direct messages, hidden from the server and not signed end to end; sealed mail is both."""

    send = Verb(dm_calls.send_dm)
    read = Verb(dm_calls.read_dms)
    delete = Verb(dm_calls.delete_dm)
