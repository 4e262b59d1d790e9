"""The master key, which only wraps data keys: the interface of its holder, and the file that holds it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.errors import AngeliaError, StartFailed, Unavailable
from angelia.stores.private_files import read_private, sync_directory, write_private

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
_ID_LABEL = b"angelia/v1/master-key-id\0"
_WRAP_LABEL = b"angelia/v1/wrapped-key\0"


class CorruptRecord(AngeliaError, code="corrupt_record"):
    """A stored record is damaged"""


class KeyRefused(Unavailable):
    """The master key does not serve this process"""


class KeyProvider(Protocol):
    """The holder of the master key, which need not hand it out: a hardware module fits these three calls. Each raises
    KeyRefused while the holder does not serve."""

    def master_key_id(self) -> str:
        """The id of the master key; it never changes and reveals nothing of the key."""

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """Encrypts a data key, to be decrypted by `unwrap` with the same context."""

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Returns the data key. Raises CorruptRecord if either argument was changed."""


class FileKeyProvider:
    """A master key that was read from a file."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._id = hashlib.sha256(_ID_LABEL + key).digest()[:16].hex()

    def master_key_id(self) -> str:
        return self._id

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data_key, _WRAP_LABEL + context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        if len(wrapped) < NONCE_BYTES + TAG_BYTES:
            raise CorruptRecord
        try:
            return self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _WRAP_LABEL + context)
        except InvalidTag:
            raise CorruptRecord from None


def find(path: Path) -> FileKeyProvider | None:
    """The master key of a file, or None if there is no such file."""
    try:
        key = read_private(path, KEY_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(key) != KEY_BYTES:
        raise StartFailed(
            f"the master key {path} is damaged: it must hold {KEY_BYTES} bytes", hint="restore it from a back-up"
        )
    return FileKeyProvider(key)


def load(path: Path) -> FileKeyProvider:
    """The master key of a file. Raises StartFailed if it is missing: a new key could not decrypt what is stored."""
    found = find(path)
    if found is None:
        raise StartFailed(f"the master key {path} is missing", hint="restore it from a back-up; no other will do")
    return found


def make(path: Path) -> FileKeyProvider:
    """Makes a new master key and writes it with mode 0600, synced to disk before any key is wrapped by it."""
    key = os.urandom(KEY_BYTES)
    try:
        write_private(path, key)
    except OSError as error:
        raise StartFailed(
            f"the master key {path} cannot be written: {error.strerror}",
            hint="make its directory writable, or name another file with master_key_file",
        ) from error
    return FileKeyProvider(key)


def next_of(path: Path) -> Path:
    """The file of the next master key, until all data keys are wrapped by it."""
    return path.with_name(f"{path.name}.next")


def promote(path: Path) -> None:
    """Replaces the present master key by the next one."""
    try:
        next_of(path).replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise StartFailed(
            f"the master key {path} cannot be replaced by {next_of(path).name}: {error.strerror}",
            hint="make its directory writable; the next start goes on from here",
        ) from error
