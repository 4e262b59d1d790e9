"""Checks everything that all nodes hold of a group: each record by itself, and all of them against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

from angelia.client.exchange import BadAnswer, Exchange, Request
from angelia.client.log_nodes import OpenLog, ask_nodes, node_request
from angelia.client.log_reading import Missing, missing, name_of, page_of, sync
from angelia.envelope.group_sealing import GroupPlace
from angelia.errors import AngeliaError, DamagedRecord
from angelia.grouplog import api
from angelia.grouplog.model import placement, records
from angelia.grouplog.model.editions import EditionNode
from angelia.grouplog.model.frames import Backfill, Hello, Hole, LogMessage
from angelia.grouplog.model.pieces import Manifest, verified_manifest
from angelia.grouplog.model.records import Kind, Record
from angelia.mailbox.logs import EarlierEpoch, LaterEpoch

_LIMIT, _PAGE_BYTES = 2_000, 8 << 20
_MOST_AHEAD = 20_000  # messages of which not all nodes have said yet what they hold
_MOST_FINDINGS = 100_000
Id = tuple[bytes, int]


class CheckFault(StrEnum):
    """What is wrong with a message, worst first."""

    CONFLICT = "conflict"  # its sender wrote two messages under one number
    LOST = "lost"  # fewer shards are left than it takes
    UNTRUE = "untrue"  # a node hands out what the sender did not write
    DAMAGED = "damaged"  # a node says that its copy cannot be read
    MISSING_SHARD = "missing_shard"
    THIN = "thin"  # on fewer nodes than it should be


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of one message; `node` is where, or None if it is not about one node."""

    fault: CheckFault
    sender: str
    sender_id: bytes
    seq: int
    level: int
    node: bytes | None
    detail: str
    index: int | None = None


@dataclass(slots=True)
class MessageCopies:
    """What the nodes hold of one message."""

    level: int = 0
    whole: dict[bytes, set[bytes]] = field(default_factory=dict)  # digest of the ciphertext → nodes
    shards: dict[bytes, dict[int, set[bytes]]] = field(default_factory=dict)  # manifest → index → nodes
    sealed: dict[bytes, set[bytes]] = field(default_factory=dict)  # the same of copies whose key is not here
    bad: dict[bytes, tuple[CheckFault, str]] = field(default_factory=dict)  # node → why its copy is no good

    @property
    def nodes(self) -> set[bytes]:
        return {node for nodes in self.whole.values() for node in nodes} | {
            node for by_index in self.shards.values() for nodes in by_index.values() for node in nodes
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outcome of a check. `messages` counts those of each node; `held` is what was found of messages that have a
    fault."""

    findings: list[Finding]
    messages: Mapping[bytes, int]
    sizes: Mapping[bytes, int]
    unread: Mapping[bytes, AngeliaError]
    missing: list[Missing]
    held: Mapping[Id, MessageCopies]

    @property
    def sound(self) -> bool:
        return not (self.findings or self.unread or self.missing)


def check(log: OpenLog) -> Exchange[Checked]:
    """Reads everything from every node and compares. It costs as much as all that the nodes hold.

    All nodes hand out their messages in one order, so a message is judged, and forgotten if it is sound, as soon as no
    node can bring another copy of it."""
    yield from sync(log)
    checking = _Checking(log)
    cursors = {node.id: b"" for node in log.nodes}
    while cursors:
        # A node with few messages must not get far ahead of the others: all that it brought would have to be kept.
        least = min(cursors.values())
        asked = {node for node, at in cursors.items() if at == least or len(checking.open) < _MOST_AHEAD}

        def page(node: EditionNode, cursors: dict[bytes, bytes] = cursors) -> Request:
            wanted = Backfill(Hello({}, {}), _LIMIT, _PAGE_BYTES, cursors[node.id])
            return node_request(api.BACKFILL, node, log.gid, body=wanted.encode())

        outcomes = yield from ask_nodes(log, [node for node in log.nodes if node.id in asked], page)
        for node, outcome in outcomes.items():
            before = cursors.pop(node)
            try:
                if isinstance(outcome, AngeliaError):
                    raise outcome
                messages, holes, end = page_of(outcome, before, _LIMIT)
            except AngeliaError as error:
                checking.unread[node] = error
                continue
            checking.note(node, messages, holes)
            if end.has_more:
                cursors[node] = end.cursor
        checking.judge(min(cursors.values(), default=None))
        if len(checking.findings) > _MOST_FINDINGS:
            many = BadAnswer(f"more than {_MOST_FINDINGS:,} faults were found, so the rest was not read")
            checking.unread |= dict.fromkeys(cursors, many)
            break
    return checking.outcome


class _Checking:
    """A check under way: what was read of messages that other nodes may still bring, and the faults of those before."""

    def __init__(self, log: OpenLog) -> None:
        self._log = log
        self._counts, self._sizes = Counter[bytes](), Counter[bytes]()
        self._wrong: dict[Id, MessageCopies] = {}
        self.open: dict[Id, MessageCopies] = {}
        self.findings: list[Finding] = []
        self.unread: dict[bytes, AngeliaError] = {}

    @property
    def outcome(self) -> Checked:
        return Checked(
            findings=self.findings,
            messages=self._counts,
            sizes=self._sizes,
            unread=self.unread,
            missing=missing(self._log),
            held=self._wrong,
        )

    def note(self, node: bytes, messages: Iterable[LogMessage], holes: Iterable[Hole]) -> None:
        """Takes in a page of a node."""
        for message in messages:
            self._counts[node] += 1
            self._sizes[node] += len(message.record)
            _note(self._log, node, message, self.open.setdefault((message.sender, message.seq), MessageCopies()))
        for hole in holes:
            copies = self.open.setdefault((hole.sender, hole.seq), MessageCopies())
            copies.bad[node] = (CheckFault.DAMAGED, "its record is damaged")

    def judge(self, end: bytes | None) -> None:
        """Judges the messages up to a cursor, or all: no node brings another copy of them."""
        whole = [one for one in self.open if end is None or one[0] + one[1].to_bytes(8) <= end]
        for id_ in sorted(whole):
            copies = self.open.pop(id_)
            faults = list(_findings(self._log, id_, copies, self.unread))
            if faults:
                self.findings += faults
                self._wrong[id_] = copies


def _note(log: OpenLog, node: bytes, message: LogMessage, held: MessageCopies) -> None:
    try:
        record = records.decode(message.record)
        if record.kind is Kind.SHARD:
            manifest = _manifest(log, message, record)
            held.shards.setdefault(record.manifest, {}).setdefault(record.index, set()).add(node)
            held.level = manifest.level
            return
        copies = held.whole if _opens(log, message, record) else held.sealed
    except DamagedRecord as error:
        held.bad[node] = (CheckFault.DAMAGED, error.message)
    except AngeliaError as error:
        held.bad[node] = (CheckFault.UNTRUE, error.message)
    else:
        copies.setdefault(sha256(record.data).digest(), set()).add(node)
        held.level = record.level


def _manifest(log: OpenLog, message: LogMessage, record: Record) -> Manifest:
    member = log.replica.edition.by_sender(message.sender)
    signer = None if member is None else member.on_nodes
    manifest = verified_manifest(record.manifest, log.replica.edition.group, message.sender, message.seq, signer)
    if manifest.level != record.level or not manifest.fits(record.index, record.data):
        raise DamagedRecord("the shard is not the one of its manifest")
    return manifest


def _opens(log: OpenLog, message: LogMessage, record: Record) -> bool:
    """Whether a whole message opens; False if the key that it names is not here, so that nothing is proven."""
    place = GroupPlace(log.replica.edition.group, message.sender, message.seq, record.level)
    try:
        log.replica.logs.unseal(log.replica.edition, place, record.data)
    except (EarlierEpoch, LaterEpoch):
        return False
    return True


def _findings(log: OpenLog, id_: Id, held: MessageCopies, unread: Mapping[bytes, AngeliaError]) -> Iterator[Finding]:
    edition, (sender, seq) = log.replica.edition, id_
    name = name_of(log, sender)

    def finding(fault: CheckFault, node: bytes | None, detail: str, index: int | None = None) -> Finding:
        return Finding(fault, name, sender, seq, held.level, node, detail, index)

    if held.whole or held.shards:
        for nodes in held.sealed.values():
            for node in sorted(nodes):
                yield finding(CheckFault.UNTRUE, node, "its copy is another than the one that its sender signed")
    elif len(held.sealed) > 1:
        yield finding(CheckFault.UNTRUE, None, "its copies differ, and none of them can be opened here")
    if len(held.whole) + len(held.shards) > 1:
        yield finding(CheckFault.CONFLICT, None, "its sender signed two different messages under this number")
    for node, (fault, why) in sorted(held.bad.items()):
        yield finding(fault, node, why)
    for packed, by_index in held.shards.items():
        manifest = Manifest.decode(packed)
        lost = [index for index in range(len(manifest.places)) if index not in by_index]
        unknown = sum(manifest.places[index].node in unread for index in lost)
        if len(by_index) + unknown < manifest.data_shards:
            yield finding(CheckFault.LOST, None, f"{len(by_index)} of {manifest.data_shards} shards are left")
        for index in lost:
            named = manifest.places[index].node
            if named not in unread:  # what an unread node has is not known
                yield finding(CheckFault.MISSING_SHARD, named, f"shard {index} is on no node", index)
    whole = held.whole or held.sealed
    if whole and not held.shards:
        wanted = placement.copies(edition.config, held.level, len(edition.nodes))
        copies = max(map(len, whole.values()))
        if copies + len(unread) < wanted:
            yield finding(CheckFault.THIN, None, f"{copies} of {wanted} copies are left")
