"""Records of keys, the JSON forms of bundles, and what a key's status allows at a given time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from angelia.envelope.bundles import Bundle, KemEntry, KemKeyStatus, Link, OneTimeKey, RotationStatement
from angelia.envelope.ids import KeyType
from angelia.envelope.json_form import from_text, to_text
from angelia.envelope.kem import KemPublicKey, parse_kem_key
from angelia.envelope.refusals import InvalidKey
from angelia.envelope.signing import Signatures, VerifyingPair, parse_pair
from angelia.envelope.times import SKEW
from angelia.envelope.wire import Suite

GRACE = timedelta(seconds=604_800)
CACHE = timedelta(seconds=3_600)  # how old a sender's copy of a bundle may be
DESTROY_AFTER = GRACE + CACHE + SKEW  # how long an admitted envelope may need the private half
ONE_TIME_USE = timedelta(seconds=3_900)
ONE_TIME_LIFE = timedelta(days=30)
# How many one-time keys an agent keeps on its server, at how many it makes new ones, at how many it is alerted.
ONE_TIME_BATCH, ONE_TIME_LOW, ONE_TIME_ALERT = 100, 50, 10
# How many one-time keys of an agent one sender is given in that time.
ONE_TIME_A_PAIR, ONE_TIME_WINDOW = 10, timedelta(hours=1)
MOST_ONE_TIME = 1_000
MOST_GRACE_KEYS = 256  # of one schedule; hourly rotation makes 168 in a week
TYPE_NAMES = {
    KeyType.ML_KEM_768: "ml_kem_768",
    KeyType.ED25519: "ed25519",
    KeyType.ML_DSA_65: "ml_dsa_65",
    KeyType.XWING: "xwing",
}
KEM_TYPES = {Suite.ML_KEM: "ml_kem_768", Suite.XWING: "xwing"}
_KEM_KINDS = {TYPE_NAMES[kind]: kind for kind in (KeyType.ML_KEM_768, KeyType.XWING)}


class KeyStatus(StrEnum):
    """A key is in use, replaced but still good for messages under way, retired, or revoked."""

    ACTIVE = "active"
    GRACE = "grace"
    RETIRED = "retired"
    REVOKED = "revoked"


class DataKeyPurpose(StrEnum):
    """What the server's own data keys encrypt."""

    GRACE_PERIOD_KEYS = "grace_period_keys"
    QUEUE = "queue"


class Reason(StrEnum):
    """Why keys were rotated."""

    SCHEDULED = "scheduled"
    ON_DEMAND = "on_demand"
    EMERGENCY = "emergency"


class RotationPolicy(StrEnum):
    """How often an agent wants new keys."""

    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    ON_DEMAND = "on_demand"

    @property
    def interval(self) -> timedelta | None:
        return _INTERVALS.get(self)


_INTERVALS = {
    RotationPolicy.HOURLY: timedelta(hours=1),
    RotationPolicy.DAILY: timedelta(days=1),
    RotationPolicy.WEEKLY: timedelta(weeks=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """One public key of an agent and its status."""

    agent_nhi: str
    key_id: UUID
    key_type: str
    usage: str
    public_key: bytes = field(repr=False)
    status: KeyStatus
    created_at: datetime
    expires_at: datetime | None = None
    rotated_at: datetime | None = None
    revoked_at: datetime | None = None
    compromised_since: datetime | None = None
    signer_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class KemStanding:
    """How a key stands that envelopes are sealed to."""

    status: KeyStatus
    expires_at: datetime | None = None
    rotated_at: datetime | None = None

    def takes_envelope_of(self, created_at: datetime, now: datetime) -> bool:
        """Whether the server admits an envelope sealed to this key; the sender's copy of it may be an hour old."""
        if self.status is KeyStatus.ACTIVE:
            return self.expires_at is None or now < self.expires_at
        return (
            self.status is KeyStatus.GRACE
            and self.rotated_at is not None
            and created_at <= self.rotated_at + CACHE
            and now < self.rotated_at + DESTROY_AFTER
        )


@dataclass(frozen=True, slots=True)
class PairStanding:
    """How a signing pair stands."""

    rotated_at: datetime | None = None
    revoked_at: datetime | None = None
    compromised_since: datetime | None = None

    def signs_envelope_of(self, created_at: datetime, accepted_at: datetime) -> bool:
        """Whether a signature by this pair is valid in an envelope that was made and accepted at these times."""
        if self.revoked_at is not None and accepted_at >= (self.compromised_since or self.revoked_at):
            return False
        return self.rotated_at is None or created_at <= self.rotated_at + SKEW


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key that was replaced, and the key that replaced it, if any."""

    key_type: str
    old: UUID
    new: UUID | None


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """One rotation of one key; kept seven years."""

    event_id: UUID
    key_type: str
    old_key_id: UUID
    new_key_id: UUID | None
    rotated_at: datetime
    reason: str


class GraceKey(msgspec.Struct, frozen=True):
    """An earlier key of a schedule, and until when it still opens messages that were sealed to it."""

    key_id: UUID
    expires_at: datetime


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """How often an agent wants new keys for a peer. `due_since` is set while a rotation is asked for."""

    session_id: UUID
    peer: str
    policy: RotationPolicy
    current_key_id: UUID
    current_key_version: int
    last_rotated_at: datetime
    next_rotation_at: datetime | None
    due_since: datetime | None


class RotationSchedule(ScheduleState, frozen=True, kw_only=True):
    """A rotation schedule as the ledger has it: with its earlier keys encrypted."""

    agent: str
    sealed_grace_keys: bytes | None


class ScheduleRecord(ScheduleState, frozen=True, kw_only=True):
    """A rotation schedule as its agent sees it. `due_since` is set while a rotation is asked for."""

    grace_period_keys: list[GraceKey]


class RotationDue(msgspec.Struct, frozen=True, kw_only=True):
    """The event that a rotation schedule asks for new keys."""

    peer: str
    session_id: UUID
    due_since: datetime


class PrekeysLow(msgspec.Struct, frozen=True, kw_only=True):
    """The event that few one-time keys are left."""

    count: int


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON form of a signed object. Bytes are base64url without padding, times are Unix milliseconds."""


class SignerDocument(Document, frozen=True, kw_only=True):
    signer_id: UUID
    ed25519_public_key: str
    ml_dsa_public_key: str


class KemKeyDocument(Document, frozen=True, kw_only=True, omit_defaults=False):
    key_id: UUID
    key_type: str
    status: str
    created_at: int
    expires_at: int
    rotated_at: int
    public_key: str


class BundleDocument(Document, frozen=True, kw_only=True):
    """An agent's public keys, signed by the agent."""

    agent_nhi: str
    bundle_version: int
    issued_at: int
    expires_at: int
    suites: int
    signer: SignerDocument
    kem_keys: list[KemKeyDocument]
    prev_bundle_hash: str
    signature_ed25519: str
    signature_ml_dsa: str


class OneTimeKeyDocument(Document, frozen=True, kw_only=True):
    """A key for one message, signed on its own."""

    agent_nhi: str
    signer_id: UUID
    key_id: UUID
    key_type: str
    created_at: int
    public_key: str
    signature_ed25519: str
    signature_ml_dsa: str


class RotationDocument(Document, frozen=True, kw_only=True):
    """The statement, signed by the old signing pair and by the new one, that the new one replaces the old."""

    agent_nhi: str
    old_signer_id: UUID
    new_signer: SignerDocument
    issued_at: int
    old_signature_ed25519: str
    old_signature_ml_dsa: str
    new_signature_ed25519: str
    new_signature_ml_dsa: str


class LinkDocument(Document, frozen=True, kw_only=True):
    """A bundle, and the statement about its signing pair if that is new."""

    bundle: BundleDocument
    rotation_statement: RotationDocument | None = None


class BundleAnswer(Document, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A bundle as the server answers with it. Only `bundle` and `rotation_statement` are signed by the agent."""

    bundle: BundleDocument
    bundle_id: str
    rotation_statement: RotationDocument | None = None
    revoked: list[UUID] = []
    one_time: bool | None = None
    one_time_key: OneTimeKeyDocument | None = None


def bundle_document(bundle: Bundle) -> BundleDocument:
    return BundleDocument(
        agent_nhi=bundle.agent_nhi,
        bundle_version=bundle.bundle_version,
        issued_at=bundle.issued_at,
        expires_at=bundle.expires_at,
        suites=bundle.suites,
        signer=_signer_document(bundle.signer),
        kem_keys=[
            KemKeyDocument(
                key_id=entry.key.key_id,
                key_type=TYPE_NAMES[entry.key.kind],
                status=entry.status.name.lower(),
                created_at=entry.created_at,
                expires_at=entry.expires_at,
                rotated_at=entry.rotated_at,
                public_key=to_text(entry.key.raw),
            )
            for entry in bundle.kem_keys
        ],
        prev_bundle_hash=to_text(bundle.prev_bundle_hash),
        signature_ed25519=to_text(bundle.signatures.ed25519),
        signature_ml_dsa=to_text(bundle.signatures.ml_dsa),
    )


def parse_bundle(document: BundleDocument) -> Bundle:
    """The bundle of a document. Checks its ids; `check_bundle` checks its signatures."""
    return Bundle(
        agent_nhi=document.agent_nhi,
        bundle_version=_natural(document.bundle_version),
        issued_at=_natural(document.issued_at),
        expires_at=_natural(document.expires_at),
        suites=_natural(document.suites, 16),
        signer=_parse_signer(document.signer),
        kem_keys=tuple(
            KemEntry(
                key=parse_kem(one.key_type, one.public_key, one.key_id),
                status=_listed(one.status),
                created_at=_natural(one.created_at),
                expires_at=_natural(one.expires_at),
                rotated_at=_natural(one.rotated_at),
            )
            for one in document.kem_keys
        ),
        prev_bundle_hash=from_text(document.prev_bundle_hash),
        signatures=_signatures(document.signature_ed25519, document.signature_ml_dsa),
    )


def one_time_document(one: OneTimeKey) -> OneTimeKeyDocument:
    return OneTimeKeyDocument(
        agent_nhi=one.agent_nhi,
        signer_id=one.signer_id,
        key_id=one.key.key_id,
        key_type=TYPE_NAMES[one.key.kind],
        created_at=one.created_at,
        public_key=to_text(one.key.raw),
        signature_ed25519=to_text(one.signatures.ed25519),
        signature_ml_dsa=to_text(one.signatures.ml_dsa),
    )


def parse_one_time_key(document: OneTimeKeyDocument) -> OneTimeKey:
    return OneTimeKey(
        agent_nhi=document.agent_nhi,
        signer_id=document.signer_id,
        key=parse_kem(document.key_type, document.public_key, document.key_id),
        created_at=_natural(document.created_at),
        signatures=_signatures(document.signature_ed25519, document.signature_ml_dsa),
    )


def rotation_document(statement: RotationStatement) -> RotationDocument:
    return RotationDocument(
        agent_nhi=statement.agent_nhi,
        old_signer_id=statement.old_signer_id,
        new_signer=_signer_document(statement.new_signer),
        issued_at=statement.issued_at,
        old_signature_ed25519=to_text(statement.by_old.ed25519),
        old_signature_ml_dsa=to_text(statement.by_old.ml_dsa),
        new_signature_ed25519=to_text(statement.by_new.ed25519),
        new_signature_ml_dsa=to_text(statement.by_new.ml_dsa),
    )


def parse_rotation(document: RotationDocument) -> RotationStatement:
    return RotationStatement(
        agent_nhi=document.agent_nhi,
        old_signer_id=document.old_signer_id,
        new_signer=_parse_signer(document.new_signer),
        issued_at=_natural(document.issued_at),
        by_old=_signatures(document.old_signature_ed25519, document.old_signature_ml_dsa),
        by_new=_signatures(document.new_signature_ed25519, document.new_signature_ml_dsa),
    )


def link_document(link: Link) -> LinkDocument:
    statement = None if link.statement is None else rotation_document(link.statement)
    return LinkDocument(bundle=bundle_document(link.bundle), rotation_statement=statement)


def parse_link(document: LinkDocument | BundleAnswer) -> Link:
    statement = None if document.rotation_statement is None else parse_rotation(document.rotation_statement)
    return Link(parse_bundle(document.bundle), statement)


def parse_links(documents: Sequence[LinkDocument]) -> list[Link]:
    return [parse_link(document) for document in documents]


def parse_kem(type_name: str, text: str, named: UUID) -> KemPublicKey:
    """The KEM key of a document; raises InvalidKey unless its id follows from its bytes."""
    if type_name not in _KEM_KINDS:
        raise InvalidKey(f"{type_name[:20]!r} is not the type of a KEM key", hint="ml_kem_768 or xwing")
    key = parse_kem_key(_KEM_KINDS[type_name], from_text(text))
    if key.key_id != named:
        raise InvalidKey("a key id is not the one that follows from the key")
    return key


def _signer_document(pair: VerifyingPair) -> SignerDocument:
    return SignerDocument(
        signer_id=pair.signer_id,
        ed25519_public_key=to_text(pair.ed25519),
        ml_dsa_public_key=to_text(pair.ml_dsa),
    )


def _parse_signer(document: SignerDocument) -> VerifyingPair:
    pair = parse_pair(from_text(document.ed25519_public_key), from_text(document.ml_dsa_public_key))
    if pair.signer_id != document.signer_id:
        raise InvalidKey("a signer id is not the one that follows from the keys")
    return pair


def _listed(text: str) -> KemKeyStatus:
    try:
        return {"active": KemKeyStatus.ACTIVE, "grace": KemKeyStatus.GRACE}[text]
    except KeyError:
        raise InvalidKey("the status of a KEM key in a bundle is active or grace") from None


def _natural(number: int, bits: int = 53) -> int:
    if not 0 <= number < 1 << bits:
        raise InvalidKey("a number in the document is out of range")
    return number


def _signatures(ed25519: str, ml_dsa: str) -> Signatures:
    return Signatures(from_text(ed25519), from_text(ml_dsa))
