"""Rotates the agent's own keys, in steps between which a crash loses nothing.

Private halves are durable before anything that names them is published, and stay until no envelope can need them:

    begin    the key file gets `next.` seeds     then the signed link is stored as pending
    publish  (by the client)
    finish   the old KEM key becomes a row       then the key file promotes `next.`     then the chain gets the link
             (in an emergency the local key is replaced before that, and at its beginning too)

An emergency that is requested while a rotation is pending is queued: the local key is replaced at once, and the next
rotation that begins is the emergency.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from angelia.envelope.bundles import Bundle, Link
from angelia.envelope.times import SKEW, moment, unix_ms
from angelia.envelope.wire import TTL_MAX, Suite
from angelia.errors import Conflict
from angelia.keys.model import CACHE, GRACE, LinkDocument, link_document, parse_link
from angelia.mailbox import bundle_signing
from angelia.mailbox.bundle_signing import RotationPlan
from angelia.mailbox.database import MailboxDatabase, MailboxTx
from angelia.mailbox.identity import KeyFile
from angelia.mailbox.keyfile import XWING
from angelia.mailbox.keyring import Keyring
from angelia.mailbox.own_keys import OwnKeys, add_to_chain, drop_unconfirmed, too_old

_PENDING, _QUEUED, _REVOKED = "pending_rotation", "emergency_wanted", "revoked_keys"
STOLEN_AT = "channel_keys_stolen_at"  # channel keys that arrived before it may be in other hands
_LATEST = unix_ms(datetime(9999, 1, 1, tzinfo=UTC))


class PendingRotation(msgspec.Struct, frozen=True, kw_only=True):
    """A rotation that was begun. Its keys are fixed, and once a server accepted it, it can only be finished."""

    plan: RotationPlan
    document: LinkDocument = msgspec.field(name="link")
    accepted: bool = False

    @property
    def link(self) -> Link:
        """The bundle to publish."""
        return parse_link(self.document)


class KeyRotation:
    """Replaces the agent's KEM key, its signing pair or both."""

    def __init__(self, own_keys: OwnKeys, database: MailboxDatabase, keyring: Keyring, ttl_max: int = TTL_MAX) -> None:
        self._own_keys = own_keys
        self._database = database
        self._keyring = keyring
        # The longest that an envelope can need a replaced key: sealed from a copy of an hour ago, opened at its end.
        self._destroy_after = max(GRACE, timedelta(seconds=ttl_max)) + CACHE + SKEW

    def pending(self) -> PendingRotation | None:
        """Returns the rotation that was begun and neither finished nor abandoned."""
        return _pending(self._database)

    def queued_emergency(self) -> RotationPlan | None:
        """Returns the emergency that begins when the pending rotation is finished or abandoned."""
        found = self._database.meta(_QUEUED)
        return None if found is None else msgspec.json.decode(found, type=RotationPlan)

    def unconfirmed_plan(self) -> RotationPlan | None:
        """Returns the rotation that no server has confirmed yet: a queued emergency, else the pending rotation."""
        pending = self.pending()
        return self.queued_emergency() or (None if pending is None else pending.plan)

    def awaits_next_pair(self) -> bool:
        """Whether a server may know the next signing pair already, and no longer the present one, which signs."""
        pending = self.pending()
        return pending is not None and pending.plan.signer and self._own_keys.signer is self._own_keys.identity

    def begin(
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
        """Returns the next bundle, to be published: with a new KEM key, a new signing pair, both, or (renewed) neither.

        While a rotation is pending this returns its bundle, whatever the arguments; it is signed again only when its
        signatures are too old for a server. An emergency waits until that rotation is settled, since the server may
        have accepted it: it is queued, the local key is replaced at once, and the next call begins it. That holds for a
        pending emergency too: a thief may have read its seeds in the key file since."""
        if emergency:
            self.resume(now)
        with self._own_keys.key_file() as file:
            newest, pending = self._own_keys.newest(), self.pending()
            if newest is None:
                raise Conflict("there is no bundle to rotate yet", hint="angelia key publish")
            before, queued = newest.bundle, self.queued_emergency()
            kept = before.suites if pending is None else pending.plan.suites
            plan = RotationPlan(
                kem=kem or emergency,
                signer=signer,
                emergency=emergency,
                suites=kept if suites is None else suites,
                why=why,
                compromised_since=compromised_since,
            )
            bundle_signing.check_suites(plan.suites)
            if emergency:
                plan = plan.with_earlier(queued)
            if pending is not None:
                if emergency:
                    self._queue_emergency(file, plan, now)
                return pending.link if pending.accepted else self._signed_again(file, before, pending, now)
            if queued is not None and not emergency:
                plan = queued
            return self._begin(file, before, plan, now)

    def finish(self, now: datetime, accepted: Link | None = None) -> Link:
        """Records that a server took the bundle, also the first one, and returns it: its keys are the agent's now.

        `accepted` is the server's copy, which may be an earlier signature over the same keys."""
        with self._own_keys.key_file() as file:
            pending = self.pending()
            if pending is None:
                return self._own_keys.confirm_first(accepted)
            link = bundle_signing.same_keys(pending.link, accepted)
            with self._database.transaction() as tx:
                _set_pending(tx, pending.plan, link, accepted=True)
                if not pending.plan.emergency:
                    self._keep_replaced(tx, file, link.bundle)
            if pending.plan.emergency:
                # Once more: the key file may have been copied since, or an earlier release began the rotation.
                self._own_keys.replace_local_key(file)
            self._own_keys.write(file, bundle_signing.promoted(file.seeds))
            with self._database.transaction() as tx:
                add_to_chain(tx, link)
                tx.write("drop_meta", _PENDING)
                drop_unconfirmed(tx)
                if pending.plan.emergency:
                    self._destroy_earlier(tx, link.bundle, now)
            return link

    def resume(self, now: datetime) -> None:
        """Finishes a rotation that a crash interrupted after a server had accepted it."""
        pending = self.pending()
        if pending is not None and pending.accepted:
            self.finish(now)

    def abandon(self) -> None:
        """Gives up a rotation whose bundle no server took, and destroys its keys. A queued emergency stays queued."""
        with self._own_keys.key_file() as file:
            newest, pending = self._own_keys.newest(), self.pending()
            if pending is not None and pending.accepted:
                raise Conflict("a server took the new bundle, so the rotation cannot be abandoned")
            if pending is not None and newest is not None:
                with self._database.transaction() as tx:
                    tx.write("drop_meta", _PENDING)
                    _drop_separate_except(tx, newest.bundle)
            self._own_keys.write(file, bundle_signing.without_next(file.seeds))

    def destroy_replaced(self, key_id: UUID) -> None:
        """Destroys the private half of a replaced key before its time; no later bundle lists it."""
        with self._own_keys.key_file():
            newest = self._own_keys.newest()
            listed = set() if newest is None else {entry.key.key_id for entry in newest.bundle.kem_keys}
            revoked = (self._revoked() & listed) | {key_id}
            with self._database.transaction() as tx:
                tx.write("destroy_replaced", key_id)
                tx.write("write_meta", _REVOKED, msgspec.json.encode(sorted(revoked)).decode())

    def _begin(self, file: KeyFile, before: Bundle, plan: RotationPlan, now: datetime) -> Link:
        if plan.emergency:
            self._own_keys.replace_local_key(file)  # independent of the server's answer
        self._own_keys.write(file, bundle_signing.with_next(file.seeds, plan))
        with self._database.transaction() as tx:
            separate = None
            if plan.suites & Suite.ML_KEM.bit:
                separate = None if plan.kem else bundle_signing.separate_key(before)
                separate = separate or self._keyring.make_separate(tx, now)
            if plan.emergency:
                _spend_channel_keys(tx, now)
            revoked = self._revoked()
            link = bundle_signing.next_link(before, file.identity.pair, file.seeds, separate, plan, now, revoked)
            _set_pending(tx, plan, link)
            tx.write("drop_meta", _QUEUED)
        return link

    def _queue_emergency(self, file: KeyFile, plan: RotationPlan, now: datetime) -> None:
        with self._database.transaction() as tx:
            tx.write("write_meta", _QUEUED, msgspec.json.encode(plan).decode())
            _spend_channel_keys(tx, now)
        self._own_keys.replace_local_key(file)

    def _signed_again(self, file: KeyFile, before: Bundle, pending: PendingRotation, now: datetime) -> Link:
        revoked, link = self._revoked(), pending.link
        if not too_old(link, now) and not any(entry.key.key_id in revoked for entry in link.bundle.kem_keys):
            return link
        separate = bundle_signing.separate_key(link.bundle)
        link = bundle_signing.next_link(before, file.identity.pair, file.seeds, separate, pending.plan, now, revoked)
        with self._database.transaction() as tx:
            _set_pending(tx, pending.plan, link)
        return link

    def _revoked(self) -> set[UUID]:
        """Returns the keys that were revoked while the newest bundle listed them."""
        found = self._database.meta(_REVOKED)
        return set() if found is None else msgspec.json.decode(found, type=set[UUID])

    def _keep_replaced(self, tx: MailboxTx, file: KeyFile, bundle: Bundle) -> None:
        """Keeps the keys that the bundle replaces, for as long as an envelope may need them."""
        rotated_at, listed = moment(bundle.issued_at), bundle.active_ids
        destroy_at = rotated_at + self._destroy_after
        old = bundle_signing.xwing(file.seeds[XWING])
        if old.public.key_id not in listed:
            listing = (e.created_at for e in bundle.kem_keys if e.key.key_id == old.public.key_id)
            created_at = moment(next(listing, bundle.issued_at))
            self._keyring.store(tx, old, "signed", created_at=created_at, rotated_at=rotated_at, destroy_at=destroy_at)
        for key_id in _separate_except(tx, bundle):
            tx.write("retire_kem_key", rotated_at, destroy_at, key_id)

    def _destroy_earlier(self, tx: MailboxTx, bundle: Bundle, now: datetime) -> None:
        """Destroys all earlier keys after an emergency, except one-time keys of mail that a server may already have."""
        tx.write("destroy_grace")
        _spend_channel_keys(tx, now)
        tx.write("hasten_one_time", now + self._destroy_after)
        _drop_separate_except(tx, bundle)


def accepts_suite(database: MailboxDatabase, suite: Suite, created_at: int) -> bool:
    """Whether a bundle of that time (Unix milliseconds) listed the suite; the sender's clock may be 300 s off."""
    at = moment(min(created_at, _LATEST))
    masks = [suites for (suites,) in database.rows("masks_between", at - SKEW, at + SKEW)]
    pending = _pending(database)
    if pending is not None and moment(pending.link.bundle.issued_at) <= at + SKEW:
        masks.append(pending.plan.suites)  # it may have been published already
    return any(mask & suite.bit for mask in masks)


def _pending(database: MailboxDatabase) -> PendingRotation | None:
    found = database.meta(_PENDING)
    return None if found is None else msgspec.json.decode(found, type=PendingRotation)


def _set_pending(tx: MailboxTx, plan: RotationPlan, link: Link, *, accepted: bool = False) -> None:
    pending = PendingRotation(plan=plan, document=link_document(link), accepted=accepted)
    tx.write("write_meta", _PENDING, msgspec.json.encode(pending).decode())


def _spend_channel_keys(tx: MailboxTx, now: datetime) -> None:
    """Makes all channel keys open only, also those in the inbox: a thief may have them too."""
    tx.write("spend_all_channel_keys")
    tx.write("write_meta", STOLEN_AT, now)


def _drop_separate_except(tx: MailboxTx, bundle: Bundle) -> None:
    for key_id in _separate_except(tx, bundle):
        tx.write("drop_kem_key", key_id)


def _separate_except(tx: MailboxTx, bundle: Bundle) -> list[str]:
    """Returns the ids of the active separate ML-KEM keys that the bundle does not list."""
    listed = {str(key_id) for key_id in bundle.active_ids}
    return [key_id for (key_id,) in tx.rows("active_separate") if key_id not in listed]
