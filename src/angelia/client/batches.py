"""Results that come some at a time: pages of a list, and a channel that is followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar
from uuid import UUID

from angelia.client.channel_membership import find_channel
from angelia.client.channel_reading import Tail, Unopened
from angelia.client.exchange import Exchange
from angelia.mailbox.channels import ChannelMessage
from angelia.mailbox.mailbox import Mailbox

T = TypeVar("T")


class Pages(Generic[T]):
    """A list that comes page by page. `fetch` takes a cursor and returns a page with the cursor of the next one."""

    pause = 0.0

    def __init__(self, fetch: Callable[[str | None], Exchange[tuple[Sequence[T], str | None]]]) -> None:
        self._fetch = fetch
        self._cursor: str | None = None
        self._ended = False

    def next(self) -> Exchange[Sequence[T] | None]:
        if self._ended:
            return None
        page, self._cursor = yield from self._fetch(self._cursor)
        self._ended = self._cursor is None or not page
        return page


class Following:
    """The messages of a channel as they come, without end."""

    pause = 0.0

    def __init__(self, mailbox: Mailbox, channel: str | UUID, after_offset: int | None) -> None:
        self._mailbox = mailbox
        self._channel = channel
        self._after = after_offset
        self._tail: Tail | None = None

    def next(self) -> Exchange[list[ChannelMessage | Unopened]]:
        if self._tail is None:
            found = yield from find_channel(self._mailbox, self._channel)
            self._tail = Tail(self._mailbox, found.channel_id, self._after, name=found.name)
        return (yield from self._tail.next())
