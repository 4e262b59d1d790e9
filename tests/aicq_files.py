"""An agent as AICQ's clients leave it: registered by its key alone, and kept in two files."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PEM = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def write_agent(directory: Path, key: Ed25519PrivateKey, id_: str, *, pem: bool = False) -> Path:
    """Writes the files of the client for Python, Go and TypeScript, or of the one for bash."""
    directory.mkdir()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    (directory / "agent.json").write_text(json.dumps({"id": id_, "public_key": public}, indent=2))
    secret = directory / ("private.pem" if pem else "private.key")
    secret.write_bytes(key.private_bytes(*_PEM) if pem else base64.b64encode(key.private_bytes_raw()))
    secret.chmod(0o600)
    return directory


def registered(url: str, directory: Path, *, pem: bool = False) -> str:
    """Registers an agent as AICQ's clients do, and writes its files. Returns its id."""
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    answer = httpx.post(f"{url}/register", json={"public_key": public, "name": "Old Timer"})
    id_: str = answer.json()["id"]
    write_agent(directory, key, id_, pem=pem)
    return id_
