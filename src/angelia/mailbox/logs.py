"""The agent's side of group logs: which groups it is a member of, their editions and epoch keys, without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from angelia.envelope import group_sealing
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.refusals import NotAllowed, OpenFailed, UnknownKey
from angelia.envelope.sealing import EpochKey
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Envelope
from angelia.errors import Conflict, InvalidArgument, NoGroup, NotMember
from angelia.grouplog.model.edition_history import reapplied
from angelia.grouplog.model.editions import EDITIONS, EditionMember, GroupEdition, SignedEdition, decode_mail
from angelia.grouplog.model.ids import base58
from angelia.mailbox import private_files
from angelia.mailbox.database import MailboxDatabase, MailboxTx, stamp
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.log_history import LogHistory, decoded
from angelia.mailbox.notices import NoticeKind, Notices
from angelia.mailbox.own_keys import OwnKeys

SHORTEST_PREFIX = 8


class Overtaken(Conflict):
    """Another admin has changed the group meanwhile"""


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
    _notices: Notices
    _directory: Path

    def editions(self) -> list[GroupEdition]:
        return [decoded(row[0]) for row in self._database.rows("logs")]

    def any(self) -> bool:
        """Whether this agent is in any group."""
        return self._database.row("any_log") is not None

    # What this agent, an admin, has yet to bring to nodes and members.

    def unsettled(self, now: datetime) -> list[str]:
        """The ids of groups whose nodes or members are to be brought to the newest edition now."""
        return [gid for (gid,) in self._database.rows("unsettled_logs", now)]

    def settle_at(self, group: bytes, at: datetime | None) -> None:
        """Notes when that is to be tried again; None once it is done."""
        self._database.write("settle_log_at", base58(group), at)

    def untold(self, group: bytes) -> list[str]:
        """The members that have yet to be sent the newest edition."""
        return [handle for (handle,) in self._database.rows("untold_members", base58(group))]

    def note_untold(self, edition: GroupEdition) -> None:
        """All other members are to be sent the newest edition, also if they were sent it before."""
        with self._database.transaction() as tx:
            self._note_untold(tx, edition)

    def note_told(self, edition: GroupEdition, handles: Iterable[str]) -> None:
        """Members were sent an edition. Nothing is noted if it is not the newest one any more."""
        with self._database.transaction() as tx:
            history = LogHistory.read(tx, base58(edition.group))
            if history is not None and history.newest == edition:
                for handle in handles:
                    tx.write("drop_untold_member", base58(edition.group), handle)

    # Editions.

    def edition(self, group: bytes) -> GroupEdition | None:
        found = self._database.row("log", base58(group))
        return None if found is None else decoded(found[0])

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
        found = edition.member(self._own_keys.identity.handle)
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
            signed, _ = decode_mail(body)
        except InvalidArgument:
            return False
        known = self.edition(signed.edition.group)
        return known is not None and sender in known.admins

    def accept(self, signed: SignedEdition, key: EpochKey, sender: str, now: datetime) -> bool:
        """Stores an edition that an agent sent, with its key. Returns whether the group has another one now.

        The first edition of a group is accepted from any admin that it lists: its mail was opened, so the agent allows
        that sender. Later ones hold by the signatures of their authors, whichever agent sent them. One that cannot be
        judged yet is kept: others may come that lead to it."""
        edition, gid = signed.edition, base58(signed.edition.group)
        edition.check()
        with self._database.transaction() as tx:
            history = LogHistory.read(tx, gid)
            if history is None:
                self._check_first(signed, sender)
                self._keep_key(tx, edition, key, now)
                LogHistory.first(signed, sender, stamp(now)).save(tx, gid)
                return True
            if history.is_past(edition):
                self._keep_key(tx, edition, key, now, proven=True)
                return False
            before = history.chain
            history.add(signed, sender, stamp(now))
            self._keep_key(tx, edition, key, now)
            history.save(tx, gid)
            self._follow_up(tx, history, before, now)
            return history.newest != before[-1].edition

    def publish(self, edition: GroupEdition, key: EpochKey, now: datetime) -> None:
        """Signs and stores an edition that was made here. Nodes and members are to be brought to it. Overtaken if it
        does not follow the newest one."""
        with self._database.transaction() as tx:
            self._publish(tx, LogHistory.read(tx, base58(edition.group)), edition, key, now)

    def _publish(
        self, tx: MailboxTx, history: LogHistory | None, edition: GroupEdition, key: EpochKey, now: datetime
    ) -> None:
        edition.check()
        gid, handle, at = base58(edition.group), self._own_keys.identity.handle, stamp(now)
        signed = SignedEdition.of(edition, self.sign)
        if history is None:
            history = LogHistory.first(signed, handle, at)
        elif edition.lineage[:1] != (history.newest.digest,):
            raise Overtaken(hint="try again")
        else:
            history.add(signed, handle, at)
        self._keep_key(tx, edition, key, now)
        history.save(tx, gid)
        self._note_untold(tx, edition)
        tx.write("settle_log_at", gid, now)

    def _check_first(self, signed: SignedEdition, sender: str) -> None:
        edition = signed.edition
        if sender not in edition.admins:
            raise NotAllowed(f"{sender} is not an admin of the group {edition.name}, so its edition is not believed")
        if not signed.is_by_its_author():
            raise NotAllowed(f"the edition of the group {edition.name} is not signed by the member that made it")
        if edition.member(self._own_keys.identity.handle) is None:
            raise NotMember(f"{sender} sent the group {edition.name}, of which you are not a member")

    def _follow_up(self, tx: MailboxTx, history: LogHistory, before: list[SignedEdition], now: datetime) -> None:
        """What an admin does when another's edition came: it sees to it that nodes have the one that holds, whatever
        they were brought to meanwhile; and what it changed in one that does not hold any more, it changes again."""
        newest = history.newest
        me = newest.member(self._own_keys.identity.handle)
        if me is None or not me.admin:
            return
        tx.write("settle_log_at", base58(newest.group), now)
        holding = {one.edition.digest for one in history.chain}
        wanted = newest
        for earlier, later in pairwise(before):
            if later.edition.digest not in holding and later.edition.author == me.binding:
                wanted = reapplied(wanted, earlier.edition, later.edition)
        if wanted == newest:
            return
        key = self.key(newest) if wanted.epoch == newest.epoch else EpochKey.generate()
        told = f"another admin changed the group {newest.name} at the same time"
        try:
            self._publish(tx, history, wanted.following(newest, me.binding, key, unix_ms(now)), key, now)
        except InvalidArgument as error:
            told = f"{told}, and your change does not fit to that: {error.message}"
            self._notices.tell(NoticeKind.WARNING, f"{told}; see angelia log members {newest.name}")
        else:
            self._notices.tell(NoticeKind.WARNING, f"{told}; your change was made again after that one")

    def _note_untold(self, tx: MailboxTx, edition: GroupEdition) -> None:
        gid = base58(edition.group)
        tx.write("drop_untold_members", gid)
        for member in edition.members:
            if member.handle != self._own_keys.identity.handle:
                tx.write("add_untold_member", gid, member.handle)

    def signed(self, edition: GroupEdition) -> SignedEdition:
        """The newest edition with its author's signature, as it is sent to members."""
        history = LogHistory.read(self._database, base58(edition.group))
        if history is None or history.newest != edition:
            raise Overtaken(hint="try again")
        return history.chain[-1]

    # Keys.

    def _keep_key(
        self, tx: MailboxTx, edition: GroupEdition, key: EpochKey, now: datetime, *, proven: bool = False
    ) -> None:
        gid = base58(edition.group)
        row = f"{gid}/{edition.epoch}/{key.key_id}"
        sealed = self._local.encrypt("log_keys", row, key.secret)
        tx.write("put_log_key", row, gid, edition.epoch, key.key_id, proven, *sealed, now)

    def forget(self, group: bytes) -> None:
        """Forgets a group with its keys and its database."""
        with self._database.transaction() as tx:
            for statement in ("drop_log", "drop_log_editions", "drop_untold_members", "drop_log_keys"):
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

    def path(self, group: bytes) -> Path:
        """The database of a group on this machine; its directory exists then."""
        private_files.make_below(self._directory)
        return self._path(group)

    def _path(self, group: bytes) -> Path:
        return self._directory / f"{base58(group)}.db"
