"""What `angelia log` prints: groups, nodes, updates and findings, as tables and as records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from angelia.cli.command_context import CommandContext
from angelia.cli.escaping import escape_line
from angelia.cli.tables import Column, counted

if TYPE_CHECKING:
    from angelia.client.log_checking import Checked, Finding
    from angelia.client.log_membership import Settled
    from angelia.errors import AngeliaError
    from angelia.grouplog.model.editions import EditionMember, GroupEdition
    from angelia.mailbox.log_journal import JournalRow

SHORT = 12


def text_of(id_: bytes) -> str:
    """The id of a node as text."""
    from angelia.envelope.json_form import to_text

    return to_text(id_)


def short_id(id_: bytes) -> str:
    """The beginning of a node's id."""
    return text_of(id_)[:SHORT]


def record_of(edition: GroupEdition) -> dict[str, Any]:
    from angelia.grouplog.model.ids import base58

    return {
        "group": base58(edition.group),
        "name": edition.name,
        "edition": edition.number,
        "epoch": edition.epoch,
        "members": [member_record(edition, one) for one in edition.members],
        "nodes": [{"id": text_of(one.id), "url": one.url} for one in edition.nodes],
        "config": {
            "depth": edition.depth,
            "min_copies": edition.min_copies,
            "quota_bytes": edition.quota_bytes,
        },
    }


def member_record(edition: GroupEdition, member: EditionMember) -> dict[str, Any]:
    return {
        "agent": member.handle,
        "sender": member.sender.hex(),
        "binding": member.binding,
        "role": edition.role(member),
    }


def facts_of(edition: GroupEdition) -> list[tuple[str, str]]:
    from angelia.grouplog.model.ids import base58

    members = [f"{one.handle} (owner)" if edition.role(one) == "owner" else one.handle for one in edition.members]
    return [
        ("group", base58(edition.group)),
        ("name", edition.name),
        ("edition", f"{edition.number} (epoch {edition.epoch})"),
        ("members", ", ".join(members)),
        ("nodes", ", ".join(one.url for one in edition.nodes)),
        ("copies", f"{edition.min_copies} or more of each update"),
    ]


def say_settled(session: CommandContext, settled: Settled) -> None:
    """Notes which nodes and members do not have the newest edition yet."""
    say_failures(session, settled.edition, settled.behind, "the node could not be brought up to date")
    for handle, error in settled.untold.items():
        session.out.note(f"warning: {handle} was not told: {error.message} ({error.code})")
    if settled.behind or settled.untold:
        again = f"`angelia log members {settled.edition.name} --refresh` tries at once"
        session.out.note(f"hint: it is tried again by itself from ten minutes on; {again}")


def say_failures(
    session: CommandContext, edition: GroupEdition, failures: Mapping[bytes, AngeliaError], what: str
) -> None:
    for id_, error in failures.items():
        node = edition.node(id_)
        where = short_id(id_) if node is None else node.url
        why = error.message if where in error.message else f"{where}: {error.message}"
        session.out.note(f"warning: {what}: {why} ({error.code})")


class EntryLines:
    """Prints updates: when, of whom, which."""

    def __init__(self, session: CommandContext, edition: GroupEdition) -> None:
        self._session = session
        self._names = {one.sender: one.handle for one in (*edition.members, *edition.past)}
        self._widest = max((len(name) for name in self._names.values()), default=0)

    def print(self, rows: Iterable[JournalRow]) -> None:
        for row in rows:
            at = datetime.fromtimestamp(row.written_at / 1000, UTC)
            name = self._names.get(row.sender, row.sender.hex())
            if self._session.shared.json:
                text = row.body.decode(errors="replace")
                record = {"sender": row.sender.hex(), "seq": row.seq, "agent": name, "written_at": at, "body": text}
                self._session.out.records([record])
            else:
                text = escape_line(row.body.decode(errors="replace"))
                name = escape_line(name).ljust(self._widest)
                self._session.out.line(f"{at:%H:%M:%SZ}  {row.seq:>6}  {name}  {text}")
        self._session.out.stdout.flush()


@dataclass(frozen=True, slots=True)
class VectorRow:
    """What this device has of one sender."""

    sender: str
    held_to: int
    also_held: list[tuple[int, int]]
    asks_for: list[tuple[int, int]]
    floor: int | None
    floor_level: int | None


def spans(ranges: Sequence[tuple[int, int]]) -> str:
    return " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


VECTOR: list[Column[VectorRow]] = [
    Column("SENDER", lambda r: r.sender),
    Column("HELD TO", lambda r: f"{r.held_to:,}", right=True),
    Column("ALSO HELD", lambda r: spans(r.also_held), long=True),
    Column("ASKS FOR", lambda r: spans(r.asks_for), long=True),
    Column("FLOOR", lambda r: "" if r.floor is None else f"{r.floor:,} (level {r.floor_level})"),
]

FINDINGS: list[Column[dict[str, Any]]] = [
    Column("FAULT", lambda r: r["fault"]),
    Column("SENDER", lambda r: r["agent"], long=True),
    Column("SEQ", lambda r: f"{r['seq']:,}", right=True),
    Column("LEVEL", lambda r: str(r["level"]), right=True),
    Column("SHARD", lambda r: "" if r["index"] is None else str(r["index"]), right=True),
    Column("NODE", lambda r: r["url"] or "", long=True),
    Column("WHAT", lambda r: r["detail"], long=True),
]


def finding_record(edition: GroupEdition, finding: Finding) -> dict[str, Any]:
    node = None if finding.node is None else edition.node(finding.node)
    return {
        "fault": finding.fault.value,
        "agent": finding.sender,
        "sender": finding.sender_id.hex(),
        "seq": finding.seq,
        "level": finding.level,
        "index": finding.index,
        "node": None if finding.node is None else text_of(finding.node),
        "url": None if node is None else node.url,
        "detail": finding.detail,
    }


def say_checked(session: CommandContext, edition: GroupEdition, checked: Checked) -> None:
    """Notes what is not a finding about one message."""
    say_failures(session, edition, checked.unread, "the node could not be read")
    for gap in checked.missing:
        session.out.note(f"warning: no node has {gap.sender}'s {spans([(gap.first, gap.last)])}")


def summary(checked: Checked) -> str:
    rows = counted(sum(checked.messages.values()), "record")
    nodes = counted(len(checked.messages) or 0, "node")
    return f"{rows} on {nodes} {'are' if sum(checked.messages.values()) != 1 else 'is'} sound"
