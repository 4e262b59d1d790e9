"""The format of an agent's key file: named seeds as JSON, plain or under a passphrase.

The file names its version and its protection; a reader takes the seeds whose names it knows.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from angelia.envelope.ids import KeyType
from angelia.envelope.kem import SEED_BYTES
from angelia.envelope.signing import ED25519_BYTES, ML_DSA_SEED
from angelia.errors import AngeliaError, InvalidArgument

VERSION = 1
# The names of the seeds. `local` encrypts the mailbox's rows and is replaced in an emergency only; `next.` begins the
# names of a pending rotation's seeds.
ED25519, ML_DSA, XWING, LOCAL, NEXT = "ed25519", "ml_dsa_65", "xwing", "local", "next."
# How many random bytes each seed has.
SEED_LENGTHS = {LOCAL: 32, XWING: SEED_BYTES[KeyType.XWING], ED25519: ED25519_BYTES, ML_DSA: ML_DSA_SEED}
SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**17, 8, 1
# A tampered file must not exhaust its reader's memory: scrypt takes 128 * n * r bytes.
MOST_N, MOST_R, MOST_P = 2**20, 8, 4
_BOUND_TO = b"angelia/v1/key-file\0scrypt-aes256gcm"

Seeds = Mapping[str, bytes]
PassphrasePrompt = Callable[[], str]


class BrokenKeyFile(AngeliaError, code="corrupt_record"):
    """A key file is damaged"""


class WrongPassphrase(AngeliaError, code="wrong_passphrase"):
    """The passphrase does not open the key"""


@dataclass(frozen=True, slots=True)
class Protection:
    """A stretched passphrase, which writes a protected file again without a second prompt."""

    n: int
    r: int
    p: int
    salt: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unlocked:
    """The seeds of a key file, and its protection; None for a plain file."""

    seeds: Seeds = field(repr=False)
    protection: Protection | None = field(repr=False)


class _Version(msgspec.Struct):
    angelia_key: int


class _Plain(msgspec.Struct, tag_field="protection", tag="none"):
    angelia_key: int
    seeds: dict[str, bytes]


class _Protected(msgspec.Struct, tag_field="protection", tag="scrypt-aes256gcm"):
    angelia_key: int
    n: int
    r: int
    p: int
    salt: bytes
    nonce: bytes
    sealed: bytes


def protect(passphrase: str | None) -> Protection | None:
    """Stretches a new passphrase with a fresh salt; None for none."""
    if passphrase is None:
        return None
    return _stretched(passphrase, SCRYPT_N, SCRYPT_R, SCRYPT_P, os.urandom(16))


def encode(seeds: Seeds, protection: Protection | None) -> bytes:
    """Returns the bytes of a key file, encrypted under the protection if there is one."""
    if protection is None:
        return msgspec.json.encode(_Plain(angelia_key=VERSION, seeds=dict(seeds))) + b"\n"
    nonce = os.urandom(12)
    content = _Protected(
        angelia_key=VERSION,
        n=protection.n,
        r=protection.r,
        p=protection.p,
        salt=protection.salt,
        nonce=nonce,
        sealed=AESGCM(protection.key).encrypt(nonce, msgspec.json.encode(dict(seeds)), _BOUND_TO),
    )
    return msgspec.json.encode(content) + b"\n"


def unlock(content: bytes, passphrase_prompt: PassphrasePrompt) -> Unlocked:
    """Opens a key file. The passphrase is prompted for only when the file has one."""
    parsed = _parse(content)
    if isinstance(parsed, _Plain):
        return Unlocked(parsed.seeds, None)
    _check(parsed)
    return _unseal(parsed, _stretched(passphrase_prompt(), parsed.n, parsed.r, parsed.p, parsed.salt))


def unlock_again(content: bytes, protection: Protection | None) -> Unlocked:
    """Opens a key file that was unlocked before, without a prompt; another process may have written it meanwhile."""
    parsed = _parse(content)
    if isinstance(parsed, _Plain):
        return Unlocked(parsed.seeds, None)
    if protection is None or parsed.salt != protection.salt:
        raise WrongPassphrase("the key file has another passphrase than before", hint="open the agent again")
    return _unseal(parsed, protection)


def _unseal(parsed: _Protected, protection: Protection) -> Unlocked:
    try:
        opened = AESGCM(protection.key).decrypt(parsed.nonce, parsed.sealed, _BOUND_TO)
    except InvalidTag as error:
        raise WrongPassphrase("the passphrase does not open the key") from error
    return Unlocked(msgspec.json.decode(opened, type=dict[str, bytes]), protection)


def _parse(content: bytes) -> _Plain | _Protected:
    try:
        version = msgspec.json.decode(content, type=_Version).angelia_key
        if version != VERSION:
            raise BrokenKeyFile(
                f"the key file has version {version}, this Angelia reads version {VERSION}",
                hint="update Angelia",
            )
        return msgspec.json.decode(content, type=_Plain | _Protected)
    except msgspec.DecodeError as error:
        raise BrokenKeyFile("the key file is damaged", hint="put it back from a back-up") from error


def _check(parsed: _Protected) -> None:
    power_of_two = parsed.n > 1 and parsed.n.bit_count() == 1
    if not power_of_two or parsed.n > MOST_N or not 0 < parsed.r <= MOST_R or not 0 < parsed.p <= MOST_P:
        raise BrokenKeyFile("the key file is damaged: its scrypt parameters are out of bounds")
    if len(parsed.nonce) != 12:
        raise BrokenKeyFile("the key file is damaged: its nonce has not 12 bytes")


def _stretched(passphrase: str, n: int, r: int, p: int, salt: bytes) -> Protection:
    if not passphrase:
        raise InvalidArgument("an empty passphrase protects nothing")
    # The same passphrase typed on another system may arrive in decomposed Unicode.
    typed = unicodedata.normalize("NFC", passphrase).encode()
    return Protection(n, r, p, salt, Scrypt(salt=salt, length=32, n=n, r=r, p=p).derive(typed))
