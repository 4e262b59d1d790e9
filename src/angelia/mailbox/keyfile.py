"""The format of an agent's key file: named seeds as JSON, plain or under a passphrase.

The file says its version and its protection; a reader takes the seeds that it knows by name.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Mapping

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from angelia.errors import AngeliaError, InvalidArgument

VERSION = 1
ED25519 = "ed25519"
SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**17, 8, 1
# A tampered file must not make its reader take all memory: 128 * n * r bytes.
MOST_N, MOST_R, MOST_P = 2**20, 8, 4
_BOUND_TO = b"angelia/v1/key-file\0scrypt-aes256gcm"

Seeds = Mapping[str, bytes]
PassphrasePrompt = Callable[[], str]


class BrokenKeyFile(AngeliaError):
    """A key file is damaged"""

    code = "corrupt_record"


class WrongPassphrase(AngeliaError):
    """The passphrase does not open the key"""

    code = "wrong_passphrase"


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


def encode(seeds: Seeds, passphrase: str | None, random: Callable[[int], bytes] = os.urandom) -> bytes:
    """The bytes of a key file."""
    content: _Plain | _Protected
    if passphrase is None:
        content = _Plain(angelia_key=VERSION, seeds=dict(seeds))
    else:
        salt, nonce = random(16), random(12)
        key = _stretched(passphrase, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
        sealed = AESGCM(key).encrypt(nonce, msgspec.json.encode(dict(seeds)), _BOUND_TO)
        content = _Protected(
            angelia_key=VERSION, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, salt=salt, nonce=nonce, sealed=sealed
        )
    return msgspec.json.encode(content) + b"\n"


def decode(content: bytes, passphrase_prompt: PassphrasePrompt) -> dict[str, bytes]:
    """The seeds of a key file; the passphrase is asked for only when the file has one."""
    parsed = _parse(content)
    if isinstance(parsed, _Plain):
        return parsed.seeds
    _check(parsed)
    key = _stretched(passphrase_prompt(), parsed.salt, parsed.n, parsed.r, parsed.p)
    try:
        opened = AESGCM(key).decrypt(parsed.nonce, parsed.sealed, _BOUND_TO)
    except InvalidTag as error:
        raise WrongPassphrase("the passphrase does not open the key") from error
    return msgspec.json.decode(opened, type=dict[str, bytes])


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


def _stretched(passphrase: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    if not passphrase:
        raise InvalidArgument("an empty passphrase protects nothing")
    # The same words typed on another system may arrive decomposed.
    typed = unicodedata.normalize("NFC", passphrase).encode()
    return Scrypt(salt=salt, length=32, n=n, r=r, p=p).derive(typed)
