"""Mail for a loop that handles it message by message, and what has to be done beside it."""

from __future__ import annotations

import time
from collections import deque

from angelia.client import channel_signing, delivery_status, mail_receiving, mail_sending
from angelia.client.event_stream import LONGEST_PAUSE, BackOff, is_passing
from angelia.client.exchange import Exchange
from angelia.client.namespaces import Batches
from angelia.errors import AngeliaError
from angelia.mailbox.inbox import Opened
from angelia.mailbox.mailbox import Mailbox

WAIT = 20.0
# How often the outbox is sent, receipts are fetched and schedules of keys are looked at.
ROUND = 180.0


class Listening(Batches[Opened]):
    """The messages of a mailbox for one loop, as batches of one, without end; faults that pass are waited for.

    A loop is done with a message when it asks for the next one, and when `end` is called. What it was not done with
    when its process died is the first that the next loop gets. `loops` are all loops of the agent; a new one takes over
    from those that were left."""

    def __init__(self, mailbox: Mailbox, loops: list[Listening]) -> None:
        self._mailbox = mailbox
        self._loops = loops
        self._waiting: deque[str] | None = None
        self._in_hand: str | None = None
        self._left = False
        self._back_off = BackOff()
        self._round_at = 0.0
        loops.append(self)

    def give(self, one: Opened) -> None:
        """Records that the loop has this message. Until then, a cancellation leaves it to another loop."""
        self._in_hand = one.message.replay_key

    def leave(self, *, cancelled: bool) -> None:
        """Records that the loop goes on no more. If it was cancelled, its last message is given to another loop."""
        self._left = True
        if cancelled:
            self._in_hand = None

    def end(self) -> None:
        """Records that the loop is done with the message that it was given last."""
        if self._in_hand is not None:
            self._mailbox.inbox.end_handling(self._in_hand)
            self._in_hand = None

    def next(self) -> Exchange[list[Opened]]:
        """Returns the next message; after a while without any, an empty list."""
        self.end()
        if self._waiting is None:
            self._waiting = deque(self._left_by_others())
        if not self._waiting:
            self._waiting.extend((yield from self._fetched()))
        while self._waiting:
            message = self._mailbox.inbox.to_handle(self._waiting.popleft())
            if message is not None:
                return [message]
        return []

    def _left_by_others(self) -> list[str]:
        """Returns the replay keys of messages that no loop is done with and no other loop has."""
        for loop in [loop for loop in self._loops if loop._left]:
            loop.end()
            self._loops.remove(loop)
        taken = {key for loop in self._loops if loop is not self for key in (loop._in_hand, *(loop._waiting or ()))}
        return [key for key in self._mailbox.inbox.unhandled() if key not in taken]

    def _fetched(self) -> Exchange[list[str]]:
        """Returns the replay keys of messages that came and were opened."""
        due = time.monotonic() >= self._round_at
        try:
            came = yield from mail_receiving.receive(self._mailbox, wait=0.0 if due else WAIT, for_handler=True)
            if due:
                yield from self._do_round()
        except AngeliaError as error:
            if not is_passing(error):
                raise
            self.pause = self._back_off.next(error.retry_after or 0.0)
            return []
        self._back_off.reset()
        self.pause = 0.0
        return [one.message.replay_key for one in came.messages]

    def _do_round(self) -> Exchange[None]:
        """Sends the outbox, asks what became of mail that was sent, and rotates keys that a schedule wants rotated."""
        self._round_at = time.monotonic() + ROUND
        for chore in (mail_sending.deliver_outbox, delivery_status.update_outbox, channel_signing.rotate_due_keys):
            try:
                yield from chore(self._mailbox)
            except AngeliaError as error:
                if not is_passing(error):
                    raise
                self._round_at = time.monotonic() + LONGEST_PAUSE
