"""Reads channels: what a server shows is opened where it stands, and who wrote it is not the server's to say."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from angelia.client import channel_calls
from angelia.client.channel_keys import ask_for_key, know_senders
from angelia.client.sealed import now
from angelia.client.wire import BadAnswer, Call
from angelia.envelope import jsonform
from angelia.envelope.refusals import Malformed, Refused, UnknownKey, UnknownSigner
from angelia.errors import OffsetGone
from angelia.mailbox.box import Mailbox
from angelia.mailbox.channels import ChannelMessage, Placed


@dataclass(frozen=True, slots=True)
class Unopened:
    """A message that could not be opened, or must not be."""

    offset: int
    error: Refused


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of a channel in their order, opened where that was possible; `last` is the offset to go on after."""

    messages: list[ChannelMessage | Unopened]
    last: int
    has_more: bool


def read_channel(
    mailbox: Mailbox,
    channel_id: UUID,
    *,
    after_offset: int | None = None,
    max_messages: int | None = None,
    wait: int | None = None,
) -> Call[Page]:
    """The next messages, opened: after an offset, or after what was committed. To read commits nothing."""
    page = yield from channel_calls.channel_messages(
        channel_id, after_offset=after_offset, max_messages=max_messages, wait=wait
    )
    try:
        placed = [Placed(one.offset, jsonform.from_fields(one.envelope)) for one in page.messages]
    except Malformed as error:
        raise BadAnswer(f"a message of the channel cannot be read: {error.message}") from error
    yield from know_senders(mailbox, {one.envelope.header.sender_nhi for one in placed})
    opened = mailbox.channels.open_many(channel_id, placed, now())
    if any(isinstance(one, UnknownKey) for one in opened):
        yield from ask_for_key(mailbox, channel_id)
        opened = mailbox.channels.open_many(channel_id, placed, now())
    rotated = {
        one.envelope.header.sender_nhi
        for one, outcome in zip(placed, opened, strict=True)
        if isinstance(outcome, UnknownSigner)
    }
    if rotated:
        for sender in rotated:
            mailbox.trust.drop_bundle(sender)
        yield from know_senders(mailbox, rotated)
        opened = mailbox.channels.open_many(channel_id, placed, now())
    messages = [
        outcome if isinstance(outcome, ChannelMessage) else Unopened(one.offset, outcome)
        for one, outcome in zip(placed, opened, strict=True)
    ]
    last = placed[-1].offset if placed else page.next_offset - 1 if after_offset is None else after_offset
    return Page(messages, last, page.has_more)


class Tail:
    """Follows a channel from where its reader stands; what was lost to retention is told in `lost`."""

    def __init__(self, mailbox: Mailbox, channel_id: UUID, after_offset: int | None = None) -> None:
        self._mailbox = mailbox
        self._channel_id = channel_id
        self.after = after_offset
        self.lost: tuple[int, int] | None = None

    def next(self, wait: int = 20, max_messages: int = 100) -> Call[list[ChannelMessage | Unopened]]:
        """The next messages; after a while without any, an empty list."""
        try:
            page = yield from read_channel(
                self._mailbox, self._channel_id, after_offset=self.after, max_messages=max_messages, wait=wait
            )
        except OffsetGone as gone:
            first = gone.members.get("first_offset")
            if not isinstance(first, int):
                raise
            self.lost = ((self.after or 0) + 1, first - 1)
            self.after = first - 1
            return []
        self.after = page.last
        return page.messages
