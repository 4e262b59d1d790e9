"""The keys of other agents that this agent trusts: one pinned signing pair each, which changes only along a verified
chain of bundles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from angelia.envelope.bundles import (
    Bundle,
    Link,
    TrustAnchor,
    UntrustedBundle,
    anchor_of,
    check_bundle,
    follow,
)
from angelia.envelope.refusals import NotAllowed, SignatureFailed, UnknownSigner
from angelia.envelope.signing import VerifyingPair, parse_pair
from angelia.envelope.times import SKEW, moment
from angelia.errors import KeyStale
from angelia.keys.model import CACHE, LinkDocument, link_document, parse_link
from angelia.mailbox.database import MailboxDatabase, MailboxTx, NamedStatements, ago, stamp, unstamp
from angelia.mailbox.notices import NoticeKind, Notices

# When a sender warns that a bundle was not signed again.
OLD_AFTER = timedelta(days=7)
# A bundle from the future would expire too late. The server reports clocks that differ by less.
_AHEAD = timedelta(days=1)
# The fetch time of a bundle that came from no server: so long ago that a server is asked before it is used.
NEVER = datetime(1970, 1, 1, tzinfo=UTC)


class TrustedBy(StrEnum):
    """Why a pair is trusted."""

    FIRST_USE = "first_use"
    ROTATION = "rotation"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """An agent's signing pair, its newest verified bundle, and why the pair is trusted."""

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
    """A bundle as it was last fetched; `revoked` are the keys that the server called revoked and that no later bundle
    lists as active."""

    bundle: Bundle
    revoked: frozenset[UUID]
    fetched_at: datetime


class PinnedKeys:
    """Pins, replaced signing pairs, and the newest bundle of every pinned agent."""

    def __init__(self, database: MailboxDatabase, notices: Notices) -> None:
        self._database = database
        self._notices = notices
        self._no_one_time_until: dict[str, datetime] = {}

    def pin(self, nhi: str) -> Pin | None:
        return _read_pin(self._database, nhi)

    def pins(self) -> list[Pin]:
        return [_pin(row) for row in self._database.rows("pins")]

    def pin_first(self, link: Link, now: datetime, revoked: Sequence[UUID] | None = ()) -> Pin:
        """Pins an unknown agent (trust on first use); the pin of a known one is advanced. Returns the pin."""
        check_bundle(link.bundle)
        nhi = link.bundle.agent_nhi
        with self._database.transaction() as tx:
            met = _read_pin(tx, nhi) is None
            if met:
                _set_pin(tx, anchor_of(link.bundle), TrustedBy.FIRST_USE, now)
                _set_bundle(tx, link.bundle, revoked, now)
        if met:
            seen = link.bundle.signer.fingerprint
            self._notices.tell(
                NoticeKind.FIRST_CONTACT, f"first contact with {nhi}, fingerprint {seen}; compare it by another way"
            )
        return self.advance(nhi, [link], now, revoked)

    def advance(self, nhi: str, links: Sequence[Link], now: datetime, revoked: Sequence[UUID] | None = ()) -> Pin:
        """Moves an agent's pin along its chain to the newest link, and returns it; the pin's own bundle may come first.

        A rollback, a gap, a broken chain or a new pair that the old one did not vouch for is refused, and the pin stays
        where it was."""
        with self._database.transaction() as tx:
            pin = _read_pin(tx, nhi)
            if pin is None:
                raise UnknownSigner(f"{nhi} is not pinned yet")
            ahead = _after_pin(pin, links)
            reached = follow(pin.anchor, ahead)
            _record_rotations(tx, nhi, pin.signer, ahead, now)
            by, at = pin.trusted_by, pin.pinned_at
            if reached.signer.fingerprint != pin.signer.fingerprint:
                by, at = TrustedBy.ROTATION, now
            pin = _set_pin(tx, reached, by, at)
            if links:
                _set_bundle(tx, links[-1].bundle, revoked, now)
        return pin

    def learn_former_pairs(
        self, nhi: str, links: Sequence[Link], now: datetime, revoked: Sequence[UUID] | None = ()
    ) -> None:
        """Learns the pairs that an agent had before it was pinned, from the start of its chain to the pinned bundle,
        whose hash vouches for them. After an operator compared a fingerprint, no earlier pair is trusted."""
        with self._database.transaction() as tx:
            pin = _read_pin(tx, nhi)
            before = [one for one in links if pin is not None and one.bundle.bundle_version <= pin.bundle_version]
            if pin is None or not before or pin.trusted_by is TrustedBy.OPERATOR:
                return
            check_bundle(before[0].bundle)
            reached = follow(anchor_of(before[0].bundle), before[1:])
            if reached != pin.anchor:
                raise _rolled_back(pin, before[-1].bundle)
            _record_rotations(tx, nhi, before[0].bundle.signer, before[1:], now)
            _hear_revoked(tx, nhi, revoked, pin.bundle_version)

    def trust(self, link: Link, now: datetime, revoked: Sequence[UUID] | None = ()) -> Pin:
        """Pins a pair because an operator compared its fingerprint, and returns the pin. Earlier pairs are no longer
        trusted, and the server's revocations are forgotten.

        A fingerprint says nothing about a bundle's age, so an older bundle of the same pair is still refused."""
        check_bundle(link.bundle)
        nhi = link.bundle.agent_nhi
        with self._database.transaction() as tx:
            before = _read_pin(tx, nhi)
            if before is not None and before.fingerprint != link.bundle.signer.fingerprint:
                tx.write("drop_former", nhi)
            elif before is not None and link.bundle.bundle_version < before.bundle_version:
                raise _rolled_back(before, link.bundle)
            pin = _set_pin(tx, anchor_of(link.bundle), TrustedBy.OPERATOR, now)
            tx.write("forget_revoked", nhi)
            _set_bundle(tx, link.bundle, revoked, now)
        return pin

    def signer(self, nhi: str, signer_id: UUID, at: datetime) -> VerifyingPair:
        """Returns the pair that may sign for an agent at a time. It is always looked up by agent and id: an id alone
        proves nothing."""
        pin = self.pin(nhi)
        if pin is not None and pin.signer.signer_id == signer_id:
            return pin.signer
        if pin is None and self._database.row("is_listed", nhi) is None:
            # No keys are fetched for a sender that is not allowed. An imported entry may be allowed and not pinned yet.
            raise NotAllowed(f"{nhi} is not on the allowlist", hint=f"angelia mail allow {nhi}")
        former = self._database.row("former", nhi, signer_id)
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
        """Returns an agent's bundle if it was fetched within `max_age`; with None, of any age."""
        found = self._database.row("bundle", nhi)
        if found is None:
            return None
        fetched_at = unstamp(found[1])
        if max_age is not None and not -SKEW <= now - fetched_at < max_age:
            return None
        bundle = parse_link(msgspec.json.decode(found[0], type=LinkDocument)).bundle
        return KnownBundle(bundle, self._revoked(bundle), fetched_at)

    def check_age(self, bundle: Bundle, now: datetime) -> None:
        """Checks a bundle's age before sealing to it: warns about an old one, raises KeyStale for an expired one. An
        active agent signs its bundle again every few days, so an old one may mean that the server withholds a newer."""
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
        """Whether to ask the server for a one-time key of an agent; not shortly after it had none."""
        return now >= self._no_one_time_until.get(nhi, now)

    def note_no_one_time_key(self, nhi: str, until: datetime) -> None:
        self._no_one_time_until[nhi] = until

    def drop_bundle(self, nhi: str) -> None:
        """Drops a bundle that a server called stale or revoked; the pin stays."""
        self._database.write("drop_bundle", nhi)

    def _revoked(self, bundle: Bundle) -> frozenset[UUID]:
        """Returns the keys that the server called revoked, without those that the agent signed as active in a later
        bundle: the server's word is unsigned."""
        heard = [(UUID(key_id), version) for key_id, version in self._database.rows("revoked", bundle.agent_nhi)]
        overruled = {key_id for key_id, version in heard if version < bundle.bundle_version} & bundle.active_ids
        return frozenset(key_id for key_id, _ in heard) - overruled


def _after_pin(pin: Pin, links: Sequence[Link]) -> list[Link]:
    """Returns the links after the pin's own bundle; refuses links that begin with an older bundle."""
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


def _record_rotations(tx: MailboxTx, nhi: str, old: VerifyingPair, links: Sequence[Link], now: datetime) -> None:
    """Keeps the pairs that the links replaced, from the pair before them on; allowed senders stay allowed."""
    for link in links:
        new = link.bundle.signer
        if link.statement is not None and old.fingerprint != new.fingerprint:
            rotated_at = min(moment(link.statement.issued_at), now)
            tx.write("add_former", nhi, *_keys(old), rotated_at)
            tx.write("allow_successor", new.fingerprint, now, old.fingerprint)
        old = new


def _read_pin(database: NamedStatements, nhi: str) -> Pin | None:
    found = database.row("pin", nhi)
    return None if found is None else _pin(found)


def _pin(row: tuple[Any, ...]) -> Pin:
    nhi, _signer_id, _fingerprint, ed25519, ml_dsa, version, hash_, by, at = row
    return Pin(
        nhi=nhi,
        signer=parse_pair(ed25519, ml_dsa),  # its ids are computed from the keys, not read from the row
        bundle_version=version,
        bundle_hash=hash_,
        trusted_by=TrustedBy(by),
        pinned_at=unstamp(at),
    )


def _set_pin(tx: MailboxTx, anchor: TrustAnchor, by: TrustedBy, at: datetime) -> Pin:
    newest = (anchor.bundle_version, anchor.bundle_hash)
    tx.write("set_pin", anchor.agent_nhi, *_keys(anchor.signer), *newest, by.value, at)
    return _pin(tx.row("pin", anchor.agent_nhi))


def _set_bundle(tx: MailboxTx, bundle: Bundle, revoked: Sequence[UUID] | None, now: datetime) -> None:
    """Stores an agent's newest bundle and adds to its revoked keys; `revoked` is None if no server was asked."""
    nhi, fetched_at = bundle.agent_nhi, now
    if revoked is None:
        before = tx.row("bundle", nhi)
        fetched_at = NEVER if before is None else before[1]
    document = msgspec.json.encode(link_document(Link(bundle))).decode()
    tx.write("set_bundle", nhi, document, fetched_at)
    _hear_revoked(tx, nhi, revoked, bundle.bundle_version)


def _hear_revoked(tx: MailboxTx, nhi: str, revoked: Sequence[UUID] | None, bundle_version: int) -> None:
    for key_id in revoked or ():
        tx.write("hear_revoked", nhi, key_id, bundle_version)


def _keys(pair: VerifyingPair) -> tuple[UUID, str, bytes, bytes]:
    """Returns the columns of a signing pair."""
    return pair.signer_id, pair.fingerprint, pair.ed25519, pair.ml_dsa
