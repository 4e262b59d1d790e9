"""Verbs of updates: written, read, followed, and what of them is here."""

from __future__ import annotations

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.grammar import Noun
from angelia.cli.log_access import ACTS, NETWORK, TAMPERED, compact_if_due, name_argument, open_log
from angelia.cli.log_output import (
    VECTOR,
    EntryLines,
    VectorRow,
    say_failures,
    short_id,
)
from angelia.cli.message_body import read_body
from angelia.cli.tables import counted

PAGE = 500

verbs = Noun("log", "updates")


@verbs.verb(example='angelia log append team "the build is green"', needs=ACTS)
@name_argument
@click.argument("body", metavar="[TEXT]", required=False)
@click.option("--lines", is_flag=True, help="each line of stdin is an update")
def append(session: CommandContext, name: str, body: str | None, lines: bool) -> None:
    """Write an update, sealed for all members. TEXT may come from stdin.

    It is kept here until enough nodes have it; whatever uses the log next sends it again."""
    content = read_body(session, body)
    contents = content.splitlines() if lines else [content]
    if not contents:
        raise Usage("there is nothing to write")
    log = open_log(session, name)
    done = log.append(*contents)
    seqs = [one.seq for one in done.entries]
    copies = counted(log.edition.min_copies, "node")
    where = f"on {copies} or more" if done.durable else "on this device"
    which = f"update {seqs[0]:,}" if len(seqs) == 1 else f"updates {seqs[0]:,} to {seqs[-1]:,}"
    record = {"seqs": seqs, "durable": done.durable, "waiting": done.waiting}
    session.out.done(record, f"wrote {which} of {name}, sealed, {where}", quietly=str(seqs[-1]))
    compact_if_due(session, log)
    if not done.durable:
        say_failures(session, log.edition, done.failures, "a node did not take it")
        refusal = next((one for one in done.failures.values() if getattr(one, "status", 500) < 500), None)
        if done.waiting >= len(seqs) and refusal is not None:
            raise refusal
        session.out.note(f"{counted(done.waiting, 'update')} wait: any `angelia log` verb on {name} sends them")


@verbs.verb(example="angelia log read team -n 20", needs=ACTS)
@name_argument
@click.option("-n", "--limit", "most", type=click.IntRange(1, 100_000), default=50, metavar="N", help="so many (50)")
@click.option("--all", "every", is_flag=True, help="all that this device has")
def read(session: CommandContext, name: str, most: int, every: bool) -> int:
    """Fetch what you lack from all nodes, and print the newest updates."""
    log = open_log(session, name)
    synced = log.sync()
    lines, place = EntryLines(session, log.edition), 0
    if every:
        while rows := log.journal(place, PAGE):
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
    compact_if_due(session, log)
    return TAMPERED if synced.untrue else 0


@verbs.verb(example="angelia log follow team -n 10", needs=ACTS)
@name_argument
@click.option("-n", "--limit", "most", type=click.IntRange(0, 10_000), default=10, metavar="N", help="begin with (10)")
def follow(session: CommandContext, name: str, most: int) -> None:
    """Print the newest updates, then what comes, until Ctrl-C. Nodes that are away are waited for.

    Snapshots are taken when it is your turn."""
    log = open_log(session, name)
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
        while rows := log.journal(place, PAGE):
            lines.print(rows)
            place = rows[-1].place


@verbs.verb(example="angelia log vector team", needs=ACTS)
@name_argument
def vector(session: CommandContext, name: str) -> None:
    """Show what this device has of each sender: without gaps, above them, and what it asks for."""
    log = open_log(session, name)
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
