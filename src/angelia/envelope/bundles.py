"""Key bundles, one-time keys and rotation statements: signed and hash-chained; server and clients check them alike."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import IntEnum
from uuid import UUID

from angelia.envelope.ids import KeyType, valid_handle
from angelia.envelope.kem import ML_KEM_PUBLIC, KemPublicKey
from angelia.envelope.refusals import InvalidKey, SignatureFailed
from angelia.envelope.signing import Purpose, Signatures, SigningPair, VerifyingPair, object_holds
from angelia.envelope.wire import LATEST, SUITE_OF, Suite, counted
from angelia.errors import AngeliaError, InvalidArgument

FIRST_PREVIOUS = bytes(32)
MOST_KEM_KEYS = 16
KEY_LIFE = timedelta(days=365)
# The longest that a server can withhold newer bundles unnoticed, also after an emergency.
BUNDLE_LIFE = timedelta(days=30)
DEFAULT_SUITES = Suite.XWING.bit | Suite.CHANNEL.bit
_KNOWN_SUITES = Suite.ML_KEM.bit | Suite.XWING.bit | Suite.CHANNEL.bit
_KEM_KINDS = (KeyType.XWING, KeyType.ML_KEM_768)  # the first that a bundle has is the one to seal to
_UNSIGNED = Signatures(b"", b"")


class UntrustedBundle(AngeliaError, code="untrusted_bundle"):
    """A key bundle does not follow from what was trusted before"""


class KemKeyStatus(IntEnum):
    """The status of a KEM key inside a bundle, as a number of the signed bytes."""

    ACTIVE = 1
    GRACE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KemEntry:
    """A KEM key in a bundle. Times in Unix milliseconds; 0 is none."""

    key: KemPublicKey
    status: KemKeyStatus
    created_at: int
    expires_at: int = 0
    rotated_at: int = 0

    def signed_bytes(self) -> bytes:
        times = (self.created_at, self.expires_at, self.rotated_at)
        return struct.pack(">BBQQQ", self.key.kind, self.status, *times) + counted(self.key.raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An agent's public keys at one time, signed by its own pair and chained to the bundle before."""

    agent_nhi: str
    bundle_version: int
    issued_at: int
    expires_at: int
    suites: int
    signer: VerifyingPair
    kem_keys: tuple[KemEntry, ...]
    prev_bundle_hash: bytes
    signatures: Signatures = field(repr=False)

    def signed_bytes(self) -> bytes:
        return b"".join(
            [
                b"\x01",
                counted(self.agent_nhi.encode("ascii")),
                struct.pack(">QQQH", self.bundle_version, self.issued_at, self.expires_at, self.suites),
                self.signer.signer_id.bytes,
                self.signer.ed25519,
                self.signer.ml_dsa,
                bytes([len(self.kem_keys)]),
                *(entry.signed_bytes() for entry in self.kem_keys),
                self.prev_bundle_hash,
            ]
        )

    @property
    def hash(self) -> bytes:
        """The hash that the next bundle names as its predecessor; also the bundle's ETag."""
        return hashlib.sha256(self.signed_bytes() + self.signatures.raw).digest()

    @property
    def not_after(self) -> int:
        """When senders stop using the bundle, even if it names a later time: earlier releases signed for a year."""
        return min(self.expires_at, self.issued_at + milliseconds(BUNDLE_LIFE))

    @property
    def active_ids(self) -> set[UUID]:
        return {entry.key.key_id for entry in self.kem_keys if entry.status is KemKeyStatus.ACTIVE}

    def active(self, kind: KeyType) -> KemEntry | None:
        return next((e for e in self.kem_keys if e.key.kind is kind and e.status is KemKeyStatus.ACTIVE), None)

    def takes(self, suite: Suite) -> bool:
        return bool(self.suites & suite.bit)

    def best_key(self, now_ms: int) -> KemPublicKey | None:
        """Returns the key to seal to: X-Wing if the bundle has it, else a separate ML-KEM key; None if all expired."""
        for kind in _KEM_KINDS:
            entry = self.active(kind)
            if entry is not None and self.takes(SUITE_OF[kind]) and (not entry.expires_at or now_ms < entry.expires_at):
                return entry.key
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTimeKey:
    """A key that one sender uses once. It is signed apart from the bundle, because the server attaches it."""

    agent_nhi: str
    signer_id: UUID
    key: KemPublicKey
    created_at: int
    signatures: Signatures = field(repr=False)

    def signed_bytes(self) -> bytes:
        head = b"\x01" + counted(self.agent_nhi.encode("ascii")) + self.signer_id.bytes
        return head + struct.pack(">BQ", self.key.kind, self.created_at) + counted(self.key.raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationStatement:
    """An agent's statement that a new pair signs for it from now on, signed by the old pair and by the new one."""

    agent_nhi: str
    old_signer_id: UUID
    new_signer: VerifyingPair
    issued_at: int
    by_old: Signatures = field(repr=False)
    by_new: Signatures = field(repr=False)

    def signed_bytes(self) -> bytes:
        new = self.new_signer
        head = b"\x01" + counted(self.agent_nhi.encode("ascii")) + self.old_signer_id.bytes + new.signer_id.bytes
        return head + new.ed25519 + new.ml_dsa + struct.pack(">Q", self.issued_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustAnchor:
    """The point from which an agent's chain is verified: its signing pair, and its last verified bundle."""

    agent_nhi: str
    signer: VerifyingPair
    bundle_version: int
    bundle_hash: bytes


@dataclass(frozen=True, slots=True)
class Link:
    """A bundle of the chain, with the rotation statement if its signing pair is new."""

    bundle: Bundle
    statement: RotationStatement | None = None


def sign_bundle(
    pair: SigningPair,
    *,
    agent_nhi: str,
    issued_at: int,
    kem_keys: tuple[KemEntry, ...],
    after: TrustAnchor | None,
    suites: int = DEFAULT_SUITES,
    life: timedelta = BUNDLE_LIFE,
) -> Bundle:
    """Returns the agent's next bundle, signed; the first one if `after` is None."""
    unsigned = Bundle(
        agent_nhi=agent_nhi,
        bundle_version=after.bundle_version + 1 if after else 1,
        issued_at=issued_at,
        expires_at=issued_at + milliseconds(life),
        suites=suites,
        signer=pair.public,
        kem_keys=kem_keys,
        prev_bundle_hash=after.bundle_hash if after else FIRST_PREVIOUS,
        signatures=_UNSIGNED,
    )
    signed = replace(unsigned, signatures=pair.sign_object(Purpose.BUNDLE, unsigned.signed_bytes()))
    check_bundle(signed)
    return signed


def sign_one_time_key(pair: SigningPair, agent_nhi: str, key: KemPublicKey, created_at: int) -> OneTimeKey:
    unsigned = OneTimeKey(
        agent_nhi=agent_nhi, signer_id=pair.public.signer_id, key=key, created_at=created_at, signatures=_UNSIGNED
    )
    return replace(unsigned, signatures=pair.sign_object(Purpose.PREKEY, unsigned.signed_bytes()))


def sign_rotation(old: SigningPair, new: SigningPair, agent_nhi: str, issued_at: int) -> RotationStatement:
    unsigned = RotationStatement(
        agent_nhi=agent_nhi,
        old_signer_id=old.public.signer_id,
        new_signer=new.public,
        issued_at=issued_at,
        by_old=_UNSIGNED,
        by_new=_UNSIGNED,
    )
    content = unsigned.signed_bytes()
    return replace(
        unsigned,
        by_old=old.sign_object(Purpose.ROTATION, content),
        by_new=new.sign_object(Purpose.ROTATION, content),
    )


def check_bundle(bundle: Bundle) -> None:
    """Raises unless a bundle is well formed and signed by the pair that it names."""
    if not valid_handle(bundle.agent_nhi):
        raise InvalidArgument("agent_nhi is not a handle")
    if not 1 <= bundle.bundle_version < LATEST or len(bundle.prev_bundle_hash) != 32:
        raise InvalidArgument("bundle_version or prev_bundle_hash is out of range")
    if not 0 < bundle.issued_at < bundle.expires_at < LATEST:
        raise InvalidArgument("a bundle is issued before it expires")
    if not bundle.suites or bundle.suites & ~_KNOWN_SUITES:
        raise InvalidArgument("the mask of suites names none, or one that is not served", hint="suites 1, 2 and 4")
    _check_kem_keys(bundle)
    if not object_holds(bundle.signer, Purpose.BUNDLE, bundle.signed_bytes(), bundle.signatures):
        raise SignatureFailed("the signatures of the key bundle do not hold")


def check_one_time_key(one: OneTimeKey, signer: VerifyingPair) -> None:
    if one.signer_id != signer.signer_id or not object_holds(
        signer, Purpose.PREKEY, one.signed_bytes(), one.signatures
    ):
        raise SignatureFailed("the signatures of a one-time key do not hold")


def check_rotation(statement: RotationStatement, old: VerifyingPair, new: VerifyingPair, agent_nhi: str) -> None:
    """Raises unless both the old and the new pair signed that the new one follows."""
    named = (statement.agent_nhi, statement.old_signer_id, statement.new_signer.fingerprint)
    content = statement.signed_bytes()
    old_holds = object_holds(old, Purpose.ROTATION, content, statement.by_old)
    new_holds = object_holds(new, Purpose.ROTATION, content, statement.by_new)
    if named != (agent_nhi, old.signer_id, new.fingerprint) or not old_holds or not new_holds:
        raise SignatureFailed("the rotation statement does not hold")


def follow(trusted: TrustAnchor, links: Iterable[Link]) -> TrustAnchor:
    """Verifies a chain from the trust anchor on, and returns the anchor at its end. Refuses a gap, a rollback, and a
    new signing pair without a statement."""
    for link in links:
        bundle = link.bundle
        check_bundle(bundle)
        if bundle.agent_nhi != trusted.agent_nhi:
            raise UntrustedBundle("the bundle is another agent's")
        if bundle.bundle_version != trusted.bundle_version + 1 or bundle.prev_bundle_hash != trusted.bundle_hash:
            raise UntrustedBundle(
                f"bundle {bundle.bundle_version} of {trusted.agent_nhi} does not follow from "
                f"bundle {trusted.bundle_version}, which was seen before"
            )
        # An id has 122 bits, so an attacker could search for a second pair with it; a fingerprint is the whole hash.
        if bundle.signer.fingerprint != trusted.signer.fingerprint:
            if link.statement is None:
                raise UntrustedBundle(
                    f"{trusted.agent_nhi} has a new signing pair, and the old one did not vouch for it",
                    hint="ask its owner for the fingerprint, then `angelia key pin`",
                )
            check_rotation(link.statement, trusted.signer, bundle.signer, bundle.agent_nhi)
        trusted = anchor_of(bundle)
    return trusted


def anchor_of(bundle: Bundle) -> TrustAnchor:
    """Returns a bundle as a trust anchor. The caller must have a reason to trust it."""
    return TrustAnchor(
        agent_nhi=bundle.agent_nhi,
        signer=bundle.signer,
        bundle_version=bundle.bundle_version,
        bundle_hash=bundle.hash,
    )


def milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def _check_kem_keys(bundle: Bundle) -> None:
    entries = bundle.kem_keys
    if not 1 <= len(entries) <= MOST_KEM_KEYS:
        raise InvalidArgument(f"a bundle has 1 to {MOST_KEM_KEYS} KEM keys")
    if len({entry.key.key_id for entry in entries}) != len(entries):
        raise InvalidArgument("a KEM key stands twice in the bundle")
    if [entry.status for entry in entries] != sorted(entry.status for entry in entries):
        raise InvalidArgument("active KEM keys come before those in grace")
    for entry in entries:
        rotated, expires = entry.rotated_at, entry.expires_at
        if (entry.status is KemKeyStatus.GRACE) != bool(rotated) or not 0 < entry.created_at < LATEST:
            raise InvalidArgument("a KEM key in grace says when it was rotated, an active one does not")
        if max(rotated, expires) >= LATEST or (expires and expires <= entry.created_at):
            raise InvalidArgument("the times of a KEM key are out of range")
    kinds = [entry.key.kind for entry in entries if entry.status is KemKeyStatus.ACTIVE]
    if not kinds or len(set(kinds)) != len(kinds):
        raise InvalidArgument("a bundle has one active KEM key of each type that it has")
    if any(bundle.takes(SUITE_OF[kind]) != (kind in kinds) for kind in _KEM_KINDS):
        raise InvalidArgument("the mask of suites does not fit the active KEM keys")
    if len({entry.key.raw[:ML_KEM_PUBLIC] for entry in entries}) != len(entries):
        raise InvalidKey("two KEM keys share their ML-KEM half")
