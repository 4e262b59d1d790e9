"""Requests about channels whose answers are checked or decoded further; messages are sealed and opened elsewhere."""

from __future__ import annotations

from uuid import UUID

from angelia.channels import api
from angelia.channels.model import Channel, ChannelView, PublishedMessage
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.operation_requests import ask
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.refusals import Malformed
from angelia.envelope.rosters import Roster, UntrustedRoster, parse_roster, roster_document
from angelia.envelope.wire import Envelope


def channel(channel_id: UUID) -> Exchange[ChannelView]:
    """Returns one channel, and what the agent is and may do in it."""
    return _same(channel_id, (yield from ask(api.SHOW, channel_id)))


def channel_again(found: Channel) -> Exchange[ChannelView]:
    """Returns a channel as it is now, if it still has the name that it was found by."""
    shown = yield from channel(found.channel_id)
    if shown.name != found.name:
        raise UntrustedRoster(f"the server calls the channel {shown.name} that it showed as {found.name}")
    return shown


def change_channel(channel_id: UUID, change: api.ChannelChange) -> Exchange[ChannelView]:
    """Changes a channel of the agent's own. Its present policy checks all subscribers again; another policy belongs in
    the next roster."""
    return _same(channel_id, (yield from ask(api.UPDATE, channel_id, body=change)))


def stored_roster(channel_id: UUID) -> Exchange[Roster]:
    """Returns the roster that the server shows as the newest one; its signature is not checked here."""
    document = yield from ask(api.SHOW_ROSTER, channel_id)
    try:
        return parse_roster(document)
    except Malformed as error:
        raise BadAnswer(f"the roster of the channel cannot be read: {error.message}") from error


def put_roster(roster: Roster) -> Exchange[ChannelView]:
    """Stores the next roster of a channel of the agent's own; the same one again changes nothing."""
    shown = yield from ask(api.PUT_ROSTER, roster.channel_id, body=roster_document(roster))
    return _same(roster.channel_id, shown)


def publish_envelope(channel_id: UUID, envelope: Envelope) -> Exchange[PublishedMessage]:
    """Publishes a sealed message; the same bytes again get the first answer."""
    return (yield from ask(api.PUBLISH, channel_id, body=envelope.wire, content_type=MEDIA_TYPE))


def channel_messages(
    channel_id: UUID, *, after_offset: int | None = None, max_messages: int = 10, wait: int = 0
) -> Exchange[api.ChannelMessagePage]:
    """Returns the next messages, sealed: after an offset, or after the committed one. Where there are none it waits so
    many seconds."""
    wanted = api.ChannelReadQuery(after_offset=after_offset, max_messages=max_messages, wait_timeout_seconds=wait)
    return (yield from ask(api.READ, channel_id, query=wanted, waits=wait))


def _same(channel_id: UUID, shown: ChannelView) -> ChannelView:
    """Returns the answer if it is about the channel that was asked for: messages are sealed for the one in it."""
    if shown.channel_id != channel_id:
        raise UntrustedRoster(f"asked for the channel {channel_id}, the server showed {shown.channel_id}")
    return shown
