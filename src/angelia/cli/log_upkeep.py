"""Verbs that look after what nodes hold: snapshots, checks and repair, exports and imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import one_of
from angelia.cli.grammar import Noun
from angelia.cli.log_access import ACTS, NETWORK, TAMPERED, name_argument, open_log
from angelia.cli.log_output import (
    FINDINGS,
    finding_record,
    say_checked,
    say_failures,
    summary,
    text_of,
)
from angelia.cli.tables import Column, counted
from angelia.errors import AngeliaError

verbs = Noun("log", "what nodes hold")


@verbs.verb(example="angelia log compact team", needs=ACTS)
@name_argument
@click.option("--level", type=click.IntRange(1, 15), metavar="N", help="the one that is due, or 1")
def compact(session: CommandContext, name: str, level: int | None) -> None:
    """Take a snapshot now. Once enough nodes have signed for it, they forget what it replaces."""
    log = open_log(session, name)
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


@verbs.verb(example="angelia log verify team", needs=ACTS)
@name_argument
def verify(session: CommandContext, name: str) -> int:
    """Read everything from every node, and check it: signatures, gaps, copies and shards."""
    log = open_log(session, name)
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


@verbs.verb(example="angelia log repair team", needs=ACTS)
@name_argument
def repair(session: CommandContext, name: str) -> int:
    """Check all nodes, and store again what is damaged, missing, or on too few of them.

    Shards are made again by any member, whole messages are stored again by their sender."""
    log = open_log(session, name)
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


@verbs.verb(example="angelia log storage team", needs=ACTS)
@name_argument
def storage(session: CommandContext, name: str) -> int:
    """Show what the group takes on each node, and how many damaged records each knows of."""
    log = open_log(session, name)
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


@verbs.verb(example="angelia log export team ./export", needs=ACTS)
@name_argument
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def export(session: CommandContext, name: str, directory: Path) -> int:
    """Write a Parquet file for each node: what it holds, without content. The pipeline checks such files."""
    log = open_log(session, name)
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


@verbs.verb(name="import", example="angelia log import team old-log.frames", needs=ACTS)
@name_argument
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, exists=True, path_type=Path))
def import_(session: CommandContext, name: str, file: Path) -> int:
    """Store the rows of an old log on every node; by the owner. If interrupted, it goes on where it was."""
    log = open_log(session, name)
    done = log.import_file(file)
    urls = {one.id: one.url for one in log.edition.nodes}
    for id_, rows in done.rows.items():
        record = {"node": text_of(id_), "rows": rows}
        session.out.done(record, f"{urls[id_]} has {counted(rows, 'row')} of the file")
    say_failures(session, log.edition, done.failed, "the node did not take all")
    return 1 if done.failed else 0
