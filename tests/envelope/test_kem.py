"""Keys to seal to: what they agree on, which bytes are none, and that others understand X-Wing the same way."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, MLKEM768X25519PublicKey, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.kem import KemPrivateKey, parse_kem_key
from angelia.envelope.refusals import InvalidKey, OpenFailed
from envelope.samples import BOB, CAROL, KINDS, ML_KEM, XWING

P = 2**255 - 19
SMALL_ORDER_U = (
    0,
    1,
    P - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)


@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_get_the_same_secret(kind: KeyType) -> None:
    secret, wrapped = BOB[kind].public.encapsulate()
    assert BOB[kind].decapsulate(wrapped) == secret
    assert (len(secret), len(wrapped)) == (32, {ML_KEM: 1088, XWING: 1120}[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_every_secret_is_fresh(kind: KeyType) -> None:
    made = [BOB[kind].public.encapsulate() for _ in range(100)]
    assert len({secret for secret, _ in made}) == len({wrapped for _, wrapped in made}) == 100


def test_both_halves_of_an_xwing_ciphertext_are_fresh() -> None:
    made = [BOB[XWING].public.encapsulate()[1] for _ in range(100)]
    assert len({wrapped[:1088] for wrapped in made}) == len({wrapped[1088:] for wrapped in made}) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_ciphertext_gives_another_secret_and_no_error(kind: KeyType) -> None:
    secret, wrapped = BOB[kind].public.encapsulate()
    for at in range(0, 1088, 31):
        changed = bytearray(wrapped)
        changed[at] ^= 1
        assert BOB[kind].decapsulate(bytes(changed)) not in (secret, bytes(32))


@pytest.mark.parametrize("kind", KINDS)
def test_somebody_elses_ciphertext_gives_another_secret(kind: KeyType) -> None:
    secret, wrapped = BOB[kind].public.encapsulate()
    assert CAROL[kind].decapsulate(wrapped) != secret


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [-1088, -33, -32, -1, 1, 32])
def test_a_ciphertext_of_another_length_is_refused(kind: KeyType, change: int) -> None:
    wrapped = BOB[kind].public.encapsulate()[1]
    with pytest.raises(OpenFailed):
        BOB[kind].decapsulate((wrapped + bytes(32))[: len(wrapped) + change])


@pytest.mark.parametrize("u", SMALL_ORDER_U)
def test_an_ephemeral_point_of_small_order_is_refused(u: int) -> None:
    wrapped = BOB[XWING].public.encapsulate()[1]
    with pytest.raises(OpenFailed):
        BOB[XWING].decapsulate(wrapped[:1088] + u.to_bytes(32, "little"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_all_of_a_private_key(kind: KeyType) -> None:
    made = KemPrivateKey.generate(kind)
    again = KemPrivateKey.from_seed(kind, made.seed)
    secret, wrapped = made.public.encapsulate()
    assert again.decapsulate(wrapped) == secret
    assert again.public.raw == made.public.raw
    assert len(made.seed) == {ML_KEM: 64, XWING: 96}[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [-64, -1, 1, 32])
def test_a_seed_of_another_length_is_no_key(kind: KeyType, change: int) -> None:
    with pytest.raises(InvalidKey):
        KemPrivateKey.from_seed(kind, bytes(len(BOB[kind].seed) + change))


@pytest.mark.parametrize("kind", [kind for kind in KeyType if kind not in KINDS])
def test_only_kem_keys_are_sealed_to(kind: KeyType) -> None:
    with pytest.raises(InvalidKey):
        KemPrivateKey.from_seed(kind, bytes(64))
    with pytest.raises(InvalidKey):
        parse_kem_key(kind, BOB[XWING].public.raw)


@pytest.mark.parametrize("kind", KINDS)
def test_the_id_and_digest_of_a_key_are_computed_from_its_bytes(kind: KeyType) -> None:
    public = parse_kem_key(kind, BOB[kind].public.raw)
    assert public.key_id == key_id(kind, public.raw)
    assert public.digest == hashlib.sha256(public.raw).digest()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [0, 32, 1183, 1184, 1185, 1215, 1216, 1217, 2400])
def test_a_public_key_of_another_length_is_refused(kind: KeyType, length: int) -> None:
    if length == len(BOB[kind].public.raw):
        return
    with pytest.raises(InvalidKey):
        parse_kem_key(kind, (BOB[XWING].public.raw * 2)[:length])


@pytest.mark.parametrize("kind", KINDS)
def test_an_ml_kem_key_with_numbers_beyond_the_modulus_is_refused(kind: KeyType) -> None:
    raw = BOB[kind].public.raw
    with pytest.raises(InvalidKey):
        parse_kem_key(kind, b"\xff" * 1184 + raw[1184:])


@pytest.mark.parametrize("u", [*SMALL_ORDER_U, P, P + 1, P + 9, 2**255 + 9])
def test_an_xwing_key_whose_x25519_half_is_not_sound_is_refused(u: int) -> None:
    with pytest.raises(InvalidKey):
        parse_kem_key(XWING, BOB[XWING].public.raw[:1184] + u.to_bytes(32, "little"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_is_shown(kind: KeyType) -> None:
    shown = repr(BOB[kind])
    assert repr(BOB[kind].seed) not in shown
    assert "seed" not in shown


# X-Wing as others have it: HPKE with KEM 0x647a (RFC 9180 with draft-ietf-hpke-pq).


def schedule(secret: bytes, info: bytes) -> tuple[bytes, bytes]:
    """The key schedule of HPKE in base mode with HKDF-SHA256 and AES-256-GCM: the key and the first nonce."""
    suite = b"HPKE" + bytes.fromhex("647a00010002")

    def extract(salt: bytes, label: bytes, material: bytes) -> bytes:
        return HKDF.extract(hashes.SHA256(), salt, b"HPKE-v1" + suite + label + material)

    def expand(key: bytes, label: bytes, context: bytes, length: int) -> bytes:
        labelled = length.to_bytes(2) + b"HPKE-v1" + suite + label + context
        return HKDFExpand(hashes.SHA256(), length, labelled).derive(key)

    context = b"\0" + extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", info)
    started = extract(secret, b"secret", b"")
    return expand(started, b"key", context, 32), expand(started, b"base_nonce", context, 12)


HPKE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def test_it_opens_what_hpke_seals() -> None:
    raw = BOB[XWING].public.raw
    public = MLKEM768X25519PublicKey(
        MLKEM768PublicKey.from_public_bytes(raw[:1184]), X25519PublicKey.from_public_bytes(raw[1184:])
    )
    sealed = HPKE.encrypt(b"from another house", public, info=b"why")
    key, nonce = schedule(BOB[XWING].decapsulate(sealed[:1120]), b"why")
    assert AESGCM(key).decrypt(nonce, sealed[1120:], b"") == b"from another house"


def test_hpke_opens_what_it_seals() -> None:
    seed = BOB[XWING].seed
    private = MLKEM768X25519PrivateKey(
        MLKEM768PrivateKey.from_seed_bytes(seed[:64]), X25519PrivateKey.from_private_bytes(seed[64:])
    )
    secret, wrapped = BOB[XWING].public.encapsulate()
    key, nonce = schedule(secret, b"why")
    sealed = wrapped + AESGCM(key).encrypt(nonce, b"to another house", b"")
    assert HPKE.decrypt(sealed, private, info=b"why") == b"to another house"
    with pytest.raises(InvalidTag):
        HPKE.decrypt(sealed, private, info=b"why not")
