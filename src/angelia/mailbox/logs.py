"""The agent's side of group logs: which groups it is a member of, their editions and epoch keys, without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from angelia.envelope import group_sealing
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.refusals import NotAllowed, OpenFailed, UnknownKey
from angelia.envelope.sealing import EpochKey
from angelia.envelope.wire import Envelope
from angelia.errors import Conflict, EpochConflict, InvalidArgument, NoGroup, NotMember
from angelia.grouplog.model.edition_history import reapplied, removed_again
from angelia.grouplog.model.editions import (
    EDITIONS,
    MAX_EDITION,
    MAX_SENT,
    EditionMember,
    GroupEdition,
    SentEdition,
    SignedEdition,
    decode_mail,
    encode_mail,
)
from angelia.grouplog.model.ids import base58
from angelia.mailbox import private_files
from angelia.mailbox.database import MailboxDatabase, MailboxTx, stamp
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.log_history import LogHistory, decoded
from angelia.mailbox.notices import NoticeKind, Notices
from angelia.mailbox.own_keys import OwnKeys

SHORTEST_PREFIX = 8
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
    _notices: Notices
    _directory: Path

    @property
    def handle(self) -> str:
        return self._own_keys.identity.handle

    def editions(self) -> list[GroupEdition]:
        return [decoded(row[0]) for row in self._database.rows("logs")]

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
        self._database.write("settle_edition_at", base58(edition.group), edition.digest, at)

    def nothing_to_settle(self, group: bytes) -> None:
        self._database.write("settle_log_at", base58(group), None)

    def untold(self, edition: GroupEdition) -> Iterator[tuple[str, bytes]]:
        """The members that have yet to be sent the newest edition, each with a message that brings all editions since
        the last one that it has."""
        gid = base58(edition.group)
        history = LogHistory.read(self._database, gid)
        if history is None or history.newest.digest != edition.digest:
            raise EpochConflict(_OVERTAKEN, hint="try again")
        digests = [one.digest for one in history.chain]
        bodies = dict[tuple[int, tuple[bool, ...]], bytes]()
        for handle, told in self._database.rows("untold_members", gid):
            first = digests.index(told) + 1 if told in digests else 0
            since = history.chain[first:] or history.chain[-1:]
            # What was sealed before its time a member reads from a snapshot.
            was_there = tuple(one.edition.member(handle) is not None for one in since)
            if (first, was_there) not in bodies:
                bodies[first, was_there] = self._mail(since, was_there)
            yield handle, bodies[first, was_there]

    def _mail(self, since: Sequence[SignedEdition], with_key: Sequence[bool]) -> bytes:
        """A message that brings editions, the newest in any case, and the others as far as they fit."""
        body, sent = b"", list[SentEdition]()
        for one, entitled in reversed(list(zip(since, with_key, strict=True))):
            key = None
            if entitled:
                key = self._key(one.edition) if sent else self.key(one.edition)
            sent.insert(0, SentEdition(one, key))
            longer = encode_mail(sent)
            if body and (len(longer) > MAX_EDITION or len(sent) > MAX_SENT):
                break
            body = longer
        return body

    def note_untold(self, edition: GroupEdition) -> None:
        """All other members are to be sent the editions, also if they were sent them before."""
        with self._database.transaction() as tx:
            tx.write("drop_untold_members", base58(edition.group))
            self._note_untold(tx, edition, None)

    def note_told(self, edition: GroupEdition, handles: Iterable[str]) -> None:
        """Members were sent an edition. Nothing is noted if it is not the newest one any more."""
        with self._database.transaction() as tx:
            found = tx.row("log", base58(edition.group))
            if found is not None and decoded(found[0]) == edition:
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
        found = edition.member(self.handle)
        if found is None:
            raise NotMember(f"you are not a member of {edition.name} any more")
        return found

    def expects(self, envelope: Envelope) -> bool:
        """Whether an envelope may bring the next edition of a group: its sender is an admin of one."""
        header = envelope.header
        if not header.control or header.channel_id != EDITIONS:
            return False
        return any(self._may_bring(gid, header.sender_nhi) for (gid,) in self._database.rows("log_ids"))

    def continues(self, body: bytes, sender: str) -> bool:
        """Whether a control message brings editions of a group that its sender is an admin of already, also by an
        edition that does not hold now."""
        try:
            sent = decode_mail(body)
        except InvalidArgument:
            return False
        return self._may_bring(base58(sent[0].signed.edition.group), sender)

    def _may_bring(self, gid: str, sender: str) -> bool:
        history = LogHistory.read(self._database, gid)
        return history is not None and sender in history.admins()

    def accept(self, sent: Sequence[SentEdition], sender: str, now: datetime) -> bool:
        """Stores editions that an agent sent, with their keys. Returns whether the group has another one now.

        The first edition of a group is accepted from any admin that it lists: its mail was opened, so the agent allows
        that sender. Later ones hold by the signatures of their authors, whichever agent sent them. One that cannot be
        judged yet is kept: others may come that lead to it."""
        gid = base58(sent[0].signed.edition.group)
        for one in sent:
            one.signed.edition.check()
        with self._database.transaction() as tx:
            history = LogHistory.read(tx, gid)
            before = [] if history is None else history.chain
            if history is None:
                history = self._joined(sent, sender, now)
            else:
                self._add(history, sent, sender, now)
            for one in sent:
                if one.key is not None and history.knows(one.signed.digest):
                    self._keep_key(tx, one.signed.edition, one.key, now)
            history.save(tx, gid)
            if before and history.newest.digest != before[-1].digest:
                self._follow_up(tx, history, before, now)
            return not before or history.newest.digest != before[-1].digest

    def _add(self, history: LogHistory, sent: Sequence[SentEdition], sender: str, now: datetime) -> None:
        refusal = None
        for one in sent:
            try:
                history.add(one.signed, sender, stamp(now))
            except NotAllowed as error:
                refusal = error
        if refusal is not None and not history.knows(sent[-1].signed.digest):
            raise refusal

    def _joined(self, sent: Sequence[SentEdition], sender: str, now: datetime) -> LogHistory:
        """The history of a group that is new here; it begins with the first edition that was sent."""
        base, newest = sent[0].signed, sent[-1].signed
        name = newest.edition.name
        if sender not in newest.edition.admins:
            raise NotAllowed(f"{sender} is not an admin of the group {name}, so its edition is not believed")
        if not base.is_by_its_author():
            raise NotAllowed(
                f"edition {base.edition.number} of the group {name} is not signed by the member that made it"
            )
        if newest.edition.member(self.handle) is None:
            raise NotMember(f"{sender} sent the group {name}, of which you are not a member")
        history = LogHistory.first(base, sender, stamp(now))
        for one in sent[1:]:
            history.add(one.signed, sender, stamp(now))
        if history.newest.digest != newest.digest:
            raise NotAllowed(f"the editions of the group {name} do not lead to the one that {sender} sent as the last")
        return history

    def publish(self, edition: GroupEdition, key: EpochKey, now: datetime) -> None:
        """Signs and stores an edition that was made here. Nodes and members are to be brought to it. EpochConflict if
        it does not follow the newest one."""
        with self._database.transaction() as tx:
            self._publish(tx, LogHistory.read(tx, base58(edition.group)), edition, key, now)

    def _publish(
        self, tx: MailboxTx, history: LogHistory | None, edition: GroupEdition, key: EpochKey, now: datetime
    ) -> None:
        edition, gid = edition.checked(), base58(edition.group)
        signed, handle, at = SignedEdition.of(edition, self.sign), self.handle, stamp(now)
        before = None if history is None else history.newest.edition
        if history is None:
            history = LogHistory.first(signed, handle, at)
        elif edition.parent != history.newest.digest:
            raise EpochConflict(_OVERTAKEN, hint="try again")
        else:
            history.add(signed, handle, at)
        self._keep_key(tx, edition, key, now)
        history.save(tx, gid)
        self._note_untold(tx, edition, before)
        tx.write("settle_log_at", gid, now)

    def _follow_up(self, tx: MailboxTx, history: LogHistory, before: list[SignedEdition], now: datetime) -> None:
        """What an admin does when another's edition holds: it sees to it that nodes have that one, whatever they were
        brought to meanwhile; and what it changed in editions that hold no more, it changes again, and removes again
        which members were removed in these."""
        newest = history.newest.edition
        me = newest.member(self.handle)
        if me is None or not me.admin:
            return
        tx.write("settle_log_at", base58(newest.group), now)
        wanted, holding = newest, {one.digest for one in history.chain}
        for earlier, later in pairwise(before):
            if later.digest not in holding:
                again = reapplied if later.edition.author == me.binding else removed_again
                wanted = again(wanted, earlier.edition, later.edition)
        if wanted == newest:
            return
        told = f"another admin changed the group {newest.name} at the same time"
        try:
            key = self.key(newest) if wanted.epoch == newest.epoch else EpochKey.generate()
            self._publish(tx, history, wanted.following(newest, me.binding, key), key, now)
        except (InvalidArgument, NotAllowed, UnknownKey) as error:
            told = f"{told}, and your change does not fit to that: {error.message}"
            self._notices.tell(NoticeKind.WARNING, f"{told}; see angelia log members {newest.name}")
        else:
            self._notices.tell(NoticeKind.WARNING, f"{told}; your change was made again after that one")

    def _note_untold(self, tx: MailboxTx, edition: GroupEdition, before: GroupEdition | None) -> None:
        """Members are to be sent an edition; those of the one before have that one."""
        gid = base58(edition.group)
        listed = {one.handle for one in edition.members}
        for handle, _ in tx.rows("untold_members", gid):
            if handle not in listed:
                tx.write("drop_untold_member", gid, handle)
        for handle in listed - {self.handle}:
            has_one = before is not None and before.member(handle) is not None
            tx.write("add_untold_member", gid, handle, before.digest if before is not None and has_one else None)

    # Keys.

    def _keep_key(self, tx: MailboxTx, edition: GroupEdition, key: EpochKey, now: datetime) -> None:
        """Keeps the key of an edition; `LogHistory.save` notes whether that one holds."""
        gid = base58(edition.group)
        row = f"{gid}/{edition.epoch}/{key.key_id}"
        sealed = self._local.encrypt("log_keys", row, key.secret)
        tx.write("put_log_key", row, gid, edition.epoch, key.key_id, False, *sealed, now)

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
        found = self._key(edition)
        if found is None:
            raise LaterEpoch(hint="an admin sends it by mail: `angelia log read` fetches it")
        return found

    def _key(self, edition: GroupEdition) -> EpochKey | None:
        found = self._database.row("log_key", base58(edition.group), edition.epoch, edition.key_id)
        return None if found is None else EpochKey.of(self._local.decrypt("log_keys", *found))

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
