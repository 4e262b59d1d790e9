"""The agent's own bundles: the first one, one-time keys, and rotation in steps that a crash cannot tear apart.

Private halves are durable before anything that names them is published, and stay until nothing can need them:

    begin    the key file gets `next.` seeds     then the signed link is kept as pending
    publish  (whoever talks to the server)
    finish   the old KEM key becomes a row       then the key file promotes `next.`     then the chain moves on
             (in an emergency the rows are put under a new local key before that, and at its beginning too)

An emergency that is asked for while a rotation is under way is written down, the rows are put under a new local key at
once, and whatever begins after that rotation is the emergency.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from uuid import UUID

import msgspec

from angelia.envelope.bundles import DEFAULT_SUITES, Bundle, KemKeyStatus, Link, OneTimeKey, sign_one_time_key
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPrivateKey, KemPublicKey
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import SKEW, moment, unix_ms
from angelia.envelope.wire import TTL_CEILING, TTL_MAX, Suite
from angelia.errors import Conflict, InvalidArgument
from angelia.keys.model import (
    CACHE,
    GRACE,
    MOST_ONE_TIME,
    ONE_TIME_LIFE,
    ONE_TIME_USE,
    LinkDocument,
    link_document,
    parse_link,
)
from angelia.mailbox import identity as identities
from angelia.mailbox import next_bundle
from angelia.mailbox.database import SQL, MailboxDatabase, MailboxTx, stamp, unstamp, write_meta
from angelia.mailbox.identity import KEY, Identity, KeyFile
from angelia.mailbox.keyfile import LOCAL, NEXT, XWING
from angelia.mailbox.keyring import Keyring
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.next_bundle import RotationPlan

# A server takes a bundle that was issued within SKEW of its clock; an older link is signed anew, over the same keys.
SIGNED_ANEW_AFTER = SKEW / 2
# One message each, which any server may have kept for as long as any setting allows.
ONE_TIME_DESTROY_AFTER = ONE_TIME_LIFE + ONE_TIME_USE + timedelta(seconds=TTL_CEILING) + SKEW
# While an agent is in use its bundle is never older than that, so that a sender who is shown an older one may wonder.
SIGNED_EVERY = timedelta(days=3)
# What a thief of the KEM key can read ends here, save for the keys in grace.
ROTATED_EVERY = timedelta(days=7)
# The server is asked how many one-time keys it has left: daily, and more often when few are left here.
ONE_TIME_COUNTED_EVERY, ONE_TIME_COUNTED_AGAIN = timedelta(days=1), timedelta(hours=1)
ONE_TIME_MADE_EVERY = timedelta(hours=1)
_RETRIED_AFTER = timedelta(minutes=10)
_LATEST = unix_ms(datetime(9999, 1, 1, tzinfo=UTC))
_PENDING, _UNCONFIRMED, _REVOKED = "pending_rotation", "first_bundle_unconfirmed", "revoked_keys"
_WANTED = "emergency_wanted"
STOLEN_AT = "channel_keys_stolen_at"  # keys of channels that came before it may be in other hands
_COUNTED, _MADE = "one_time_keys_counted", "one_time_keys_made"
# Whose next pair signs, in this thread or task alone: what others send meanwhile is signed by the present pair.
_acting: ContextVar[tuple[OwnKeys, Identity] | None] = ContextVar("acting", default=None)


class RenewalDue(Enum):
    """What an agent's newest bundle needs."""

    SIGNATURES = "signatures"
    KEY = "key"


class _Made(msgspec.Struct, frozen=True):
    """When one-time keys were made last, and signed by which pair."""

    at: datetime
    signer_id: UUID


class _PendingRow(msgspec.Struct, frozen=True, kw_only=True):
    plan: RotationPlan
    link: LinkDocument
    accepted: bool = False


@dataclass(frozen=True, slots=True)
class PendingRotation:
    """A rotation under way. Its keys are fixed; once it is accepted there is no way back."""

    plan: RotationPlan
    link: Link
    accepted: bool


class OwnKeys:
    """The public side of this agent, and the private keys behind it."""

    def __init__(
        self,
        home: Path,
        identity: Identity,
        database: MailboxDatabase,
        keyring: Keyring,
        local: LocalKey,
        ttl_max: int = TTL_MAX,
    ) -> None:
        self._home = home
        self._database = database
        self._keyring = keyring
        self._local = local
        # The longest that an envelope can need a replaced key: sealed from a copy of an hour ago, opened at its end.
        self._destroy_after = max(GRACE, timedelta(seconds=ttl_max)) + CACHE + SKEW
        self._read: tuple[int, int] | None = None
        self._nothing_due_before = self._left_alone_until = datetime.min.replace(tzinfo=UTC)
        self.identity = identity
        self.refresh()

    def refresh(self) -> bool:
        """Take over what another process wrote into the key file; False when nothing changed."""
        status = (self._home / self.identity.name / KEY).stat()
        read = (status.st_ino, status.st_mtime_ns)
        if read == self._read:
            return False
        with self._key_file():
            self._read = read
        return True

    @property
    def signer(self) -> Identity:
        """Who signs requests: the agent with its present pair, unless it acts as the next one."""
        acting = _acting.get()
        return acting[1] if acting is not None and acting[0] is self else self.identity

    @contextmanager
    def signing_as_next(self) -> Iterator[None]:
        """Sign requests with the pair of a rotation under way. That a server knows it proves that it took the bundle,
        where the answer was lost and the old pair signs no more."""
        before = _acting.get()
        _acting.set((self, identities.next_of(self.identity)))
        try:
            yield
        finally:
            _acting.set(before)

    def awaits_next_pair(self) -> bool:
        """Whether a server may know the next signing pair already, and the present one, which signs, no more."""
        pending = self.pending()
        return pending is not None and pending.plan.signer and self.signer is self.identity

    def newest(self) -> Link | None:
        """The agent's present bundle, as others should know it."""
        found = self._database.row("own_newest")
        return None if found is None else _parsed(found[0])

    def chain(self) -> list[Link]:
        """All bundles of this agent, oldest first."""
        return [_parsed(text) for (text,) in self._database.rows("own_links")]

    def pending(self) -> PendingRotation | None:
        """The rotation that was begun and neither finished nor abandoned."""
        found = self._database.row("read_meta", _PENDING)
        if found is None:
            return None
        row = msgspec.json.decode(found[0], type=_PendingRow)
        return PendingRotation(row.plan, parse_link(row.link), row.accepted)

    def queued_emergency(self) -> RotationPlan | None:
        """The emergency that was asked for and begins when the rotation under way is settled."""
        found = self._database.row("read_meta", _WANTED)
        return None if found is None else msgspec.json.decode(found[0], type=RotationPlan)

    def unconfirmed_plan(self) -> RotationPlan | None:
        """What was begun or asked for and no server has confirmed yet: an emergency that waits, else the rotation under
        way."""
        pending = self.pending()
        return self.queued_emergency() or (None if pending is None else pending.plan)

    def accepts_suite(self, suite: Suite, created_at: int) -> bool:
        """Whether a bundle of that time (Unix milliseconds) took the suite; the sender's clock may be 300 s off."""
        at = moment(min(created_at, _LATEST))
        masks = [suites for (suites,) in self._database.rows("masks_between", stamp(at - SKEW), stamp(at + SKEW))]
        pending = self.pending()
        if pending is not None and moment(pending.link.bundle.issued_at) <= at + SKEW:
            masks.append(pending.plan.suites)  # it may have been published already
        return any(mask & suite.bit for mask in masks)

    def renewal_due(self, now: datetime) -> RenewalDue | None:
        """What the newest bundle needs now, of an agent that has one."""
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
        """What was due could not be done now, and is left alone for a while."""
        self._left_alone_until = now + _RETRIED_AFTER

    def is_backing_off(self, now: datetime) -> bool:
        return now < self._left_alone_until

    def one_time_count_due(self, now: datetime, low: int) -> bool:
        """Whether to ask the server how many one-time keys it has left. Here are at least as many: those that were
        handed out and never used stay."""
        counted = self._database.row("read_meta", _COUNTED)
        if counted is None or (age := now - unstamp(counted[0])) < ONE_TIME_COUNTED_AGAIN:
            return False
        (left,) = self._database.row("count_one_time", stamp(now - ONE_TIME_LIFE))
        return left <= low or age >= ONE_TIME_COUNTED_EVERY

    def one_time_counted(self, now: datetime) -> None:
        with self._database.transaction() as tx:
            write_meta(tx, _COUNTED, stamp(now))

    def may_make_one_time_keys(self, now: datetime, most: int) -> bool:
        """Whether more keys are made for a server that says it has few: once an hour for each signing pair, and not
        while `most` of one day lie here that no message has used."""
        found = self._database.row("read_meta", _MADE)
        if found is not None:
            made = msgspec.json.decode(found[0], type=_Made)
            if made.signer_id == self._signer_id and timedelta(0) <= now - made.at < ONE_TIME_MADE_EVERY:
                return False
        (unused,) = self._database.row("count_one_time", stamp(now - ONE_TIME_COUNTED_EVERY))
        return bool(unused < most)

    def one_time_made(self, now: datetime) -> None:
        with self._database.transaction() as tx:
            write_meta(tx, _MADE, msgspec.json.encode(_Made(now, self._signer_id)).decode())

    @property
    def _signer_id(self) -> UUID:
        return self.identity.pair.public.signer_id

    def signing_pairs(self) -> dict[UUID, VerifyingPair]:
        """The pairs that sign or signed for this agent, by their ids."""
        links = [link.bundle.signer for link in self.chain()]
        return {pair.signer_id: pair for pair in (*links, self.identity.pair.public)}

    def first_bundle(self, now: datetime, suites: int = DEFAULT_SUITES) -> Link:
        """The first bundle, to be published; when there is one already, the newest.

        Until `finish_rotation` says that it was published, it is signed anew when it is too old for a server.
        """
        next_bundle.check_suites(suites)
        with self._key_file() as file:
            newest = self.newest()
            if newest is not None and not (self._unconfirmed() and _too_old(newest, now)):
                return newest
            suites = suites if newest is None else newest.bundle.suites
            with self._database.transaction() as tx:
                separate = None if newest is None else _separate(newest.bundle)
                if separate is None and suites & Suite.ML_KEM.bit:
                    separate = self._new_separate(tx, now)
                pair, handle = file.identity.pair, self.identity.handle
                link = next_bundle.first_link(pair, handle, file.seeds, separate, suites, now)
                _start_chain(tx, link)
                write_meta(tx, _UNCONFIRMED, "1")
            return link

    def make_one_time_keys(self, count: int, now: datetime) -> list[OneTimeKey]:
        """New keys for one message each, signed and ready to upload; their private halves are stored first."""
        if not 1 <= count <= MOST_ONE_TIME:
            raise InvalidArgument(f"1 to {MOST_ONE_TIME} one-time keys are made at a time")
        keys = [KemPrivateKey.generate(KeyType.XWING) for _ in range(count)]
        with self._key_file() as file:
            with self._database.transaction() as tx:
                for key in keys:
                    self._keyring.store(tx, key, "one_time", created_at=now, destroy_at=now + ONE_TIME_DESTROY_AFTER)
            pair, handle, at = file.identity.pair, self.identity.handle, unix_ms(now)
        return [sign_one_time_key(pair, handle, key.public, at) for key in keys]

    def begin_rotation(
        self,
        now: datetime,
        *,
        kem: bool = True,
        signer: bool = False,
        emergency: bool = False,
        suites: int | None = None,
        why: str = "",
        compromised_since: datetime | None = None,
    ) -> Link:
        """The next bundle, to be published: with a new KEM key, a new signing pair, both, or (renewed) neither.

        While a rotation is under way this gives its keys again, whatever is asked for; they are signed anew only when
        the signatures are too old for a server. An emergency waits until that rotation is settled, since the server may
        have taken it: it is written down, the local key is replaced at once, and whatever is asked for next begins it.
        So it is also after another emergency: its seeds lay in the key file, where a thief may have found them since.
        """
        if emergency:
            self.resume(now)
        with self._key_file() as file:
            newest, pending = self.newest(), self.pending()
            if newest is None:
                raise Conflict("there is no bundle to rotate yet", hint="angelia key publish")
            before, wish = newest.bundle, self.queued_emergency()
            kept = before.suites if pending is None else pending.plan.suites
            plan = RotationPlan(
                kem=kem or emergency,
                signer=signer,
                emergency=emergency,
                suites=kept if suites is None else suites,
                why=why,
                compromised_since=compromised_since,
            )
            next_bundle.check_suites(plan.suites)
            if emergency:
                plan = plan.with_earlier(wish)
            if pending is not None:
                if emergency:
                    self._queue_emergency(file, plan, now)
                return pending.link if pending.accepted else self._signed_again(file, before, pending, now)
            if wish is not None and not emergency:
                plan = wish
            if plan.emergency:
                self._replace_local(file)  # whatever the server answers, and when
            self._take(file.write(next_bundle.with_next(file.seeds, plan)))
            with self._database.transaction() as tx:
                separate = None
                if plan.suites & Suite.ML_KEM.bit:
                    separate = None if plan.kem else _separate(before)
                    separate = separate or self._new_separate(tx, now)
                if plan.emergency:
                    _spend_channel_keys(tx, now)
                revoked = self._revoked()
                link = next_bundle.next_link(before, file.identity.pair, file.seeds, separate, plan, now, revoked)
                _set_pending(tx, PendingRotation(plan, link, accepted=False))
                tx.execute(SQL["drop_meta"], (_WANTED,))
            return link

    def finish_rotation(self, now: datetime, accepted: Link | None = None) -> Link:
        """A server took the bundle, also the first one: from now on it is ours.

        `accepted` is what the server has, where that may be an earlier signature over the same keys.
        """
        with self._key_file() as file:
            pending = self.pending()
            if pending is None:
                return self._confirm_first(accepted)
            link = next_bundle.same_keys(pending.link, accepted)
            with self._database.transaction() as tx:
                _set_pending(tx, PendingRotation(pending.plan, link, accepted=True))
                if not pending.plan.emergency:
                    self._keep_replaced(tx, file, link.bundle)
            if pending.plan.emergency:
                # Once more: the key file may have been copied since, or the beginning was an earlier release's.
                self._replace_local(file)
            self._take(file.write(next_bundle.promoted(file.seeds)))
            with self._database.transaction() as tx:
                _add_own(tx, link)
                tx.execute(SQL["drop_meta"], (_PENDING,))
                tx.execute(SQL["drop_meta"], (_UNCONFIRMED,))
                if pending.plan.emergency:
                    self._destroy_earlier(tx, link.bundle, now)
            return link

    def resume(self, now: datetime) -> None:
        """Complete a rotation that a crash interrupted after a server had taken it."""
        pending = self.pending()
        if pending is not None and pending.accepted:
            self.finish_rotation(now)

    def abandon_rotation(self) -> None:
        """Give up a rotation whose bundle no server took; its keys are destroyed. An emergency that waits for its end
        is not given up."""
        with self._key_file() as file:
            newest, pending = self.newest(), self.pending()
            if pending is not None and pending.accepted:
                raise Conflict("a server took the new bundle, so the rotation cannot be abandoned")
            if pending is not None and newest is not None:
                with self._database.transaction() as tx:
                    tx.execute(SQL["drop_meta"], (_PENDING,))
                    self._drop_separate_except(tx, newest.bundle)
            self._take(file.write(next_bundle.without_next(file.seeds)))

    def destroy_replaced(self, key_id: UUID) -> None:
        """Destroy the private half of a replaced key before its time; no later bundle lists it."""
        with self._key_file():
            newest = self.newest()
            listed = set() if newest is None else {entry.key.key_id for entry in newest.bundle.kem_keys}
            revoked = (self._revoked() & listed) | {key_id}
            with self._database.transaction() as tx:
                tx.execute(SQL["destroy_replaced"], (str(key_id),))
                write_meta(tx, _REVOKED, msgspec.json.encode(sorted(revoked)).decode())

    @contextmanager
    def _key_file(self) -> Iterator[KeyFile]:
        """The key file as it is now, for this process alone; all that is decided under it holds until its end."""
        with identities.key_file(self._home, self.identity) as file:
            self._take(file.identity)
            if NEXT + LOCAL in file.seeds:
                self._end_replacing_local(file)  # a crash interrupted it
            yield file

    def _queue_emergency(self, file: KeyFile, plan: RotationPlan, now: datetime) -> None:
        with self._database.transaction() as tx:
            write_meta(tx, _WANTED, msgspec.json.encode(plan).decode())
            _spend_channel_keys(tx, now)
        self._replace_local(file)

    def _replace_local(self, file: KeyFile) -> None:
        """Put everything under a new local key; a crash on the way leaves both in the key file."""
        self._local.check()
        self._take(file.write(next_bundle.with_next_local(file.seeds)))
        self._end_replacing_local(file)

    def _end_replacing_local(self, file: KeyFile) -> None:
        self._local.replace(file.seeds)
        self._take(file.write(next_bundle.with_local_promoted(file.seeds)))

    def _take(self, identity: Identity) -> None:
        self.identity = identity
        self._keyring.load_seeds(identity.unlocked.seeds)
        self._local.load_seeds(identity.unlocked.seeds)

    def _signed_again(self, file: KeyFile, before: Bundle, pending: PendingRotation, now: datetime) -> Link:
        revoked = self._revoked()
        if not _too_old(pending.link, now) and not any(e.key.key_id in revoked for e in pending.link.bundle.kem_keys):
            return pending.link
        separate = _separate(pending.link.bundle)
        link = next_bundle.next_link(before, file.identity.pair, file.seeds, separate, pending.plan, now, revoked)
        with self._database.transaction() as tx:
            _set_pending(tx, PendingRotation(pending.plan, link, accepted=False))
        return link

    def _confirm_first(self, accepted: Link | None) -> Link:
        newest = self.newest()
        if newest is None:
            raise Conflict("there is no rotation under way", hint="angelia key publish")
        if not self._unconfirmed():
            return newest
        link = next_bundle.same_keys(newest, accepted)
        with self._database.transaction() as tx:
            _start_chain(tx, link)
            tx.execute(SQL["drop_meta"], (_UNCONFIRMED,))
        return link

    def _unconfirmed(self) -> bool:
        return self._database.row("read_meta", _UNCONFIRMED) is not None

    def _revoked(self) -> set[UUID]:
        """Keys that were withdrawn while the newest bundle listed them."""
        found = self._database.row("read_meta", _REVOKED)
        return set() if found is None else msgspec.json.decode(found[0], type=set[UUID])

    def _new_separate(self, tx: MailboxTx, now: datetime) -> KemPublicKey:
        """The key of suite 1, which has no place in the key file."""
        key = KemPrivateKey.generate(KeyType.ML_KEM_768)
        self._keyring.store(tx, key, "signed", created_at=now)
        return key.public

    def _keep_replaced(self, tx: MailboxTx, file: KeyFile, bundle: Bundle) -> None:
        """Rows for the keys that the bundle replaces, for as long as an envelope may need them."""
        rotated_at, listed = moment(bundle.issued_at), next_bundle.active_ids(bundle)
        old = next_bundle.xwing(file.seeds[XWING])
        if old.public.key_id not in listed:
            created = next(
                (e.created_at for e in bundle.kem_keys if e.key.key_id == old.public.key_id), bundle.issued_at
            )
            self._keyring.store(
                tx,
                old,
                "signed",
                created_at=moment(created),
                rotated_at=rotated_at,
                destroy_at=rotated_at + self._destroy_after,
            )
        for (key_id,) in tx.execute(SQL["active_separate"]).fetchall():
            if key_id not in map(str, listed):
                tx.execute(SQL["retire_kem_key"], (stamp(rotated_at), stamp(rotated_at + self._destroy_after), key_id))

    def _destroy_earlier(self, tx: MailboxTx, bundle: Bundle, now: datetime) -> None:
        """After an emergency: nothing old opens anything, save one-time keys of mail that a relay already has."""
        tx.execute(SQL["destroy_grace"])
        _spend_channel_keys(tx, now)
        tx.execute(SQL["hasten_one_time"], (stamp(now + self._destroy_after),))
        self._drop_separate_except(tx, bundle)

    def _drop_separate_except(self, tx: MailboxTx, bundle: Bundle) -> None:
        listed = {str(key_id) for key_id in next_bundle.active_ids(bundle)}
        for (key_id,) in tx.execute(SQL["active_separate"]).fetchall():
            if key_id not in listed:
                tx.execute(SQL["drop_kem_key"], (key_id,))


def _spend_channel_keys(tx: MailboxTx, now: datetime) -> None:
    """A thief may have the keys of channels too, also those that lie in the inbox."""
    tx.execute(SQL["spend_all_channel_keys"])
    write_meta(tx, STOLEN_AT, stamp(now))


def _separate(bundle: Bundle) -> KemPublicKey | None:
    entry = bundle.active(KeyType.ML_KEM_768)
    return None if entry is None else entry.key


def _too_old(link: Link, now: datetime) -> bool:
    return abs(now - moment(link.bundle.issued_at)) > SIGNED_ANEW_AFTER


def _parsed(text: str) -> Link:
    return parse_link(msgspec.json.decode(text, type=LinkDocument))


def _start_chain(tx: MailboxTx, link: Link) -> None:
    tx.execute(SQL["drop_own"])
    _add_own(tx, link)


def _add_own(tx: MailboxTx, link: Link) -> None:
    bundle = link.bundle
    document = msgspec.json.encode(link_document(link)).decode()
    tx.execute(SQL["add_own"], (bundle.bundle_version, stamp(moment(bundle.issued_at)), bundle.suites, document))


def _set_pending(tx: MailboxTx, pending: PendingRotation) -> None:
    row = _PendingRow(plan=pending.plan, link=link_document(pending.link), accepted=pending.accepted)
    write_meta(tx, _PENDING, msgspec.json.encode(row).decode())
