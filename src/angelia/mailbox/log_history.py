"""The editions of one group that are stored here: those that led to the one that holds, and those that may hold yet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from angelia.envelope.refusals import NotAllowed
from angelia.grouplog.model import edition_history
from angelia.grouplog.model.editions import GroupEdition, SignedEdition
from angelia.mailbox.database import BrokenDatabase, MailboxTx, NamedStatements

MOST_HELD = 32  # editions that led to the present one, and as many beside those
MOST_OF_SENDER = 8  # of those beside, so that no sender pushes out what others sent


@dataclass(frozen=True, slots=True)
class _Stored:
    signed: SignedEdition
    sender: str
    received_at: str


class LogHistory:
    """Read from the database, added to, and written back, all in one transaction."""

    def __init__(self, base: _Stored, others: list[_Stored]) -> None:
        self._base = base
        self._others = others
        self.chain = self._chain()

    @classmethod
    def first(cls, signed: SignedEdition, sender: str, received_at: str) -> LogHistory:
        """That of a group that is new here."""
        return cls(_Stored(signed, sender, received_at), [])

    @classmethod
    def read(cls, tx: NamedStatements, gid: str) -> LogHistory | None:
        """Returns what is stored of a group; None if it is not known."""
        found = tx.row("log_base", gid)
        if found is None:
            return None
        base, others = None, []
        for digest, *row in tx.rows("log_editions", gid):
            stored = _stored(*row)
            if digest == found[0]:
                base = stored
            else:
                others.append(stored)
        if base is None:
            raise BrokenDatabase("the editions of a group are damaged", hint="put them back from a back-up")
        return cls(base, others)

    @property
    def newest(self) -> GroupEdition:
        """The edition that holds."""
        return self.chain[-1].edition

    def is_past(self, edition: GroupEdition) -> bool:
        """Whether an edition is one that led to the one that holds, or that one itself."""
        return edition.digest in (self.newest.digest, *self.newest.lineage)

    def add(self, signed: SignedEdition, sender: str, received_at: str) -> None:
        """Adds an edition, whether it holds or not. NotAllowed for one that never will: what it follows is known, and
        it may not follow that."""
        digest = signed.edition.digest
        known = {one.signed.edition.digest: one.signed.edition for one in (self._base, *self._others)}
        if digest in known:
            return
        before = known.get(signed.edition.lineage[0]) if signed.edition.lineage else None
        if before is not None and not edition_history.follows(signed, before):
            raise NotAllowed(f"edition {signed.edition.number} of the group {before.name} is not by one of its admins")
        self._others.append(_Stored(signed, sender, received_at))
        self.chain = self._chain()

    def save(self, tx: MailboxTx, gid: str) -> None:
        """Writes what is worth keeping. Keys of editions that are dropped go too, unless they were in use."""
        self._shorten()
        tx.write("drop_log_editions", gid)
        kept = (self._base, *self._others)
        for one in kept:
            edition = one.signed.edition
            packed = msgspec.msgpack.encode(edition)
            tx.write("add_log_edition", gid, edition.digest, packed, one.signed.signature, one.sender, one.received_at)
        for held in self.chain:
            tx.write("prove_log_key", gid, held.edition.key_id)
        named = {str(one.signed.edition.key_id) for one in kept}
        for (key_id,) in tx.rows("unproven_log_keys", gid):
            if key_id not in named:
                tx.write("drop_log_key", gid, key_id)
        base = self._base.signed.edition.digest
        tx.write("put_log", gid, self.newest.name, base, self.newest.digest, self._base.received_at)

    def _chain(self) -> list[SignedEdition]:
        return edition_history.chain(self._base.signed, [one.signed for one in self._others])

    def _shorten(self) -> None:
        held = {one.edition.digest for one in self.chain[-MOST_HELD:]}
        on_chain = {one.edition.digest for one in self.chain}
        every = {one.signed.edition.digest: one for one in (self._base, *self._others)}
        beside = [one for digest, one in every.items() if digest not in on_chain and one is not self._base]
        of_sender = Counter[str]()
        for one in sorted(beside, key=lambda one: one.received_at, reverse=True):
            of_sender[one.sender] += 1
            if of_sender[one.sender] <= MOST_OF_SENDER and len(held) < 2 * MOST_HELD:
                held.add(one.signed.edition.digest)
        if len(self.chain) > MOST_HELD:
            self._base = every[self.chain[-MOST_HELD].edition.digest]
        self._others = [one for digest, one in every.items() if digest in held and one is not self._base]


def _stored(packed: bytes, signature: bytes, sender: str, received_at: str) -> _Stored:
    return _Stored(SignedEdition(decoded(packed), signature), sender, received_at)


def decoded(packed: bytes) -> GroupEdition:
    try:
        return msgspec.msgpack.decode(packed, type=GroupEdition)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenDatabase("the edition of a group is damaged", hint="put it back from a back-up") from error
