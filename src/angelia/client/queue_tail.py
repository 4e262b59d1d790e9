"""Follows a queue as messages are pushed, without a cursor or a lease."""

from __future__ import annotations

from collections.abc import Sequence

from angelia.client.event_stream import BackOff, is_passing
from angelia.client.exchange import Exchange
from angelia.client.namespaces import Batches
from angelia.client.queue_messages import QueueMessage
from angelia.client.queue_reading import read_messages
from angelia.errors import AngeliaError

WAIT = 20.0
_PAGE = 200


class QueueTail(Batches[QueueMessage]):
    """The messages of a queue as they come, without end. Faults that pass are waited for."""

    def __init__(self, queue: str, partition: str | None, newest: int, after: str | None) -> None:
        self._queue, self._partition = queue, partition
        self._newest, self._after = newest, after
        self._back_off = BackOff()

    def next(self) -> Exchange[Sequence[QueueMessage]]:
        begins = self._after is None
        try:
            page = yield from read_messages(
                self._queue,
                partition=self._partition,
                after=self._after,
                newest=self._newest if begins else None,
                limit=max(1, self._newest) if begins else _PAGE,
                wait=0.0 if begins else WAIT,
            )
        except AngeliaError as error:
            if not is_passing(error):
                raise
            self.pause = self._back_off.next(error.retry_after or 0.0)
            return []
        self._back_off.reset()
        self.pause = 0.0
        self._after = page.next
        return page.messages
