"""The agent's side of group logs: which groups it is a member of, their editions and epoch keys, without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import msgspec

from angelia.envelope import group_sealing
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.refusals import NotAllowed, OpenFailed, Refused, UnknownKey, UnknownSigner
from angelia.envelope.sealing import EpochKey
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError, Conflict, Denied, EpochConflict, InvalidArgument, NoGroup, NotMember
from angelia.grouplog.model import admin_grants
from angelia.grouplog.model.admin_grants import Admin
from angelia.grouplog.model.edition_merge import left_out, merged
from angelia.grouplog.model.editions import (
    EDITIONS,
    MAX_LINEAGE,
    EditionMember,
    GroupEdition,
    SentEdition,
    SignedEdition,
    counted_on,
    decode_mail,
    encode_mail,
)
from angelia.grouplog.model.ids import MAX_SEQ, base58
from angelia.mailbox import private_files
from angelia.mailbox.database import BrokenDatabase, MailboxDatabase, MailboxTx, NamedStatements
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.notices import NoticeKind, Notices
from angelia.mailbox.own_keys import OwnKeys
from angelia.mailbox.pinned_keys import PinnedKeys

SHORTEST_PREFIX = 8
_MOST_KEYS = 16  # of an epoch: as many as admins that changed the group at once, so hardly two
_PRESENT = datetime.max.replace(tzinfo=UTC)
_NEVER = datetime.min.replace(tzinfo=UTC)
_OVERTAKEN = "another admin has changed the group meanwhile"


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
    _notices: Notices
    _directory: Path

    @property
    def handle(self) -> str:
        return self._own_keys.identity.handle

    def editions(self) -> list[GroupEdition]:
        return [_decoded(row[0]) for row in self._database.rows("logs")]

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

    def settle_soon(self, group: bytes, now: datetime) -> None:
        self._database.write("settle_log_at", base58(group), now)

    def nothing_to_settle(self, group: bytes) -> None:
        self._database.write("settle_log_at", base58(group), None)

    def untold(self, edition: GroupEdition) -> Iterator[tuple[str, bytes]]:
        """The members that have yet to be sent the newest edition, each with the message that brings it."""
        gid = base58(edition.group)
        stored = _read(self._database, gid)
        if stored is None or stored.edition != edition:
            raise EpochConflict(_OVERTAKEN, hint="try again")
        bodies: dict[int, bytes] = {}
        for sender, epoch in self._database.rows("untold_members", gid):
            member = edition.by_sender(sender)
            if member not in edition.members:
                continue  # another admin has removed it
            if epoch not in bodies:
                bodies[epoch] = encode_mail(SentEdition(stored, self._keys_since(edition, epoch)))
            yield member.handle, bodies[epoch]

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
        found = _read(tx, base58(group))
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
        them; of all that are sound the last one in their order holds, whenever it comes. UnknownSigner if the owner's
        key is not known here, which its bundles may show."""
        signed, edition, gid = sent.signed, sent.signed.edition, base58(sent.signed.edition.group)
        with self._database.transaction() as tx:
            stored = self._newest(tx, edition.group)
            if stored is None:
                self._check_first(edition, sender)
            else:
                _check_continues(stored, edition, sender)
            if not signed.is_sound():
                raise NotAllowed(f"edition {edition.number} of the group {edition.name} is not signed by its admins")
            rank = self._rank(edition)
            if rank[0] == _NEVER:
                raise self._unknown_owner(edition)
            newer = stored is None or rank > self._rank(stored)
            believed = edition.admins if stored is None or newer else stored.admins
            for epoch, key in sent.keys:
                if newer and key.key_id == edition.key_id:
                    self._keep_key(tx, gid, epoch, key, now)
                elif sender in believed:
                    self._keep_key(tx, gid, epoch, key, now, most=_MOST_KEYS)
            if not newer:
                return False
            _write(tx, signed, sender, now)
            if stored is not None and stored.grant is not None:
                self._merge(tx, edition, stored, now)
            return True

    def _check_first(self, edition: GroupEdition, sender: str) -> None:
        if sender not in edition.admins:
            raise NotAllowed(f"{sender} is not an admin of the group {edition.name}, so its edition is not believed")
        if edition.member(self.handle) is None:
            raise NotMember(f"{sender} sent the group {edition.name}, of which you are not a member")

    def _unknown_owner(self, edition: GroupEdition) -> Refused:
        owner = edition.owner.handle
        told = f"{owner} does not have the key any more with which it says who the admins of {edition.name} are"
        if owner == self.handle:
            return NotAllowed(told)
        error = UnknownSigner(told)
        error.agent = owner
        return error

    def _rank(self, edition: GroupEdition) -> tuple[datetime, int, int, bytes]:
        """Of two editions of a group, the one of the higher rank holds: each key of the owner counts for more than all
        before it, since those may have been stolen."""
        if edition.grant is None:
            return _NEVER, 0, edition.number, b""
        owner = edition.grant.owner
        if owner.handle == self.handle:
            since = _PRESENT if owner.public_key == self._own_keys.identity.pair.public.ed25519 else _NEVER
        else:
            since = self._pinned.replaced_at(owner.handle, owner.public_key, _PRESENT) or _NEVER
        return since, *edition.order

    def publish(self, edition: GroupEdition, key: EpochKey, now: datetime) -> None:
        """Signs and stores an edition that was made here. Nodes and members are to be brought to it. EpochConflict if
        it does not follow the newest one."""
        with self._database.transaction() as tx:
            self._publish(tx, self._newest(tx, edition.group), edition, key, now)

    def granted(
        self, edition: GroupEdition, before: GroupEdition | None, verified: Mapping[bytes, bytes] = MappingProxyType({})
    ) -> GroupEdition:
        """Returns an edition with the word of the group's owner on who its admins are: the one that it had, if they and
        their keys are the same; a new one, if this agent is the owner. `verified` has present keys of members: what an
        edition says of an admin's key is another admin's word."""
        owner = (edition if before is None else before).owner
        grant = None if before is None else before.grant
        listed = {one.sender: one for one in edition.members if one.admin}
        if owner.handle != self.handle:
            if grant is None:
                raise Denied(
                    f"{owner.handle}, which made the group {edition.name}, has to say first who its admins are",
                    hint=f"it runs angelia log members {edition.name} --refresh",
                )
            if set(listed) != {one.sender for one in grant.admins}:
                raise Denied(
                    f"only {owner.handle}, which made the group {edition.name}, makes and removes its admins",
                    hint="ask that agent",
                )
            return msgspec.structs.replace(edition, grant=grant)
        if owner.sender not in listed:
            raise Denied(f"you made the group {edition.name}, and stay its admin", hint="angelia log drop")
        admins = [Admin(owner.sender, owner.handle, self._own_keys.identity.pair.public.ed25519)]
        for sender, one in listed.items():
            if sender != owner.sender:
                known = None if grant is None else grant.admin(sender)
                key = verified.get(sender, one.public_key if known is None else known.public_key)
                admins.append(Admin(sender, one.handle, key))
        if grant is None or grant.admins != tuple(admins):
            grant = admin_grants.granted(edition.group, grant, tuple(admins), self._own_keys.identity.key.sign)
        return msgspec.structs.replace(edition, grant=grant)

    def _publish(
        self, tx: MailboxTx, before: GroupEdition | None, edition: GroupEdition, key: EpochKey, now: datetime
    ) -> None:
        edition, gid = edition.checked(), base58(edition.group)
        if before is not None:
            follows = edition.lineage[:1] == (before.digest,) and self._rank(edition) > self._rank(before)
            if not follows:
                raise EpochConflict(_OVERTAKEN, hint="try again")
        assert edition.grant is not None, "its author has seen to it"
        own = edition.grant.admin(edition.author)
        identity = self._own_keys.identity
        if own is None or own.public_key != identity.pair.public.ed25519:
            raise NotAllowed(
                f"the owner of {edition.name} has not said yet that this agent is an admin under its new key too",
                hint=f"{edition.owner.handle} runs angelia log members {edition.name} --refresh",
            )
        _write(tx, SignedEdition.of(edition, identity.key.sign), self.handle, now)
        self._keep_key(tx, gid, edition.epoch, key, now)
        self._note_untold(tx, edition, before)
        tx.write("settle_log_at", gid, now)

    def _merge(self, tx: MailboxTx, edition: GroupEdition, other: GroupEdition, now: datetime) -> None:
        """What an admin does when an edition takes the place of another one: it sees to it that nodes have that one,
        whatever they were brought to meanwhile, and changes again what its author did not know of."""
        me = edition.member(self.handle)
        if me is None or not me.admin:
            return
        tx.write("settle_log_at", base58(edition.group), now)
        if other.digest in edition.lineage:
            return
        told = f"another admin changed the group {edition.name} at the same time"
        wanted = merged(edition, other)
        if wanted != edition or other.epoch > edition.epoch:
            key = EpochKey.generate()
            wanted = msgspec.structs.replace(wanted, epoch=counted_on(max(edition.epoch, other.epoch)))
            try:
                self._publish(tx, edition, self.granted(wanted.following(edition, me.sender, key), edition), key, now)
            except (AngeliaError, Refused) as error:
                told = f"{told}, and its change does not fit to yours: {error.message}"
                self._notices.tell(NoticeKind.WARNING, f"{told}; see angelia log members {edition.name}")
                return
        self._share_keys(tx, edition, other)
        mine = other.member(self.handle)
        if mine is not None and mine.sender == other.author and (missing := left_out(edition, other)):
            told = f"{told}, and leaves out {', '.join(missing)}: if that is wrong, make your change again"
            self._notices.tell(NoticeKind.WARNING, told)

    def _share_keys(self, tx: MailboxTx, edition: GroupEdition, other: GroupEdition) -> None:
        """Members that did not read an edition which does not hold get its keys too: messages were sealed under them.
        What it was made of goes back to the first edition that both know."""
        behind = next((at for at, one in enumerate(other.lineage) if one in edition.lineage), MAX_LINEAGE)
        for member in edition.members:
            if member.handle != self.handle and other.by_sender(member.sender) is not None:
                tx.write("add_untold_member", base58(edition.group), member.sender, max(other.epoch - behind - 1, 0))

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


def _read(tx: NamedStatements, gid: str) -> SignedEdition | None:
    found = tx.row("log", gid)
    return None if found is None else SignedEdition(_decoded(found[0]), found[1])


def _write(tx: MailboxTx, signed: SignedEdition, sender: str, now: datetime) -> None:
    edition = signed.edition
    packed = msgspec.msgpack.encode(edition)
    tx.write("put_log", base58(edition.group), edition.name, edition.number, packed, signed.signature, sender, now)


def _check_continues(stored: GroupEdition, edition: GroupEdition, sender: str) -> None:
    """An edition has the owner and configuration of those before it, and no member takes another handle: handles say
    which agent is the owner."""
    owner = edition.owner
    if stored.grant is None:
        goes_on = any((one.sender, one.handle) == (owner.sender, owner.handle) for one in stored.members if one.admin)
    else:
        goes_on = (owner.sender, owner.handle) == (stored.owner.sender, stored.owner.handle)
    handles = {one.sender: one.handle for one in (*stored.members, *stored.past)}
    renamed = any(handles.get(one.sender, one.handle) != one.handle for one in (*edition.members, *edition.past))
    if not goes_on or renamed or edition.config != stored.config:
        told = f"{sender} sent an edition of {edition.name} with another owner or configuration, or renamed members"
        raise NotAllowed(told)


def _decoded(packed: bytes) -> GroupEdition:
    try:
        return msgspec.msgpack.decode(packed, type=GroupEdition)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenDatabase("the edition of a group is damaged", hint="put it back from a back-up") from error
