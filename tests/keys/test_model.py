"""The JSON forms of keys are strict, and what a key's status allows is exact to the millisecond."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from angelia.envelope import bundles
from angelia.envelope.bundles import KemEntry, KemKeyStatus, Link, anchor_of
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPrivateKey
from angelia.envelope.refusals import InvalidKey, Malformed
from angelia.envelope.signing import SigningPair
from angelia.envelope.times import moment, unix_ms
from angelia.errors import AngeliaError, InvalidArgument
from angelia.keys.model import (
    DESTROY_AFTER,
    BundleDocument,
    KemStanding,
    KeyStatus,
    LinkDocument,
    OneTimeKeyDocument,
    PairStanding,
    RotationDocument,
    RotationPolicy,
    bundle_document,
    link_document,
    one_time_document,
    parse_bundle,
    parse_link,
    parse_one_time_key,
    parse_rotation,
    rotation_document,
)

NOW = 1_735_171_200_123
PAIR, NEXT = SigningPair.generate(), SigningPair.generate()
KEY, OLD, ML_KEM = (KemPrivateKey.generate(kind) for kind in (KeyType.XWING, KeyType.XWING, KeyType.ML_KEM_768))
FIRST = bundles.sign_bundle(
    PAIR,
    agent_nhi="alice",
    issued_at=NOW,
    kem_keys=(KemEntry(key=OLD.public, status=KemKeyStatus.ACTIVE, created_at=NOW),),
    after=None,
)
BUNDLE = bundles.sign_bundle(
    PAIR,
    agent_nhi="alice",
    issued_at=NOW,
    kem_keys=(
        KemEntry(key=KEY.public, status=KemKeyStatus.ACTIVE, created_at=NOW, expires_at=NOW + 1),
        KemEntry(key=ML_KEM.public, status=KemKeyStatus.ACTIVE, created_at=NOW),
        KemEntry(key=OLD.public, status=KemKeyStatus.GRACE, created_at=NOW - 5, rotated_at=NOW),
    ),
    suites=0b1011,
    after=anchor_of(FIRST),
)
STATEMENT = bundles.sign_rotation(PAIR, NEXT, "alice", NOW)
ONE_TIME = bundles.sign_one_time_key(PAIR, "alice", KEY.public, NOW)
DOCUMENT: dict[str, Any] = msgspec.to_builtins(bundle_document(BUNDLE))

SMALL_ORDER = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
]
NOT_CANONICAL = ["edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", "ff" * 32]
BAD_X25519 = [
    "00" * 32,
    "01" + "00" * 31,
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
]


def text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def read(document: dict[str, Any]) -> bundles.Bundle:
    """What a server or a client does with the JSON of a bundle."""
    return parse_bundle(msgspec.json.decode(msgspec.json.encode(document), type=BundleDocument))


def changed(document: dict[str, Any], place: tuple[str | int, ...], value: object) -> dict[str, Any]:
    copy: Any = msgspec.json.decode(msgspec.json.encode(document))
    inside = copy
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = value
    return copy


# JSON.


def test_a_bundle_goes_through_json_unchanged() -> None:
    assert read(DOCUMENT) == BUNDLE
    assert read(DOCUMENT).hash == BUNDLE.hash


def test_a_link_a_one_time_key_and_a_statement_go_through_json_unchanged() -> None:
    for given, kind, parse in (
        (link_document(Link(BUNDLE, STATEMENT)), LinkDocument, parse_link),
        (one_time_document(ONE_TIME), OneTimeKeyDocument, parse_one_time_key),
        (rotation_document(STATEMENT), RotationDocument, parse_rotation),
    ):
        parsed = parse(msgspec.json.decode(msgspec.json.encode(given), type=kind))  # type: ignore[operator]
        assert parsed in (Link(BUNDLE, STATEMENT), ONE_TIME, STATEMENT)


def test_an_absent_statement_is_left_out_and_not_null() -> None:
    assert "rotation_statement" not in msgspec.to_builtins(link_document(Link(BUNDLE)))


BYTES: list[tuple[str | int, ...]] = [
    ("signature_ed25519",),
    ("signature_ml_dsa",),
    ("prev_bundle_hash",),
    ("signer", "ed25519_public_key"),
    ("signer", "ml_dsa_public_key"),
    ("kem_keys", 0, "public_key"),
]


@pytest.mark.parametrize("place", BYTES, ids=str)
@pytest.mark.parametrize(
    "spell",
    [
        lambda t: t + "=",
        lambda t: t + "==",
        lambda t: t + "\n",
        lambda t: " " + t,
        lambda t: t[:9] + "\n" + t[9:],
        lambda t: t[:9] + "!" + t[9:],
        lambda t: t[:9] + "é" + t[9:],
        lambda t: base64.b64encode(base64.urlsafe_b64decode(t + "=" * (-len(t) % 4)) + b"\xff\xfe").decode(),
    ],
    ids=["padded", "padded twice", "newline", "space", "newline inside", "not base64", "not ASCII", "standard base64"],
)
def test_bytes_have_one_spelling(place: tuple[str | int, ...], spell: Callable[[str], str]) -> None:
    value: Any = DOCUMENT
    for step in place:
        value = value[step]
    with pytest.raises((Malformed, InvalidKey)):
        read(changed(DOCUMENT, place, spell(value)))


@pytest.mark.parametrize("place", [p for p in BYTES if p[-1] in ("prev_bundle_hash", "ed25519_public_key")], ids=str)
def test_spare_bits_of_base64_are_zero(place: tuple[str | int, ...]) -> None:
    value: Any = DOCUMENT
    for step in place:
        value = value[step]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spare = value[:-1] + alphabet[alphabet.index(value[-1]) + 1]  # 32 bytes leave two bits that say nothing
    with pytest.raises(Malformed):
        read(changed(DOCUMENT, place, spare))


@pytest.mark.parametrize("place", [("extra",), ("signer", "extra"), ("kem_keys", 0, "extra")], ids=str)
def test_unknown_members_are_refused(place: tuple[str | int, ...]) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(changed(DOCUMENT, place, 1))


@pytest.mark.parametrize("name", DOCUMENT)
def test_no_member_can_be_left_out_or_null(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        read({key: value for key, value in DOCUMENT.items() if key != name})
    with pytest.raises(msgspec.ValidationError):
        read({**DOCUMENT, name: None})


@pytest.mark.parametrize("place", [("signer", "signer_id"), ("kem_keys", 0, "key_id"), ("kem_keys", 2, "key_id")])
def test_ids_are_recomputed_and_never_believed(place: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidKey):
        read(changed(DOCUMENT, place, str(uuid4())))


@pytest.mark.parametrize("value", [-1, 1 << 53, 1 << 64, 1 << 200])
@pytest.mark.parametrize("place", [("bundle_version",), ("issued_at",), ("suites",), ("kem_keys", 0, "created_at")])
def test_numbers_out_of_range_are_refused(place: tuple[str | int, ...], value: int) -> None:
    with pytest.raises((InvalidKey, msgspec.ValidationError)):
        read(changed(DOCUMENT, place, value))


@pytest.mark.parametrize("value", [1.5, "1", True, [1], None])
def test_numbers_are_numbers(value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        read({**DOCUMENT, "bundle_version": value})


def test_unknown_types_and_statuses_are_refused() -> None:
    for place, value in (
        (("kem_keys", 0, "key_type"), "x25519"),
        (("kem_keys", 0, "key_type"), "ml_kem_768"),
        (("kem_keys", 1, "key_type"), "xwing"),
        (("kem_keys", 0, "key_type"), "ed25519"),
        (("kem_keys", 0, "status"), "retired"),
        (("kem_keys", 0, "status"), "ACTIVE"),
    ):
        with pytest.raises(InvalidKey):
            read(changed(DOCUMENT, place, value))


# Keys that are none.


@pytest.mark.parametrize("point", SMALL_ORDER + NOT_CANONICAL)
def test_an_ed25519_key_of_small_order_or_with_two_spellings_does_not_load(point: str) -> None:
    raw = bytes.fromhex(point)
    document = changed(DOCUMENT, ("signer", "ed25519_public_key"), text(raw))
    with pytest.raises(InvalidKey) as refused:
        read(document)
    assert refused.value.code == "invalid_key_format"


@pytest.mark.parametrize("point", BAD_X25519)
def test_an_x25519_half_of_small_order_or_with_two_spellings_does_not_load(point: str) -> None:
    raw = KEY.public.raw[:1184] + bytes.fromhex(point)
    with pytest.raises(InvalidKey):
        read(changed(DOCUMENT, ("kem_keys", 0, "public_key"), text(raw)))


@pytest.mark.parametrize(
    ("place", "raw"),
    [
        (("signer", "ed25519_public_key"), PAIR.public.ed25519[:-1]),
        (("signer", "ed25519_public_key"), PAIR.public.ed25519 + b"\0"),
        (("signer", "ed25519_public_key"), b""),
        (("signer", "ml_dsa_public_key"), PAIR.public.ml_dsa[:-1]),
        (("signer", "ml_dsa_public_key"), PAIR.public.ml_dsa + b"\0"),
        (("signer", "ml_dsa_public_key"), b""),
        (("kem_keys", 0, "public_key"), KEY.public.raw[:-1]),
        (("kem_keys", 0, "public_key"), KEY.public.raw + b"\0"),
        (("kem_keys", 0, "public_key"), b""),
        (("kem_keys", 0, "public_key"), b"\xff" * 1184 + KEY.public.raw[1184:]),
        (("kem_keys", 1, "public_key"), b"\xff" * 1184),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else str(value[-1]),
)
def test_a_key_of_the_wrong_length_or_form_does_not_load(place: tuple[str | int, ...], raw: bytes) -> None:
    with pytest.raises(InvalidKey) as refused:
        read(changed(DOCUMENT, place, text(raw)))
    assert refused.value.code == "invalid_key_format"


def test_one_time_keys_and_statements_are_as_strict() -> None:
    one, statement = msgspec.to_builtins(one_time_document(ONE_TIME)), msgspec.to_builtins(rotation_document(STATEMENT))
    wrong: list[tuple[Any, Any, dict[str, Any]]] = [
        (OneTimeKeyDocument, parse_one_time_key, {**one, "key_id": str(uuid4())}),
        (OneTimeKeyDocument, parse_one_time_key, {**one, "key_type": "x25519"}),
        (OneTimeKeyDocument, parse_one_time_key, {**one, "created_at": -1}),
        (OneTimeKeyDocument, parse_one_time_key, {**one, "public_key": one["public_key"] + "="}),
        (OneTimeKeyDocument, parse_one_time_key, {**one, "public_key": text(KEY.public.raw[:-1])}),
        (RotationDocument, parse_rotation, changed(statement, ("new_signer", "signer_id"), str(uuid4()))),
        (RotationDocument, parse_rotation, {**statement, "issued_at": 1 << 53}),
        (
            RotationDocument,
            parse_rotation,
            changed(statement, ("new_signer", "ed25519_public_key"), text(bytes.fromhex(SMALL_ORDER[1]))),
        ),
    ]
    for kind, parse, document in wrong:
        with pytest.raises(AngeliaError):
            parse(msgspec.convert(document, kind))
    for kind, document in ((OneTimeKeyDocument, one), (RotationDocument, statement)):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**document, "extra": 1}, kind)


# Times.


def test_milliseconds_are_exact_both_ways() -> None:
    for at in (0, 1, NOW, 253_402_300_799_999):
        assert unix_ms(moment(at)) == at


def test_a_time_that_no_calendar_has_is_the_callers_error() -> None:
    for at in (253_402_300_800_000, (1 << 53) - 1):
        with pytest.raises(InvalidArgument):
            moment(at)


# What a status allows.

ROTATED = datetime(2026, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)


def test_the_private_half_lives_65_minutes_longer_than_the_grace_of_7_days() -> None:
    assert timedelta(seconds=604_800 + 3_600 + 300) == DESTROY_AFTER


def test_an_active_kem_key_takes_everything_until_it_expires() -> None:
    assert KemStanding(KeyStatus.ACTIVE).takes_envelope_of(ROTATED, ROTATED)
    expiring = KemStanding(KeyStatus.ACTIVE, expires_at=ROTATED)
    assert expiring.takes_envelope_of(ROTATED - MS, ROTATED - MS)
    assert not expiring.takes_envelope_of(ROTATED - MS, ROTATED)


def test_a_kem_key_in_grace_takes_what_was_sealed_within_an_hour_of_its_rotation() -> None:
    in_grace = KemStanding(KeyStatus.GRACE, rotated_at=ROTATED)
    last = ROTATED + timedelta(seconds=3_600)
    assert in_grace.takes_envelope_of(last, last)
    assert not in_grace.takes_envelope_of(last + MS, last + MS)


def test_a_kem_key_takes_nothing_once_its_private_half_is_gone_even_if_the_tick_is_late() -> None:
    in_grace = KemStanding(KeyStatus.GRACE, rotated_at=ROTATED)
    assert in_grace.takes_envelope_of(ROTATED, ROTATED + DESTROY_AFTER - MS)
    assert not in_grace.takes_envelope_of(ROTATED, ROTATED + DESTROY_AFTER)


@pytest.mark.parametrize("status", [KeyStatus.RETIRED, KeyStatus.REVOKED])
def test_a_kem_key_that_is_over_takes_nothing(status: KeyStatus) -> None:
    over = KemStanding(status, rotated_at=ROTATED)
    assert not over.takes_envelope_of(ROTATED - timedelta(days=1), ROTATED)


def test_a_replaced_pair_signs_for_300_seconds_of_envelope_time_and_history_stays_verifiable() -> None:
    replaced = PairStanding(rotated_at=ROTATED)
    last = ROTATED + timedelta(seconds=300)
    years_later = ROTATED + timedelta(days=2000)
    assert replaced.signs_envelope_of(last, years_later)
    assert not replaced.signs_envelope_of(last + MS, last + MS)


def test_a_revoked_pair_is_refused_from_the_moment_it_was_compromised_and_not_before() -> None:
    revoked = PairStanding(revoked_at=ROTATED + timedelta(hours=1), compromised_since=ROTATED)
    assert revoked.signs_envelope_of(ROTATED - MS, ROTATED - MS)
    assert not revoked.signs_envelope_of(ROTATED - MS, ROTATED)
    without = replace(revoked, compromised_since=None)
    assert without.signs_envelope_of(ROTATED, ROTATED)
    assert not without.signs_envelope_of(ROTATED, ROTATED + timedelta(hours=1))


def test_a_pair_that_was_replaced_before_it_was_revoked_gets_no_longer_a_life_by_it() -> None:
    both = PairStanding(rotated_at=ROTATED, revoked_at=ROTATED + timedelta(hours=9))
    late = ROTATED + timedelta(seconds=300) + MS
    assert both.signs_envelope_of(late - MS, late)
    assert not both.signs_envelope_of(late, late)


@pytest.mark.parametrize(
    ("policy", "seconds"), [("hourly", 3_600), ("daily", 86_400), ("weekly", 604_800), ("on_demand", None)]
)
def test_policies_have_the_intervals_of_the_contract(policy: str, seconds: int | None) -> None:
    assert RotationPolicy(policy).interval == (None if seconds is None else timedelta(seconds=seconds))
