"""Agents of AICQ, read from the files of its clients."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aicq_files import write_agent
from angelia.errors import AngeliaError, NotFound
from angelia.mailbox import aicq_identity, identity
from angelia.mailbox.keyfile import BrokenKeyFile
from angelia.mailbox.private_files import UnsafeFile

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ID = "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10"


@pytest.mark.parametrize("pem", [False, True])
def test_the_files_of_a_client_give_the_agents_id_and_key(tmp_path: Path, pem: bool) -> None:
    directory = write_agent(tmp_path / ".aicq", KEY, ID, pem=pem)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    taken = aicq_identity.read(directory)
    assert (str(taken.id), taken.seed) == (ID, bytes(range(32)))
    assert "seed" not in repr(taken)
    made = identity.create(tmp_path / "home", "old-timer", ed25519=taken.seed)
    assert made.public_key == KEY.public_key().public_bytes_raw()
    assert identity.load(tmp_path / "home", "old-timer", lambda: "").key_id == made.key_id
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_a_key_with_the_public_half_behind_it_is_read_too(tmp_path: Path) -> None:
    directory = write_agent(tmp_path / ".aicq", KEY, ID)
    public = KEY.public_key().public_bytes_raw()
    (directory / "private.key").write_bytes(base64.b64encode(bytes(range(32)) + public) + b"\n")
    assert aicq_identity.read(directory).seed == bytes(range(32))
    (directory / "private.key").write_bytes(base64.b64encode(bytes(range(32)) + bytes(32)))
    with pytest.raises(BrokenKeyFile, match="holds 64 bytes"):
        aicq_identity.read(directory)


@pytest.mark.parametrize(
    ("name", "content", "error", "why"),
    [
        ("agent.json", b"{", BrokenKeyFile, "is not as AICQ's clients write it"),
        ("agent.json", b'{"id": "global"}', BrokenKeyFile, "is not as AICQ's clients write it"),
        ("agent.json", json.dumps({"id": ID, "public_key": "AAAA"}).encode(), BrokenKeyFile, "is not the key that"),
        ("agent.json", None, NotFound, "agent.json"),
        ("private.key", b"not base64!", BrokenKeyFile, "is not base64"),
        ("private.key", base64.b64encode(bytes(31)), BrokenKeyFile, "holds 31 bytes"),
        ("private.key", None, NotFound, "has neither private.key nor private.pem"),
    ],
)
def test_files_that_are_no_agent_are_refused(
    tmp_path: Path, name: str, content: bytes | None, error: type[AngeliaError], why: str
) -> None:
    directory = write_agent(tmp_path / ".aicq", KEY, ID)
    path = directory / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(error, match=why):
        aicq_identity.read(directory)


def test_a_pem_of_another_kind_is_refused(tmp_path: Path) -> None:
    directory = write_agent(tmp_path / ".aicq", KEY, ID, pem=True)
    other = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for content in (other, b"-----BEGIN PRIVATE KEY-----\n"):
        (directory / "private.pem").write_bytes(content)
        with pytest.raises(BrokenKeyFile):
            aicq_identity.read(directory)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    directory = write_agent(tmp_path / ".aicq", KEY, ID)
    (directory / "private.key").chmod(0o644)
    with pytest.raises(UnsafeFile) as refused:
        aicq_identity.read(directory)
    assert refused.value.hint == f"chmod 600 {directory / 'private.key'}"
