"""The verbs of channels as the HTTP API has them; what they carry is sealed and opened elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from angelia.channels.model import Channel, Policy, Shown, Subscription
from angelia.client.channel_answers import (
    Allowlist,
    ChannelPage,
    Channels,
    Epoch,
    KeyGiver,
    KeysNoted,
    PublishedMessage,
    Subscribers,
)
from angelia.client.exchange import BadAnswer, Exchange, Request, document, path, query
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.refusals import Malformed
from angelia.envelope.rosters import Roster, RosterDocument, UntrustedRoster, parse_roster, roster_document
from angelia.envelope.wire import Envelope


def make_channel(
    name: str,
    policy: Policy,
    *,
    allow: Sequence[str] = (),
    retention_seconds: int | None = None,
    max_message_size_bytes: int | None = None,
    max_subscribers: int | None = None,
    roster: Roster | None = None,
) -> Exchange[Channel]:
    """Make a channel, still without a key. A roster names its id and all who are listed."""
    body = document(
        channel_name=name,
        policy=policy,
        allowlist_nhis=list(allow),
        retention_seconds=retention_seconds,
        max_message_size_bytes=max_message_size_bytes,
        max_subscribers=max_subscribers,
        roster=None if roster is None else roster_document(roster),
    )
    answer = yield Request("POST", "/v1/channels", body=body, idempotent=False)
    return answer.read(Channel)


def channels(
    *,
    owner: str | None = None,
    name: str | None = None,
    subscribed: bool = False,
    cursor: str | None = None,
    limit: int | None = None,
) -> Exchange[Channels]:
    """A page of the channels that the agent may know of, oldest first."""
    wish = query(owner=owner, name=name, subscribed="true" if subscribed else None, cursor=cursor, limit=limit)
    answer = yield Request("GET", "/v1/channels", wish)
    return answer.read(Channels)


def channel(channel_id: UUID) -> Exchange[Shown]:
    """One channel, and what the agent is in it."""
    answer = yield Request("GET", _path(channel_id))
    return _asked_for(channel_id, answer.read(Shown))


def channel_again(found: Channel) -> Exchange[Shown]:
    """A channel as it is now, still under the name that it was found by."""
    shown = yield from channel(found.channel_id)
    if shown.name != found.name:
        raise UntrustedRoster(f"the server calls the channel {shown.name} that it showed as {found.name}")
    return shown


def update_channel(
    channel_id: UUID,
    *,
    policy: Policy | None = None,
    retention_seconds: int | None = None,
    max_message_size_bytes: int | None = None,
    max_subscribers: int | None = None,
) -> Exchange[Shown]:
    """Change a channel of one's own; what is not given stays. Its policy, said again, checks all subscribers; another
    one is for the next roster to say."""
    body = document(
        policy=policy,
        retention_seconds=retention_seconds,
        max_message_size_bytes=max_message_size_bytes,
        max_subscribers=max_subscribers,
    )
    answer = yield Request("PATCH", _path(channel_id), body=body)
    return _asked_for(channel_id, answer.read(Shown))


def delete_channel(channel_id: UUID) -> Exchange[None]:
    """Delete a channel of one's own, with everything in it."""
    answer = yield Request("DELETE", _path(channel_id), idempotent=False)
    answer.nothing()


def channel_allowlist(channel_id: UUID, *, cursor: str | None = None, limit: int | None = None) -> Exchange[Allowlist]:
    """A page of whom the server says that a channel of one's own lists."""
    answer = yield Request("GET", _path(channel_id, "allowlist"), query(cursor=cursor, limit=limit))
    return answer.read(Allowlist)


def channel_roster(channel_id: UUID) -> Exchange[Roster]:
    """The roster that the server says the channel's owner signed last; nothing of it is checked here."""
    answer = yield Request("GET", _path(channel_id, "roster"))
    try:
        return parse_roster(answer.read(RosterDocument))
    except Malformed as error:
        raise BadAnswer(f"the roster of the channel cannot be read: {error.message}") from error


def put_roster(roster: Roster) -> Exchange[Shown]:
    """Store the next roster of a channel of one's own; the same one again changes nothing."""
    body = msgspec.json.encode(roster_document(roster))
    answer = yield Request("PUT", _path(roster.channel_id, "roster"), body=body)
    return _asked_for(roster.channel_id, answer.read(Shown))


def join_channel(channel_id: UUID, *, needs_key: bool = False) -> Exchange[Subscription]:
    """Subscribe on the server; `needs_key` asks for the key again."""
    body = document(needs_key=True) if needs_key else b""
    answer = yield Request("POST", _path(channel_id, "subscribe"), body=body)
    return answer.read(Subscription)


def leave_channel(channel_id: UUID) -> Exchange[Subscription]:
    """Unsubscribe on the server."""
    answer = yield Request("POST", _path(channel_id, "unsubscribe"))
    return answer.read(Subscription)


def pause(channel_id: UUID) -> Exchange[Subscription]:
    """Keep the offset and read nothing until `resume`."""
    answer = yield Request("POST", _path(channel_id, "pause"))
    return answer.read(Subscription)


def resume(channel_id: UUID) -> Exchange[Subscription]:
    """Go on after a pause."""
    answer = yield Request("POST", _path(channel_id, "resume"))
    return answer.read(Subscription)


def publish_envelope(channel_id: UUID, envelope: Envelope) -> Exchange[PublishedMessage]:
    """Publish a sealed message; the same bytes again get the first answer."""
    answer = yield Request("POST", _path(channel_id, "publish"), body=envelope.wire, content_type=MEDIA_TYPE)
    return answer.read(PublishedMessage)


def channel_messages(
    channel_id: UUID, *, after_offset: int | None = None, max_messages: int | None = None, wait: int | None = None
) -> Exchange[ChannelPage]:
    """The next messages, sealed: after an offset, or after what was committed."""
    wish = query(after_offset=after_offset, max_messages=max_messages, wait_timeout_seconds=wait)
    answer = yield Request("GET", _path(channel_id, "messages"), wish, waits=wait or 0)
    return answer.read(ChannelPage)


def commit(channel_id: UUID, offset: int) -> Exchange[Subscription]:
    """Be done with everything up to an offset."""
    answer = yield Request("POST", _path(channel_id, "commit"), body=document(offset=offset))
    return answer.read(Subscription)


def set_epoch(channel_id: UUID, epoch: int, key_id: UUID) -> Exchange[Channel]:
    """Name the channel's next key; of several who do at once, one is right."""
    body = document(epoch=epoch, epoch_key_id=key_id)
    answer = yield Request("POST", _path(channel_id, "epoch"), body=body)
    return answer.read(Channel)


def keys_sent(channel_id: UUID, epoch: int, subscribers: Sequence[str]) -> Exchange[int]:
    """Say to whom the key of the present epoch was sent; for how many that was new, and counts."""
    body = document(epoch=epoch, subscribers=list(subscribers))
    answer = yield Request("POST", _path(channel_id, "keys"), body=body)
    return answer.read(KeysNoted).noted


def key_taken(channel_id: UUID, epoch: int) -> Exchange[Subscription]:
    """Say that the key of the present epoch is here, so that nobody sends it again."""
    answer = yield Request("POST", _path(channel_id, "key"), body=document(epoch=epoch))
    return answer.read(Subscription)


def key_needed(channel_id: UUID) -> Exchange[Subscription]:
    """Say that the present key is not here; it counts once an hour."""
    return (yield from key_taken(channel_id, 0))


def channel_epoch(channel_id: UUID, epoch: int) -> Exchange[Epoch]:
    """Which key a channel had in an epoch: its id, and who made it."""
    answer = yield Request("GET", _path(channel_id, "epochs", str(epoch)))
    return answer.read(Epoch)


def subscribers(
    channel_id: UUID, *, without_key: bool = False, cursor: str | None = None, limit: int | None = None
) -> Exchange[Subscribers]:
    """A page of who listens, by name; for those who give out the key. Who lacks it may also be a publisher."""
    wish = query(without_key="true" if without_key else None, cursor=cursor, limit=limit)
    answer = yield Request("GET", _path(channel_id, "subscribers"), wish)
    return answer.read(Subscribers)


def key_giver(channel_id: UUID, agent: str) -> Exchange[KeyGiver]:
    """Whether the channel's key may come from an agent."""
    answer = yield Request("GET", _path(channel_id, "publishers", agent))
    return answer.read(KeyGiver)


def _asked_for(channel_id: UUID, found: Shown) -> Shown:
    """The answer, if it is about the channel that was asked for: what is sealed next is sealed for the one in it."""
    if found.channel_id != channel_id:
        raise UntrustedRoster(f"asked for the channel {channel_id}, the server showed {found.channel_id}")
    return found


def _path(channel_id: UUID, *more: str) -> str:
    return path("v1", "channels", str(channel_id), *more)
