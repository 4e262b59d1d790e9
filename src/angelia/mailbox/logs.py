"""The agent's side of group logs: which groups it is a member of, their editions and epoch keys, without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from angelia.envelope import group_sealing
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.refusals import NotAllowed, OpenFailed, UnknownKey
from angelia.envelope.sealing import EpochKey
from angelia.envelope.wire import Envelope
from angelia.errors import Conflict, EpochConflict, InvalidArgument, NoGroup, NotMember
from angelia.grouplog.model.editions import (
    EDITIONS,
    EditionMember,
    GroupEdition,
    SentEdition,
    decode_mail,
    encode_mail,
)
from angelia.grouplog.model.ids import base58
from angelia.mailbox import private_files
from angelia.mailbox.database import BrokenDatabase, MailboxDatabase, MailboxTx, NamedStatements
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.own_keys import OwnKeys
from angelia.mailbox.pinned_keys import PinnedKeys

SHORTEST_PREFIX = 8


class LaterEpoch(UnknownKey):
    """The message is sealed under a key that has not arrived"""


class UnknownSender(OpenFailed):
    """The message is of a sender that is no member, as far as is known here"""


class EarlierEpoch(UnknownKey):
    """The message is from before this agent was a member"""


@dataclass(eq=False, repr=False)
class MailboxLogs:
    """The tables of groups, their editions and keys, and the directory of the logs' own databases."""

    _database: MailboxDatabase
    _local: LocalKey
    _own_keys: OwnKeys
    _pinned: PinnedKeys
    _directory: Path

    @property
    def handle(self) -> str:
        return self._own_keys.identity.handle

    def editions(self) -> list[GroupEdition]:
        return [_decoded(row[0]) for row in self._database.rows("logs")]

    def any(self) -> bool:
        """Whether this agent is in any group."""
        return self._database.row("any_log") is not None

    # What this agent, the owner, has yet to bring to nodes and members.

    def unsettled(self, now: datetime) -> list[str]:
        """The ids of groups whose nodes or members are to be brought to the newest edition now."""
        return [gid for (gid,) in self._database.rows("unsettled_logs", now)]

    def settle_at(self, edition: GroupEdition, at: datetime | None) -> None:
        """Notes when that is to be tried again; None once it is done. Nothing is noted if the edition is not the newest
        one any more."""
        with self._database.transaction() as tx:
            if self._newest(tx, edition.group) == edition:
                tx.write("settle_log_at", base58(edition.group), at)

    def nothing_to_settle(self, group: bytes) -> None:
        self._database.write("settle_log_at", base58(group), None)

    def untold(self, edition: GroupEdition) -> Iterator[tuple[str, bytes]]:
        """The members that have yet to be sent the newest edition, each with the message that brings it."""
        handles, bodies = {member.sender: member.handle for member in edition.members}, dict[int, bytes]()
        for sender, epoch in self._database.rows("untold_members", base58(edition.group)):
            if sender not in handles:
                continue  # it was removed since
            if epoch not in bodies:
                bodies[epoch] = encode_mail(SentEdition(edition, self._keys_since(edition, epoch)))
            yield handles[sender], bodies[epoch]

    def _keys_since(self, edition: GroupEdition, epoch: int) -> list[tuple[int, EpochKey]]:
        """The keys of the epochs after one, that of the edition last."""
        keys = list[tuple[int, EpochKey]]()
        for at, *sealed in self._database.rows("log_keys_since", base58(edition.group), epoch):
            if at <= edition.epoch:
                keys.append((at, EpochKey.of(self._local.decrypt("log_keys", *sealed))))
        last = (edition.epoch, self.key(edition))
        return [*(one for one in keys if one != last), last]

    def note_untold(self, edition: GroupEdition) -> None:
        """All other members are to be sent the newest edition, also if they were sent it before."""
        with self._database.transaction() as tx:
            self._note_untold(tx, edition, edition)

    def note_told(self, edition: GroupEdition, handles: Iterable[str]) -> None:
        """Members were sent an edition. Nothing is noted if it is not the newest one any more."""
        told = set(handles)
        with self._database.transaction() as tx:
            if self._newest(tx, edition.group) == edition:
                for member in edition.members:
                    if member.handle in told:
                        tx.write("drop_untold_member", base58(edition.group), member.sender)

    # Editions.

    def edition(self, group: bytes) -> GroupEdition | None:
        return self._newest(self._database, group)

    def _newest(self, tx: NamedStatements, group: bytes) -> GroupEdition | None:
        found = tx.row("log", base58(group))
        return None if found is None else _decoded(found[0])

    def find(self, name: str) -> GroupEdition:
        """Returns a group by its name, its id, or the beginning of that."""
        every = self.editions()
        named = [one for one in every if one.name == name]
        if not named and len(name) >= SHORTEST_PREFIX:
            named = [one for one in every if base58(one.group).startswith(name)]
        if not named:
            raise NoGroup(
                f"you are not a member of a group {name}",
                hint="`angelia log list` shows your groups; the owner of one adds you",
            )
        if len(named) > 1:
            ids = ", ".join(base58(one.group)[:12] for one in named)
            raise Conflict(f"{len(named)} of your groups are called {name}", hint=f"say which by its id: {ids}")
        return named[0]

    def me(self, edition: GroupEdition) -> EditionMember:
        """This agent as a member; NotMember if the edition does not list it."""
        found = edition.member(self.handle)
        if found is None:
            raise NotMember(f"you are not a member of {edition.name} any more")
        return found

    def expects(self, envelope: Envelope) -> bool:
        """Whether an envelope may bring the next edition of a group: its sender is the owner of one."""
        header = envelope.header
        if not header.control or header.channel_id != EDITIONS:
            return False
        return any(header.sender_nhi == edition.owner.handle for edition in self.editions())

    def continues(self, body: bytes, sender: str) -> bool:
        """Whether a control message brings an edition of a group that its sender is the owner of."""
        try:
            sent = decode_mail(body)
        except InvalidArgument:
            return False
        known = self.edition(sent.edition.group)
        return known is not None and sender == known.owner.handle

    def accept(self, sent: SentEdition, sender: str, fingerprint: str, now: datetime) -> bool:
        """Stores an edition that its owner sent, with its keys. Returns whether the group has another one now.

        The first edition of a group is accepted from the owner that it names: its mail was opened, so the agent allows
        that sender. Mail comes in any order, and an older edition may bring a key that is missing here."""
        edition, gid = sent.edition, base58(sent.edition.group)
        if sender != edition.owner.handle or sender == self.handle:
            raise NotAllowed(f"{sender} is not the owner of the group {edition.name}, so its edition is not believed")
        with self._database.transaction() as tx:
            found = tx.row("log", gid)
            if found is None:
                newer = True
                if edition.member(self.handle) is None:
                    raise NotMember(f"{sender} sent the group {edition.name}, of which you are not a member")
            else:
                stored, before = _decoded(found[0]), found[1]
                if not edition.may_follow(stored):
                    raise NotAllowed(f"{sender} sent an edition of {edition.name} with another owner or configuration")
                newer = self._is_newer(edition, fingerprint, stored, before)
            if newer:
                _write(tx, edition, sender, fingerprint, now)
            for epoch, key in sent.keys:
                self._keep_key(tx, gid, epoch, key, now)
            return newer

    def _is_newer(self, edition: GroupEdition, fingerprint: str, stored: GroupEdition, before: str) -> bool:
        """Whether an edition takes the place of another one, each sent with the pair of a fingerprint. What the owner
        sends with its present pair counts for more than what came with earlier ones, which may have been stolen."""
        pin = self._pinned.pin(edition.owner.handle)
        present = "" if pin is None else pin.fingerprint
        return (fingerprint == present, edition.number) > (before == present, stored.number)

    def publish(self, edition: GroupEdition, key: EpochKey, now: datetime) -> None:
        """Stores an edition that its owner made here. Nodes and members are to be brought to it. EpochConflict if
        another process has made one meanwhile."""
        edition, gid = edition.checked(), base58(edition.group)
        assert edition.owner.handle == self.handle, "only the owner makes editions"
        with self._database.transaction() as tx:
            before = self._newest(tx, edition.group)
            if before is not None and edition.number != before.number + 1:
                raise EpochConflict("another process has changed the group meanwhile", hint="try again")
            _write(tx, edition, self.handle, "", now)
            self._keep_key(tx, gid, edition.epoch, key, now)
            self._note_untold(tx, edition, before)
            tx.write("settle_log_at", gid, now)

    def _note_untold(self, tx: MailboxTx, edition: GroupEdition, before: GroupEdition | None) -> None:
        """Members are to be sent an edition. Those of the one before have its key; new ones read what was written
        before their time from a snapshot."""
        gid, latest = base58(edition.group), edition.epoch - 1
        since: dict[bytes, int] = {}
        if before is not None:
            since = dict.fromkeys((one.sender for one in before.members), min(before.epoch, latest))
        for member in edition.members:
            if member.handle != self.handle:
                tx.write("add_untold_member", gid, member.sender, since.get(member.sender, latest))

    # Keys.

    def _keep_key(self, tx: MailboxTx, gid: str, epoch: int, key: EpochKey, now: datetime) -> None:
        row = f"{gid}/{epoch}/{key.key_id}"
        tx.write("put_log_key", row, gid, epoch, key.key_id, *self._local.encrypt("log_keys", row, key.secret), now)

    def forget(self, group: bytes) -> None:
        """Forgets a group with its keys and its database."""
        with self._database.transaction() as tx:
            for statement in ("drop_log", "drop_untold_members", "drop_log_keys"):
                tx.write(statement, base58(group))
        path = self._path(group)
        for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            name.unlink(missing_ok=True)

    def key(self, edition: GroupEdition) -> EpochKey:
        """Returns the key of an edition's epoch, under which messages are sealed."""
        found = self._database.row("log_key", base58(edition.group), edition.epoch, edition.key_id)
        if found is None:
            raise LaterEpoch(hint="the owner sends it by mail: `angelia log read` fetches it")
        return EpochKey.of(self._local.decrypt("log_keys", *found))

    def keys(self, edition: GroupEdition, epoch: int) -> list[EpochKey]:
        """Returns the keys of an epoch: more than one if a thief of the owner's pair made another. EarlierEpoch or
        LaterEpoch if there is none here."""
        found = self._database.rows("log_keys", base58(edition.group), epoch)
        if found:
            return [EpochKey.of(self._local.decrypt("log_keys", *row)) for row in found]
        if epoch > edition.epoch:
            raise LaterEpoch(hint="the owner sends it by mail: `angelia log read` fetches it")
        raise EarlierEpoch(hint="a snapshot that was made since contains it")

    def seal(self, edition: GroupEdition, place: GroupPlace, body: bytes) -> bytes:
        """Returns a message of this agent as nodes keep it."""
        return group_sealing.seal(place, edition.epoch, self.key(edition), body, self._own_keys.signer.key.sign)

    def unseal(self, edition: GroupEdition, place: GroupPlace, sealed: bytes) -> bytes:
        """Returns the body of a message; Refused if its sender did not write it for this place."""
        member = edition.by_sender(place.sender)
        if member is None:
            raise OpenFailed("the message is of a sender that was never a member")
        return self._with_any_key(
            edition, sealed, lambda key: group_sealing.unseal(place, sealed, key, member.public_keys)
        )

    def unseal_own(self, edition: GroupEdition, place: GroupPlace, sealed: bytes) -> bytes:
        """Returns the body of a message that this device sealed itself, under an entry of the roster that it may not
        have any more."""
        return self._with_any_key(edition, sealed, lambda key: group_sealing.unseal_own(place, sealed, key))

    def _with_any_key(self, edition: GroupEdition, sealed: bytes, unseal: Callable[[EpochKey], bytes]) -> bytes:
        """Tries all keys of a message's epoch."""
        keys = self.keys(edition, group_sealing.epoch_of(sealed))
        for key in keys[:-1]:
            with contextlib.suppress(OpenFailed):
                return unseal(key)
        return unseal(keys[-1])

    def sign(self, message: bytes) -> bytes:
        """Signs with the key that the roster has of this agent."""
        return self._own_keys.signer.key.sign(message)

    def path(self, group: bytes) -> Path:
        """The database of a group on this machine; its directory exists then."""
        private_files.make_below(self._directory)
        return self._path(group)

    def _path(self, group: bytes) -> Path:
        return self._directory / f"{base58(group)}.db"


def _write(tx: MailboxTx, edition: GroupEdition, sender: str, fingerprint: str, now: datetime) -> None:
    packed = msgspec.msgpack.encode(edition)
    tx.write("put_log", base58(edition.group), edition.name, edition.number, packed, sender, fingerprint, now)


def _decoded(packed: bytes) -> GroupEdition:
    try:
        return msgspec.msgpack.decode(packed, type=GroupEdition)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenDatabase("the edition of a group is damaged", hint="put it back from a back-up") from error
