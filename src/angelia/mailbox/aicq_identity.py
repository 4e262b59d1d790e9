"""The files in which AICQ's clients keep an agent: `agent.json`, and its key in `private.key` or `private.pem`."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from angelia.errors import NotFound
from angelia.mailbox.keyfile import BrokenKeyFile
from angelia.mailbox.private_files import read_regular, refuse_foreign, refuse_shared

AGENT, KEY, PEM = "agent.json", "private.key", "private.pem"
_MOST = 1 << 16
_SEED_BYTES = 32


@dataclass(frozen=True, slots=True)
class AicqIdentity:
    """An agent of AICQ: the id that a server gave it, and its Ed25519 key with the seed of it."""

    id: UUID
    public_key: bytes
    seed: bytes = field(repr=False)


class _AgentFile(msgspec.Struct):
    id: UUID
    public_key: str | None = None


def read(directory: Path) -> AicqIdentity:
    """Reads an agent of AICQ; the clients for Python, Go and TypeScript write `private.key`, that for bash
    `private.pem`. The files stay as they are."""
    try:
        about = msgspec.json.decode(_content(directory / AGENT, refuse_foreign), type=_AgentFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenKeyFile(f"{directory / AGENT} is not as AICQ's clients write it: {error}") from error
    path = next((one for one in (directory / KEY, directory / PEM) if one.exists()), None)
    if path is None:
        raise NotFound(f"{directory} has neither {KEY} nor {PEM}", hint="name the directory of an AICQ client")
    content = _content(path, partial(refuse_shared, hint=f"chmod 600 {path}"))
    key = _key_of_pem(content, path) if path.name == PEM else _key_of_seed(content, path)
    public = key.public_key().public_bytes_raw()
    if about.public_key is not None and about.public_key.strip() != base64.b64encode(public).decode():
        raise BrokenKeyFile(f"{path} is not the key that {directory / AGENT} names")
    return AicqIdentity(about.id, public, key.private_bytes_raw())


def _content(path: Path, check: Callable[[Path, os.stat_result], None]) -> bytes:
    return read_regular(path, path, check, directory=None, most=_MOST)


def _key_of_seed(content: bytes, path: Path) -> Ed25519PrivateKey:
    try:
        raw = base64.b64decode(content.strip(), validate=True)
    except ValueError as error:
        raise BrokenKeyFile(f"{path} is not base64, as AICQ's clients write it") from error
    if len(raw) == 2 * _SEED_BYTES:  # AICQ's own tools write the public key behind the seed
        key = Ed25519PrivateKey.from_private_bytes(raw[:_SEED_BYTES])
        if key.public_key().public_bytes_raw() == raw[_SEED_BYTES:]:
            return key
    if len(raw) != _SEED_BYTES:
        raise BrokenKeyFile(f"{path} holds {len(raw)} bytes, and a seed has {_SEED_BYTES}")
    return Ed25519PrivateKey.from_private_bytes(raw)


def _key_of_pem(content: bytes, path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise BrokenKeyFile(f"{path} is no private key in PEM without a passphrase") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BrokenKeyFile(f"{path} holds no Ed25519 key")
    return key
