"""`angelia channel`: sealed topics, which agents create, subscribe to and publish in."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import click

from angelia.cli.channel_output import facts_of, show_page, warn_unreached
from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.errors import Usage, one_of
from angelia.cli.flags import Needs, message_uuid, seconds, span
from angelia.cli.grammar import Noun
from angelia.cli.message_body import compress_flag, message_options, pad_flag, priority_flag, read_body
from angelia.cli.paging import SHORTEST_PREFIX, ago, every, full_id, pages_of, server_pages, short, show_list
from angelia.cli.tables import Column, counted
from angelia.cli.times import age
from angelia.errors import AngeliaError, NotFound, Unavailable

if TYPE_CHECKING:
    from angelia.channels.model import Channel, ChannelView
    from angelia.client import Client
    from angelia.envelope.rosters import Member

POLICIES = ("open", "private", "authz_required", "allowlist")
WAIT_SECONDS = 20
_PREFIX = re.compile(rf"[0-9a-f][0-9a-f-]{{{SHORTEST_PREFIX - 1},34}}")
_ACTS = Needs.SERVER | Needs.AGENT

command = Noun("channel", "sealed topics: create, subscribe, publish, tail")

_policy = click.option("--policy", type=click.Choice(POLICIES), metavar="P", help=", ".join(POLICIES))
_retention = click.option(
    "--retention", "retention_seconds", type=seconds, metavar="D", help="how long messages are kept, 1h to 30d (7d)"
)
_size = click.option(
    "--max-size", "max_message_size_bytes", type=click.IntRange(4096, 1_122_304), metavar="BYTES",
    help="of one message (1 MiB)",
)  # fmt: skip
_most = click.option("--max-subscribers", type=click.IntRange(1, 100_000), metavar="N", help="so many (10,000)")


@command.verb(example="angelia channel create news --policy open", needs=_ACTS)
@click.argument("name", metavar="NAME")
@_policy
@click.option("--allow", "allowed", multiple=True, metavar="AGENT", help="an agent that may subscribe; repeatable")
@_retention
@_size
@_most
def create(session: CommandContext, /, name: str, policy: str | None, allowed: tuple[str, ...], **limits: Any) -> None:
    """Make a channel with its first key. Without --policy, the agents that --allow names may subscribe."""
    from angelia.channels.model import ChannelPolicy

    mailbox = session.mailbox
    kind = ChannelPolicy(policy or "allowlist")
    made = session.as_agent(mailbox).channels.create(mailbox, name, kind, allow=allowed, **limits)
    session.out.thing(made, facts_of(made, mailbox.rosters.pinned(made.channel_id)), quietly=str(made.channel_id))
    if allowed:
        _say_what_the_list_decides(session, made)


@command.verb(name="list", example="angelia channel list --subscribed", needs=_ACTS | Needs.PAGES)
@click.option("--owner", metavar="AGENT", help="only this agent's")
@click.option("--subscribed", is_flag=True, help="only those that you subscribe to")
def list_(session: CommandContext, owner: str | None, subscribed: bool) -> None:
    """List the channels that you may use."""
    client = session.as_agent(session.mailbox)
    columns: list[Column[Channel]] = [
        Column("ID", lambda c: short(c.channel_id)),
        Column("NAME", lambda c: c.name, long=True),
        Column("POLICY", lambda c: c.policy.value),
        Column("MESSAGES", lambda c: f"{c.total_messages:,}", right=True),
        Column("SUBSCRIBERS", lambda c: f"{c.total_subscribers:,}", right=True),
        Column("KEEP", lambda c: age(timedelta(seconds=c.retention_seconds)), right=True),
        Column("AGE", lambda c: ago(c.created_at), right=True),
    ]
    fetch = server_pages(client.channels.list, lambda page: page.channels, owner=owner, subscribed=subscribed)
    show_list(session, fetch, columns, nothing="no channels yet", hint="angelia channel create NAME --policy open")


@command.verb(example="angelia channel show alice/news", needs=_ACTS)
@click.argument("name", metavar="NAME")
def show(session: CommandContext, name: str) -> None:
    """Show a channel, its signed roster of members, and what you may do in it."""
    client, found, ref = _find(session, name)
    roster = client.channels.roster(session.mailbox, ref)
    session.out.thing(found, facts_of(found, roster), quietly=str(found.channel_id))


@command.verb(example="angelia channel update news --policy private", needs=_ACTS)
@click.argument("name", metavar="NAME")
@_policy
@_retention
@_size
@_most
def update(session: CommandContext, /, name: str, policy: str | None, **limits: Any) -> None:
    """Change a channel of yours. --policy checks every subscriber again and drops those that may not stay."""
    from angelia.channels.model import ChannelPolicy

    if {policy, *limits.values()} == {None}:
        raise Usage("nothing to change", hint="--policy, --retention, --max-size or --max-subscribers")
    client, before, ref = _find(session, name)
    changed = client.channels.update(session.mailbox, ref, policy=ChannelPolicy(policy) if policy else None, **limits)
    roster = session.mailbox.rosters.pinned(changed.channel_id)
    session.out.thing(changed, facts_of(changed, roster), quietly=str(changed.channel_id))
    # In an open channel only the owner makes the next key.
    if policy == ChannelPolicy.OPEN and before.policy is not ChannelPolicy.OPEN:
        warn_unreached(session, client.channels.share_key(session.mailbox, ref).failed)
    if (dropped := before.total_subscribers - changed.total_subscribers) > 0:
        session.out.note(f"dropped {counted(dropped, 'subscriber')}; the next message has another key")


@command.verb(example="angelia channel delete news", needs=_ACTS | Needs.YES)
@click.argument("name", metavar="NAME")
def delete(session: CommandContext, name: str) -> None:
    """Delete a channel of yours, with everything in it."""
    client, found, _ = _look_up(session, name)
    kept = found.next_offset - found.first_offset
    what = f"{found.name} with {counted(kept, 'message')} and {counted(found.total_subscribers, 'subscriber')}"
    deed = Deed("delete", "deleting", what, f"angelia channel show {found.name}", whole=found.channel_name)
    if may(session, deed):
        client.channels.delete(session.mailbox, found.channel_id)
        session.out.done(_done("deleted", found), f"deleted {what}")


@command.verb(example="angelia channel subscribe alice/news", needs=_ACTS)
@click.argument("name", metavar="NAME")
def subscribe(session: CommandContext, name: str) -> None:
    """Subscribe to a channel from now on. Its key comes from an agent that may publish in it."""
    client, found, ref = _find(session, name)
    held = client.channels.subscribe(session.mailbox, ref)
    session.out.done(held, f"subscribed to {found.name} after offset {held.last_offset}")
    if not held.key_epoch:
        session.out.note("its key comes with the next message that is published")


@command.verb(example="angelia channel unsubscribe alice/news", needs=_ACTS)
@click.argument("name", metavar="NAME")
def unsubscribe(session: CommandContext, name: str) -> None:
    """End your subscription."""
    client, found, ref = _look_up(session, name)
    held = client.channels.unsubscribe(session.mailbox, ref)
    session.out.done(held, f"unsubscribed from {found.name}")


@command.verb(example="angelia channel pause alice/news", needs=_ACTS)
@click.argument("name", metavar="NAME")
def pause(session: CommandContext, name: str) -> None:
    """Keep your offset, and read nothing until `resume`."""
    client, found, _ = _look_up(session, name)
    held = client.channels.pause(found.channel_id)
    session.out.done(held, f"paused {found.name} after offset {held.last_offset}")


@command.verb(example="angelia channel resume alice/news", needs=_ACTS)
@click.argument("name", metavar="NAME")
def resume(session: CommandContext, name: str) -> None:
    """Go on after a pause."""
    client, found, _ = _look_up(session, name)
    held = client.channels.resume(found.channel_id)
    session.out.done(held, f"resumed {found.name} after offset {held.last_offset}")


@command.verb(example="angelia channel allow news bob --publish", needs=_ACTS | Needs.PAGES)
@click.argument("name", metavar="NAME")
@click.argument("agent", metavar="[AGENT]", required=False)
@click.option("--publish", "may_publish", is_flag=True, help="it may publish too, and give out the key")
@click.option("--no-subscribe", is_flag=True, help="it may not subscribe")
def allow(session: CommandContext, name: str, agent: str | None, may_publish: bool, no_subscribe: bool) -> None:
    """Sign that AGENT is a member of a channel of yours, and its rights; without AGENT, list the members."""
    client, found, ref = _find(session, name)
    if agent is None:
        _show_allowed(session, client, found, ref)
        return
    before = session.mailbox.rosters.pinned(found.channel_id)
    entry = client.channels.allow(session.mailbox, ref, agent, may_subscribe=not no_subscribe, may_publish=may_publish)
    rights = [word for word, has in (("listen", entry.may_subscribe), ("publish", entry.may_publish)) if has]
    session.out.done(entry, f"{entry.nhi} may {' and '.join(rights) or 'do nothing'} in {found.name}")
    if session.mailbox.rosters.pinned(found.channel_id) == before:
        session.out.note(
            f"the roster says so already; if the server does not: angelia channel sign {found.channel_name}"
        )
    _say_what_the_list_decides(session, found)


@command.verb(example="angelia channel deny news bob", needs=_ACTS)
@click.argument("name", metavar="NAME")
@click.argument("agent", metavar="AGENT")
def deny(session: CommandContext, name: str, agent: str) -> None:
    """Sign that AGENT is no longer a member of a channel of yours.

    It is removed at once, and the next message has another key."""
    client, found, ref = _look_up(session, name)
    client.channels.disallow(session.mailbox, ref, agent)
    session.out.done(_done("denied", found, agent), f"denied {agent} in {found.name}; what it has read it keeps")
    _say_what_the_list_decides(session, found)


@command.verb(example="angelia channel sign news", needs=_ACTS | Needs.YES)
@click.argument("name", metavar="NAME")
def sign(session: CommandContext, name: str) -> None:
    """Sign the members of a channel of yours: one of an earlier version, or after you lost your mailbox.

    Every agent on the list will be sent the channel's key, so look at it first."""
    client = session.as_agent(session.mailbox)
    proposal = client.channels.propose_roster(session.mailbox, name)
    found, ref = proposal.channel, _reference(name, proposal.channel)
    if not session.shared.json:
        session.out.rows(proposal.members, _MEMBERS)
    if proposal.by_server:
        session.out.note("warning: this list and the policy are the server's word; sign them only if they are yours")
    what = f"{found.name} as {proposal.policy.value} with {counted(len(proposal.members), 'member')}"
    deed = Deed("sign", "signing", what, f"angelia channel sign {name} --dry-run", count=len(proposal.members))
    if may(session, deed):
        signed = client.channels.sign_roster(session.mailbox, ref, proposal.policy, proposal.members)
        session.out.done(_done("signed", found), f"signed {what}: version {signed.roster_version} of its roster")
        # In an open channel only the owner makes the next key.
        warn_unreached(session, client.channels.share_key(session.mailbox, ref).failed)


@command.verb(example="angelia channel forget alice/news", needs=Needs.AGENT | Needs.YES)
@click.argument("name", metavar="NAME")
def forget(session: CommandContext, name: str) -> None:
    """Forget the pinned owner and roster of a channel, after a server had shown you another for it.

    Its messages still open. The next use pins what the server shows then."""
    from angelia.client.channel_membership import forget_channel

    what, look = f"whose {name} is and who is in it", f"angelia channel show {name}"
    deed = Deed("forget", "forgetting", what, look, where="this mailbox")
    if may(session, deed):
        forgotten = forget_channel(session.mailbox, name)
        record = {"done": "forgotten", "channel_id": forgotten, "name": name, "agent": None}
        session.out.done(record, f"forgot whose {name} is; say owner/name when you use it next")


@command.verb(example='angelia channel publish news "build 418 is green"', needs=_ACTS)
@click.argument("name", metavar="NAME")
@click.argument("body", metavar="[TEXT]", required=False)
@click.option("--ttl", type=span, metavar="D", help="how long it may be read (7d)")
@priority_flag
@click.option("--correlation", type=message_uuid, metavar="UUID", help="the message_id of the message that it answers")
@click.option(
    "--id", "message_id", type=message_uuid, metavar="UUID", help="its own; under one id it is published once"
)
@pad_flag
@compress_flag
def publish(
    session: CommandContext,
    name: str,
    body: str | None,
    ttl: timedelta | None,
    priority: str,
    correlation: UUID | None,
    message_id: UUID | None,
    pad: bool,
    compress: str,
) -> None:
    """Seal a message for all subscribers, and publish it. TEXT may come from stdin.

    Subscribers that lack the channel's key get it first; a key that is due is replaced."""
    from angelia.client import Unreachable

    options = message_options(session, ttl, priority, pad, compress, correlation)
    options["message_id"] = message_id or uuid4()
    content = read_body(session, body)
    client, found, ref = _find(session, name)
    try:
        posted = client.channels.publish(session.mailbox, ref, content, **options)
    except (Unreachable, Unavailable) as error:
        error.hint = f"say it again with --id {options['message_id']}, and it is published once; {error.hint}"
        raise
    published, size = posted.published, len(posted.envelope.wire)
    sealed = f"sealed (epoch {posted.channel.epoch}, Ed25519 + ML-DSA-65), {size:,} bytes"
    text = f"published in {found.name} at offset {published.offset}, {sealed}"
    session.out.done(published, text, quietly=str(published.offset))
    warn_unreached(session, posted.unreached)


@command.verb(example="angelia channel tail alice/news -f", needs=_ACTS)
@click.argument("name", metavar="NAME")
@click.option("-f", "--follow", is_flag=True, help="go on: wait for what comes")
@click.option("-n", "--limit", "most", type=click.IntRange(1, 100_000), metavar="N", help="at most so many")
@click.option("--after", type=click.IntRange(0), metavar="OFFSET", help="from there on (from what was committed)")
@click.option("--commit", is_flag=True, help="be done with what was shown")
@click.option("--skip", is_flag=True, help="with --commit: also with what cannot be opened")
def tail(
    session: CommandContext, name: str, follow: bool, most: int | None, after: int | None, commit: bool, skip: bool
) -> int:
    """Read a channel: every message that you have not committed, in order. Reading alone commits nothing.

    --commit ends before the first message that cannot be opened; --skip goes past it."""
    from angelia.client.channel_reading import Tail

    if skip and not commit:
        raise Usage(
            "--skip goes with --commit: only what is committed can pass over what cannot be opened",
            hint=f"angelia channel tail {name} --commit --skip",
        )
    client, found, ref = _find(session, name)
    following = Tail(session.mailbox, found.channel_id, after, name=found.name)
    codes, shown = set[int](), 0
    patience = min(WAIT_SECONDS, max(1, int(session.shared.timeout)))
    _share(session, client, found, ref)
    while True:
        wanted = 100 if most is None else min(100, most - shown)
        came = client.channels.follow(following, wait=patience if follow else 0, max_messages=wanted)
        if following.lost:
            session.out.note("warning: offsets {} to {} are not kept any more".format(*following.lost))
            following.lost = None
            continue
        alone = len(came) == 1 and not shown and (most == 1 or not follow)
        unopened, done = show_page(session, came, skip=skip, alone=alone)
        if commit and done and (skip or not codes):
            client.channels.commit(found.channel_id, done)
        codes |= unopened
        shown += len(came)
        if shown == most or not (came or follow):
            break
        if not came:
            _share(session, client, found, ref)
    if not shown:
        session.out.note("nothing new; -f waits for what comes")
    return one_of(codes)


def _share(session: CommandContext, client: Client, found: ChannelView, ref: str | UUID) -> None:
    """Sends the key to subscribers that lack it, if this agent may, so that they need not wait for the next message.
    A failure is only noted: the reading goes on."""
    if found.without_key is None:
        return
    try:
        present = client.channels.show(found.channel_id)
        key_id = present.epoch_key_id
        if present.without_key and key_id and session.mailbox.channels.present_key(found.channel_id, key_id):
            warn_unreached(session, client.channels.share_key(session.mailbox, ref).failed)
    except AngeliaError as error:
        session.out.note(f"warning: the key was not given out: {error.message} ({error.code})")


def _say_what_the_list_decides(session: CommandContext, channel: ChannelView) -> None:
    if channel.policy.value != "allowlist":
        session.out.note(f"the list decides nothing while the policy of {channel.name} is {channel.policy.value}")


def _show_allowed(session: CommandContext, client: Client, found: ChannelView, ref: str | UUID) -> None:
    roster = client.channels.roster(session.mailbox, ref)
    hint = f"angelia channel allow {found.channel_name} AGENT"
    if roster is None:
        session.out.note(f"{found.owner_nhi} has signed no list yet; angelia channel sign {found.channel_name}")
    rows = [] if roster is None else list(roster.members)
    show_list(session, pages_of(rows), _MEMBERS, nothing=f"nobody is listed in {found.name}", hint=hint)


def _done(what: str, channel: ChannelView, agent: str | None = None) -> dict[str, object]:
    return {"done": what, "channel_id": channel.channel_id, "name": channel.name, "agent": agent}


def _find(session: CommandContext, name: str) -> tuple[Client, ChannelView, str | UUID]:
    """A client, the channel that the user named (`owner/name`, a name of their own, an id or its beginning), and how to
    name it to the SDK. Raises if the server shows another roster than the one that is pinned."""
    client = session.as_agent(session.mailbox)
    return client, *_named(client, name, functools.partial(client.channels.find, session.mailbox))


def _look_up(session: CommandContext, name: str) -> tuple[Client, ChannelView, str | UUID]:
    """The same without a check of the roster, with which a server could keep an agent from leaving the channel."""
    client = session.as_agent(session.mailbox)
    return client, *_named(client, name, functools.partial(client.channels.look_up, session.mailbox))


def _named(client: Client, name: str, find: Callable[[str | UUID], ChannelView]) -> tuple[ChannelView, str | UUID]:
    try:
        found = find(name)
    except NotFound:
        if _PREFIX.fullmatch(name.lower()) is None:
            raise
        channels = every(server_pages(client.channels.list, lambda page: page.channels))
        known = [str(one.channel_id) for one in channels]
        found = find(UUID(full_id(name, known, "channel", "angelia channel list")))
    return found, _reference(name, found)


def _reference(name: str, found: ChannelView) -> str | UUID:
    """How to name a channel to the SDK: by its id only if the user did, for under a name it refuses another one."""
    by_id = _PREFIX.fullmatch(name.lower()) is not None and str(found.channel_id).startswith(name.lower())
    return found.channel_id if by_id else found.name


_MEMBERS: list[Column[Member]] = [
    Column("AGENT", lambda e: e.nhi, long=True),
    Column("LISTEN", lambda e: "yes" if e.may_subscribe else "no"),
    Column("PUBLISH", lambda e: "yes" if e.may_publish else "no"),
]
