"""The node key: one Ed25519 key per data directory, which signs for this server and for nobody else."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from angelia.envelope.ids import KeyType, key_id
from angelia.errors import StartFailed
from angelia.stores.embedded.private import write_private


class NodeKey:
    """Signs audit checkpoints; its public half is at `GET /v1/node`."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._key_id = key_id(KeyType.ED25519, self.public_key)

    @property
    def key_id(self) -> UUID:
        return self._key_id

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


def load_or_make(path: Path) -> NodeKey:
    """Read the key file, or make it 0600 at the first start."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        key = Ed25519PrivateKey.generate()
        write_private(path, key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()))
        return NodeKey(key)
    except OSError as error:
        raise StartFailed(f"the node key {path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        mode, seed = os.fstat(descriptor).st_mode, file.read(33)
    if mode & 0o077:
        raise StartFailed(f"the node key {path} is open to others", hint=f"chmod 600 {path}")
    if len(seed) != 32:
        raise StartFailed(f"the node key {path} is damaged: it must hold 32 bytes", hint="restore it from a backup")
    return NodeKey(Ed25519PrivateKey.from_private_bytes(seed))
