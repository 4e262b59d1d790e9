"""The agent's side of group logs: which groups it is a member of, their editions and epoch keys, without a network."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from angelia.envelope import group_sealing
from angelia.envelope.group_sealing import GroupPlace
from angelia.envelope.refusals import NotAllowed, OpenFailed, UnknownKey
from angelia.envelope.sealing import EpochKey
from angelia.envelope.wire import Envelope
from angelia.errors import Conflict, InvalidArgument, NoGroup, NotMember
from angelia.grouplog.model.editions import EDITIONS, EditionMember, GroupEdition, decode_mail
from angelia.grouplog.model.ids import base58
from angelia.mailbox import private_files
from angelia.mailbox.database import BrokenDatabase, MailboxDatabase
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.own_keys import OwnKeys

SHORTEST_PREFIX = 8
MOST_MISSED = 1_000  # editions: a number far ahead would keep every true one from being believed


class LaterEpoch(UnknownKey):
    """The message is sealed under a key that has not arrived"""


class UnknownSender(OpenFailed):
    """The message is of a sender that is no member, as far as is known here"""


class EarlierEpoch(UnknownKey):
    """The message is from before this agent was a member"""


@dataclass(eq=False, repr=False)
class MailboxLogs:
    """The tables `logs` and `log_keys`, and the directory of the logs' own databases."""

    _database: MailboxDatabase
    _local: LocalKey
    _own_keys: OwnKeys
    _directory: Path

    def editions(self) -> list[GroupEdition]:
        return [_decoded(row[0]) for row in self._database.rows("logs")]

    def any(self) -> bool:
        """Whether this agent is in any group."""
        return self._database.row("any_log") is not None

    def untold(self) -> list[str]:
        """The ids of groups whose members have not heard of this agent's new key."""
        return [gid for (gid,) in self._database.rows("untold_logs")]

    def note_untold(self, group: bytes) -> None:
        self._database.write("note_untold_log", base58(group), 1)

    def note_told(self, gid: str) -> None:
        self._database.write("note_untold_log", gid, 0)

    def edition(self, group: bytes) -> GroupEdition | None:
        found = self._database.row("log", base58(group))
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
            edition, _ = decode_mail(body)
        except InvalidArgument:
            return False
        known = self.edition(edition.group)
        return known is not None and sender in known.admins

    def accept(self, edition: GroupEdition, key: EpochKey, sender: str, now: datetime) -> bool:
        """Stores an edition that came from an agent, with its key. Returns whether it is new here.

        The first edition of a group is accepted from any admin that it lists: its mail was opened, so the agent allows
        that sender. Each later one must come from an admin of the edition before it."""
        known = self.edition(edition.group)
        if sender not in (edition if known is None else known).admins:
            raise NotAllowed(f"{sender} is not an admin of the group {edition.name}, so its edition is not believed")
        if known is None and edition.member(self._own_keys.identity.handle) is None:
            raise NotMember(f"{sender} sent the group {edition.name}, of which you are not a member")
        if known is not None and _order(edition) <= _order(known):
            # Its key may still be one that is missing here: mail comes in any order.
            if edition.epoch < known.epoch:
                self._keep_key(edition, key, now)
            return False
        if known is not None and (edition.epoch < known.epoch or edition.config != known.config):
            raise Conflict(f"{sender} sent an edition of {edition.name} that goes back to an earlier key")
        if known is not None and edition.number > known.number + MOST_MISSED:
            raise Conflict(f"{sender} sent an edition of {edition.name} that is too far ahead")
        return self.store(edition, key, sender, now)

    def store(self, edition: GroupEdition, key: EpochKey, sender: str, now: datetime) -> bool:
        """Stores an edition that is believed, or was made here. Returns False if another process has stored a later
        one meanwhile."""
        edition.check()
        group = base58(edition.group)
        with self._database.transaction() as tx:
            found = tx.row("log", group)
            before = None if found is None else _decoded(found[0])
            if before is not None and _order(before) > _order(edition):
                return False
            replaces = before is not None and before.number == edition.number
            packed = msgspec.msgpack.encode(edition)
            tx.write("put_log", group, edition.name, edition.number, packed, sender, now)
            sealed = self._local.encrypt("log_keys", f"{group}/{edition.epoch}", key.secret)
            tx.write("replace_log_key" if replaces else "put_log_key", group, edition.epoch, *sealed, now)
            return True

    def _keep_key(self, edition: GroupEdition, key: EpochKey, now: datetime) -> None:
        group = base58(edition.group)
        with self._database.transaction() as tx:
            sealed = self._local.encrypt("log_keys", f"{group}/{edition.epoch}", key.secret)
            tx.write("put_log_key", group, edition.epoch, *sealed, now)

    def forget(self, group: bytes) -> None:
        """Forgets a group with its keys and its database."""
        with self._database.transaction() as tx:
            tx.write("drop_log", base58(group))
            tx.write("drop_log_keys", base58(group))
        path = self._path(group)
        for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            name.unlink(missing_ok=True)

    def key(self, edition: GroupEdition, epoch: int) -> EpochKey:
        """Returns the key of an epoch. EarlierEpoch or LaterEpoch if it is not here."""
        found = self._database.row("log_key", base58(edition.group), epoch)
        if found is not None:
            return EpochKey.of(self._local.decrypt("log_keys", f"{base58(edition.group)}/{epoch}", *found))
        if epoch > edition.epoch:
            raise LaterEpoch(hint="an admin sends it by mail: `angelia log read` fetches it")
        raise EarlierEpoch(hint="a snapshot that was made since contains it")

    def seal(self, edition: GroupEdition, place: GroupPlace, body: bytes) -> bytes:
        """Returns a message of this agent as nodes keep it."""
        key = self.key(edition, edition.epoch)
        return group_sealing.seal(place, edition.epoch, key, body, self._own_keys.signer.key.sign)

    def unseal(self, edition: GroupEdition, place: GroupPlace, sealed: bytes) -> bytes:
        """Returns the body of a message; Refused if its sender did not write it for this place."""
        member = edition.by_sender(place.sender)
        if member is None:
            raise OpenFailed("the message is of a sender that was never a member")
        key = self.key(edition, group_sealing.epoch_of(sealed))
        return group_sealing.unseal(place, sealed, key, member.public_keys)

    def sign(self, message: bytes) -> bytes:
        """Signs with the key that the roster has of this agent."""
        return self._own_keys.signer.key.sign(message)

    def path(self, group: bytes) -> Path:
        """The database of a group on this machine; its directory exists then."""
        private_files.make_below(self._directory)
        return self._path(group)

    def _path(self, group: bytes) -> Path:
        return self._directory / f"{base58(group)}.db"


def _order(edition: GroupEdition) -> tuple[int, bytes]:
    """Of two editions of one number, made by two admins at once, all members take the same one."""
    return edition.number, msgspec.msgpack.encode(edition)


def _decoded(packed: bytes) -> GroupEdition:
    try:
        return msgspec.msgpack.decode(packed, type=GroupEdition)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenDatabase("the edition of a group is damaged", hint="put it back from a back-up") from error
