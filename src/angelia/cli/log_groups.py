"""Verbs of groups themselves: made, dropped and forgotten, their members and nodes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.errors import Usage
from angelia.cli.flags import Needs
from angelia.cli.grammar import Noun
from angelia.cli.log_access import ACTS, NETWORK, all_logs, name_argument, open_log
from angelia.cli.log_output import (
    facts_of,
    member_record,
    record_of,
    say_failures,
    say_settled,
    short_id,
    text_of,
)
from angelia.cli.paging import pages_of, show_list
from angelia.cli.tables import Column, counted
from angelia.errors import Conflict, InvalidArgument

if TYPE_CHECKING:
    from angelia.client.log_membership import LogNode
    from angelia.client.log_verbs import BlockingLogs
    from angelia.grouplog.model.editions import EditionMember, EditionNode, GroupEdition

verbs = Noun("log", "groups, their members and nodes")

_tokens = click.option(
    "--node-token", "tokens", multiple=True, metavar="URL=FILE",
    help="the token of a node, where one is asked for a new group; repeatable",
)  # fmt: skip


@verbs.verb(example="angelia log create team --member bob", needs=ACTS)
@name_argument
@click.option("--member", "members", multiple=True, metavar="AGENT", help="besides you; repeatable")
@click.option("--node", "nodes", multiple=True, metavar="URL", help="a spool node (your server's); repeatable")
@_tokens
@click.option("--copies", "min_copies", type=click.IntRange(1, 32), metavar="N", help="nodes that keep each update (2)")
@click.option("--depth", type=click.IntRange(0, 15), default=2, metavar="N", help="level that all nodes keep (2)")
@click.option("--quota", "quota_bytes", type=click.IntRange(1 << 20), default=2 << 30, metavar="BYTES",
    help="of the group on each node (2 GiB)",
)  # fmt: skip
def create(
    session: CommandContext,
    /,
    name: str,
    members: tuple[str, ...],
    nodes: tuple[str, ...],
    tokens: tuple[str, ...],
    **config: Any,
) -> None:
    """Make a group log with its members and nodes; you are its owner."""
    logs = all_logs(session)
    settled = logs.create(name, nodes=_nodes(session, nodes or (session.url,), tokens), members=members, **config)
    edition = settled.edition
    session.out.thing(record_of(edition), facts_of(edition), quietly=str(record_of(edition)["group"]))
    if edition.min_copies < 2:
        session.out.note("each update is on one node alone; --node names more of them")
    say_settled(session, settled)


@verbs.verb(name="list", example="angelia log list", needs=ACTS | Needs.PAGES)
def list_(session: CommandContext) -> None:
    """List the groups that you are a member of."""
    from angelia.grouplog.model.ids import base58

    me = session.mailbox.identity.handle
    columns: list[Column[GroupEdition]] = [
        Column("ID", lambda g: base58(g.group)[:12]),
        Column("NAME", lambda g: g.name, long=True),
        Column("MEMBERS", lambda g: f"{len(g.members):,}", right=True),
        Column("NODES", lambda g: str(len(g.nodes)), right=True),
        Column("YOU", lambda g: "-" if (own := g.member(me)) is None else g.role(own)),
    ]
    found = all_logs(session).list()
    if session.shared.json:
        session.out.records([record_of(one) for one in found])
        return
    show_list(session, pages_of(found), columns, nothing="no groups yet", hint="angelia log create NAME")


@verbs.verb(example="angelia log members team --add carol", needs=ACTS | Needs.YES)
@name_argument
@click.option("--add", "added", multiple=True, metavar="AGENT", help="a new member; repeatable")
@click.option("--remove", "removed", multiple=True, metavar="AGENT", help="reads nothing new from then on; repeatable")
@click.option("--refresh", is_flag=True, help="look up members' new keys, and send the group to all of them again")
def members(
    session: CommandContext, name: str, added: tuple[str, ...], removed: tuple[str, ...], refresh: bool
) -> None:
    """Show the members, or change them; by the owner.

    A new member reads what was written before from a snapshot, which is taken for it."""
    logs = all_logs(session)
    edition = logs.find(name)
    if removed:
        what = f"{', '.join(removed)} from {edition.name}"
        if not may(session, Deed("remove", "removing", what, f"angelia log members {name}", count=len(removed))):
            return
        with contextlib.suppress(Conflict):  # the state is another application's
            open_log(session, name).sync()  # what they wrote before still counts
        settled = logs.remove(name, removed)
        say_settled(session, settled)
        session.out.done({"removed": list(removed)}, f"removed {what}; what is written now has another key")
    if added:
        settled = logs.add(name, added)
        say_settled(session, settled)
        session.out.done({"added": list(added)}, f"added {', '.join(added)} to {edition.name}")
        _take_first_snapshot(session, logs, name)
    if added or removed:
        return
    if refresh:
        settled = logs.settle(name, again=True)
        say_settled(session, settled)
        edition = settled.edition
    if session.shared.json:
        session.out.records([member_record(edition, one) for one in edition.members])
        return
    columns: list[Column[EditionMember]] = [
        Column("AGENT", lambda m: m.handle, long=True),
        Column("SENDER", lambda m: m.sender.hex()),
        Column("ROLE", edition.role),
    ]
    session.out.rows(list(edition.members), columns)


@verbs.verb(example="angelia log nodes team --add http://127.0.0.1:8091", needs=ACTS | Needs.YES)
@name_argument
@click.option("--add", "added", multiple=True, metavar="URL", help="a spool node; repeatable")
@click.option("--remove", "removed", multiple=True, metavar="URL", help="it keeps nothing new; repeatable")
@_tokens
def nodes(
    session: CommandContext, name: str, added: tuple[str, ...], removed: tuple[str, ...], tokens: tuple[str, ...]
) -> None:
    """Show the nodes, or change them; by the owner. `repair` by each member then moves what has to move."""
    logs = all_logs(session)
    edition = logs.find(name)
    if removed or added:
        left = [one.url for one in edition.nodes if one.url not in removed]
        if unknown := set(removed) - {one.url for one in edition.nodes}:
            raise InvalidArgument(f"{', '.join(unknown)} is no node of {name}", hint=f"angelia log nodes {name}")
        if removed:
            what = f"{', '.join(removed)} from {edition.name}"
            if not may(session, Deed("remove", "removing", what, f"angelia log nodes {name}", count=len(removed))):
                return
        settled = logs.replace_nodes(name, _nodes(session, [*left, *added], tokens))
        edition = settled.edition
        say_settled(session, settled)
        session.out.note(f"hint: each member runs `angelia log repair {name}`, which moves what it may move")
    if session.shared.json:
        session.out.records([{"id": text_of(one.id), "url": one.url} for one in edition.nodes])
        return
    columns: list[Column[EditionNode]] = [
        Column("NODE", lambda n: short_id(n.id)),
        Column("URL", lambda n: n.url, long=True),
    ]
    session.out.rows(list(edition.nodes), columns)


@verbs.verb(example="angelia log drop team", needs=ACTS | Needs.YES)
@name_argument
def drop(session: CommandContext, name: str) -> int:
    """Drop a group with all its messages on all nodes, for good; by the owner."""
    logs = all_logs(session)
    edition = logs.find(name)
    what = f"{edition.name} with all its messages on {counted(len(edition.nodes), 'node')}"
    if not may(session, Deed("drop", "dropping", what, f"angelia log storage {name}", whole=edition.name)):
        return 0
    left = logs.drop(name)
    say_failures(session, edition, left, "the node still has it")
    if left:
        session.out.note(f"hint: `angelia log drop {name}` again, when they are back")
        return NETWORK
    session.out.done({"dropped": record_of(edition)["group"]}, f"dropped {what}")
    return 0


@verbs.verb(example="angelia log forget team", needs=ACTS | Needs.YES)
@name_argument
def forget(session: CommandContext, name: str) -> None:
    """Forget a group on this device, with its keys and its state. Nodes and other members keep it."""
    logs = all_logs(session)
    edition = logs.find(name)
    what = f"{edition.name}, its keys and what this device has of it"
    deed = Deed("forget", "forgetting", what, f"angelia log vector {name}", whole=edition.name, where="this mailbox")
    if may(session, deed):
        logs.forget(name)
        session.out.done({"forgotten": record_of(edition)["group"]}, f"forgot {what}")


def _take_first_snapshot(session: CommandContext, logs: BlockingLogs, name: str) -> None:
    """Takes the snapshot from which new members read what was written before."""
    try:
        log = logs.open(name)
    except Conflict as error:  # the state is another application's, which takes its own
        session.out.note(f"no snapshot was taken for new members: {error.message}")
        return
    log.sync()
    if log.vector:
        session.out.note(f"took snapshot {log.compact(1).seq:,}, from which new members read what was written before")
    log.close()


def _nodes(session: CommandContext, urls: tuple[str, ...] | list[str], tokens: tuple[str, ...]) -> list[LogNode]:
    """Nodes with their tokens: those that are said, and for the session's own server that of its data directory."""
    from angelia.client.log_membership import LogNode
    from angelia.client.transport import origin

    known = {}
    for one in tokens:
        url, _, file = one.partition("=")
        try:
            known[origin(url)] = Path(file).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Usage(f"the token file {file!r} cannot be read", hint="--node-token URL=FILE") from error
    found = [LogNode(origin(url), known.get(origin(url))) for url in urls]
    return [LogNode(one.url, session.token) if one.token is None and one.url == session.url else one for one in found]
