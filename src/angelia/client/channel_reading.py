"""Reads channels: opens the messages that a server shows. Their senders, and which agents may publish, are checked by
signatures and the roster, not by the server's word."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from angelia.client import channel_calls, clock, peer_keys
from angelia.client.api_errors import ApiError, Unreachable
from angelia.client.channel_keys import ask_for_key
from angelia.client.channel_membership import find_channel
from angelia.client.channel_rosters import known_roster, publisher_rule
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.namespaces import Batches
from angelia.client.peer_keys import know_senders
from angelia.envelope import json_form
from angelia.envelope.refusals import Malformed, NotAllowed, UnknownKey, UnknownSigner
from angelia.envelope.rosters import UntrustedRoster
from angelia.errors import AngeliaError, OffsetGone
from angelia.mailbox.channels import ChannelMessage, PlacedEnvelope
from angelia.mailbox.mailbox import Mailbox


@dataclass(frozen=True, slots=True)
class Unopened:
    """A message that could not be opened, or must not be."""

    offset: int
    error: AngeliaError


@dataclass(frozen=True, slots=True)
class OpenedPage:
    """Messages of a channel in their order, opened where that was possible; `last` is the offset to go on after."""

    messages: list[ChannelMessage | Unopened]
    last: int
    has_more: bool


def read_channel(
    mailbox: Mailbox,
    channel_id: UUID,
    *,
    after_offset: int | None = None,
    max_messages: int = 10,
    wait: int = 0,
    name: str | None = None,
) -> Exchange[OpenedPage]:
    """Returns the next messages, opened: after an offset, or after the committed one. It commits nothing.

    With the `name` that the channel was found by, a roster of another owner or name is refused.

    A problem with one message, or with the keys of one publisher, does not keep the others from being opened."""
    page = yield from channel_calls.channel_messages(
        channel_id, after_offset=after_offset, max_messages=max_messages, wait=wait
    )
    offsets = [after_offset or 0, *(one.offset for one in page.messages)]
    if any(later <= earlier for earlier, later in itertools.pairwise(offsets)):
        raise BadAnswer(f"asked for what comes after {offsets[0]}, the server gave earlier messages, or not in order")
    try:
        placed = [PlacedEnvelope(one.offset, json_form.from_fields(one.envelope)) for one in page.messages]
    except Malformed as error:
        raise BadAnswer(f"a message of the channel cannot be read: {error.message}") from error
    strangers = yield from _strangers(mailbox, channel_id, placed, page.roster_version, name)
    problems = yield from know_senders(mailbox, {_sender(one) for one in placed} - strangers.keys())
    opened = _opened(mailbox, channel_id, placed, strangers, problems)
    if any(isinstance(one, UnknownKey) for one in opened):
        with contextlib.suppress(ApiError, Unreachable):  # else the next read asks for it
            yield from ask_for_key(mailbox, channel_id)
        opened = _opened(mailbox, channel_id, placed, strangers, problems)
    rotated = {_sender(one) for one, got in zip(placed, opened, strict=True) if isinstance(got, UnknownSigner)}
    if rotated:
        for sender in rotated:
            mailbox.pinned_keys.drop_bundle(sender)
        problems |= yield from know_senders(mailbox, rotated)
        opened = _opened(mailbox, channel_id, placed, strangers, problems)
    messages = [
        outcome if isinstance(outcome, ChannelMessage) else Unopened(one.offset, outcome)
        for one, outcome in zip(placed, opened, strict=True)
    ]
    last = placed[-1].offset if placed else page.next_offset - 1 if after_offset is None else after_offset
    return OpenedPage(messages, last, page.has_more)


def _strangers(
    mailbox: Mailbox, channel_id: UUID, placed: Sequence[PlacedEnvelope], version: int, name: str | None
) -> Exchange[dict[str, AngeliaError]]:
    """Returns the senders that are no publishers on the newest roster, each with its refusal. Their keys are not looked
    up."""
    if not placed:
        return {}
    pinned = mailbox.rosters.pinned(channel_id)
    if pinned is not None:  # its owner may have revoked the pair that signed it; that is looked up once an hour
        yield from peer_keys.look_up(mailbox, pinned.owner_nhi)
    roster = mailbox.rosters.believed(channel_id)
    if roster is None or roster.version != version:
        found = yield from channel_calls.channel(channel_id)
        _refuse_renamed(name, found.name)
        roster = yield from known_roster(mailbox, found)
    if roster is not None:
        _refuse_renamed(name, roster.name)
    publishes = publisher_rule(mailbox, channel_id, roster)
    return {
        sender: NotAllowed(
            f"{sender} is no publisher on the channel's roster", hint=f"angelia channel show {channel_id}"
        )
        for sender in {_sender(one) for one in placed}
        if not publishes(sender)
    }


def _refuse_renamed(name: str | None, called: str) -> None:
    if name not in (None, called):
        raise UntrustedRoster(f"asked for {name}, the server showed {called}")


def _opened(
    mailbox: Mailbox,
    channel_id: UUID,
    placed: Sequence[PlacedEnvelope],
    strangers: Mapping[str, AngeliaError],
    problems: Mapping[str, AngeliaError],
) -> list[ChannelMessage | AngeliaError]:
    """Returns each message opened, or why not; messages of strangers and of publishers with a problem are not tried.

    A message that was opened before opens again, also if its publisher was removed since."""

    def refusal(one: PlacedEnvelope) -> AngeliaError | None:
        stranger = strangers.get(_sender(one))
        if stranger is not None and not mailbox.channels.was_opened(channel_id, one):
            return stranger
        return problems.get(_sender(one))

    refusals = [refusal(one) for one in placed]
    trying = [one for one, refused in zip(placed, refusals, strict=True) if refused is None]
    tried = iter(mailbox.channels.open_many(channel_id, trying, clock.now()))
    return [next(tried) if refused is None else refused for refused in refusals]


def _sender(one: PlacedEnvelope) -> str:
    return one.envelope.header.sender_nhi


class Tail:
    """Follows a channel from an offset, or from the committed one; `lost` are the first and last offset that expired
    before they were read."""

    def __init__(
        self, mailbox: Mailbox, channel_id: UUID, after_offset: int | None = None, *, name: str | None = None
    ) -> None:
        self._mailbox = mailbox
        self._channel_id = channel_id
        self._name = name
        self.after = after_offset
        self.lost: tuple[int, int] | None = None

    def next(self, wait: int = 20, max_messages: int = 100) -> Exchange[list[ChannelMessage | Unopened]]:
        """Returns the next messages; after `wait` seconds without any, an empty list."""
        try:
            page = yield from read_channel(
                self._mailbox,
                self._channel_id,
                after_offset=self.after,
                max_messages=max_messages,
                wait=wait,
                name=self._name,
            )
        except OffsetGone as gone:
            first, wanted = gone.members.get("first_offset"), gone.members.get("offset")
            if not isinstance(first, int) or first - 1 <= (self.after or 0):
                raise  # to go on from there would not move forward
            # Without an offset the server began after the committed one, and names where that was.
            self.lost = (wanted if isinstance(wanted, int) else (self.after or 0) + 1, first - 1)
            self.after = first - 1
            return []
        self.after = page.last
        return page.messages


class Following(Batches[ChannelMessage | Unopened]):
    """The messages of a channel as they come, without end."""

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
