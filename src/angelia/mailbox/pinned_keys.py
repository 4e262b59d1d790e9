"""Whom this agent believes: a signing pair pinned per agent, moved only along a chain of bundles that was checked."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from angelia.envelope.bundles import (
    Bundle,
    KemKeyStatus,
    Link,
    TrustAnchor,
    UntrustedBundle,
    check_bundle,
    follow,
    trusted_by,
)
from angelia.envelope.refusals import NotAllowed, SignatureFailed, UnknownSigner
from angelia.envelope.signing import VerifyingPair, parse_pair
from angelia.envelope.times import SKEW, moment
from angelia.errors import KeyStale
from angelia.keys.model import CACHE, LinkDocument, link_document, parse_link
from angelia.mailbox.database import SQL, MailboxDatabase, MailboxTx, ago, stamp, unstamp
from angelia.mailbox.notices import NoticeKind, Notices

# When a sender wonders why a bundle was not signed again.
OLD_AFTER = timedelta(days=7)
# A bundle from the future would end too late; clocks that differ by less are told of by the server.
_AHEAD = timedelta(days=1)
# When a bundle was fetched that no server gave: too long ago to be used without asking one.
NEVER = datetime(1970, 1, 1, tzinfo=UTC)


class TrustedBy(StrEnum):
    """Why a pair is believed."""

    FIRST_USE = "first_use"
    ROTATION = "rotation"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """An agent's pair, the newest bundle of it that was checked, and why it is believed."""

    nhi: str
    signer: VerifyingPair
    bundle_version: int
    bundle_hash: bytes
    trusted_by: TrustedBy
    pinned_at: datetime

    @property
    def fingerprint(self) -> str:
        return self.signer.fingerprint

    @property
    def anchor(self) -> TrustAnchor:
        return TrustAnchor(
            agent_nhi=self.nhi,
            signer=self.signer,
            bundle_version=self.bundle_version,
            bundle_hash=self.bundle_hash,
        )


@dataclass(frozen=True, slots=True)
class KnownBundle:
    """A bundle as it was last fetched; `revoked` is the server's word about single keys, where no later bundle says
    otherwise."""

    link: Link
    revoked: frozenset[UUID]
    fetched_at: datetime

    @property
    def bundle(self) -> Bundle:
        return self.link.bundle


class PinnedKeys:
    """Pins, pairs that were replaced, and the newest bundle of every agent that is pinned."""

    def __init__(self, database: MailboxDatabase, notices: Notices) -> None:
        self._database = database
        self._notices = notices
        self._no_one_time_until: dict[str, datetime] = {}

    def pin(self, nhi: str) -> Pin | None:
        found = self._database.row("pin", nhi)
        return None if found is None else _pin(found)

    def pins(self) -> list[Pin]:
        return [_pin(row) for row in self._database.rows("pins")]

    def pin_first(self, link: Link, now: datetime, revoked: Sequence[UUID] | None = ()) -> Pin:
        """Believe an agent that was not known before (trust on first use); one that is known goes on from its pin."""
        check_bundle(link.bundle)
        nhi = link.bundle.agent_nhi
        with self._database.transaction() as tx:
            met = _read_pin(tx, nhi) is None
            if met:
                _set_pin(tx, trusted_by(link.bundle), TrustedBy.FIRST_USE, now)
                _set_bundle(tx, link, revoked, now)
        if met:
            seen = link.bundle.signer.fingerprint
            self._notices.tell(
                NoticeKind.FIRST_CONTACT, f"first contact with {nhi}, fingerprint {seen}; compare it by another way"
            )
        return self.advance(nhi, [link], now, revoked)

    def advance(self, nhi: str, links: Sequence[Link], now: datetime, revoked: Sequence[UUID] | None = ()) -> Pin:
        """Follow an agent's chain from its pin to the newest link; the pin's own bundle may come first.

        A way back, a gap, a broken chain or a new pair that the old one did not vouch for is refused, and the pin
        stays where it was.
        """
        with self._database.transaction() as tx:
            pin = _read_pin(tx, nhi)
            if pin is None:
                raise UnknownSigner(f"{nhi} is not pinned yet")
            ahead = _after_pin(pin, links)
            reached = follow(pin.anchor, ahead)
            signers = itertools.pairwise([pin.signer, *(link.bundle.signer for link in ahead)])
            for (old, new), link in zip(signers, ahead, strict=True):
                if link.statement is not None and old.fingerprint != new.fingerprint:
                    _succeed(tx, nhi, old, new, min(moment(link.statement.issued_at), now), now)
            rotated = reached.signer.fingerprint != pin.signer.fingerprint
            _set_pin(tx, reached, TrustedBy.ROTATION if rotated else pin.trusted_by, now if rotated else pin.pinned_at)
            if links:
                _set_bundle(tx, links[-1], revoked, now)
            present = _read_pin(tx, nhi)
        assert present is not None
        return present

    def learn_former_pairs(
        self, nhi: str, links: Sequence[Link], now: datetime, revoked: Sequence[UUID] | None = ()
    ) -> None:
        """Learn an agent's pairs of before it was met, from the beginning of its chain to the pinned bundle, whose hash
        vouches for them. An operator who compared a fingerprint believes no pair before it."""
        with self._database.transaction() as tx:
            pin = _read_pin(tx, nhi)
            before = [one for one in links if pin is not None and one.bundle.bundle_version <= pin.bundle_version]
            if pin is None or not before or pin.trusted_by is TrustedBy.OPERATOR:
                return
            check_bundle(before[0].bundle)
            reached = follow(trusted_by(before[0].bundle), before[1:])
            if reached != pin.anchor:
                raise _rolled_back(pin, before[-1].bundle)
            for earlier, later in itertools.pairwise(before):
                old, new = earlier.bundle.signer, later.bundle.signer
                if later.statement is not None and old.fingerprint != new.fingerprint:
                    _succeed(tx, nhi, old, new, min(moment(later.statement.issued_at), now), now)
            tx.executemany(SQL["hear_revoked"], [(nhi, str(one), pin.bundle_version) for one in revoked or ()])

    def trust(self, link: Link, now: datetime, revoked: Sequence[UUID] | None = ()) -> Pin:
        """Believe a pair because an operator compared its fingerprint; pairs before it are believed no more, and what
        was called revoked is forgotten.

        A fingerprint says nothing about a bundle's age, so an older bundle of the same pair is refused all the same.
        """
        check_bundle(link.bundle)
        nhi = link.bundle.agent_nhi
        with self._database.transaction() as tx:
            before = _read_pin(tx, nhi)
            if before is not None and before.fingerprint != link.bundle.signer.fingerprint:
                tx.execute(SQL["drop_former"], (nhi,))
            elif before is not None and link.bundle.bundle_version < before.bundle_version:
                raise _rolled_back(before, link.bundle)
            _set_pin(tx, trusted_by(link.bundle), TrustedBy.OPERATOR, now)
            tx.execute(SQL["forget_revoked"], (nhi,))
            _set_bundle(tx, link, revoked, now)
            present = _read_pin(tx, nhi)
        assert present is not None
        return present

    def signer(self, nhi: str, signer_id: UUID, at: datetime) -> VerifyingPair:
        """The pair that may speak for an agent at a time. Always looked up by both: an id alone names nobody."""
        pin = self.pin(nhi)
        if pin is not None and pin.signer.signer_id == signer_id:
            return pin.signer
        if pin is None and self._database.row("is_listed", nhi) is None:
            # Nobody's keys are looked up for a stranger; only an imported entry can be listed before it is pinned.
            raise NotAllowed(f"{nhi} is not on the allowlist", hint=f"angelia mail allow {nhi}")
        former = self._database.row("former", nhi, str(signer_id))
        if former is None:
            unknown = UnknownSigner(
                f"the signing pair that {nhi} used is not known here", hint=f"angelia key pin {nhi}"
            )
            unknown.agent = nhi
            raise unknown
        ed25519, ml_dsa, rotated_at = former
        if at > unstamp(rotated_at) + SKEW:
            raise SignatureFailed(f"{nhi} had replaced this signing pair before it signed")
        return parse_pair(ed25519, ml_dsa)

    def bundle(self, nhi: str, now: datetime, max_age: timedelta | None = CACHE) -> KnownBundle | None:
        """An agent's bundle if it was fetched recently enough; with no `max_age`, however long ago."""
        found = self._database.row("bundle", nhi)
        if found is None:
            return None
        fetched_at = unstamp(found[1])
        if max_age is not None and not -SKEW <= now - fetched_at < max_age:
            return None
        link = parse_link(msgspec.json.decode(found[0], type=LinkDocument))
        return KnownBundle(link, self._revoked(link.bundle), fetched_at)

    def check_age(self, bundle: Bundle, now: datetime) -> None:
        """Before something is sealed to a bundle: an agent in use signs it again every few days, so that an old one
        may hide a newer one. It is used with a warning, and refused after its end."""
        nhi, issued_at, not_after = bundle.agent_nhi, moment(bundle.issued_at), moment(bundle.not_after)
        if not_after <= now:
            raise KeyStale(
                f"the key bundle of {nhi} expired {ago(not_after, now)} ago",
                hint=f"{nhi} runs `angelia key publish`; if it did, the server withholds its keys",
            )
        if issued_at > now + _AHEAD:
            raise KeyStale(f"the key bundle of {nhi} was issued later than now", hint="compare the two clocks")
        if now - issued_at > OLD_AFTER:
            age, end = ago(issued_at, now), stamp(not_after)[:10]
            self._notices.tell(
                NoticeKind.WARNING,
                f"the newest keys of {nhi} that were shown here are {age} old: it was away since, or newer ones are "
                f"withheld. They are used until {end}",
            )

    def may_ask_one_time(self, nhi: str, now: datetime) -> bool:
        """Whether a one-time key of an agent may be had again; there was none a short while ago otherwise."""
        return now >= self._no_one_time_until.get(nhi, now)

    def note_no_one_time_key(self, nhi: str, until: datetime) -> None:
        self._no_one_time_until[nhi] = until

    def drop_bundle(self, nhi: str) -> None:
        """Forget a bundle that a server called stale or revoked; the pin stays."""
        with self._database.transaction() as tx:
            tx.execute(SQL["drop_bundle"], (nhi,))

    def _revoked(self, bundle: Bundle) -> frozenset[UUID]:
        """What the server called revoked. What its agent signed later as active is not: a revocation is unsigned."""
        active = {entry.key.key_id for entry in bundle.kem_keys if entry.status is KemKeyStatus.ACTIVE}
        heard = [(UUID(key_id), version) for key_id, version in self._database.rows("revoked", bundle.agent_nhi)]
        overruled = {key_id for key_id, version in heard if version < bundle.bundle_version} & active
        return frozenset(key_id for key_id, _ in heard) - overruled


def _after_pin(pin: Pin, links: Sequence[Link]) -> list[Link]:
    """The links without the pin's own bundle; what is older must not come at all."""
    if links and links[0].bundle.bundle_version <= pin.bundle_version:
        bundle = links[0].bundle
        check_bundle(bundle)
        if (bundle.agent_nhi, bundle.bundle_version, bundle.hash) != (pin.nhi, pin.bundle_version, pin.bundle_hash):
            raise _rolled_back(pin, bundle)
        return list(links[1:])
    return list(links)


def _rolled_back(pin: Pin, bundle: Bundle) -> UntrustedBundle:
    return UntrustedBundle(
        f"bundle {bundle.bundle_version} of {pin.nhi} is not what was seen before "
        f"(bundle {pin.bundle_version} was): somebody serves old or forged keys"
    )


def _succeed(
    tx: MailboxTx, nhi: str, old: VerifyingPair, new: VerifyingPair, rotated_at: datetime, now: datetime
) -> None:
    values = (nhi, str(old.signer_id), old.fingerprint, old.ed25519, old.ml_dsa, stamp(rotated_at))
    tx.execute(SQL["add_former"], values)
    tx.execute(SQL["allow_successor"], (new.fingerprint, stamp(now), old.fingerprint))


def _read_pin(tx: MailboxTx, nhi: str) -> Pin | None:
    found = tx.execute(SQL["pin"], (nhi,)).fetchone()
    return None if found is None else _pin(found)


def _pin(row: tuple[Any, ...]) -> Pin:
    nhi, _signer_id, _fingerprint, ed25519, ml_dsa, version, hash_, by, at = row
    return Pin(
        nhi=nhi,
        signer=parse_pair(ed25519, ml_dsa),  # ids follow from the keys; those in the row are for people and indexes
        bundle_version=version,
        bundle_hash=hash_,
        trusted_by=TrustedBy(by),
        pinned_at=unstamp(at),
    )


def _set_pin(tx: MailboxTx, trusted: TrustAnchor, by: TrustedBy, at: datetime) -> None:
    signer = trusted.signer
    keys = (str(signer.signer_id), signer.fingerprint, signer.ed25519, signer.ml_dsa)
    values = (trusted.agent_nhi, *keys, trusted.bundle_version, trusted.bundle_hash, by.value, stamp(at))
    tx.execute(SQL["set_pin"], values)


def _set_bundle(tx: MailboxTx, link: Link, revoked: Sequence[UUID] | None, now: datetime) -> None:
    """Keep an agent's newest bundle. What was revoked stays so; `revoked` is None where no server was asked."""
    nhi, fetched_at = link.bundle.agent_nhi, stamp(now)
    if revoked is None:
        before = tx.execute(SQL["bundle"], (nhi,)).fetchone()
        fetched_at = stamp(NEVER) if before is None else before[1]
    document = msgspec.json.encode(link_document(dataclasses.replace(link, statement=None))).decode()
    tx.execute(SQL["set_bundle"], (nhi, document, fetched_at))
    tx.executemany(SQL["hear_revoked"], [(nhi, str(one), link.bundle.bundle_version) for one in revoked or ()])
