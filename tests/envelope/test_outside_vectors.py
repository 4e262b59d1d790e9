"""Vectors that others publish: Wycheproof, NIST's ACVP, HPKE and the transparency logs' trees.

Every file of the directory either runs here or is listed with the reason why it does not apply.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from angelia.envelope import merkle_batch, wire
from angelia.envelope.kem import KemPrivateKey
from angelia.envelope.refusals import InvalidKey, Malformed
from angelia.envelope.signing import SigningPair, parse_pair
from envelope import primitives
from envelope.reference import Raw, place
from envelope.samples import ALICE, ML_KEM, sealed

Case = dict[str, Any]


def groups(path: Path, **wanted: object) -> Iterator[tuple[Case, list[Case]]]:
    """The groups of a file whose properties are these, with their cases."""
    for group in json.loads(path.read_text("utf-8"))["testGroups"]:
        if wanted.items() <= group.items():
            yield group, group["tests"]


def raw(case: Case, *names: str) -> list[bytes]:
    return [bytes.fromhex(case.get(name, "")) for name in names]


def agree(case: Case, holds: bool) -> None:
    assert holds is (case["result"] == "valid"), case["tcId"]


# Wycheproof.


def aes_gcm(path: Path) -> int:
    count = 0
    for _, cases in groups(path, keySize=256, ivSize=96, tagSize=128):
        for case in cases:
            key, nonce, message, aad, ciphertext, tag = raw(case, "key", "iv", "msg", "aad", "ct", "tag")
            agree(case, primitives.aes_gcm_holds(key, nonce, message, aad, ciphertext + tag))
            count += 1
    return count


def ed25519(path: Path) -> int:
    count = 0
    for group, cases in groups(path):
        public = bytes.fromhex(group["publicKey"]["pk"])
        for case in cases:
            message, signature = raw(case, "msg", "sig")
            agree(case, primitives.ed25519_holds(public, signature, message))
            count += 1
    return count


def hkdf_sha256(path: Path) -> int:
    """Ours gives one block; a longer output begins with it, and too long a one cannot be asked for."""
    count = 0
    for _, cases in groups(path):
        for case in cases:
            secret, salt, info, output = raw(case, "ikm", "salt", "info", "okm")
            if case["result"] == "valid":
                length = min(32, case["size"])
                assert primitives.hkdf(salt, secret, info)[:length] == output[:length]
                count += 1
    return count


def hmac_sha256(path: Path) -> int:
    count = 0
    for group, cases in groups(path):
        for case in cases:
            key, message, tag = raw(case, "key", "msg", "tag")
            agree(case, primitives.hmac_sha256(key, message)[: group["tagSize"] // 8] == tag)
            count += 1
    return count


def ml_dsa_verify(path: Path) -> int:
    count = 0
    for group, cases in groups(path):
        public = bytes.fromhex(group["publicKey"])
        for case in cases:
            message, signature, context = raw(case, "msg", "sig", "ctx")
            agree(case, primitives.ml_dsa_holds(public, signature, message, context))
            count += 1
    return count


def ml_dsa_sign_seed(path: Path) -> int:
    """Our signatures are hedged, so they are not those of the file; both hold. Cases without a message are for `mu`."""
    count = 0
    for group, cases in groups(path):
        seed = bytes.fromhex(group["privateSeed"])
        for case in cases:
            if len(seed) != 32:
                with pytest.raises(InvalidKey):
                    SigningPair.from_seeds(bytes(32), seed)
                count += 1
            elif "msg" in case:
                message, signature, context = raw(case, "msg", "sig", "ctx")
                pair = SigningPair.from_seeds(bytes(32), seed)
                agree(case, primitives.ml_dsa_holds(pair.public.ml_dsa, signature, message, context))
                if case["result"] == "valid":
                    assert pair.public.ml_dsa.hex() == group["publicKey"]
                    ours = pair._ml_dsa.sign(message, context)
                    assert primitives.ml_dsa_holds(pair.public.ml_dsa, ours, message, context)
                count += 1
    return count


def ml_dsa_sign_noseed(path: Path) -> int:
    """Expanded private keys are never loaded here; what they signed is verified."""
    count = 0
    for group, cases in groups(path):
        for case in cases:
            if "msg" in case and case["result"] == "valid":
                message, signature, context = raw(case, "msg", "sig", "ctx")
                assert primitives.ml_dsa_holds(bytes.fromhex(group["publicKey"]), signature, message, context)
                count += 1
    return count


def ml_kem_encaps(path: Path) -> int:
    """The library draws its own randomness, so the ciphertexts of the file cannot be had; its refusals can."""
    count = 0
    for _, cases in groups(path, parameterSet="ML-KEM-768"):
        for case in cases:
            agree(case, primitives.ml_kem_takes(bytes.fromhex(case["ek"])))
            count += 1
    return count


def ml_kem_keygen(path: Path) -> int:
    count = 0
    for _, cases in groups(path, parameterSet="ML-KEM-768"):
        for case in cases:
            seed, public = raw(case, "seed", "ek")
            assert primitives.ml_kem_public(seed) == public
            count += 1
    return count


def ml_kem(path: Path) -> int:
    count = 0
    for _, cases in groups(path, parameterSet="ML-KEM-768"):
        for case in cases:
            seed, public, ciphertext, secret = raw(case, "seed", "ek", "c", "K")
            agree(case, primitives.ml_kem_secret(seed, ciphertext) == secret)
            if public and case["result"] == "valid":
                assert primitives.ml_kem_public(seed) == public
            count += 1
    return count


def x25519(path: Path) -> int:
    """A result of zeros is refused; every other agreement goes into the secret."""
    count = 0
    for _, cases in groups(path):
        for case in cases:
            private, public, agreed = raw(case, "private", "public", "shared")
            zero = "ZeroSharedSecret" in case["flags"]
            assert primitives.x25519_agrees(private, public, agreed) is not zero, case["tcId"]
            count += 1
    return count


# ACVP.


def acvp_ed25519_keygen(path: Path) -> int:
    cases = [case for _, some in groups(path, curve="ED-25519") for case in some]
    for case in cases:
        seed, public = raw(case, "d", "q")
        assert SigningPair.from_seeds(seed, bytes(32)).public.ed25519 == public
    return len(cases)


def acvp_ed25519_keyver(path: Path) -> int:
    """A key is refused when its pair is parsed."""
    cases = [case for _, some in groups(path, curve="ED-25519") for case in some]
    for case in cases:
        try:
            parse_pair(bytes.fromhex(case["q"]), ALICE.public.ml_dsa)
            taken = True
        except InvalidKey:
            taken = False
        assert taken is case["testPassed"], case["tcId"]
    return len(cases)


def acvp_ed25519_siggen(path: Path) -> int:
    count = 0
    for group, cases in groups(path, curve="ED-25519", preHash=False):
        for case in cases:
            assert not case["context"]
            message, signature = raw(case, "message", "signature")
            assert primitives.ed25519_signature(bytes.fromhex(group["d"]), message) == signature
            count += 1
    return count


def acvp_ed25519_sigver(path: Path) -> int:
    cases = [case for _, some in groups(path, curve="ED-25519", preHash=False) for case in some]
    for case in cases:
        public, signature, message = raw(case, "q", "signature", "message")
        assert primitives.ed25519_holds(public, signature, message) is case["testPassed"], case["tcId"]
    return len(cases)


def acvp_ml_dsa_keygen(path: Path) -> int:
    cases = [case for _, some in groups(path, parameterSet="ML-DSA-65") for case in some]
    for case in cases:
        seed, public = raw(case, "seed", "pk")
        assert SigningPair.from_seeds(bytes(32), seed).public.ml_dsa == public
    return len(cases)


def acvp_ml_dsa_sigver(path: Path) -> int:
    answers = path.with_name("expectedResults.json")
    passed = {case["tcId"]: case["testPassed"] for _, some in groups(answers) for case in some}
    wanted = {"parameterSet": "ML-DSA-65", "signatureInterface": "external", "preHash": "pure"}
    cases = [case for _, some in groups(path, **wanted) for case in some]
    for case in cases:
        public, signature, message, context = raw(case, "pk", "signature", "message", "context")
        assert primitives.ml_dsa_holds(public, signature, message, context) is passed[case["tcId"]], case["tcId"]
    return len(cases)


def acvp_ml_kem_keygen(path: Path) -> int:
    cases = [case for _, some in groups(path, parameterSet="ML-KEM-768") for case in some]
    for case in cases:
        d, z, public = raw(case, "d", "z", "ek")
        assert primitives.ml_kem_public(d + z) == public
    return len(cases)


def acvp_ml_kem_encaps(path: Path) -> int:
    """Which keys are taken. The private keys there are expanded, which are never loaded here."""
    count = 0
    for function in ("encapsulation", "encapsulationKeyCheck"):
        for _, cases in groups(path, parameterSet="ML-KEM-768", function=function):
            for case in cases:
                assert primitives.ml_kem_takes(bytes.fromhex(case["ek"])) is case.get("testPassed", True), case["tcId"]
                count += 1
    return count


# HPKE.


def hpke(path: Path) -> int:
    """X-Wing has the number 0x647a there, ML-KEM-768 alone 0x41."""
    count = 0
    for case in json.loads(path.read_text("utf-8")):
        if case["kem_id"] in (0x647A, 0x41):
            seed, public, wrapped, secret = raw(case, "skRm", "pkRm", "enc", "shared_secret")
            key = primitives.xwing_key(seed) if case["kem_id"] == 0x647A else KemPrivateKey.from_seed(ML_KEM, seed)
            assert key.public.raw == public
            assert key.decapsulate(wrapped) == secret
            count += 1
    return count


# Trees of transparency logs (RFC 9162). Each file is one case.

_ENVELOPE = Raw.of(sealed()).but(flags=8)
# What the published trees are made of.
_ENTRIES = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
_LEAVES = [merkle_batch.leaf(bytes.fromhex(entry)) for entry in _ENTRIES]


def included(case: Case, index: int, count: int) -> bool:
    """Whether an envelope with this place would be taken for one under this root."""
    leaf, root = (base64.b64decode(case[name]) for name in ("leafHash", "root"))
    path = [base64.b64decode(one) for one in case["proof"] or []]
    if not (leaf and 0 <= index < 2**16 and 0 <= count < 2**16 and all(len(one) == 32 for one in path)):
        return False
    try:
        proof = wire.decode(_ENVELOPE.but(batch=place(index, count, path)).wire).proof
    except Malformed:
        return False
    assert proof is not None
    return merkle_batch.root_of(leaf, proof) == root


def inclusion(path: Path) -> int:
    case = json.loads(path.read_text("utf-8"))
    assert included(case, case["leafIdx"], case["treeSize"]) is not case["wantErr"], path.name
    return 1


def subtree_inclusion(path: Path) -> int:
    """Part of a tree is a tree, with the places counted from its start."""
    case = json.loads(path.read_text("utf-8"))
    index, count = case["leafIdx"] - case["start"], case["end"] - case["start"]
    assert included(case, index, count) is not case["wantErr"], path.name
    return 1


def consistent_roots(path: Path) -> int:
    """A batch does not grow, so there are no proofs of growth; but where both trees are right, their roots are ours."""
    case = json.loads(path.read_text("utf-8"))
    roots = {case[f"size{which}"]: base64.b64decode(case[f"root{which}"]) for which in (1, 2)}
    if case["wantErr"] or any(len(root) != 32 for root in roots.values()):
        return 0
    for size, root in roots.items():
        assert merkle_batch.tree(_LEAVES[:size])[0] == root, path.name
    return 1


APPLY: dict[str, Callable[[Path], int]] = {
    "wycheproof/aes_gcm_test.json": aes_gcm,
    "wycheproof/ed25519_test.json": ed25519,
    "wycheproof/hkdf_sha256_test.json": hkdf_sha256,
    "wycheproof/hmac_sha256_test.json": hmac_sha256,
    "wycheproof/mldsa_65_verify_test.json": ml_dsa_verify,
    "wycheproof/mldsa_65_sign_seed_test.json": ml_dsa_sign_seed,
    "wycheproof/mldsa_65_sign_noseed_test.json": ml_dsa_sign_noseed,
    "wycheproof/mlkem_768_encaps_test.json": ml_kem_encaps,
    "wycheproof/mlkem_768_keygen_seed_test.json": ml_kem_keygen,
    "wycheproof/mlkem_768_test.json": ml_kem,
    "wycheproof/x25519_test.json": x25519,
    "acvp/EDDSA-KeyGen-1.0/internalProjection.json": acvp_ed25519_keygen,
    "acvp/EDDSA-KeyVer-1.0/internalProjection.json": acvp_ed25519_keyver,
    "acvp/EDDSA-SigGen-1.0/internalProjection.json": acvp_ed25519_siggen,
    "acvp/EDDSA-SigVer-1.0/internalProjection.json": acvp_ed25519_sigver,
    "acvp/ML-DSA-keyGen-FIPS204/internalProjection.json": acvp_ml_dsa_keygen,
    "acvp/ML-DSA-sigVer-FIPS204/prompt.json": acvp_ml_dsa_sigver,
    "acvp/ML-KEM-keyGen-FIPS203/internalProjection.json": acvp_ml_kem_keygen,
    "acvp/ML-KEM-encapDecap-FIPS203/internalProjection.json": acvp_ml_kem_encaps,
    "hpke-pq/test-vectors.json": hpke,
    "merkle/testdata/inclusion/*": inclusion,
    "merkle/testdata/subtreeinclusion/*": subtree_inclusion,
    "merkle/testdata/consistency/*": consistent_roots,
}
DO_NOT_APPLY = {
    "SOURCES.md": "no vectors: it says where the others come from",
    "wycheproof/chacha20_poly1305_test.json": "messages are sealed with AES-256-GCM only",
    "wycheproof/xchacha20_poly1305_test.json": "messages are sealed with AES-256-GCM only",
    "wycheproof/hkdf_sha384_test.json": "keys are derived with SHA-256 only",
    "wycheproof/hkdf_sha512_test.json": "keys are derived with SHA-256 only",
    "wycheproof/hmac_sha512_test.json": "HMAC is used with SHA-256 only",
    "wycheproof/mlkem_768_semi_expanded_decaps_test.json": "expanded private keys are never loaded, only seeds",
    "cctv-mlkem/intermediate-ML-KEM-768.txt": "seeds as a draft of FIPS 203 expanded them",
    "cctv-mlkem/unluckysample-ML-KEM-768.txt": "seeds of that draft, too",
    "cctv-mlkem/strcmp-ML-KEM-768.txt": "an expanded private key; mlkem_768_test has one such case with a seed",
    "acvp/ACVP-AES-GCM-1.0/*": "keys of 128 bits",
    "acvp/*/expectedResults.json": "the answers to prompt.json, which internalProjection.json holds together",
    "acvp/*/prompt.json": "the questions of internalProjection.json, where that is there",
    "merkle/testdata/subtreeconsistency/*": "a batch does not grow",
    "merkle/testdata/subtreeinclusion/errors/*": "which parts of a tree are trees is not asked of a batch",
    "jcs/*": "nothing is hashed or signed as JSON text",
}


def applies(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) and not any(
        fnmatch(name, other) for other in DO_NOT_APPLY if len(other) > len(pattern)
    )


def files(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("pattern", APPLY)
def test_the_published_answers_are_ours(pattern: str, outside_vectors: Path, ran: Callable[[str, int], None]) -> None:
    names = [name for name in files(outside_vectors) if applies(name, pattern)]
    ran(pattern, sum(APPLY[pattern](outside_vectors / name) for name in names))


def test_every_file_runs_or_has_a_reason_not_to(outside_vectors: Path) -> None:
    listed = [*APPLY, *DO_NOT_APPLY]
    present = files(outside_vectors)
    assert [name for name in present if not any(fnmatch(name, pattern) for pattern in listed)] == []
    assert [pattern for pattern in listed if not any(fnmatch(name, pattern) for name in present)] == []
