"""Known answers: the envelope's own, byte for byte, and those that the cryptography library publishes with itself."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from uuid import UUID

import cryptography_vectors
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.envelope import ids, merkle_batch, wire
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPrivateKey
from angelia.envelope.sealing import message_key
from angelia.envelope.signing import Purpose, Signatures, SigningPair
from angelia.envelope.wire import Compression, Envelope, Header, Priority, Suite
from envelope import primitives
from envelope.reference import Raw

Ran = Callable[[str, int], None]

# The envelope's own.

ML_KEM = KemPrivateKey.from_seed(KeyType.ML_KEM_768, bytes(range(64)))
XWING = KemPrivateKey.from_seed(KeyType.XWING, bytes(range(64)) + b"\x11" * 32)
PAIR = SigningPair.from_seeds(b"\x22" * 32, b"\x33" * 32)
SECRET = b"\x44" * 32
HEADER = Header(
    suite=Suite.ML_KEM,
    message_id=UUID("550e8400-e29b-41d4-a716-446655440000"),
    created_at=1_735_171_200_000,
    ttl_seconds=604_800,
    priority=Priority.NORMAL,
    compression=Compression.NONE,
    key_id=ML_KEM.public.key_id,
    sender_key_id=PAIR.public.signer_id,
    sender_nhi="agent-alice-01",
    recipient_nhi="agent-bob-02",
    channel_id=UUID("c9a3a2e0-1234-5678-9abc-def012345678"),
    correlation_id=UUID("7c9e6679-7425-40de-944b-e07fc1f90ae7"),
    nonce=bytes(range(12)),
    wrapped_key=bytes(at % 256 for at in range(1088)),
)
HEAD = wire.encode_head(HEADER)


@functools.cache
def known() -> Envelope:
    """The slot of the ML-DSA signature holds no signature, since those are never the same twice."""
    frame = bytes.fromhex("0000000500000005") + b"hello"
    key = message_key(SECRET, HEAD, ML_KEM.public.digest)
    sealed = AESGCM(key).encrypt(HEADER.nonce, frame, HEAD)
    ciphertext, tag = sealed[:-16], sealed[-16:]
    made = PAIR.sign(Purpose.ENVELOPE, wire.signed_digest(HEAD, ciphertext, tag))
    return wire.assemble(HEADER, HEAD, ciphertext, tag, Signatures(made.ed25519, b"\xa5" * 3309))


def test_the_ids_of_known_keys() -> None:
    assert str(ML_KEM.public.key_id) == "31e6bc41-7ced-8541-a430-070b6b7cd098"
    assert str(XWING.public.key_id) == "b1a0c13b-5931-8d3d-92b8-45558325c62a"
    assert str(PAIR.public.signer_id) == "5718eda6-f925-8c5e-bd2a-d1b7d95e4e3e"
    epoch = ids.key_id(KeyType.CHANNEL_EPOCH, hashlib.sha256(SECRET).digest())
    assert str(epoch) == "f189d781-2020-85a5-88f7-1fb085be3705"
    assert PAIR.public.fingerprint == "Vxjtpvkl3F79KtG32V5OPgkzYTK0tZHcm0hKl7QVFus"


def test_the_root_of_a_known_batch() -> None:
    root, paths = merkle_batch.tree([merkle_batch.leaf(bytes([at])) for at in range(5)])
    assert root.hex() == "b855b42d6c30f5b087e05266783fbd6e394f7b926013ccaa67700a8b0c5a596f"
    assert [len(path) for path in paths] == [3, 3, 3, 3, 1]


def test_the_public_halves_of_known_seeds() -> None:
    assert ML_KEM.public.digest.hex() == "0b7934c83125c788995e2ba6bd761e33046b3e40571be53e023309a29f398cc9"
    ml_dsa = hashlib.sha256(PAIR.public.ml_dsa).hexdigest()
    assert ml_dsa == "6ce6169bbe7331f680ceb14ccc36e2062d8c605e23af83601373aeac816b583a"
    assert PAIR.public.ed25519.hex() == "a09aa5f47a6759802ff955f8dc2d2a14a5c99d23be97f864127ff9383455a4f0"


def test_a_known_header() -> None:
    assert len(HEAD) == 1242
    assert hashlib.sha256(HEAD).hexdigest() == "fa61979119affe215b39bd6ef6ad8ab8817522cfb6f02d71ad93fe1ea82c37b1"
    assert HEADER.flags == 3
    assert HEAD[:-1088].hex() == (
        "41474c4501010003550e8400e29b41d4a716446655440000000001940043540000000194244fd80000093a800100"
        "31e6bc417ced8541a430070b6b7cd0985718eda6f9258c5ebd2ad1b7d95e4e3e"
        "000e6167656e742d616c6963652d3031000c6167656e742d626f622d3032"
        "c9a3a2e0123456789abcdef0123456787c9e6679742540de944be07fc1f90ae7"
        "000102030405060708090a0b0440"
    )


def test_a_known_message_key() -> None:
    key = message_key(SECRET, HEAD, ML_KEM.public.digest)
    assert key.hex() == "5733c765dc3c964348e3b9f2950d5d97f18e0bbced84af36c2a07bbe73c03066"


def test_a_known_ciphertext() -> None:
    assert known().ciphertext.hex() == "bd4a4c434444e50b5b96322b36"
    assert known().tag.hex() == "9c2abd59991a4707819ef3fd6b5b0743"


def test_a_known_digest_and_signature() -> None:
    assert known().digest.hex() == (
        "a7fd1e0940f880a03827e7a8ec1167229fc827d3a7f2867b5cb52865a8446369"
        "2e14a8943b4afe8d7f92c27166387509388dffeabfeb72ec394d397f6e303899"
    )
    assert known().signatures.ed25519.hex() == (
        "cb3001ce2d377ddbfe9aa1c71a68aae0780628e68c785aaafad46ac4600d1966"
        "482c673f346b2c43e9f482b979d28b3916ed378e0bf385e7e5899b4f4ce40205"
    )


def test_a_known_envelope() -> None:
    assert len(known().wire) == 4650
    assert known().replay_key == "6c9ccf795e8588dabb1a35d2463e373e613c84d1f3e95ff9cd10e00c18abb538"
    assert wire.decode(known().wire) == known()


def test_the_definition_in_these_tests_gives_the_same() -> None:
    raw = Raw.of(known()).sealed(SECRET, ML_KEM.public.raw, bytes.fromhex("0000000500000005") + b"hello")
    assert raw.wire == known().wire


# The library's, which are on every machine that has these tests.


def opened(name: str) -> str:
    with cryptography_vectors.open_vector_file(name, "r") as file:
        return str(file.read())


def blocks(name: str, first: str) -> Iterator[dict[str, str]]:
    """The cases of a file of `name = value` lines; a case begins with the line `first`; headings hold until changed."""
    headings: dict[str, str] = {}
    case: dict[str, str] = {}
    for line in opened(name).splitlines():
        name_of, sign, value = (part.strip() for part in line.partition("="))
        if line.startswith("["):
            headings[name_of.lstrip("[")] = value.rstrip("]")
        elif line.startswith("FAIL"):
            case["FAIL"] = ""
        elif sign and not line.startswith("#"):
            if name_of == first and case:
                yield {**case}
                case = {}
            if name_of == first:
                case = dict(headings)
            case[name_of] = value
    yield case


def raw_of(case: dict[str, str], *names: str) -> list[bytes]:
    return [bytes.fromhex(case[name]) for name in names]


@pytest.mark.parametrize("name", ["gcmEncryptExtIV256.rsp", "gcmDecrypt256.rsp"])
def test_aes_256_gcm_of_nist(name: str, ran: Ran) -> None:
    cases = 0
    for case in blocks(f"ciphers/AES/GCM/{name}", "Count"):
        if (case["IVlen"], case["Taglen"]) == ("96", "128"):
            key, nonce, aad, ciphertext, tag = raw_of(case, "Key", "IV", "AAD", "CT", "Tag")
            message = bytes.fromhex(case.get("PT", ""))
            assert primitives.aes_gcm_holds(key, nonce, message, aad, ciphertext + tag) is ("FAIL" not in case)
            cases += 1
    ran(name, cases)


def test_ed25519_of_its_authors(ran: Ran) -> None:
    name = "asymmetric/Ed25519/sign.input"
    lines = opened(name).splitlines()
    for line in lines:
        seed_and_public, public, message, signed, _ = (bytes.fromhex(part) for part in line.split(":"))
        assert primitives.ed25519_signature(seed_and_public[:32], message) == signed[:64]
        assert primitives.ed25519_holds(public, signed[:64], message)
        assert not primitives.ed25519_holds(public, signed[:64], message + b"\0")
    ran(name, len(lines))


def test_x25519_of_rfc_7748(ran: Ran) -> None:
    name = "asymmetric/X25519/rfc7748.txt"
    cases = list(blocks(name, "COUNT"))
    for case in cases:
        assert primitives.x25519_agrees(*raw_of(case, "INPUT_SCALAR", "INPUT_U", "OUTPUT_U"))
    ran(name, len(cases))


@pytest.mark.parametrize("name", ["rfc-5869-HKDF-SHA256.txt", "hkdf-generated.txt"])
def test_hkdf_sha256(name: str, ran: Ran) -> None:
    cases = list(blocks(f"KDF/{name}", "COUNT"))
    for case in cases:
        secret, salt, info, output = raw_of(case, "IKM", "salt", "info", "OKM")
        assert primitives.hkdf(salt, secret, info) == output[:32]
    ran(name, len(cases))


def test_hmac_sha256_of_rfc_4231(ran: Ran) -> None:
    name = "HMAC/rfc-4231-sha256.txt"
    cases = list(blocks(name, "Len"))
    for case in cases:
        key, message, digest = raw_of(case, "Key", "Msg", "MD")
        assert primitives.hmac_sha256(key, message) == digest
    ran(name, len(cases))


def test_ml_kem_768_known_answers(ran: Ran) -> None:
    """With each seed: its key, the secret of a ciphertext, and the other secret of one that is not genuine."""
    name = "asymmetric/MLKEM/kat_MLKEM_768.rsp"
    cases = list(blocks(name, "count"))
    for case in cases:
        seed = bytes.fromhex(case["d"] + case["z"])
        public, genuine, secret, other, other_secret = raw_of(case, "pk", "ct", "ss", "ct_n", "ss_n")
        key = KemPrivateKey.from_seed(KeyType.ML_KEM_768, seed)
        assert key.public.raw == public
        assert key.decapsulate(genuine) == secret
        assert key.decapsulate(other) == other_secret
    ran(name, len(cases))


def test_ml_dsa_65_known_answers(ran: Ran) -> None:
    """The signatures there are made without randomness, ours with it; both hold."""
    name = "asymmetric/MLDSA/kat_MLDSA_65_det_pure.rsp"
    cases = list(blocks(name, "count"))
    for case in cases:
        seed, public, message, signed, context = raw_of(case, "xi", "pk", "msg", "sm", "ctx")
        pair = SigningPair.from_seeds(bytes(32), seed)
        assert pair.public.ml_dsa == public
        assert primitives.ml_dsa_holds(public, signed[:3309], message, context)
        assert not primitives.ml_dsa_holds(public, signed[:3309], message, context + b"\0")
        assert primitives.ml_dsa_holds(public, pair._ml_dsa.sign(message, context), message, context)
    ran(name, len(cases))


def test_xwing_of_hpke(ran: Ran) -> None:
    name = "HPKE/hpke-pq-test-vectors.json"
    cases = [case for case in json.loads(opened(name)) if case["kem_id"] == 0x647A]
    for case in cases:
        key = primitives.xwing_key(bytes.fromhex(case["skRm"]))
        assert key.public.raw.hex() == case["pkRm"]
        assert key.decapsulate(bytes.fromhex(case["enc"])).hex() == case["shared_secret"]
    ran(name, len(cases))
