"""The agent's own keys: its identity, in step with the key file, its chain of bundles, and its one-time keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from uuid import UUID

import msgspec

from angelia.envelope.bundles import DEFAULT_SUITES, KemKeyStatus, Link, OneTimeKey, sign_one_time_key
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPrivateKey
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import SKEW, moment, unix_ms
from angelia.envelope.wire import TTL_CEILING, Suite
from angelia.errors import Conflict, InvalidArgument
from angelia.keys.model import MOST_ONE_TIME, ONE_TIME_LIFE, ONE_TIME_USE, LinkDocument, link_document, parse_link
from angelia.mailbox import bundle_signing
from angelia.mailbox import identity as identities
from angelia.mailbox.agent_names import KEY
from angelia.mailbox.database import MailboxDatabase, MailboxTx, unstamp
from angelia.mailbox.identity import Identity, KeyFile
from angelia.mailbox.keyfile import LOCAL, NEXT, SEED_LENGTHS, Seeds
from angelia.mailbox.keyring import Keyring
from angelia.mailbox.local_key import LocalKey

# A server takes a bundle that was issued within SKEW of its clock; an older link is signed again, over the same keys.
SIGNED_ANEW_AFTER = SKEW / 2
# One message each, which any server may have kept for as long as any setting allows.
ONE_TIME_DESTROY_AFTER = ONE_TIME_LIFE + ONE_TIME_USE + timedelta(seconds=TTL_CEILING) + SKEW
# The bundle of an active agent is never older, so that a sender that is shown an older one is warned.
SIGNED_EVERY = timedelta(days=3)
# Limits what a thief of the KEM key can read, apart from the keys in grace.
ROTATED_EVERY = timedelta(days=7)
# The server is asked how many one-time keys it has left: daily, and more often when few are left here.
ONE_TIME_COUNTED_EVERY, ONE_TIME_COUNTED_AGAIN = timedelta(days=1), timedelta(hours=1)
ONE_TIME_MADE_EVERY = timedelta(hours=1)
_RETRIED_AFTER = timedelta(minutes=10)
_UNCONFIRMED = "first_bundle_unconfirmed"
_COUNTED, _MADE = "one_time_keys_counted", "one_time_keys_made"
# The keys whose next pair signs requests, in this thread or task alone: all others sign with the present pair.
_acting: ContextVar[tuple[OwnKeys, Identity] | None] = ContextVar("acting", default=None)


class RenewalDue(Enum):
    """What an agent's newest bundle needs."""

    SIGNATURES = "signatures"
    KEY = "key"


class _Made(msgspec.Struct, frozen=True):
    """When one-time keys were last made, and which pair signed them."""

    at: datetime
    signer_id: UUID


class OwnKeys:
    """This agent's identity, its bundles in the table `own_bundles`, and the private keys behind them."""

    def __init__(
        self, home: Path, identity: Identity, database: MailboxDatabase, keyring: Keyring, local: LocalKey
    ) -> None:
        self._home = home
        self._database = database
        self._keyring = keyring
        self._local = local
        self._read: tuple[int, int] | None = None
        self._nothing_due_before = self._backing_off_until = datetime.min.replace(tzinfo=UTC)
        self.identity = identity
        self.refresh()

    def refresh(self) -> bool:
        """Takes over what another process wrote into the key file; False when nothing changed."""
        status = (self._home / self.identity.name / KEY).stat()
        read = (status.st_ino, status.st_mtime_ns)
        if read == self._read:
            return False
        with self.key_file():
            self._read = read
        return True

    @contextmanager
    def key_file(self) -> Iterator[KeyFile]:
        """The key file as it is now, locked against other processes: what is decided inside holds until the end."""
        with identities.key_file(self._home, self.identity) as file:
            self._take(file.identity)
            if NEXT + LOCAL in file.seeds:
                self._finish_local_key(file)  # a crash interrupted the replacement
            yield file

    def write(self, file: KeyFile, seeds: Seeds) -> None:
        """Replaces the seeds of the key file, and takes them over."""
        self._take(file.write(seeds))

    def replace_local_key(self, file: KeyFile) -> None:
        """Encrypts all rows under a new local key; a crash on the way leaves both keys in the key file."""
        self._local.check()
        self.write(file, file.seeds | {NEXT + LOCAL: os.urandom(SEED_LENGTHS[LOCAL])})
        self._finish_local_key(file)

    @property
    def signer(self) -> Identity:
        """The identity that signs requests: with the present pair, except inside `signing_as_next`."""
        acting = _acting.get()
        return acting[1] if acting is not None and acting[0] is self else self.identity

    @contextmanager
    def signing_as_next(self) -> Iterator[None]:
        """Signs requests with the pair of the pending rotation. A server that knows this pair has accepted the bundle,
        even if its answer was lost and the old pair is no longer valid."""
        before = _acting.get()
        _acting.set((self, identities.next_of(self.identity)))
        try:
            yield
        finally:
            _acting.set(before)

    def newest(self) -> Link | None:
        """Returns the agent's present bundle."""
        found = self._database.row("own_newest")
        return None if found is None else _parsed(found[0])

    def chain(self) -> list[Link]:
        """Returns all bundles of this agent, oldest first."""
        return [_parsed(text) for (text,) in self._database.rows("own_links")]

    def signing_pairs(self) -> dict[UUID, VerifyingPair]:
        """Returns the present and former signing pairs of this agent, by their ids."""
        links = [link.bundle.signer for link in self.chain()]
        return {pair.signer_id: pair for pair in (*links, self.identity.pair.public)}

    def first_bundle(self, now: datetime, suites: int = DEFAULT_SUITES) -> Link:
        """Returns the first bundle, to be published; if there is one already, the newest.

        Until `confirm_first` records that it was published, it is signed again when it is too old for a server."""
        bundle_signing.check_suites(suites)
        with self.key_file() as file:
            newest = self.newest()
            if newest is not None and not (self._unconfirmed() and too_old(newest, now)):
                return newest
            suites = suites if newest is None else newest.bundle.suites
            with self._database.transaction() as tx:
                separate = None if newest is None else bundle_signing.separate_key(newest.bundle)
                if separate is None and suites & Suite.ML_KEM.bit:
                    separate = self._keyring.make_separate(tx, now)
                pair, handle = file.identity.pair, self.identity.handle
                link = bundle_signing.first_link(pair, handle, file.seeds, separate, suites, now)
                _start_chain(tx, link)
                tx.write("write_meta", _UNCONFIRMED, "1")
            return link

    def confirm_first(self, accepted: Link | None) -> Link:
        """Records that a server took the first bundle; `accepted` is the server's copy. Returns the newest bundle."""
        newest = self.newest()
        if newest is None:
            raise Conflict("there is no rotation under way", hint="angelia key publish")
        if not self._unconfirmed():
            return newest
        link = bundle_signing.same_keys(newest, accepted)
        with self._database.transaction() as tx:
            _start_chain(tx, link)
            drop_unconfirmed(tx)
        return link

    def renewal_due(self, now: datetime) -> RenewalDue | None:
        """Returns what the newest bundle needs now; None before the first bundle."""
        if now < self._nothing_due_before or (newest := self.newest()) is None:
            return None
        bundle = newest.bundle
        made_at = min(entry.created_at for entry in bundle.kem_keys if entry.status is KemKeyStatus.ACTIVE)
        key_due, signatures_due = moment(made_at) + ROTATED_EVERY, moment(bundle.issued_at) + SIGNED_EVERY
        if bundle.expires_at > bundle.not_after:  # an earlier release signed it, for a year
            signatures_due = moment(bundle.issued_at)
        if now >= key_due:
            return RenewalDue.KEY
        if now >= signatures_due:
            return RenewalDue.SIGNATURES
        self._nothing_due_before = min(key_due, signatures_due)
        return None

    def back_off(self, now: datetime) -> None:
        """Puts the renewal of keys off for a while, after it failed."""
        self._backing_off_until = now + _RETRIED_AFTER

    def is_backing_off(self, now: datetime) -> bool:
        return now < self._backing_off_until

    def one_time_count_due(self, now: datetime, low: int) -> bool:
        """Whether to ask the server how many one-time keys it has left. At least as many are left here: a key that was
        handed out and never used stays."""
        counted = self._database.meta(_COUNTED)
        if counted is None or (age := now - unstamp(counted)) < ONE_TIME_COUNTED_AGAIN:
            return False
        (left,) = self._database.row("count_one_time", now - ONE_TIME_LIFE)
        return left <= low or age >= ONE_TIME_COUNTED_EVERY

    def one_time_counted(self, now: datetime) -> None:
        """Records that the server was asked."""
        self._database.write("write_meta", _COUNTED, now)

    def may_make_one_time_keys(self, now: datetime, most: int) -> bool:
        """Whether to make more keys for a server that reports few: once an hour for each signing pair, and not while
        `most` unused keys of the last day lie here."""
        found = self._database.meta(_MADE)
        if found is not None:
            made = msgspec.json.decode(found, type=_Made)
            if made.signer_id == self._signer_id and timedelta(0) <= now - made.at < ONE_TIME_MADE_EVERY:
                return False
        (unused,) = self._database.row("count_one_time", now - ONE_TIME_COUNTED_EVERY)
        return bool(unused < most)

    def one_time_made(self, now: datetime) -> None:
        """Records that one-time keys were made for a server."""
        self._database.write("write_meta", _MADE, msgspec.json.encode(_Made(now, self._signer_id)).decode())

    def make_one_time_keys(self, count: int, now: datetime) -> list[OneTimeKey]:
        """Returns new one-time keys, signed and ready to upload; their private halves are stored first."""
        if not 1 <= count <= MOST_ONE_TIME:
            raise InvalidArgument(f"1 to {MOST_ONE_TIME} one-time keys are made at a time")
        keys = [KemPrivateKey.generate(KeyType.XWING) for _ in range(count)]
        with self.key_file() as file:
            with self._database.transaction() as tx:
                for key in keys:
                    self._keyring.store(tx, key, "one_time", created_at=now, destroy_at=now + ONE_TIME_DESTROY_AFTER)
            pair, handle, at = file.identity.pair, self.identity.handle, unix_ms(now)
        return [sign_one_time_key(pair, handle, key.public, at) for key in keys]

    @property
    def _signer_id(self) -> UUID:
        return self.identity.pair.public.signer_id

    def _unconfirmed(self) -> bool:
        return self._database.meta(_UNCONFIRMED) is not None

    def _finish_local_key(self, file: KeyFile) -> None:
        seeds = file.seeds
        self._local.replace(seeds)
        seeds[LOCAL] = seeds.pop(NEXT + LOCAL)  # the seeds of a pending rotation stay
        self.write(file, seeds)

    def _take(self, identity: Identity) -> None:
        self.identity = identity
        self._keyring.load_seeds(identity.unlocked.seeds)
        self._local.load_seeds(identity.unlocked.seeds)


def too_old(link: Link, now: datetime) -> bool:
    """Whether a link's signatures are too old for a server."""
    return abs(now - moment(link.bundle.issued_at)) > SIGNED_ANEW_AFTER


def add_to_chain(tx: MailboxTx, link: Link) -> None:
    bundle = link.bundle
    document = msgspec.json.encode(link_document(link)).decode()
    tx.write("add_own", bundle.bundle_version, moment(bundle.issued_at), bundle.suites, document)


def drop_unconfirmed(tx: MailboxTx) -> None:
    """Records that a server knows the chain."""
    tx.write("drop_meta", _UNCONFIRMED)


def _start_chain(tx: MailboxTx, link: Link) -> None:
    tx.write("drop_own")
    add_to_chain(tx, link)


def _parsed(text: str) -> Link:
    return parse_link(msgspec.json.decode(text, type=LinkDocument))
