"""Key bundles: the bytes that are signed, what a bundle must be by itself, and what follows from what was trusted."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from angelia.envelope import bundles
from angelia.envelope.bundles import (
    FIRST_PREVIOUS,
    Bundle,
    KemEntry,
    KemKeyStatus,
    Link,
    OneTimeKey,
    RotationStatement,
    TrustAnchor,
    UntrustedBundle,
    anchor_of,
    check_bundle,
    check_one_time_key,
    check_rotation,
    follow,
    sign_bundle,
    sign_one_time_key,
    sign_rotation,
)
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import ML_KEM_PUBLIC, KemPrivateKey, parse_kem_key
from angelia.envelope.refusals import InvalidKey, SignatureFailed
from angelia.envelope.signing import Purpose, Signatures, SigningPair, object_holds
from angelia.envelope.wire import Suite
from angelia.errors import InvalidArgument
from envelope.reference import private_keys
from envelope.samples import ALICE, BOB, MALLORY, ML_KEM, NOW, XWING

HANDLE = "agent-alice-01"
OLD_XWING = KemPrivateKey.generate(XWING)
NEXT = SigningPair.generate()


def entry(kind: KeyType = XWING, **other: object) -> KemEntry:
    values: dict[str, object] = {"key": BOB[kind].public, "status": KemKeyStatus.ACTIVE, "created_at": NOW, **other}
    return KemEntry(**values)  # type: ignore[arg-type]


IN_GRACE = entry(
    key=OLD_XWING.public, status=KemKeyStatus.GRACE, created_at=NOW - 9, expires_at=NOW + 9, rotated_at=NOW
)


def made(pair: SigningPair = ALICE, *, after: TrustAnchor | None = None, **other: object) -> Bundle:
    values: dict[str, object] = {"agent_nhi": HANDLE, "issued_at": NOW, "kem_keys": (entry(),), **other}
    return sign_bundle(pair, after=after, **values)  # type: ignore[arg-type]


def resigned(bundle: Bundle, **changes: object) -> Bundle:
    """The same bundle with other fields, honestly signed by its own pair: what a hostile agent can always make."""
    changed = replace(bundle, **changes)  # type: ignore[arg-type]
    pair = {one.public.signer_id: one for one in (ALICE, MALLORY, NEXT)}[changed.signer.signer_id]
    return replace(changed, signatures=pair.sign_object(Purpose.BUNDLE, changed.signed_bytes()))


def counted(content: bytes) -> bytes:
    return struct.pack(">H", len(content)) + content


FULL = made(
    kem_keys=(entry(XWING, expires_at=NOW + 5), entry(ML_KEM), IN_GRACE),
    suites=0b1011,
    after=anchor_of(made()),
)


# The bytes.


def test_the_signed_bytes_of_a_bundle_are_those_of_the_contract() -> None:
    expected = b"\x01" + counted(b"agent-alice-01")
    expected += struct.pack(">QQQH", 2, NOW, NOW + 30 * 86_400_000, 11)
    expected += ALICE.public.signer_id.bytes + ALICE.public.ed25519 + ALICE.public.ml_dsa
    expected += b"\x03"
    expected += struct.pack(">BBQQQ", 5, 1, NOW, NOW + 5, 0) + counted(BOB[XWING].public.raw)
    expected += struct.pack(">BBQQQ", 1, 1, NOW, 0, 0) + counted(BOB[ML_KEM].public.raw)
    expected += struct.pack(">BBQQQ", 5, 2, NOW - 9, NOW + 9, NOW) + counted(OLD_XWING.public.raw)
    expected += FULL.prev_bundle_hash
    assert FULL.signed_bytes() == expected
    assert (len(ALICE.public.ed25519), len(ALICE.public.ml_dsa), len(FULL.prev_bundle_hash)) == (32, 1952, 32)


def test_the_hash_of_a_bundle_covers_its_bytes_and_both_signatures() -> None:
    content = FULL.signed_bytes() + FULL.signatures.ed25519 + FULL.signatures.ml_dsa
    assert FULL.hash == hashlib.sha256(content).digest()


def test_both_signatures_are_over_the_label_and_the_sha_512_of_the_bytes() -> None:
    signed = b"angelia/v1/bundle-signature\0" + hashlib.sha512(FULL.signed_bytes()).digest()
    ed25519, ml_dsa = private_keys(ALICE)
    ed25519.public_key().verify(FULL.signatures.ed25519, signed)
    ml_dsa.public_key().verify(FULL.signatures.ml_dsa, signed, b"angelia/v1/bundle-signature")


def test_the_first_bundle_is_version_1_and_chained_to_zeros() -> None:
    first = made()
    assert (first.bundle_version, first.prev_bundle_hash) == (1, bytes(32))
    assert made(after=anchor_of(first)).prev_bundle_hash == first.hash


def test_the_signed_bytes_of_a_one_time_key_are_those_of_the_contract() -> None:
    one = sign_one_time_key(ALICE, HANDLE, BOB[XWING].public, NOW)
    expected = b"\x01" + counted(b"agent-alice-01") + ALICE.public.signer_id.bytes
    expected += struct.pack(">BQ", 5, NOW) + counted(BOB[XWING].public.raw)
    assert one.signed_bytes() == expected
    assert object_holds(ALICE.public, Purpose.PREKEY, expected, one.signatures)


def test_the_signed_bytes_of_a_rotation_are_those_of_the_contract() -> None:
    statement = sign_rotation(ALICE, NEXT, HANDLE, NOW)
    expected = b"\x01" + counted(b"agent-alice-01") + ALICE.public.signer_id.bytes + NEXT.public.signer_id.bytes
    expected += NEXT.public.ed25519 + NEXT.public.ml_dsa + struct.pack(">Q", NOW)
    assert statement.signed_bytes() == expected
    assert object_holds(ALICE.public, Purpose.ROTATION, expected, statement.by_old)
    assert object_holds(NEXT.public, Purpose.ROTATION, expected, statement.by_new)


# Nothing can be changed.


def flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1 << place % 8
    return bytes(changed)


def test_one_bit_flipped_anywhere_in_the_signed_bytes_is_refused() -> None:
    content, signatures = FULL.signed_bytes(), FULL.signatures
    assert object_holds(ALICE.public, Purpose.BUNDLE, content, signatures)
    accepted = [
        place
        for place in range(len(content))
        if object_holds(ALICE.public, Purpose.BUNDLE, flipped(content, place), signatures)
    ]
    assert accepted == []


def test_one_bit_flipped_anywhere_in_either_signature_is_refused() -> None:
    signatures = FULL.signatures
    changed = [replace(signatures, ed25519=flipped(signatures.ed25519, n)) for n in range(64)]
    changed += [replace(signatures, ml_dsa=flipped(signatures.ml_dsa, n)) for n in range(3309)]
    content = FULL.signed_bytes()
    assert not [one for one in changed if object_holds(ALICE.public, Purpose.BUNDLE, content, one)]
    with pytest.raises(SignatureFailed):
        check_bundle(replace(FULL, signatures=changed[-1]))


OTHER_FIELDS: dict[str, dict[str, object]] = {
    "agent_nhi": {"agent_nhi": "agent-alice-02"},
    "bundle_version": {"bundle_version": 3},
    "issued_at": {"issued_at": NOW + 1},
    "expires_at": {"expires_at": NOW + 2},
    "suites": {"suites": 0b0011},
    "signer": {"signer": MALLORY.public},
    "prev_bundle_hash": {"prev_bundle_hash": bytes(32)},
    "a key's expiry": {"kem_keys": (entry(XWING, expires_at=NOW + 6), *FULL.kem_keys[1:])},
    "a key's creation": {"kem_keys": (entry(XWING, expires_at=NOW + 5, created_at=NOW - 1), *FULL.kem_keys[1:])},
    "a key's rotation": {"kem_keys": (*FULL.kem_keys[:2], replace(IN_GRACE, rotated_at=NOW + 1))},
    "the order of keys": {"kem_keys": (FULL.kem_keys[1], FULL.kem_keys[0], IN_GRACE)},
    "a key left out": {"kem_keys": FULL.kem_keys[:2]},
}


@pytest.mark.parametrize("changes", OTHER_FIELDS.values(), ids=OTHER_FIELDS)
def test_no_field_can_be_changed_without_its_agent(changes: dict[str, object]) -> None:
    with pytest.raises(SignatureFailed):
        check_bundle(replace(FULL, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "signatures",
    [
        Signatures(b"", FULL.signatures.ml_dsa),
        Signatures(FULL.signatures.ed25519, b""),
        Signatures(b"", b""),
        Signatures(FULL.signatures.ed25519 + b"\0", FULL.signatures.ml_dsa),
        Signatures(FULL.signatures.ed25519, FULL.signatures.ml_dsa + b"\0"),
        Signatures(FULL.signatures.ed25519[:-1], FULL.signatures.ml_dsa[:-1]),
        Signatures(bytes(64), FULL.signatures.ml_dsa),
        Signatures(FULL.signatures.ed25519, bytes(3309)),
        Signatures(os.urandom(64), os.urandom(3309)),
    ],
    ids=["no ed25519", "no ml-dsa", "neither", "long ed25519", "long ml-dsa", "short", "zeros", "zeros 2", "random"],
)
def test_a_bundle_without_two_whole_signatures_is_refused(signatures: Signatures) -> None:
    with pytest.raises(SignatureFailed):
        check_bundle(replace(FULL, signatures=signatures))


def test_signatures_of_two_pairs_do_not_make_one() -> None:
    by_mallory = MALLORY.sign_object(Purpose.BUNDLE, FULL.signed_bytes())
    for mixed in (
        Signatures(by_mallory.ed25519, FULL.signatures.ml_dsa),
        Signatures(FULL.signatures.ed25519, by_mallory.ml_dsa),
    ):
        with pytest.raises(SignatureFailed):
            check_bundle(replace(FULL, signatures=mixed))


# What a bundle must be, whoever signed it.


TOO_MANY = tuple(
    entry(key=KemPrivateKey.generate(XWING).public, status=KemKeyStatus.GRACE, rotated_at=NOW) for _ in range(16)
)
ALONE = parse_kem_key(ML_KEM, BOB[XWING].public.raw[:ML_KEM_PUBLIC])
HALF_RENEWED = parse_kem_key(XWING, BOB[XWING].public.raw[:ML_KEM_PUBLIC] + OLD_XWING.public.raw[ML_KEM_PUBLIC:])
WRONG: dict[str, dict[str, object]] = {
    "an upper-case handle": {"agent_nhi": "Alice"},
    "a handle with a newline": {"agent_nhi": "alice\n"},
    "an empty handle": {"agent_nhi": ""},
    "version 0": {"bundle_version": 0},
    "a version beyond exact numbers": {"bundle_version": 1 << 53},
    "a short link": {"prev_bundle_hash": bytes(31)},
    "a long link": {"prev_bundle_hash": bytes(33)},
    "no time of issue": {"issued_at": 0},
    "expired when issued": {"expires_at": NOW},
    "an expiry beyond exact numbers": {"expires_at": 1 << 53},
    "no suites": {"suites": 0},
    "a suite that is not served": {"suites": 0b0110},
    "an unknown suite": {"suites": 0b10010},
    "the mask of another key": {"suites": 0b0001},
    "a mask that promises more": {"suites": 0b0011},
    "a mask without the key's suite": {"suites": 0b1000},
    "no keys": {"kem_keys": ()},
    "too many keys": {"kem_keys": (entry(), *TOO_MANY)},
    "a key twice": {"kem_keys": (entry(), entry(status=KemKeyStatus.GRACE, rotated_at=NOW))},
    "two active keys of one type": {"kem_keys": (entry(), entry(key=OLD_XWING.public))},
    "grace before active": {"kem_keys": (IN_GRACE, entry())},
    "no active key": {"kem_keys": (IN_GRACE,), "suites": 0b1000},
    "grace without a time": {"kem_keys": (entry(), replace(IN_GRACE, rotated_at=0))},
    "an active key that was rotated": {"kem_keys": (entry(rotated_at=NOW),)},
    "a key without a time": {"kem_keys": (entry(created_at=0),)},
    "a key that expires before it is made": {"kem_keys": (entry(expires_at=NOW),)},
    "a key's time beyond exact numbers": {"kem_keys": (entry(expires_at=1 << 53),)},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_a_bundle_that_is_signed_and_wrong_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        check_bundle(resigned(made(), **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"kem_keys": (entry(), entry(key=ALONE)), "suites": 0b1011},
        {"kem_keys": (entry(), entry(key=ALONE, status=KemKeyStatus.GRACE, rotated_at=NOW))},
        {"kem_keys": (entry(), entry(key=HALF_RENEWED, status=KemKeyStatus.GRACE, rotated_at=NOW))},
    ],
    ids=["alone", "alone, in grace", "half renewed"],
)
def test_the_ml_kem_half_of_an_xwing_key_serves_nowhere_else(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidKey):
        check_bundle(resigned(made(), **changes))


def test_a_pair_with_the_same_id_is_another_pair_all_the_same() -> None:
    """122 bits of a hash can be searched for a second pair; then nothing but the fingerprint tells them apart."""
    twin = replace(MALLORY, public=replace(MALLORY.public, signer_id=ALICE.public.signer_id))
    trusted = anchor_of(made())
    with pytest.raises(UntrustedBundle, match="did not vouch"):
        follow(trusted, [Link(made(twin, after=trusted))])
    vouched = sign_rotation(ALICE, twin, HANDLE, NOW)
    assert follow(trusted, [Link(made(twin, after=trusted), vouched)]).signer == twin.public
    with pytest.raises(SignatureFailed):
        check_rotation(sign_rotation(ALICE, NEXT, HANDLE, NOW), ALICE.public, twin.public, HANDLE)


def test_sixteen_keys_are_enough() -> None:
    check_bundle(made(kem_keys=(entry(), *TOO_MANY[:15])))


def test_the_default_bundle_is_hybrid_only_and_lives_a_month() -> None:
    default = made()
    assert [suite for suite in Suite if default.takes(suite)] == [Suite.XWING, Suite.CHANNEL]
    assert default.expires_at - default.issued_at == timedelta(days=30) // timedelta(milliseconds=1)
    assert default.not_after == default.expires_at


def test_a_bundle_that_says_it_lives_longer_ends_after_a_month_all_the_same() -> None:
    assert made(life=timedelta(days=365)).not_after == NOW + 30 * 86_400_000
    assert made(life=timedelta(days=1)).not_after == NOW + 86_400_000


def test_a_sender_seals_to_the_strongest_key_that_has_not_expired() -> None:
    assert FULL.best_key(NOW + 4) == BOB[XWING].public
    assert FULL.best_key(NOW + 5) == BOB[ML_KEM].public
    only_ml_kem = made(kem_keys=(entry(ML_KEM, expires_at=NOW + 5),), suites=0b1001)
    assert only_ml_kem.best_key(NOW + 4) == BOB[ML_KEM].public
    assert only_ml_kem.best_key(NOW + 5) is None


# One-time keys and statements.

ONE_TIME = sign_one_time_key(ALICE, HANDLE, BOB[XWING].public, NOW)


@pytest.mark.parametrize(
    "changed",
    [
        replace(ONE_TIME, agent_nhi="agent-mallory"),
        replace(ONE_TIME, created_at=NOW + 1),
        replace(ONE_TIME, key=OLD_XWING.public),
        replace(ONE_TIME, signer_id=MALLORY.public.signer_id),
        replace(ONE_TIME, signatures=Signatures(ONE_TIME.signatures.ed25519, b"")),
        replace(ONE_TIME, signatures=Signatures(b"", ONE_TIME.signatures.ml_dsa)),
        sign_one_time_key(MALLORY, HANDLE, BOB[XWING].public, NOW),
        replace(ONE_TIME, signatures=ALICE.sign_object(Purpose.BUNDLE, ONE_TIME.signed_bytes())),
    ],
    ids=["agent", "time", "key", "signer", "no ml-dsa", "no ed25519", "another pair", "another purpose"],
)
def test_a_one_time_key_is_its_agents_word_and_nobody_elses(changed: OneTimeKey) -> None:
    check_one_time_key(ONE_TIME, ALICE.public)
    with pytest.raises(SignatureFailed):
        check_one_time_key(changed, ALICE.public)


STATEMENT = sign_rotation(ALICE, NEXT, HANDLE, NOW)
BY_OLD_ONLY = replace(STATEMENT, by_new=STATEMENT.by_old)
BY_NEW_ONLY = replace(STATEMENT, by_old=STATEMENT.by_new)
HALF_SIGNED = [
    replace(STATEMENT, by_old=Signatures(STATEMENT.by_old.ed25519, b"")),
    replace(STATEMENT, by_old=Signatures(b"", STATEMENT.by_old.ml_dsa)),
    replace(STATEMENT, by_new=Signatures(STATEMENT.by_new.ed25519, b"")),
    replace(STATEMENT, by_new=Signatures(b"", STATEMENT.by_new.ml_dsa)),
]


@pytest.mark.parametrize(
    "changed",
    [
        BY_OLD_ONLY,
        BY_NEW_ONLY,
        *HALF_SIGNED,
        replace(STATEMENT, issued_at=NOW + 1),
        replace(STATEMENT, agent_nhi="agent-alice-02"),
        sign_rotation(ALICE, NEXT, "agent-alice-02", NOW),
        sign_rotation(MALLORY, NEXT, HANDLE, NOW),
        sign_rotation(ALICE, MALLORY, HANDLE, NOW),
        sign_rotation(NEXT, ALICE, HANDLE, NOW),
        replace(sign_rotation(MALLORY, NEXT, HANDLE, NOW), old_signer_id=ALICE.public.signer_id),
        replace(sign_rotation(ALICE, MALLORY, HANDLE, NOW), new_signer=NEXT.public),
    ],
)
def test_a_statement_needs_all_four_signatures_over_what_it_names(changed: RotationStatement) -> None:
    check_rotation(STATEMENT, ALICE.public, NEXT.public, HANDLE)
    with pytest.raises(SignatureFailed):
        check_rotation(changed, ALICE.public, NEXT.public, HANDLE)


# What follows from what was trusted.

FIRST = made()
SECOND = made(after=anchor_of(FIRST), issued_at=NOW + 1)
THIRD = made(after=anchor_of(SECOND), issued_at=NOW + 2)
OTHER_SECOND = made(after=anchor_of(FIRST), issued_at=NOW + 3)
NEW_SIGNER = made(NEXT, after=anchor_of(FIRST), issued_at=NOW + 1)


def test_a_chain_is_followed_link_by_link() -> None:
    assert follow(anchor_of(FIRST), [Link(SECOND), Link(THIRD)]) == anchor_of(THIRD)
    assert follow(anchor_of(FIRST), []) == anchor_of(FIRST)


UNTRUSTED: dict[str, tuple[Bundle, list[Link]]] = {
    "the same again": (SECOND, [Link(SECOND)]),
    "an old one": (SECOND, [Link(FIRST)]),
    "a gap": (FIRST, [Link(THIRD)]),
    "another branch": (OTHER_SECOND, [Link(THIRD)]),
    "a step back on the way": (FIRST, [Link(SECOND), Link(FIRST)]),
    "a broken link": (FIRST, [Link(resigned(SECOND, prev_bundle_hash=bytes(32)))]),
    "a right link with a wrong version": (FIRST, [Link(resigned(SECOND, bundle_version=3))]),
    "a silent new signer": (FIRST, [Link(NEW_SIGNER)]),
    "another agent's": (FIRST, [Link(resigned(SECOND, agent_nhi="agent-alice-02"))]),
}


@pytest.mark.parametrize(("seen", "links"), UNTRUSTED.values(), ids=UNTRUSTED)
def test_what_does_not_follow_is_not_believed(seen: Bundle, links: list[Link]) -> None:
    with pytest.raises(UntrustedBundle):
        follow(anchor_of(seen), links)


@pytest.mark.parametrize(
    "statement",
    [
        BY_OLD_ONLY,
        BY_NEW_ONLY,
        *HALF_SIGNED,
        sign_rotation(ALICE, NEXT, "agent-alice-02", NOW),
        sign_rotation(MALLORY, NEXT, HANDLE, NOW),
        sign_rotation(ALICE, MALLORY, HANDLE, NOW),
    ],
)
def test_a_new_signer_needs_a_statement_that_holds(statement: RotationStatement) -> None:
    with pytest.raises(SignatureFailed):
        follow(anchor_of(FIRST), [Link(NEW_SIGNER, statement)])


def test_a_new_signer_with_the_word_of_both_pairs_is_believed_and_the_old_one_no_more() -> None:
    trusted = follow(anchor_of(FIRST), [Link(NEW_SIGNER, STATEMENT)])
    assert trusted == anchor_of(NEW_SIGNER)
    with pytest.raises(UntrustedBundle, match="new signing pair"):
        follow(trusted, [Link(made(after=trusted))])


def test_every_link_is_checked_also_by_itself() -> None:
    with pytest.raises(SignatureFailed):
        follow(anchor_of(FIRST), [Link(replace(SECOND, suites=0b0010)), Link(THIRD)])


def test_a_thousand_links_are_no_trouble() -> None:
    links, last = [], FIRST
    for number in range(1000):
        last = made(after=anchor_of(last), issued_at=NOW + number)
        links.append(Link(last))
    assert follow(anchor_of(FIRST), iter(links)) == anchor_of(last)
    assert last.bundle_version == 1001


def test_what_is_signed_wrong_never_leaves_the_signer() -> None:
    wrong: list[Callable[[], Bundle]] = [
        lambda: made(agent_nhi="Alice"),
        lambda: made(suites=0),
        lambda: made(kem_keys=()),
        lambda: made(life=timedelta(0)),
    ]
    for sign in wrong:
        with pytest.raises(InvalidArgument):
            sign()


def test_private_bytes_and_signatures_are_not_in_a_repr() -> None:
    shown = repr(FULL) + repr(ONE_TIME) + repr(STATEMENT) + repr(ALICE)
    for secret in (*ALICE.seeds, FULL.signatures.ml_dsa[:40], BOB[XWING].seed):
        assert repr(secret)[2:-1] not in shown
    assert bytes(32) == FIRST_PREVIOUS
    assert bundles.MOST_KEM_KEYS == 16
