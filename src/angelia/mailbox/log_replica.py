"""One group of the group log on this device, without a network: what it received, its own messages on their way, and
the application's state, all in one SQLite database."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from angelia.envelope import group_sealing
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.refusals import OpenFailed, Refused, SignatureFailed
from angelia.envelope.times import moment, unix_ms
from angelia.errors import AngeliaError, Conflict, InvalidArgument, TooLarge
from angelia.grouplog.model import coding, records, updates, vectors
from angelia.grouplog.model.editions import EditionMember, GroupEdition
from angelia.grouplog.model.frames import LogMessage
from angelia.grouplog.model.groups import MAX_UPDATE
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.model.pieces import Manifest, verified_manifest
from angelia.grouplog.model.records import Kind, Record
from angelia.grouplog.model.snapshots import Snapshot
from angelia.grouplog.model.updates import Update
from angelia.mailbox import log_progress
from angelia.mailbox.database import MailboxDatabase, MailboxTx
from angelia.mailbox.log_application import LogApplication, LogEntry
from angelia.mailbox.log_progress import LogProgress
from angelia.mailbox.log_snapshots import note_snapshot
from angelia.mailbox.logs import EarlierEpoch, LaterEpoch, MailboxLogs, UnknownSender
from angelia.mailbox.shard_pool import ShardPool, digest_of

SCHEMAS = ("log_schema.sql",)
MAX_BODY = MAX_UPDATE - group_sealing.OVERHEAD - updates.OVERHEAD
_APPLICATION, _NEXT, _SENDERS = "application", "next_seq", "senders"  # of this agent, the present one last
_MOST_UNSEEN = 1_000_000  # messages of a sender above what is known here, as nodes have it
_MOST_PLAUSIBLE = 1 << 50


class OwnSeqUnknown(Conflict):
    """What this agent wrote before is not known here, so it cannot write yet"""


@dataclass(frozen=True, slots=True)
class OwnMessage:
    """A message of this agent, sealed, that not enough nodes are known to have. The manifest is empty for one that is
    stored whole, the watermark for an update."""

    seq: int
    level: int
    ciphertext: bytes
    manifest: bytes
    watermark: bytes

    @property
    def record(self) -> bytes:
        """How it is stored whole."""
        return Record(self.level, self.ciphertext).encode()

    def shards(self) -> list[bytes]:
        """The records of its shards, in their order."""
        manifest = Manifest.decode(self.manifest)
        pieces = coding.encode(self.ciphertext, manifest.shape)
        total = len(pieces)
        return [
            Record(self.level, piece, index, manifest.data_shards, total, self.manifest).encode()
            for index, piece in enumerate(pieces)
        ]


@dataclass(frozen=True, slots=True)
class NodeFault:
    """Something that a node handed out and that is not what it claims to be. It was not applied."""

    node: bytes
    sender: bytes
    seq: int
    error: AngeliaError


@dataclass(slots=True)
class Taken:
    """What came of messages from nodes."""

    entries: list[LogEntry] = field(default_factory=list)
    snapshots: int = 0
    untrue: list[NodeFault] = field(default_factory=list)
    later: bool = False  # some may be opened with an edition that has not arrived
    strangers: list[NodeFault] = field(default_factory=list)  # of senders that are not known here
    earlier: int = 0  # of those that came, sealed under a key from before this agent was a member

    def add(self, other: Taken) -> None:
        self.entries += other.entries
        self.snapshots += other.snapshots
        self.untrue += other.untrue
        self.later |= other.later
        self.strangers += other.strangers
        self.earlier += other.earlier


class _Opened(NamedTuple):
    node: bytes
    member: EditionMember
    seq: int
    level: int
    ciphertext: bytes
    content: Update | Snapshot


class LogReplica:
    """This device's copy of a group."""

    def __init__(
        self, database: MailboxDatabase, logs: MailboxLogs, edition: GroupEdition, application: LogApplication
    ) -> None:
        self.database = database
        self.edition = edition
        self.logs = logs
        self.application = application
        self._shards = ShardPool()
        self._taking_in = threading.Lock()
        with database.transaction() as tx:
            known = tx.meta(_APPLICATION)
            if known is not None and known != application.name:
                raise Conflict(
                    f"the state of {edition.name} on this device is kept by the application {known!r}",
                    hint=f"open it with that, and not with {application.name!r}",
                )
            tx.write("write_meta", _APPLICATION, application.name)
            application.prepare(tx)
        self._go_on_as_member(edition)

    def refresh(self) -> GroupEdition:
        """Takes over the newest edition that came by mail."""
        found = self.logs.edition(self.edition.group)
        if found is not None and found != self.edition:
            self._go_on_as_member(found)
            self.edition = found
        return self.edition

    def _go_on_as_member(self, edition: GroupEdition) -> None:
        """Begins anew if the owner removed this agent and added it again, as another sender: its numbers begin at 1,
        and updates that too few nodes have are sealed again. An older edition, which another process has left, changes
        nothing."""
        me = edition.member(self.logs.handle)
        if me is None or (self.database.meta(_SENDERS) or "").endswith(me.sender.hex()):
            return
        with self.database.transaction() as tx:
            senders = (tx.meta(_SENDERS) or "").split()
            if me.sender.hex() in senders:
                return
            if senders:
                before = bytes.fromhex(senders[-1])
                bodies = [self._own_body(edition, before, one) for one in tx.records(OwnMessage, "log_updates")]
                for statement in ("drop_all_log_own", "drop_completions", "drop_all_completed_by"):
                    tx.write(statement)
                for seq, body in enumerate(bodies, 1):
                    place = GroupPlace(edition.group, me.sender, seq, 0)
                    tx.write("add_log_own", seq, 0, self.logs.seal(edition, place, body), b"", b"")
                tx.write("write_meta", _NEXT, str(len(bodies) + 1))
            tx.write("write_meta", _SENDERS, " ".join([*senders, me.sender.hex()]))

    def _own_body(self, edition: GroupEdition, sender: bytes, message: OwnMessage) -> bytes:
        place = GroupPlace(edition.group, sender, message.seq, message.level)
        return self.logs.unseal_own(edition, place, message.ciphertext)

    @property
    def edition(self) -> GroupEdition:
        return self._edition

    @edition.setter
    def edition(self, edition: GroupEdition) -> None:
        self._edition = edition
        self._by_sender = {member.sender: member for member in (*edition.members, *edition.past)}

    @property
    def me(self) -> EditionMember:
        return self.logs.me(self.edition)

    @property
    def received(self) -> vectors.ReceivedVector:
        return log_progress.received(self.database)

    # What nodes hand out.

    def take_in(self, arrived: Iterable[tuple[bytes, LogMessage]]) -> Taken:
        """Opens and applies messages, each with the id of the node that it came from. What does not hold is named in
        the result, and changes nothing."""
        with self._taking_in:  # a follower has a thread of its own
            return self._take_in(arrived)

    def _take_in(self, arrived: Iterable[tuple[bytes, LogMessage]]) -> Taken:
        taken, opened = Taken(), list[_Opened]()
        known = LogProgress(self.database)
        sealed: list[tuple[bytes, LogMessage, bool]] = []  # the last says that the key may still come
        for node, message in arrived:
            if message.seq in known.of(message.sender):
                continue
            try:
                one = self._opened(node, message)
            except UnknownSender as error:
                taken.later = True
                taken.strangers.append(NodeFault(node, message.sender, message.seq, error))
            except (EarlierEpoch, LaterEpoch) as error:
                sealed.append((node, message, isinstance(error, LaterEpoch)))
            except (Refused, AngeliaError) as error:
                # A new key of its sender may be under way.
                taken.later |= isinstance(error, SignatureFailed)
                taken.untrue.append(NodeFault(node, message.sender, message.seq, error))
            else:
                opened += [] if one is None else [one]
        self._judge(sealed, opened, taken)
        if opened:
            # Nodes hand out messages in the order of sender ids; what came together is applied in that of its times.
            opened.sort(key=_written_at)
            with self.database.transaction() as tx:
                self._apply(tx, opened, taken)
        for one in opened:
            self._shards.drop(one.member.sender, one.seq)
        return taken

    def incomplete(self) -> list[tuple[bytes, int, int, int]]:
        """Snapshots of which too few shards came: sender, seq, how many there are and how many it takes."""
        received, found = self.received, []
        for one in list(self._shards.incomplete()):
            if received.contains(one.sender, one.seq):
                self._shards.drop(one.sender, one.seq)  # a later snapshot covers it
            else:
                found.append((one.sender, one.seq, one.have, one.need))
        return found

    def _judge(self, sealed: Sequence[tuple[bytes, LogMessage, bool]], opened: Sequence[_Opened], taken: Taken) -> None:
        """Tells messages whose key is not here from copies that a node altered: the epoch in front is not proven. What
        another node handed out, and what opened, shows which it is."""
        true = {(one.member.sender, one.seq) for one in opened}
        for node, message, may_come in sealed:
            if (message.sender, message.seq) in true:
                error = OpenFailed("the node's copy is another than the one that its sender signed")
                taken.untrue.append(NodeFault(node, message.sender, message.seq, error))
                continue
            taken.later |= may_come
            taken.earlier += not may_come

    def _opened(self, node: bytes, message: LogMessage) -> _Opened | None:
        """Opens a message; None for a shard of a snapshot that is not whole yet."""
        member = self._by_sender.get(message.sender)
        if member is None:
            raise UnknownSender("the message is of a sender that is no member")
        if not member.may_have_written(message.seq):
            raise OpenFailed("the message was written after its sender was removed")
        record = records.decode(message.record)
        ciphertext, manifest = record.data, None
        if record.kind is Kind.SHARD:
            manifest = self._verified(member, message.seq, record)
            whole = self._shards.add(manifest, digest_of(record.manifest), record, time.monotonic())
            if whole is None:
                return None
            ciphertext = whole
        place = GroupPlace(self.edition.group, message.sender, message.seq, record.level)
        body = self.logs.unseal(self.edition, place, ciphertext)
        content = Update.decode(body) if record.level == 0 else Snapshot.decode(body)
        if manifest is not None and not _is_of(manifest, content):
            raise InvalidArgument("the snapshot has another watermark than its manifest says")
        return _Opened(node, member, message.seq, record.level, ciphertext, content)

    def _verified(self, member: EditionMember, seq: int, record: Record) -> Manifest:
        manifest = verified_manifest(record.manifest, self.edition.group, member.sender, seq, member.on_nodes)
        if manifest.level != record.level:
            raise InvalidArgument("the shard has another level than its manifest")
        return manifest

    def _apply(self, tx: MailboxTx, opened: Sequence[_Opened], taken: Taken) -> None:
        progress, own = LogProgress(tx), self.me.sender
        for one in opened:
            received = progress.of(one.member.sender)
            if one.seq in received or (one.member.sender == own and self._is_queued(tx, one, taken)):
                continue
            if isinstance(one.content, Update):
                entry = _entry(one.member, one.seq, one.content)
                self.application.apply(tx, entry)
                taken.entries.append(entry)
            else:
                try:
                    self._merge(tx, progress, one, one.content)
                except (UnknownSender, InvalidArgument) as error:
                    taken.later |= isinstance(error, UnknownSender)
                    taken.untrue.append(NodeFault(one.node, one.member.sender, one.seq, error))
                    continue
                taken.snapshots += 1
            received.add(one.seq)
        progress.save(tx)

    def _is_queued(self, tx: MailboxTx, one: _Opened, taken: Taken) -> bool:
        """Whether a message of this agent is one that is still on its way: it was applied when it was written."""
        queued = tx.record(OwnMessage, "log_own", one.seq)
        if queued is None:
            return False
        if queued.ciphertext != one.ciphertext:
            error = Conflict(
                f"message {one.seq} of this agent is stored with other bytes",
                hint="was this agent's directory put back from an old copy, or does it write on two machines?",
            )
            taken.untrue.append(NodeFault(one.node, one.member.sender, one.seq, error))
        return True

    def _merge(self, tx: MailboxTx, progress: LogProgress, one: _Opened, snapshot: Snapshot) -> None:
        self._check_watermark(tx, progress, snapshot)
        lacks = any(progress.of(sender).confirmed < seq for sender, seq in snapshot.watermark.items())
        if lacks:
            self.application.merge(tx, snapshot.content)
        # Only now: what the snapshot contains is applied here.
        for sender, seq in snapshot.watermark.items():
            progress.of(sender).raise_to(seq)
        note_snapshot(tx, one.member.sender, one.seq, one.level, snapshot.watermark)

    def _check_watermark(self, tx: MailboxTx, progress: LogProgress, snapshot: Snapshot) -> None:
        """Refuses a snapshot that claims what cannot be: it would keep true messages from being read."""
        written = tx.meta(_NEXT)
        if written is not None and snapshot.watermark.get(self.me.sender, 0) >= int(written):
            raise InvalidArgument("the snapshot claims more of this agent's messages than it has written")
        for sender, seq in snapshot.watermark.items():
            if sender not in self._by_sender:
                raise UnknownSender("the snapshot contains messages of a sender that is not known here")
            highest = progress.of(sender).highest
            if seq > _MOST_PLAUSIBLE or (highest and seq > highest + _MOST_UNSEEN):
                raise InvalidArgument("the snapshot claims more of a sender's messages than there can be")

    # What this agent writes.

    @property
    def knows_own_seq(self) -> bool:
        """Whether the number of the next message is known. A new database of an old member does not know it."""
        return self.database.meta(_NEXT) is not None

    def learn_own_seq(self) -> None:
        """Goes on behind what was received of this agent, after all that nodes have was read."""
        with self.database.transaction() as tx:
            known = tx.meta(_NEXT)
            mine = LogProgress(tx).of(self.me.sender).highest
            tx.write("write_meta", _NEXT, str(max(mine + 1, int(known or 1))))

    def write(self, contents: Sequence[bytes], now: datetime) -> list[LogEntry]:
        """Writes updates: sealed, numbered, applied here, and durable on this device before anything leaves it."""
        for content in contents:
            if len(content) > MAX_BODY:
                raise TooLarge(f"an update has at most {MAX_BODY:,} bytes")
        entries, me = [], self.me
        with self.database.transaction() as tx:
            first = self.next_seq(tx, len(contents))
            for seq, content in enumerate(contents, first):
                update = Update(unix_ms(now), content)
                sealed = self.sealed(seq, 0, update.encode())
                tx.write("add_log_own", seq, 0, sealed, b"", b"")
                entries.append(_entry(me, seq, update))
                self.application.apply(tx, entries[-1])
        return entries

    def queued(self, after: int = 0, limit: int = 256) -> list[OwnMessage]:
        """Updates that not enough nodes have, in their order."""
        return self.database.records(OwnMessage, "log_queued", after, limit)

    def is_another_own(self, message: OwnMessage, record: Record) -> bool:
        """Whether a record that a node has under a number of this agent was written by it, and is another message."""
        if record.data == message.ciphertext:
            return False
        place = GroupPlace(self.edition.group, self.me.sender, message.seq, record.level)
        try:
            self.logs.unseal(self.edition, place, record.data)
        except Refused:
            return False
        return True

    def waiting(self) -> set[int]:
        """The numbers of this agent's messages and snapshots that not enough nodes have."""
        return {seq for (seq,) in self.database.rows("log_waiting")}

    def settle(self, seqs: Iterable[int]) -> None:
        """Enough nodes have these updates: they count as received."""
        with self.database.transaction() as tx:
            progress = LogProgress(tx)
            for seq in seqs:
                tx.write("drop_log_own", seq)
                progress.of(self.me.sender).add(seq)
            progress.save(tx)

    def next_seq(self, tx: MailboxTx, count: int) -> int:
        known = tx.meta(_NEXT)
        if known is None:
            raise OwnSeqUnknown
        first = max(int(known), LogProgress(tx).of(self.me.sender).highest + 1)
        if first + count - 1 > MAX_SEQ:
            raise Conflict("this member has used up its numbers", hint="the owner adds it again, under a new binding")
        tx.write("write_meta", _NEXT, str(first + count))
        return first

    def sealed(self, seq: int, level: int, body: bytes) -> bytes:
        place = GroupPlace(self.edition.group, self.me.sender, seq, level)
        return self.logs.seal(self.edition, place, body)


def opened_replica(logs: MailboxLogs, edition: GroupEdition, application: LogApplication) -> LogReplica:
    """Opens the database of a group, which is made if it is not there."""
    path = logs.path(edition.group)
    return LogReplica(MailboxDatabase(path.parent, path.name, SCHEMAS), logs, edition, application)


def highest_received(logs: MailboxLogs, edition: GroupEdition, sender: bytes) -> int | None:
    """The highest message of a sender that this device has applied; None if it never opened the group."""
    path = logs.path(edition.group)
    if not path.exists():
        return None
    database = MailboxDatabase(path.parent, path.name, SCHEMAS)
    found = LogProgress(database).of(sender).highest
    database.close()
    return found


def make_first(logs: MailboxLogs, edition: GroupEdition) -> None:
    """Makes the database of a group that this agent creates now: its first message has the number 1."""
    path = logs.path(edition.group)
    database = MailboxDatabase(path.parent, path.name, SCHEMAS)
    database.write("write_meta", _NEXT, "1")
    database.close()


def _is_of(manifest: Manifest, content: Update | Snapshot) -> bool:
    return isinstance(content, Snapshot) and vectors.digest(content.watermark) == manifest.watermark_digest


def _written_at(one: _Opened) -> int:
    return one.content.written_at if isinstance(one.content, Update) else MAX_SEQ  # snapshots come last


def _entry(member: EditionMember, seq: int, update: Update) -> LogEntry:
    return LogEntry(member.handle, member.sender, seq, moment(update.written_at), update.content)
