"""`angelia audit`: what happened, and the proof that it was not changed."""

from __future__ import annotations

import importlib.util
import re
import time
from typing import TYPE_CHECKING
from uuid import UUID

import click
import msgspec

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.flags import Needs, message_uuid
from angelia.cli.grammar import Noun
from angelia.cli.paging import server_pages, short, show_list
from angelia.cli.progress import ProgressBar
from angelia.cli.tables import Column, counted
from angelia.cli.times import full
from angelia.errors import AngeliaError, AuditBroken, NotFound

if TYPE_CHECKING:
    from angelia.audit.model import ChainEntry, Checkpoint, Fault, Floor, StoredEvent, Verdict
    from angelia.client import Client
    from angelia.keys.api import NodeRecord
    from angelia.stores.objects import Objects

PAGE = 1_000
_ON_ITS_WAY_SECONDS = 2.5  # a checkpoint is handed to the witness by the next tick, a second later
_READS_ARCHIVE = ("pyarrow", "deltalake")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

command = Noun("audit", "what happened: show it, verify that it was not changed")


@command.verb(example="angelia audit verify", needs=Needs.SERVER | Needs.OPERATOR)
@click.option(
    "--witness",
    is_flag=False,
    flag_value="",
    metavar="[PLACE]",
    help="compare with what the witness keeps; the setting audit_witness, if no PLACE is said",
)
@click.option("--lake", metavar="URL", help="the archive, if it is not the server's own")
def verify(session: CommandContext, witness: str | None, lake: str | None) -> None:
    """Check every sealed event, the chain over them and the node's signatures. Exit 3 when it is broken."""
    place = session.settings.audit_witness if witness == "" else witness
    if witness is not None and place is None:
        raise Usage("there is no witness", hint="name one: angelia audit verify --witness /mnt/other/checkpoints")
    verdict = _verified(session, session.as_operator(), place, lake)
    broken = sorted(verdict.broken, key=lambda fault: (fault.position is None, fault.position or 0))
    if session.shared.json:
        session.out.records([verdict])
    elif not broken:
        _print_sound(session, verdict)
    elif len(broken) > 1:
        session.out.rows(broken, _FAULTS)
    if broken:
        raise _error(broken[0], verdict)


@command.verb(
    example="angelia audit show --since 1h --type token_created",
    needs=Needs.SERVER | Needs.OPERATOR | Needs.PAGES | Needs.PERIOD,
)
@click.argument("position", metavar="[POSITION]", required=False)
@click.option("--around", type=click.IntRange(0, 500), metavar="N", help="so many entries on either side of POSITION")
@click.option("--type", "event_type", metavar="TYPE", help="only events of this type")
@click.option("--actor", metavar="HANDLE", help="only what this agent did")
@click.option("--message", type=message_uuid, metavar="ID", help="only what concerns this message")
def show(
    session: CommandContext,
    position: str | None,
    around: int | None,
    event_type: str | None,
    actor: str | None,
    message: UUID | None,
) -> None:
    """Show events, or the entry of the chain at POSITION.

    Only metadata is kept: never content, keys or tokens."""
    client = session.as_operator()
    if position is not None:
        _show_entries(session, client, _position(position), around)
        return
    if around is not None:
        raise Usage("--around needs a POSITION", hint="angelia audit show 41207 --around 3")
    fetch = server_pages(
        client.audit.events,
        lambda page: page.events,
        type=event_type,
        actor=actor,
        message_id=message,
        since=session.shared.since,
        until=session.shared.until,
    )
    show_list(session, fetch, _EVENTS, nothing="no such events", hint="widen it: angelia audit show --since 7d")


def _verified(session: CommandContext, client: Client, witness: str | None, lake: str | None) -> Verdict:
    from angelia.audit.model import SignedEntry, Verifier
    from angelia.client import BadAnswer

    node = client.server.node()
    signed = None if node.signed is None else SignedEntry(node.signed.position, node.signed.entry_hash)
    verifier = Verifier(node.key_id, node.public_key, signed)
    if witness is not None:
        verifier.compare(_witnessed(witness, node))
    # Checkpoints first: the chain that is read after them cannot be shorter than what they sign.
    after = 0
    verifier.expect([], client.audit.unsealed(limit=PAGE).tail)
    while checkpoints := client.audit.checkpoints(after=after, limit=PAGE).checkpoints:
        verifier.expect(checkpoints)
        if checkpoints[-1].position <= after:
            raise BadAnswer(f"asked for the checkpoints after {after}, the server gave earlier ones")
        after = checkpoints[-1].position
    with ProgressBar(session.out, "verifying", "entries") as progress:
        while True:
            before = verifier.position
            page = client.audit.chain(after=before, limit=PAGE)
            verifier.feed(page.entries, page.floor)
            progress.advance(len(page.entries), total=page.sealed_to - page.floor.position)
            if not page.entries or verifier.position >= page.sealed_to:
                break
            if verifier.position <= before:
                raise BadAnswer(f"asked for the chain after {before}, the server gave earlier entries")
    strays: list[StoredEvent] = []
    tail: list[StoredEvent] = []
    for since, until in verifier.days():
        outside = client.audit.unsealed(since=since, until=until, limit=PAGE)
        strays += outside.strays
        tail = outside.tail
    verdict = verifier.finish(page.sealed_to, strays, tail)
    return _with_archive(session, verdict, page.floor, node.key_id, lake) if verdict.archived else verdict


def _with_archive(
    session: CommandContext, verdict: Verdict, floor: Floor, node_key_id: UUID, lake: str | None
) -> Verdict:
    """The verdict, after the last entry that left the ledger was compared with the archive's."""
    missing = [name for name in _READS_ARCHIVE if importlib.util.find_spec(name) is None]
    if missing:
        return _unread(verdict, f"{missing[0]} is not installed here")
    if lake is None and session.settings.lake is None and not _is_the_servers(session, node_key_id):
        return _unread(verdict, "it lies with the server; --lake names it")
    from deltalake.exceptions import DeltaError
    from pyarrow.lib import ArrowException

    from angelia.cli.pipeline_environment import PipelineFlags

    try:
        return _compared_with_archive(verdict, PipelineFlags(lake=lake).archive(session.settings), floor)
    except AngeliaError as error:
        return _unread(verdict, error.message)
    except (DeltaError, ArrowException, OSError) as error:
        return _unread(verdict, str(error).partition("\n")[0])


def _compared_with_archive(verdict: Verdict, objects: Objects, floor: Floor) -> Verdict:
    from angelia.audit.model import Fault
    from angelia.pipeline.lake.audit_chain import archive_floor, entry_hash

    begins = archive_floor(objects)
    present = begins.entry_hash if begins.position == floor.position else entry_hash(objects, floor.position)
    if present == floor.entry_hash and begins.position < floor.position:
        return verdict
    if present is not None and present != floor.entry_hash:
        wrong = "is another one in the archive than the ledger says"
    elif begins.position >= floor.position:
        # A new archive, or one whose entries of that time were removed by retention.
        return msgspec.structs.replace(verdict, unproven="which begins behind them")
    else:
        wrong = f"is said to have left for the archive, and {objects.root} does not have it"
    fault = Fault(position=verdict.archived, event_id=None, what=wrong)
    return msgspec.structs.replace(verdict, broken=[*verdict.broken, fault])


def _is_the_servers(session: CommandContext, node_key_id: UUID) -> bool:
    """Whether this machine's data directory belongs to the server that was asked."""
    from angelia.envelope.ids import KeyType, key_id
    from angelia.keys.node_key import public_key_in

    local = public_key_in(session.settings.data_dir)
    return local is not None and key_id(KeyType.ED25519, local) == node_key_id


def _unread(verdict: Verdict, why: str) -> Verdict:
    return msgspec.structs.replace(verdict, unproven=f"which was not read: {why}")


def _witnessed(place: str, node: NodeRecord) -> list[Checkpoint]:
    from angelia.audit.witness_client import witness_at

    witness = witness_at(place)
    found = list(witness.checkpoints(node.key_id))
    newest = found[-1].position if found else 0
    if node.signed is not None and newest < node.signed.position:
        time.sleep(_ON_ITS_WAY_SECONDS)
        found += witness.checkpoints(node.key_id, after=newest)
    if found:
        return found
    raise NotFound("the witness has no checkpoint of this node", hint="is audit_witness set, and does the server run?")


def _print_sound(session: CommandContext, verdict: Verdict) -> None:
    here = verdict.sealed - verdict.archived
    parts = [f"{counted(here, 'entry', 'entries')} sound", counted(verdict.checkpoints, "checkpoint")]
    if verdict.witnessed:
        parts.append(f"{verdict.witnessed:,} as the witness has them")
    if verdict.redacted:
        parts.append(f"{len(verdict.redacted):,} redacted")
    if verdict.unsealed:
        parts.append(f"{len(verdict.unsealed):,} not sealed yet")
    session.out.line(", ".join(parts))
    if verdict.witness_behind:
        behind = counted(verdict.witness_behind, "entry", "entries")
        session.out.note(f"the witness is {behind} behind what the node signed: the server's log says why")
    if verdict.unproven:
        session.out.note(f"{verdict.archived:,} entries before them are said to be in the archive, {verdict.unproven}")
    elif verdict.archived:
        session.out.note(
            f"{verdict.archived:,} entries before them are in the archive: angelia pipeline run verify audit"
        )
    if verdict.foreign_checkpoints:
        session.out.note(f"{verdict.foreign_checkpoints:,} checkpoints carry another node's key and were not checked")


def _error(first: Fault, verdict: Verdict) -> AuditBroken:
    more = f"; {counted(len(verdict.broken) - 1, 'more fault')}" if len(verdict.broken) > 1 else ""
    if first.position is None:
        return AuditBroken(
            f"event {first.event_id} {first.what}; the {verdict.sealed:,} sealed entries are sound{more}",
            hint="angelia audit verify --json | jq .broken",
        )
    if first.position <= verdict.archived:
        return AuditBroken(
            f"entry {first.position:,} {first.what}{more}",
            hint="angelia audit verify --lake PLACE, if the archive lies elsewhere; else those entries were removed",
        )
    sound = first.position - 1 - verdict.archived
    before = (
        "" if sound <= 0 else "; the one before it is sound" if sound == 1 else f"; the {sound:,} before it are sound"
    )
    return AuditBroken(
        f"entry {first.position:,} {first.what}{before}{more}", hint=f"angelia audit show {first.position} --around 3"
    )


def _show_entries(session: CommandContext, client: Client, position: int, around: int | None) -> None:
    from angelia.audit.model import ChainEntry

    reach = around or 0
    first = max(1, position - reach)
    page = client.audit.chain(after=first - 1, limit=position + reach - first + 1)
    entries = [entry for entry in page.entries if first <= entry.position <= position + reach]
    if around is not None:
        there = {entry.position: entry for entry in entries}
        first = max(first, page.floor.position + 1)
        last = min(position + reach, max(page.sealed_to, *there, 0))
        for number in {*range(first, last + 1)} - {*there}:  # each gap is a line of the table
            there[number] = ChainEntry(position=number, event_id=UUID(int=0), entry_hash="", event=None)
        session.out.rows([there[number] for number in sorted(there)], _ENTRIES)
        return
    if position <= page.floor.position:
        raise NotFound(
            f"entry {position:,} is in the archive",
            hint=f'angelia pipeline sql "SELECT * FROM audit_events WHERE position = {position}"',  # noqa: S608
        )
    if not entries:
        raise NotFound(f"the chain has no entry {position:,}", hint=f"it is sealed to {page.sealed_to:,}")
    session.out.thing(entries[0], _entry_facts(entries[0]), quietly=str(entries[0].event_id))


def _entry_facts(entry: ChainEntry) -> list[tuple[str, str]]:
    facts = [("position", f"{entry.position:,}"), ("event", str(entry.event_id))]
    if entry.event is None:
        return [*facts, ("entry hash", entry.entry_hash), ("state", "the ledger no longer has this event")]
    event = entry.event
    facts += [
        ("time", full(event.occurred_at)),
        ("type", event.event_type),
        ("actor", event.actor or ""),
        ("object", event.object or ""),
        ("message", str(event.message_id or "")),
        ("detail", msgspec.json.encode(event.detail).decode()),
        ("event hash", event.event_hash),
        ("entry hash", entry.entry_hash),
    ]
    if event.redacted_at is not None:
        facts.append(("redacted", full(event.redacted_at)))
    if fault := event.fault():
        facts.append(("fault", fault))
    return facts


def _position(text: str) -> int:
    digits = text.replace(",", "")
    if not digits.isdecimal() or not digits.isascii() or int(digits) < 1:
        raise Usage(f"{text!r} is no position of the chain", hint="angelia audit show 41207 --around 3")
    return int(digits)


def _fault(entry: ChainEntry) -> str:
    if not entry.entry_hash:
        return "is missing from the chain"
    return "has lost its event" if entry.event is None else entry.event.fault() or ""


def _detail(event: StoredEvent) -> str:
    if not isinstance(event.detail, dict):
        return msgspec.json.encode(event.detail).decode()
    return " ".join(f"{name}={_worded(value)}" for name, value in event.detail.items())


def _named(name: str | None) -> str:
    """A handle, or the beginning of an id, which agents without a handle are called by."""
    return short(name) if name and _ID.fullmatch(name) else name or ""


def _worded(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return _named(value) or "-"
    return str(value)


_EVENTS: list[Column[StoredEvent]] = [
    Column("POSITION", lambda e: "" if e.position is None else f"{e.position:,}", right=True),
    Column("TIME", lambda e: full(e.occurred_at)),
    Column("TYPE", lambda e: e.event_type),
    Column("ACTOR", lambda e: _named(e.actor), long=True),
    Column("OBJECT", lambda e: _named(e.object), long=True),
    Column("DETAIL", _detail, long=True),
]

_ENTRIES: list[Column[ChainEntry]] = [
    Column("POSITION", lambda e: f"{e.position:,}", right=True),
    Column("TIME", lambda e: "" if e.event is None else full(e.event.occurred_at)),
    Column("TYPE", lambda e: "" if e.event is None else e.event.event_type),
    Column("ACTOR", lambda e: "" if e.event is None else _named(e.event.actor), long=True),
    Column("OBJECT", lambda e: "" if e.event is None else _named(e.event.object), long=True),
    Column("FAULT", _fault),
]

_FAULTS: list[Column[Fault]] = [
    Column("POSITION", lambda f: "" if f.position is None else f"{f.position:,}", right=True),
    Column("EVENT", lambda f: str(f.event_id or "")),
    Column("FAULT", lambda f: f.what),
]
