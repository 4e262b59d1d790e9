"""`angelia log`: group logs, whose members trust none of the nodes that keep them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.errors import Usage, one_of
from angelia.cli.flags import Needs
from angelia.cli.grammar import Noun
from angelia.cli.log_output import (
    FINDINGS,
    VECTOR,
    EntryLines,
    VectorRow,
    facts_of,
    finding_record,
    member_record,
    record_of,
    say_checked,
    say_failures,
    say_settled,
    short_id,
    summary,
    text_of,
)
from angelia.cli.message_body import read_body
from angelia.cli.paging import pages_of, show_list
from angelia.cli.tables import Column, counted
from angelia.errors import AngeliaError, Conflict, InvalidArgument

if TYPE_CHECKING:
    from angelia.client.log_membership import LogNode
    from angelia.client.log_verbs import BlockingLog, BlockingLogs
    from angelia.grouplog.model.editions import EditionMember, EditionNode, GroupEdition

TAMPERED, NETWORK = 3, 7
_ACTS = Needs.SERVER | Needs.AGENT
_PAGE = 500

command = Noun("log", "group logs: create, append, read, follow, compact, verify, repair")

_name = click.argument("name", metavar="NAME")
_tokens = click.option(
    "--node-token", "tokens", multiple=True, metavar="URL=FILE",
    help="the token of a node, where one is asked for a new group; repeatable",
)  # fmt: skip


@command.verb(example="angelia log create team --member bob", needs=_ACTS)
@_name
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
    """Make a group log with its members and nodes; you are its admin."""
    logs = _logs(session)
    settled = logs.create(name, nodes=_nodes(session, nodes or (session.url,), tokens), members=members, **config)
    edition = settled.edition
    session.out.thing(record_of(edition), facts_of(edition), quietly=str(record_of(edition)["group"]))
    if edition.min_copies < 2:
        session.out.note("each update is on one node alone; --node names more of them")
    say_settled(session, settled)


@command.verb(name="list", example="angelia log list", needs=_ACTS | Needs.PAGES)
def list_(session: CommandContext) -> None:
    """List the groups that you are a member of."""
    from angelia.grouplog.model.ids import base58

    me = session.mailbox.identity.handle
    columns: list[Column[GroupEdition]] = [
        Column("ID", lambda g: base58(g.group)[:12]),
        Column("NAME", lambda g: g.name, long=True),
        Column("MEMBERS", lambda g: f"{len(g.members):,}", right=True),
        Column("NODES", lambda g: str(len(g.nodes)), right=True),
        Column("YOU", lambda g: "-" if (own := g.member(me)) is None else "admin" if own.admin else "member"),
    ]
    found = _logs(session).list()
    if session.shared.json:
        session.out.records([record_of(one) for one in found])
        return
    show_list(session, pages_of(found), columns, nothing="no groups yet", hint="angelia log create NAME")


@command.verb(example='angelia log append team "the build is green"', needs=_ACTS)
@_name
@click.argument("body", metavar="[TEXT]", required=False)
@click.option("--lines", is_flag=True, help="each line of stdin is an update")
def append(session: CommandContext, name: str, body: str | None, lines: bool) -> None:
    """Write an update, sealed for all members. TEXT may come from stdin.

    It is kept here until enough nodes have it; whatever uses the log next sends it again."""
    content = read_body(session, body)
    contents = content.splitlines() if lines else [content]
    if not contents:
        raise Usage("there is nothing to write")
    log = _log(session, name)
    done = log.append(*contents)
    seqs = [one.seq for one in done.entries]
    copies = counted(log.edition.min_copies, "node")
    where = f"on {copies} or more" if done.durable else "on this device"
    which = f"update {seqs[0]:,}" if len(seqs) == 1 else f"updates {seqs[0]:,} to {seqs[-1]:,}"
    record = {"seqs": seqs, "durable": done.durable, "waiting": done.waiting}
    session.out.done(record, f"wrote {which} of {name}, sealed, {where}", quietly=str(seqs[-1]))
    _compact_if_due(session, log)
    if not done.durable:
        say_failures(session, log.edition, done.failures, "a node did not take it")
        refusal = next((one for one in done.failures.values() if getattr(one, "status", 500) < 500), None)
        if done.waiting >= len(seqs) and refusal is not None:
            raise refusal
        session.out.note(f"{counted(done.waiting, 'update')} wait: any `angelia log` verb on {name} sends them")


@command.verb(example="angelia log read team -n 20", needs=_ACTS)
@_name
@click.option("-n", "--limit", "most", type=click.IntRange(1, 100_000), default=50, metavar="N", help="so many (50)")
@click.option("--all", "every", is_flag=True, help="all that this device has")
def read(session: CommandContext, name: str, most: int, every: bool) -> int:
    """Fetch what you lack from all nodes, and print the newest updates."""
    log = _log(session, name)
    synced = log.sync()
    lines, place = EntryLines(session, log.edition), 0
    if every:
        while rows := log.journal(place, _PAGE):
            lines.print(rows)
            place = rows[-1].place
    else:
        lines.print(log.last(most))
    say_failures(session, log.edition, synced.unread, "the node could not be read")
    for one in synced.missing:
        session.out.note(f"warning: {one.sender}'s {one.first:,} to {one.last:,} are on no node that answered")
    for sender, seq, have, need in synced.incomplete:
        session.out.note(f"warning: snapshot {seq:,} of {sender} is incomplete: {have} of {need} shards came")
    for wrong in synced.untrue[:10]:
        session.out.note(f"warning: node {short_id(wrong.node)} hands out what does not hold: {wrong.error.message}")
    if len(synced.unread) == len(log.edition.nodes):
        return NETWORK
    _compact_if_due(session, log)
    return TAMPERED if synced.untrue else 0


@command.verb(example="angelia log follow team -n 10", needs=_ACTS)
@_name
@click.option("-n", "--limit", "most", type=click.IntRange(0, 10_000), default=10, metavar="N", help="begin with (10)")
def follow(session: CommandContext, name: str, most: int) -> None:
    """Print the newest updates, then what comes, until Ctrl-C. Nodes that are away are waited for.

    Snapshots are taken when it is your turn."""
    log = _log(session, name)
    log.sync()
    lines = EntryLines(session, log.edition)
    rows = log.last(most) if most else log.last(1)
    if most:
        lines.print(rows)
    place = rows[-1].place if rows else 0
    told = len(log.untrue)
    for _ in log.batches():
        for wrong in log.untrue[told:]:
            session.out.note(
                f"warning: node {short_id(wrong.node)} hands out what does not hold: {wrong.error.message}"
            )
        told = len(log.untrue)
        while rows := log.journal(place, _PAGE):
            lines.print(rows)
            place = rows[-1].place


@command.verb(example="angelia log vector team", needs=_ACTS)
@_name
def vector(session: CommandContext, name: str) -> None:
    """Show what this device has of each sender: without gaps, above them, and what it asks for."""
    log = _log(session, name)
    floors = log.floors
    rows = []
    for sender, received in log.opened.replica.received:
        floor = floors.get(sender)
        rows.append(
            VectorRow(
                sender=sender.hex(),
                held_to=received.confirmed,
                also_held=received.ranges,
                asks_for=list(received.missing()),
                floor=None if floor is None else floor[0],
                floor_level=None if floor is None else floor[1],
            )
        )
    if not rows:
        session.out.note(f"nothing of {name} has come yet")
        session.out.note(f"hint: angelia log read {name}")
    session.out.rows(rows, VECTOR)


@command.verb(example="angelia log members team --add carol", needs=_ACTS | Needs.YES)
@_name
@click.option("--add", "added", multiple=True, metavar="AGENT", help="a new member; repeatable")
@click.option("--admin", is_flag=True, help="those of --add may change the group too")
@click.option("--remove", "removed", multiple=True, metavar="AGENT", help="reads nothing new from then on; repeatable")
def members(session: CommandContext, name: str, added: tuple[str, ...], admin: bool, removed: tuple[str, ...]) -> None:
    """Show the members, or change them; by an admin. What missed a change is told again.

    A new member reads what was written before from a snapshot, which is taken for it."""
    logs = _logs(session)
    edition = logs.find(name)
    if removed:
        what = f"{', '.join(removed)} from {edition.name}"
        if not may(session, Deed("remove", "removing", what, f"angelia log members {name}", count=len(removed))):
            return
        with contextlib.suppress(Conflict):  # the state is another application's
            _log(session, name).sync()  # what they wrote before still counts
        settled = logs.remove(name, removed)
        say_settled(session, settled)
        session.out.done({"removed": list(removed)}, f"removed {what}; what is written now has another key")
    if added:
        settled = logs.add(name, added, admin=admin)
        say_settled(session, settled)
        session.out.done({"added": list(added)}, f"added {', '.join(added)} to {edition.name}")
        _take_first_snapshot(session, logs, name)
    if added or removed:
        return
    me = edition.member(session.mailbox.identity.handle)
    if me is not None and me.admin:
        settled = logs.settle(name)
        say_settled(session, settled)
        edition = settled.edition
    if session.shared.json:
        session.out.records([member_record(one) for one in edition.members])
        return
    columns: list[Column[EditionMember]] = [
        Column("AGENT", lambda m: m.handle, long=True),
        Column("SENDER", lambda m: m.sender.hex()),
        Column("ADMIN", lambda m: "yes" if m.admin else "no"),
    ]
    session.out.rows(list(edition.members), columns)


@command.verb(example="angelia log nodes team --add http://127.0.0.1:8091", needs=_ACTS | Needs.YES)
@_name
@click.option("--add", "added", multiple=True, metavar="URL", help="a spool node; repeatable")
@click.option("--remove", "removed", multiple=True, metavar="URL", help="it keeps nothing new; repeatable")
@_tokens
def nodes(
    session: CommandContext, name: str, added: tuple[str, ...], removed: tuple[str, ...], tokens: tuple[str, ...]
) -> None:
    """Show the nodes, or change them; by an admin. `repair` by each member then moves what has to move."""
    logs = _logs(session)
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


@command.verb(example="angelia log compact team", needs=_ACTS)
@_name
@click.option("--level", type=click.IntRange(1, 15), metavar="N", help="the one that is due, or 1")
def compact(session: CommandContext, name: str, level: int | None) -> None:
    """Take a snapshot now. Once enough nodes have signed for it, they forget what it replaces."""
    log = _log(session, name)
    done = log.compact(level)
    record = {
        "level": done.level,
        "seq": done.seq,
        "bytes": done.size,
        "confirmed_by": [text_of(one) for one in done.confirmed_by],
        "forgotten_by": [text_of(one) for one in done.forgotten_by],
        "pending": {text_of(one): error.code for one, error in done.pending.items()},
    }
    stored = f"{done.size:,} bytes, confirmed by {counted(len(done.confirmed_by), 'node')}"
    forgot = counted(len(done.forgotten_by), "node")
    session.out.done(
        record,
        f"took snapshot {done.seq:,} of level {done.level}: {stored}",
        f"{forgot} forgot what it replaces",
        quietly=str(done.seq),
    )
    say_failures(session, log.edition, done.pending, "a node has not forgotten it yet")


@command.verb(example="angelia log verify team", needs=_ACTS)
@_name
def verify(session: CommandContext, name: str) -> int:
    """Read everything from every node, and check it: signatures, gaps, copies and shards."""
    log = _log(session, name)
    checked = log.check()
    rows = [finding_record(log.edition, one) for one in checked.findings]
    session.out.rows(rows, FINDINGS)
    say_checked(session, log.edition, checked)
    if checked.findings:
        session.out.note(f"hint: `angelia log repair {name}` stores again what it can")
    elif not checked.unread and not checked.missing:
        record = {"sound": True, "records": sum(checked.messages.values()), "nodes": len(checked.messages)}
        session.out.done(record, summary(checked))
    codes = {TAMPERED} if checked.findings else set[int]()
    codes |= {1} if checked.missing else set()
    codes |= {NETWORK} if checked.unread and not codes else set()
    return one_of(codes)


@command.verb(example="angelia log repair team", needs=_ACTS)
@_name
def repair(session: CommandContext, name: str) -> int:
    """Check all nodes, and store again what is damaged, missing, or on too few of them.

    Shards are made again by any member, whole messages are stored again by their sender."""
    log = _log(session, name)
    done = log.repair()
    urls = {one.id: one.url for one in log.edition.nodes}
    rows = [
        {"agent": one.sender, "seq": one.seq, "index": one.index, "node": text_of(one.node), "url": urls[one.node]}
        for one in done.repaired
    ]
    columns: list[Column[dict[str, Any]]] = [
        Column("REPAIRED", lambda r: f"{r['agent']} {r['seq']:,}", long=True),
        Column("SHARD", lambda r: "" if r["index"] is None else str(r["index"]), right=True),
        Column("NODE", lambda r: str(r["url"]), long=True),
    ]
    session.out.rows(rows, columns)
    say_checked(session, log.edition, done.before)
    if not rows:
        session.out.note("nothing had to be stored again")
    for one in done.left:
        record = finding_record(log.edition, one)
        session.out.note(f"left: {one.fault.value} {one.sender} {one.seq:,} {record['url'] or ''} {one.detail}")
    return 1 if done.left else 0


@command.verb(example="angelia log storage team", needs=_ACTS)
@_name
def storage(session: CommandContext, name: str) -> int:
    """Show what the group takes on each node, and how many damaged records each knows of."""
    log = _log(session, name)
    found, outcomes = log.storage()
    rows = []
    for node in log.edition.nodes:
        if (one := found.get(node.id)) is not None:
            rows.append(
                {
                    "node": text_of(node.id),
                    "url": node.url,
                    "bytes": one.bytes,
                    "quota_bytes": one.quota_bytes,
                    "snapshots": one.snapshots,
                    "floors": one.floors,
                    "corrupt": [{"sender": bad.sender, "seq": bad.seq} for bad in one.corrupt],
                }
            )
    columns: list[Column[dict[str, Any]]] = [
        Column("NODE", lambda r: str(r["url"]), long=True),
        Column("BYTES", lambda r: f"{sum(r['bytes'].values()):,}", right=True),
        Column("OF", lambda r: f"{100 * sum(r['bytes'].values()) / r['quota_bytes']:.1f}%", right=True),
        Column("SNAPSHOTS", lambda r: f"{r['snapshots']:,}", right=True),
        Column("FLOORS", lambda r: f"{r['floors']:,}", right=True),
        Column("DAMAGED", lambda r: f"{len(r['corrupt']):,}", right=True),
    ]
    session.out.rows(rows, columns)
    failed = {id_: one for id_, one in outcomes.items() if isinstance(one, AngeliaError)}
    say_failures(session, log.edition, failed, "the node did not answer")
    return NETWORK if failed and not rows else 0


@command.verb(example="angelia log export team ./export", needs=_ACTS)
@_name
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def export(session: CommandContext, name: str, directory: Path) -> int:
    """Write a Parquet file for each node: what it holds, without content. The pipeline checks such files."""
    log = _log(session, name)
    done = log.export(directory)
    for id_, (path, rows) in done.files.items():
        session.out.done(
            {"node": text_of(id_), "file": str(path), "rows": rows},
            f"wrote {path}, {counted(rows, 'row')}",
            quietly=str(path),
        )
    say_failures(session, log.edition, done.unread, "the node could not be read")
    if done.files:
        session.out.note(f"hint: angelia pipeline run verify logs --exports {directory}")
    return NETWORK if done.unread and not done.files else 0


@command.verb(name="import", example="angelia log import team old-log.frames", needs=_ACTS)
@_name
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, exists=True, path_type=Path))
def import_(session: CommandContext, name: str, file: Path) -> int:
    """Store the rows of an old log on every node, by an admin. An interrupted import goes on where it was."""
    log = _log(session, name)
    done = log.import_file(file)
    urls = {one.id: one.url for one in log.edition.nodes}
    for id_, rows in done.rows.items():
        record = {"node": text_of(id_), "rows": rows}
        session.out.done(record, f"{urls[id_]} has {counted(rows, 'row')} of the file")
    say_failures(session, log.edition, done.failed, "the node did not take all")
    return 1 if done.failed else 0


@command.verb(example="angelia log drop team", needs=_ACTS | Needs.YES)
@_name
def drop(session: CommandContext, name: str) -> int:
    """Drop a group with all its messages on all nodes, for good; by an admin."""
    logs = _logs(session)
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


def _compact_if_due(session: CommandContext, log: BlockingLog) -> None:
    """Takes the snapshot that is due, if it is this agent's turn; what fails is done by a later command."""
    try:
        done = log.compact_if_due()
    except AngeliaError as error:
        session.out.detail(f"the snapshot that is due was not taken: {error.message} ({error.code})")
        return
    if done is not None:
        session.out.note(f"took snapshot {done.seq:,} of level {done.level}, which was due")


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


@command.verb(example="angelia log forget team", needs=_ACTS | Needs.YES)
@_name
def forget(session: CommandContext, name: str) -> None:
    """Forget a group on this device, with its keys and its state. Nodes and other members keep it."""
    logs = _logs(session)
    edition = logs.find(name)
    what = f"{edition.name}, its keys and what this device has of it"
    deed = Deed("forget", "forgetting", what, f"angelia log vector {name}", whole=edition.name, where="this mailbox")
    if may(session, deed):
        logs.forget(name)
        session.out.done({"forgotten": record_of(edition)["group"]}, f"forgot {what}")


def _logs(session: CommandContext) -> BlockingLogs:
    from angelia.client.log_verbs import BlockingLogs

    return BlockingLogs(session.as_agent(session.mailbox), session.mailbox)


def _log(session: CommandContext, name: str) -> BlockingLog:
    return _logs(session).open(name)


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
