"""The cost of sealing and opening compared with their cryptography alone, and the gain of one signature for 64
messages.

The peer is the sum of the primitives that every implementation needs, called directly, on 1 KiB messages with parsed
keys. Both sides run in turn, so that a slow moment of the machine hits both. Measured is CPU time. ML-DSA signing tries
until it succeeds, so one signature takes from 0.5 to 5 ms: seal and open are compared by medians, batches by sums.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import statistics
import time
import uuid
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.envelope import sealing, wire
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPrivateKey
from angelia.envelope.sealing import Letter
from angelia.envelope.signing import SigningPair
from harness import Result

SENDER, RECIPIENT = "agent-alice-01", "agent-bob-02"
BODY = os.urandom(1024)
BATCH = 64
SUITES = {"suite 1": KeyType.ML_KEM_768, "suite 2": KeyType.XWING}


def main(*, quick: bool) -> list[Result]:
    rounds, batches = (2_000, 40) if quick else (10_000, 200)
    pair = SigningPair.generate()
    results: list[Result] = []
    for suite, kind in SUITES.items():
        key = KemPrivateKey.generate(kind)
        letter = Letter(
            recipient=RECIPIENT, key=key.public, body=BODY, message_id=uuid.uuid4(), created_at=1_735_171_200_000
        )
        seal = functools.partial(sealing.seal, letter, SENDER, pair)
        seal_batch = functools.partial(sealing.seal_batch, [letter] * BATCH, SENDER, pair)
        limit = _Limit(key, pair, seal())
        results += [
            _against(f"seal / its primitives, {suite}", rounds, seal, limit.seal),
            _against(f"open / its primitives, {suite}", rounds, _opening(seal().wire, key, pair), limit.open),
            _batched(f"batch of {BATCH} / single seals, {suite}", batches, seal_batch, seal),
        ]
    return results


def _against(what: str, rounds: int, ours: Callable[[], object], limit: Callable[[], object]) -> Result:
    """Compares the medians of both sides, which run in turn."""
    pairs = [(_cpu(ours), _cpu(limit)) for _ in range(rounds)]
    mine, least = (statistics.median(one) * 1e6 for one in zip(*pairs, strict=True))
    note = f"lower is better; medians of {rounds:,}, 1 KiB"
    return Result(what, f"{mine:,.0f} CPU-µs", f"{least:,.0f} CPU-µs", mine / least, note)


def _batched(what: str, batches: int, seal_batch: Callable[[], object], seal: Callable[[], object]) -> Result:
    """Compares the sums over the same number of messages on both sides."""
    alone = together = 0.0
    for _ in range(batches):
        alone += sum(_cpu(seal) for _ in range(BATCH))
        together += _cpu(seal_batch)
    count = batches * BATCH
    note = f"higher is better; sums over {count:,}, 1 KiB"
    return Result(what, f"{count / together:,.0f} /s", f"{count / alone:,.0f} /s", alone / together, note)


def _opening(content: bytes, key: KemPrivateKey, pair: SigningPair) -> Callable[[], bytes]:
    def open_once() -> bytes:
        envelope = wire.decode(content)
        sealing.verify(envelope, pair.public)
        return sealing.unseal(envelope, key)

    assert open_once() == BODY
    return open_once


def _cpu(action: Callable[[], object]) -> float:
    before = time.process_time_ns()
    action()
    return (time.process_time_ns() - before) / 1e9


class _Limit:
    """The peer: the primitives alone, on inputs of the same sizes."""

    def __init__(self, key: KemPrivateKey, pair: SigningPair, sample: wire.Envelope) -> None:
        self._head, self._ciphertext, self._tag = sample.head, sample.ciphertext, sample.tag
        self._wrapped = sample.header.wrapped_key
        self._plain = bytes(len(sample.ciphertext))
        self._ml_kem = MLKEM768PrivateKey.from_seed_bytes(key.seed[:64])
        self._ml_kem_public = self._ml_kem.public_key()
        hybrid = key.kind is KeyType.XWING
        self._x25519 = X25519PrivateKey.from_private_bytes(key.seed[64:]) if hybrid else None
        self._x25519_public = self._x25519.public_key() if self._x25519 else None
        ed25519, ml_dsa = pair.seeds
        self._ed25519 = Ed25519PrivateKey.from_private_bytes(ed25519)
        self._ml_dsa = MLDSA65PrivateKey.from_seed_bytes(ml_dsa)
        self._ed25519_public, self._ml_dsa_public = self._ed25519.public_key(), self._ml_dsa.public_key()
        digest = self._digest()
        self._signatures = self._ed25519.sign(digest), self._ml_dsa.sign(digest, b"context")
        self._nonce = os.urandom(12)
        self._sealed = AESGCM(self._message_key(self._decapsulate())).encrypt(self._nonce, self._plain, self._head)

    def seal(self) -> None:
        nonce = os.urandom(12)
        AESGCM(self._message_key(self._encapsulate())).encrypt(nonce, self._plain, self._head)
        digest = self._digest()
        self._ed25519.sign(digest)
        self._ml_dsa.sign(digest, b"context")

    def open(self) -> None:
        digest = self._digest()
        self._ed25519_public.verify(self._signatures[0], digest)
        self._ml_dsa_public.verify(self._signatures[1], digest, b"context")
        AESGCM(self._message_key(self._decapsulate())).decrypt(self._nonce, self._sealed, self._head)

    def _encapsulate(self) -> bytes:
        secret, _ = self._ml_kem_public.encapsulate()
        if self._x25519_public is None:
            return secret
        ephemeral = X25519PrivateKey.generate()
        public = ephemeral.public_key().public_bytes_raw()
        return hashlib.sha3_256(secret + ephemeral.exchange(self._x25519_public) + public + bytes(38)).digest()

    def _decapsulate(self) -> bytes:
        secret = self._ml_kem.decapsulate(self._wrapped[:1088])
        if self._x25519 is None:
            return secret
        agreed = self._x25519.exchange(X25519PublicKey.from_public_bytes(self._wrapped[1088:]))
        return hashlib.sha3_256(secret + agreed + bytes(70)).digest()

    def _message_key(self, secret: bytes) -> bytes:
        info = hashlib.sha256(self._head).digest() + bytes(57)
        return hmac.digest(hmac.digest(b"salt", secret, "sha256"), info, "sha256")

    def _digest(self) -> bytes:
        hashed = hashlib.sha512(self._head)
        hashed.update(self._ciphertext)
        hashed.update(self._tag)
        return hashed.digest()
