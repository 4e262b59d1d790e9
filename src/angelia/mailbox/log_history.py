"""The editions of one group that are stored here: those that led to the one that holds, and those that may hold yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from angelia.envelope.refusals import NotAllowed
from angelia.grouplog.model import edition_history
from angelia.grouplog.model.editions import GroupEdition, SignedEdition
from angelia.mailbox.database import BrokenDatabase, MailboxTx, NamedStatements

MOST_HELD = 64  # editions that led to the present one; what was made of those before can change nothing any more
MOST_BESIDE = 64  # editions that may follow some of these
MOST_UNPLACED = 32  # editions whose forerunners have not come
MOST_OF_SENDER = 8  # of these, so that no sender pushes out what others sent


@dataclass(frozen=True, slots=True)
class _Stored:
    signed: SignedEdition
    sender: str
    received_at: str

    @property
    def digest(self) -> bytes:
        return self.signed.digest


class LogHistory:
    """Read from the database, added to, and written back, all in one transaction."""

    def __init__(self, base: _Stored, others: Iterable[_Stored], written: Iterable[bytes] = ()) -> None:
        self._base = base
        self._others = {one.digest: one for one in others}
        self._written = set(written)  # digests of what the database has
        self._found: list[SignedEdition] | None = None

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
        stored = {digest: _stored(*row) for digest, *row in tx.rows("log_editions", gid)}
        base = stored.pop(found[0], None)
        if base is None:
            raise BrokenDatabase("the editions of a group are damaged", hint="put them back from a back-up")
        return cls(base, stored.values(), {found[0], *stored})

    @property
    def chain(self) -> list[SignedEdition]:
        """The editions from the earliest one that is kept to the one that holds."""
        if self._found is None:
            self._found = edition_history.chain(self._base.signed, [one.signed for one in self._others.values()])
        return self._found

    @property
    def newest(self) -> SignedEdition:
        """The edition that holds."""
        return self.chain[-1]

    def knows(self, digest: bytes) -> bool:
        return digest == self._base.digest or digest in self._others

    def edition(self, digest: bytes | None) -> GroupEdition | None:
        found = self._base if digest == self._base.digest else self._others.get(digest or b"")
        return None if found is None else found.signed.edition

    def admins(self) -> set[str]:
        """The admins of all editions that are known here, as each of them has them."""
        every = [self._base, *self._others.values()]
        return {handle for one in every for handle in one.signed.edition.admins}

    def add(self, signed: SignedEdition, sender: str, received_at: str) -> None:
        """Adds an edition, whether it holds or not; one of long ago is passed over. NotAllowed for one that never will
        hold: what it follows is known, and it may not follow that."""
        if self.knows(signed.digest):
            return
        name = f"edition {signed.edition.number} of the group {signed.edition.name}"
        if not signed.is_by_its_author():  # also one that cannot be placed yet: it would keep out the true one
            raise NotAllowed(f"{name} is not signed by the member that made it")
        stored = _Stored(signed, sender, received_at)
        if self._replaces_base(signed):
            self._base, self._others = stored, {}
        elif signed.edition.number <= self._base.signed.edition.number:
            return
        else:
            before = self._before(signed)
            if before is not None and not edition_history.follows(signed, before):
                raise NotAllowed(f"{name} is not by one of its admins, or changes what its author may not change")
            self._others[signed.digest] = stored
        self._found = None

    def save(self, tx: MailboxTx, gid: str) -> None:
        """Writes what is worth keeping. Keys of editions that are dropped go too, unless they were in use."""
        self._shorten()
        kept = {one.digest: one for one in (self._base, *self._others.values())}
        for digest in self._written - set(kept):
            tx.write("drop_log_edition", gid, digest)
        for digest in set(kept) - self._written:
            one = kept[digest]
            packed = msgspec.msgpack.encode(one.signed.edition)
            tx.write("add_log_edition", gid, digest, packed, one.signed.signature, one.sender, one.received_at)
        self._written = set(kept)
        for held in self.chain:
            tx.write("prove_log_key", gid, held.edition.key_id)
        named = {str(one.signed.edition.key_id) for one in kept.values()}
        for (key_id,) in tx.rows("unproven_log_keys", gid):
            if key_id not in named:
                tx.write("drop_log_key", gid, key_id)
        name, joined_at = self.newest.edition.name, self._base.received_at
        tx.write("put_log", gid, name, self._base.digest, self.newest.digest, joined_at)

    def _before(self, signed: SignedEdition) -> SignedEdition | None:
        if signed.edition.parent == self._base.digest:
            return self._base.signed
        found = self._others.get(signed.edition.parent or b"")
        return None if found is None else found.signed

    def _replaces_base(self, signed: SignedEdition) -> bool:
        """Whether an edition comes after one from before editions were signed, which may not have been the last of
        those."""
        base, edition = self._base.signed, signed.edition
        if base.signature or self._others or edition.parent == base.digest or edition.number <= base.edition.number:
            return False
        author = base.edition.admin(edition.author)
        return author is not None and signed.is_signed_with(author.public_key)

    def _shorten(self) -> None:
        on_chain = [one.digest for one in self.chain]
        if len(on_chain) > MOST_HELD:
            self._base = self._others.pop(on_chain[-MOST_HELD])
        base = self._base.signed
        later = [one for one in self._others.values() if one.signed.edition.number > base.edition.number]
        later.sort(key=lambda one: one.received_at, reverse=True)
        placed = {one.digest for one in edition_history.behind(base, [other.signed for other in later])}
        held = [one for one in later if one.digest in on_chain]
        beside = [one for one in later if one.digest in placed.difference(on_chain)]
        unplaced, of_sender = list[_Stored](), Counter[str]()
        for one in later:
            # What follows none that is placed may do so yet, when others come.
            if one.digest not in placed and one.signed.edition.parent not in (base.digest, *placed):
                of_sender[one.sender] += 1
                unplaced += [one] if of_sender[one.sender] <= MOST_OF_SENDER else []
        self._others = {one.digest: one for one in (*held, *beside[:MOST_BESIDE], *unplaced[:MOST_UNPLACED])}
        self._found = None


def _stored(packed: bytes, signature: bytes, sender: str, received_at: str) -> _Stored:
    return _Stored(SignedEdition(decoded(packed), signature), sender, received_at)


def decoded(packed: bytes) -> GroupEdition:
    try:
        return msgspec.msgpack.decode(packed, type=GroupEdition)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenDatabase("the edition of a group is damaged", hint="put it back from a back-up") from error
