"""Prints channels, and messages that were read from them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import exit_code
from angelia.cli.mail_output import body_members, message_record
from angelia.cli.paging import ago
from angelia.cli.tables import counted
from angelia.cli.times import age, full
from angelia.errors import AngeliaError

if TYPE_CHECKING:
    from angelia.channels.model import ChannelView
    from angelia.client.channel_reading import Unopened
    from angelia.envelope.rosters import Roster
    from angelia.mailbox.channels import ChannelMessage

_NAMED = 8


def print_post(session: CommandContext, message: ChannelMessage, *, alone: bool = False) -> None:
    """Prints a message as one line. Content that is no text goes into a file or a pipe byte for byte if the message is
    printed `alone`."""
    text, members = body_members(message.body)
    if session.shared.json:
        place = {"channel_id": message.channel_id, "offset": message.offset}
        session.out.records([place | message_record(message, members)])
        return
    about, size = f"{full(message.created_at)[11:]}  {message.offset}  {message.sender}", f"{len(message.body):,} bytes"
    if text is None and alone and session.out.raw(message.body):
        session.out.note(f"{about}  ({size} that are no text, written as they are)")
        return
    shown = f"({size} that are no text; --json shows them in base64url)" if text is None else text
    session.out.line(f"{about}  {shown}")
    session.out.stdout.flush()


def show_page(
    session: CommandContext, came: Sequence[ChannelMessage | Unopened], *, skip: bool, alone: bool
) -> tuple[set[int], int]:
    """Prints messages. Returns the exit codes of those that could not be opened, and the offset to commit: that before
    the first of them, or the last one of the page with `skip`."""
    from angelia.client.channel_reading import Unopened

    codes, done = set[int](), 0
    for one in came:
        if isinstance(one, Unopened):
            session.out.note(f"warning: offset {one.offset}: {one.error.message} ({one.error.code})")
            codes.add(exit_code(one.error))
        else:
            print_post(session, one, alone=alone)
        if skip or not codes:
            done = one.offset
    return codes, done


def warn_unreached(session: CommandContext, unreached: dict[str, AngeliaError]) -> None:
    for agent, error in unreached.items():
        session.out.note(f"warning: {agent} has no key yet: {error.message} ({error.code})")


def facts_of(channel: ChannelView, roster: Roster | None) -> list[tuple[str, str]]:
    held = channel.subscription
    rights = [word for word, has in (("subscribe", channel.may_subscribe), ("publish", channel.may_publish)) if has]
    pairs = [
        ("channel", channel.name),
        ("id", str(channel.channel_id)),
        ("policy", channel.policy.value),
        ("roster", _roster(channel, roster)),
        ("you may", ", ".join(rights) or "nothing"),
        ("subscribed", "no" if held is None else f"{held.status.value}, after offset {held.last_offset}"),
        ("messages", _messages(channel)),
        ("subscribers", f"{channel.total_subscribers:,} of {channel.max_subscribers:,}"),
        ("kept for", age(timedelta(seconds=channel.retention_seconds))),
        ("size", f"{channel.max_message_size_bytes:,} bytes at most"),
        ("epoch", _epoch(channel)),
        ("created", full(channel.created_at)),
    ]
    if channel.policy.value in ("open", "authz_required"):
        pairs.insert(4, ("readers", "whom this server admits: under this policy the roster keeps nobody out"))
    if channel.without_key:
        pairs.append(("without key", f"{counted(channel.without_key, 'agent')}; the next publish sends it"))
    return pairs


def _roster(channel: ChannelView, roster: Roster | None) -> str:
    if roster is None:
        return (
            f"none that {channel.owner_nhi} signed: nothing can be published, and only {channel.owner_nhi} is believed"
        )
    names = [one.nhi for one in roster.members]
    named = f" ({', '.join(names[:_NAMED])}{', …' if len(names) > _NAMED else ''})" if names else ""
    return f"version {roster.version}, signed by {roster.owner_nhi}: {counted(len(names), 'member')}{named}"


def _messages(channel: ChannelView) -> str:
    if channel.first_offset < channel.next_offset:
        return f"{channel.total_messages:,}, offsets {channel.first_offset} to {channel.next_offset - 1} are kept"
    return f"{channel.total_messages:,}, none is kept any more" if channel.total_messages else "none, it is empty"


def _epoch(channel: ChannelView) -> str:
    if channel.epoch_key_id is None or channel.epoch_at is None:
        return f"{channel.epoch}, closed: whoever publishes next makes a new key"
    return f"{channel.epoch}, key {channel.epoch_key_id}, {ago(channel.epoch_at)} old"
