"""The agent's side of group logs: which groups it is a member of, their editions and epoch keys, without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec

from angelia.envelope import group_sealing
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.refusals import NotAllowed, OpenFailed, Refused, UnknownKey
from angelia.envelope.sealing import EpochKey
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError, Conflict, Denied, EpochConflict, InvalidArgument, NoGroup, NotMember
from angelia.grouplog.model import admin_grants
from angelia.grouplog.model.edition_changes import reapplied
from angelia.grouplog.model.editions import (
    EDITIONS,
    EditionMember,
    GroupEdition,
    SentEdition,
    SignedEdition,
    decode_mail,
    encode_mail,
)
from angelia.grouplog.model.ids import MAX_SEQ, base58
from angelia.mailbox import private_files
from angelia.mailbox.database import BrokenDatabase, MailboxDatabase, MailboxTx, NamedStatements
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.notices import NoticeKind, Notices
from angelia.mailbox.own_keys import OwnKeys

T = TypeVar("T")
SHORTEST_PREFIX = 8
_MOST_KEYS = 16  # of an epoch: as many as admins that changed the group at once, so hardly two
_LONGEST_RUN = 8  # own editions that are remembered to be made again
_OVERTAKEN = "another admin has changed the group meanwhile"


class LaterEpoch(UnknownKey):
    """The message is sealed under a key that has not arrived"""


class UnknownSender(OpenFailed):
    """The message is of a sender that is no member, as far as is known here"""


class EarlierEpoch(UnknownKey):
    """The message is from before this agent was a member"""


@dataclass(frozen=True, slots=True)
class LogRow:
    """A group as it is stored: its newest edition; and, if that was made here, the run of this agent's own editions up
    to it, behind the one that they began with."""

    signed: SignedEdition
    run: tuple[GroupEdition, ...]

    @property
    def edition(self) -> GroupEdition:
        return self.signed.edition

    @classmethod
    def read(cls, tx: NamedStatements, gid: str) -> LogRow | None:
        found = tx.row("log", gid)
        if found is None:
            return None
        edition, signature, run = found
        return cls(SignedEdition(_decoded(edition, GroupEdition), signature), _decoded(run, tuple[GroupEdition, ...]))

    def write(self, tx: MailboxTx, gid: str, sender: str, now: datetime) -> None:
        packed, run = msgspec.msgpack.encode(self.edition), msgspec.msgpack.encode(self.run)
        values = (self.edition.name, self.edition.number, packed, self.signed.signature, run, sender, now)
        tx.write("put_log", gid, *values)


@dataclass(eq=False, repr=False)
class MailboxLogs:
    """The tables of groups, their editions and keys, and the directory of the logs' own databases."""

    _database: MailboxDatabase
    _local: LocalKey
    _own_keys: OwnKeys
    _notices: Notices
    _directory: Path

    @property
    def handle(self) -> str:
        return self._own_keys.identity.handle

    def editions(self) -> list[GroupEdition]:
        return [_decoded(row[0], GroupEdition) for row in self._database.rows("logs")]

    def any(self) -> bool:
        """Whether this agent is in any group."""
        return self._database.row("any_log") is not None

    # What this agent, an admin, has yet to bring to nodes and members.

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
        gid = base58(edition.group)
        stored = LogRow.read(self._database, gid)
        if stored is None or stored.edition != edition:
            raise EpochConflict(_OVERTAKEN, hint="try again")
        bodies: dict[int, bytes] = {}
        for sender, epoch in self._database.rows("untold_members", gid):
            member = edition.by_sender(sender)
            if member not in edition.members:
                continue  # another admin has removed it
            if epoch not in bodies:
                bodies[epoch] = encode_mail(SentEdition(stored.signed, self._keys_since(edition, epoch)))
            yield member.handle, bodies[epoch]

    def _keys_since(self, edition: GroupEdition, epoch: int) -> list[tuple[int, EpochKey]]:
        """The keys of the epochs after one, that of the edition last."""
        keys = list[tuple[int, EpochKey]]()
        for at, row, nonce, secret in self._database.rows("log_keys_since", base58(edition.group), epoch):
            if at < edition.epoch:
                keys.append((at, EpochKey.of(self._local.decrypt("log_keys", row, nonce, secret))))
        return [*keys, (edition.epoch, self.key(edition))]

    def note_untold(self, edition: GroupEdition) -> None:
        """All other members are to be sent the newest edition, also if they were sent it before."""
        with self._database.transaction() as tx:
            self._note_untold(tx, edition, edition)

    def note_told(self, edition: GroupEdition, handles: Collection[str]) -> None:
        """Members were sent an edition. Nothing is noted if it is not the newest one any more."""
        with self._database.transaction() as tx:
            if self._newest(tx, edition.group) == edition:
                for member in edition.members:
                    if member.handle in handles:
                        tx.write("drop_untold_member", base58(edition.group), member.sender)

    # Editions.

    def edition(self, group: bytes) -> GroupEdition | None:
        return self._newest(self._database, group)

    def _newest(self, tx: NamedStatements, group: bytes) -> GroupEdition | None:
        found = LogRow.read(tx, base58(group))
        return None if found is None else found.edition

    def find(self, name: str) -> GroupEdition:
        """Returns a group by its name, its id, or the beginning of that."""
        every = self.editions()
        named = [one for one in every if one.name == name]
        if not named and len(name) >= SHORTEST_PREFIX:
            named = [one for one in every if base58(one.group).startswith(name)]
        if not named:
            raise NoGroup(
                f"you are not a member of a group {name}",
                hint="`angelia log list` shows your groups; an admin adds you",
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
        """Whether an envelope may bring the next edition of a group: its sender is an admin of one."""
        header = envelope.header
        if not header.control or header.channel_id != EDITIONS:
            return False
        return any(header.sender_nhi in edition.admins for edition in self.editions())

    def continues(self, body: bytes, sender: str) -> bool:
        """Whether a control message brings an edition of a group that its sender is an admin of already."""
        try:
            sent = decode_mail(body)
        except InvalidArgument:
            return False
        known = self.edition(sent.signed.edition.group)
        return known is not None and sender in known.admins

    def accept(self, sent: SentEdition, sender: str, now: datetime) -> bool:
        """Stores an edition that an agent sent, with its keys. Returns whether the group has another one now.

        The first edition of a group is accepted from any admin that it lists: its mail was opened, so the agent allows
        that sender. Later ones hold by the signatures of their author and of the group's owner, whichever agent sent
        them; of all that are sound the last one in their order holds, whenever it comes."""
        signed, edition, gid = sent.signed, sent.signed.edition, base58(sent.signed.edition.group)
        with self._database.transaction() as tx:
            stored = LogRow.read(tx, gid)
            if stored is None:
                if sender not in edition.admins:
                    told = f"{sender} is not an admin of the group {edition.name}, so its edition is not believed"
                    raise NotAllowed(told)
                if edition.member(self.handle) is None:
                    raise NotMember(f"{sender} sent the group {edition.name}, of which you are not a member")
            elif edition.owner.sender != stored.edition.owner.sender or edition.config != stored.edition.config:
                raise NotAllowed(f"{sender} sent an edition of {edition.name} that has another owner or configuration")
            elif edition.grant and stored.edition.grant and edition.grant.is_at_odds(stored.edition.grant):
                told = f"{sender} sent an edition of {edition.name} under a key that its owner replaced by another one"
                raise NotAllowed(told)
            if not signed.is_sound():
                raise NotAllowed(f"edition {edition.number} of the group {edition.name} is not signed by its admins")
            newer = stored is None or edition.order > stored.edition.order
            believed = edition.admins if stored is None or newer else stored.edition.admins
            for epoch, key in sent.keys:
                if newer and key.key_id == edition.key_id:
                    self._keep_key(tx, gid, epoch, key, now)
                elif sender in believed:
                    self._keep_key(tx, gid, epoch, key, now, most=_MOST_KEYS)
            if not newer:
                return False
            LogRow(signed, ()).write(tx, gid, sender, now)
            if stored is not None:
                self._follow_up(tx, stored, edition, now)
            return True

    def publish(self, edition: GroupEdition, key: EpochKey, now: datetime) -> None:
        """Signs and stores an edition that was made here. Nodes and members are to be brought to it. EpochConflict if
        it does not follow the newest one."""
        with self._database.transaction() as tx:
            self._publish(tx, LogRow.read(tx, base58(edition.group)), edition, key, now)

    def granted(
        self, edition: GroupEdition, before: GroupEdition | None, verified: Mapping[bytes, bytes] = MappingProxyType({})
    ) -> GroupEdition:
        """Returns an edition with the word of the group's owner on who its admins are: the one that it had, if they and
        their keys are the same; a new one, if this agent is the owner. `verified` has present keys of members: what an
        edition says of an admin's key is another admin's word."""
        owner = (edition if before is None else before).owner
        own = edition.by_sender(owner.sender)
        grant = None if before is None else before.grant
        known = {} if grant is None else dict(grant.admins)
        admins = {
            one.sender: verified.get(one.sender, known.get(one.sender, one.public_key))
            for one in edition.members
            if one.admin
        }
        if owner.handle != self.handle or own is None:
            if grant is None:
                raise Denied(
                    f"{owner.handle}, which made the group {edition.name}, has to say first who its admins are",
                    hint=f"it runs angelia log members {edition.name} --refresh",
                )
            if set(admins) != set(known):
                raise Denied(
                    f"only {owner.handle}, which made the group {edition.name}, makes and removes its admins",
                    hint="ask that agent",
                )
            return msgspec.structs.replace(edition, grant=grant)
        admins[owner.sender] = own.public_key
        if not own.admin:
            raise Denied(f"you made the group {edition.name}, and stay its admin", hint="angelia log drop")
        if admins == known:
            return msgspec.structs.replace(edition, grant=grant)
        listed = [(owner.sender, own.public_key), *((one, key) for one, key in admins.items() if one != owner.sender)]
        made = admin_grants.granted(edition.group, grant, listed, own.public_keys[-1], self._sign_with)
        return msgspec.structs.replace(edition, grant=made)

    def _publish(
        self, tx: MailboxTx, stored: LogRow | None, edition: GroupEdition, key: EpochKey, now: datetime
    ) -> None:
        edition, gid = edition.checked(), base58(edition.group)
        before = None if stored is None else stored.edition
        if before is not None and (edition.lineage[:1] != (before.digest,) or edition.order <= before.order):
            raise EpochConflict(_OVERTAKEN, hint="try again")
        assert edition.grant is not None, "its author has seen to it"
        own_key = edition.grant.key_of(edition.author)
        assert own_key is not None, "its author is an admin"
        signed = SignedEdition(edition, self._sign_with(own_key, edition.digest))
        run = () if stored is None else (*(stored.run or (stored.edition,)), edition)
        LogRow(signed, run[-_LONGEST_RUN:]).write(tx, gid, self.handle, now)
        self._keep_key(tx, gid, edition.epoch, key, now)
        self._note_untold(tx, edition, before)
        tx.write("settle_log_at", gid, now)

    def _follow_up(self, tx: MailboxTx, stored: LogRow, edition: GroupEdition, now: datetime) -> None:
        """What an admin does when another one's edition holds: it sees to it that nodes have that one, whatever they
        were brought to meanwhile, and what it changed itself and the other did not know of, it changes again."""
        me = edition.member(self.handle)
        if me is None or not me.admin:
            return
        gid = base58(edition.group)
        tx.write("settle_log_at", gid, now)
        known = (edition.digest, *edition.lineage)
        since = max((at for at, one in enumerate(stored.run) if one.digest in known), default=0)
        if not stored.run or since == len(stored.run) - 1:
            return
        wanted = reapplied(edition, stored.run[since], stored.run[-1])
        if wanted == edition:
            return
        told = f"another admin changed the group {edition.name} at the same time"
        try:
            key = self.key(edition) if wanted.epoch == edition.epoch else EpochKey.generate()
            made = self.granted(wanted.following(edition, me.sender, key), edition)
            self._publish(tx, LogRow.read(tx, gid), made, key, now)
        except (AngeliaError, Refused) as error:
            told = f"{told}, and your change does not fit to that: {error.message}"
            self._notices.tell(NoticeKind.WARNING, f"{told}; see angelia log members {edition.name}")
        else:
            for member in edition.members:  # what was sealed under the key of the edition that does not hold
                tx.write("lower_untold_member", gid, member.sender, stored.run[since].epoch)
            self._notices.tell(NoticeKind.WARNING, f"{told}; your change was made again after that one")

    def _note_untold(self, tx: MailboxTx, edition: GroupEdition, before: GroupEdition | None) -> None:
        """Members are to be sent an edition. Those of the one before have its key; new ones read what was written
        before their time from a snapshot."""
        gid = base58(edition.group)
        for member in edition.members:
            if member.handle != self.handle:
                has_it = before is not None and before.by_sender(member.sender) is not None
                epoch = before.epoch if before is not None and has_it else edition.epoch - 1
                tx.write("add_untold_member", gid, member.sender, min(epoch, edition.epoch - 1))

    # Keys.

    def _keep_key(
        self, tx: MailboxTx, gid: str, epoch: int, key: EpochKey, now: datetime, *, most: int = MAX_SEQ
    ) -> None:
        """Keeps a key, unless there are so many of its epoch."""
        row = f"{gid}/{epoch}/{key.key_id}"
        sealed = self._local.encrypt("log_keys", row, key.secret)
        tx.write("put_log_key", row, gid, epoch, key.key_id, *sealed, now, most)

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
            raise LaterEpoch(hint="an admin sends it by mail: `angelia log read` fetches it")
        return EpochKey.of(self._local.decrypt("log_keys", *found))

    def keys(self, edition: GroupEdition, epoch: int) -> list[EpochKey]:
        """Returns the keys of an epoch: more than one if two admins changed the group at once. EarlierEpoch or
        LaterEpoch if there is none here."""
        found = self._database.rows("log_keys", base58(edition.group), epoch)
        if found:
            return [EpochKey.of(self._local.decrypt("log_keys", *row)) for row in found]
        if epoch > edition.epoch:
            raise LaterEpoch(hint="an admin sends it by mail: `angelia log read` fetches it")
        raise EarlierEpoch(hint="a snapshot that was made since contains it")

    def seal(self, edition: GroupEdition, place: GroupPlace, body: bytes) -> bytes:
        """Returns a message of this agent as nodes keep it."""
        return group_sealing.seal(place, edition.epoch, self.key(edition), body, self._own_keys.signer.key.sign)

    def unseal(self, edition: GroupEdition, place: GroupPlace, sealed: bytes) -> bytes:
        """Returns the body of a message; Refused if its sender did not write it for this place."""
        member = edition.by_sender(place.sender)
        if member is None:
            raise OpenFailed("the message is of a sender that was never a member")
        keys = self.keys(edition, group_sealing.epoch_of(sealed))
        for key in keys[:-1]:
            with contextlib.suppress(OpenFailed):
                return group_sealing.unseal(place, sealed, key, member.public_keys)
        return group_sealing.unseal(place, sealed, keys[-1], member.public_keys)

    def sign(self, message: bytes) -> bytes:
        """Signs with the key that the roster has of this agent."""
        return self._own_keys.signer.key.sign(message)

    def _sign_with(self, public_key: bytes, message: bytes) -> bytes:
        """Signs with this agent's present key or, while a rotation is under way, with its next one."""
        if self._own_keys.signer.pair.public.ed25519 == public_key:
            return self.sign(message)
        if self._own_keys.has_next_signer():
            with self._own_keys.signing_as_next():
                if self._own_keys.signer.pair.public.ed25519 == public_key:
                    return self.sign(message)
        raise NotAllowed(
            "the group knows an older key of this agent, with which it cannot sign any more",
            hint="the agent that made the group runs angelia log members NAME --refresh",
        )

    def path(self, group: bytes) -> Path:
        """The database of a group on this machine; its directory exists then."""
        private_files.make_below(self._directory)
        return self._path(group)

    def _path(self, group: bytes) -> Path:
        return self._directory / f"{base58(group)}.db"


def _decoded(packed: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(packed, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenDatabase("the edition of a group is damaged", hint="put it back from a back-up") from error
