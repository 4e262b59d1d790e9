"""Appends: each message is stored once, is superseded, or is a conflict; a request as a whole or not at all."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import msgspec

from angelia import metrics
from angelia.errors import BadLevel, DamagedRecord, MessageConflict, Quota, ShardConflict, TooLarge
from angelia.grouplog import store
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.model import records
from angelia.grouplog.model.frames import LogMessage, Status
from angelia.grouplog.model.groups import HEADROOM, MAX_LEVEL, MAX_PIECE, MAX_UPDATE
from angelia.grouplog.model.pieces import Manifest
from angelia.grouplog.model.records import Kind, Record
from angelia.grouplog.subscriptions import Subscriptions
from angelia.stores.rocks import Rocks, RocksBatch

_COUNTED = {status: metrics.LOG_APPENDS.labels(status.label) for status in Status}


class Incoming(msgspec.Struct, frozen=True):
    """A message that may be appended: its id, its record, and what was read from that."""

    sender: bytes
    seq: int
    record: bytes
    level: int
    kind: Kind

    @property
    def size(self) -> int:
        return store.ROW_OVERHEAD + len(self.record)


def incoming(message: LogMessage, parsed: Record) -> Incoming:
    """Checks level and size of a parsed message."""
    if parsed.level > MAX_LEVEL:
        raise BadLevel(f"a level is 0 to {MAX_LEVEL}")
    most = MAX_UPDATE if parsed.level == 0 else MAX_PIECE
    if len(parsed.data) > most:
        raise TooLarge(f"a message of level {parsed.level} has at most {most:,} bytes")
    return Incoming(message.sender, message.seq, message.record, parsed.level, parsed.kind)


class Append:
    """A request's messages of one group on their way into the log."""

    alone = False

    def __init__(self, group: LiveGroup, by: bytes, messages: Sequence[Incoming], subscriptions: Subscriptions) -> None:
        """`by` is the sender id of the member that asks for it."""
        self._group = group
        self._by = by
        self._messages = messages
        self._subscriptions = subscriptions
        self.messages = len(messages)
        self.size = sum(message.size for message in messages)
        self._statuses: list[Status] = []
        self._replaced: dict[tuple[bytes, int], int] = {}  # sizes of records that these take the place of

    def stage(self, rocks: Rocks, batch: RocksBatch) -> None:
        group = self._group
        group.check_live()
        group.check_member(self._by)  # it may have been removed since its request came
        own: dict[tuple[bytes, int], bytes] = {}
        statuses = []
        for at, message in enumerate(self._messages):
            status = self._status(rocks, message, own, at)
            statuses.append(status)
            if status is Status.STORED:
                own[message.sender, message.seq] = message.record
        self._check_quota(statuses)
        for message, status in zip(self._messages, statuses, strict=True):
            if status is Status.STORED:
                group.highest(message.sender)  # known before it is raised
                store.put_message(batch, group.ordinal, message.sender, message.seq, message.level, message.record)
                group.note_stored(message.sender, message.seq, self._growth(message))
        if own:
            group.staged |= own
            store.put_stored_bytes(batch, group.id, group.stored_bytes)
        self._statuses = statuses

    def finish(self) -> list[Status]:
        group = self._group
        for status, count in Counter(self._statuses).items():
            _COUNTED[status].inc(count)
        for message, status in zip(self._messages, self._statuses, strict=True):
            if status is Status.STORED:
                id_ = (message.sender, message.seq)
                group.staged.pop(id_, None)
                if id_ in self._replaced:  # it was published when it was new
                    group.corrupt.discard(id_)
                else:
                    self._subscriptions.publish(group.id, *id_)
        return self._statuses

    def undo(self) -> None:
        self._group.reload()

    def _status(self, rocks: Rocks, message: Incoming, own: dict[tuple[bytes, int], bytes], at: int) -> Status:
        group, id_ = self._group, (message.sender, message.seq)
        if group.is_superseded(*id_, message.level):
            return Status.SUPERSEDED
        there = own.get(id_) or group.staged.get(id_)
        if there is None and message.seq <= group.highest(message.sender):
            try:
                there = store.record(rocks, group.ordinal, *id_)
            except DamagedRecord:
                there = b""
        if there is None:
            return Status.STORED
        if there == message.record:
            return Status.DUPLICATE
        if self._may_replace(rocks, message, there):
            self._replaced[id_] = store.ROW_OVERHEAD + len(there)
            return Status.STORED
        raise _conflict(message, there, at)

    def _may_replace(self, rocks: Rocks, message: Incoming, there: bytes) -> bool:
        """Whether a message may take the place of what is stored: of a damaged record of its level, or of a shard that
        belongs elsewhere by now."""
        damaged = not records.is_sound(there) or not self._group.is_true_shard(message.sender, message.seq, there)
        if damaged:
            # The level byte may be damaged too; `hi` has the level.
            return message.level == store.level(rocks, self._group.ordinal, message.sender, message.seq)
        return message.kind is Kind.SHARD and self._has_moved(records.decode(message.record), records.decode(there))

    def _has_moved(self, shard: Record, there: Record) -> bool:
        """Whether both are shards of one manifest, and the nodes that it names for them have left: the list of nodes is
        newer than the manifest, and neither shard has a place of its own any more."""
        if there.kind is not Kind.SHARD or there.manifest != shard.manifest:
            return False
        places = Manifest.decode(shard.manifest).places
        listed = {node.id for node in self._group.row.nodes.nodes}
        return listed.isdisjoint((places[shard.index].node, places[there.index].node))

    def _growth(self, message: Incoming) -> int:
        """How many bytes more the group has with a message."""
        return message.size - self._replaced.get((message.sender, message.seq), 0)

    def _check_quota(self, statuses: Sequence[Status]) -> None:
        group = self._group
        new = [message for message, status in zip(self._messages, statuses, strict=True) if status is Status.STORED]
        quota = group.row.config.quota_bytes
        allowed = quota if any(message.level == 0 for message in new) else int(quota * HEADROOM)
        if new and group.stored_bytes + sum(map(self._growth, new)) > allowed:
            raise Quota(
                f"the group may have {quota:,} bytes on this node",
                hint="a snapshot with a completion makes room",
                retry_after=60,
            )


def _conflict(message: Incoming, there: bytes, at: int) -> MessageConflict | ShardConflict:
    kind = ShardConflict if message.kind is Kind.SHARD else MessageConflict
    error = kind(
        f"message {message.seq} of this sender is stored with other bytes",
        hint="a seq is used once; both digests are in the answer",
    )
    error.members = {
        "at": at,
        "stored_digest": hashlib.sha256(there).hexdigest(),
        "sent_digest": hashlib.sha256(message.record).hexdigest(),
    }
    return error
