"""Encrypts keys and passwords in the options of our data sources, on their way to Spark's executors.

A Connect server keeps the options of its requests in its event log and on its pages. The key is sent like our code, as
a file of the session: it is in no log, and as secret as the disks of the cluster and the network between them.
"""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path

from cryptography.fernet import Fernet

# The key of this process's session, if there is one, by the name of the module that holds it. Each session has a module
# name of its own, because a process imports a module once.
_kept: dict[str, bytes] = {}


def make_key(directory: Path) -> Path:
    """Makes a key, with which `hidden` encrypts from now on; returns the module that brings it to the executors."""
    name, key = f"angelia_key_{uuid.uuid4().hex}", Fernet.generate_key()
    forget_key()
    _kept[name] = key
    module = directory / f"{name}.py"
    module.touch(0o600)
    module.write_text(f"KEY = {key!r}\n", "utf-8")
    return module


def forget_key() -> None:
    _kept.clear()


def hidden(values: Mapping[str, str]) -> str:
    text = json.dumps(dict(values))
    for name, key in _kept.items():
        return f"{name} {Fernet(key).encrypt(text.encode()).decode()}"
    return text


def shown(text: str) -> dict[str, str]:
    """Decrypts what `hidden` made, in the driver or in an executor."""
    if not text.startswith("{"):
        name, _, token = text.partition(" ")
        key = _kept.get(name) or importlib.import_module(name).KEY
        text = Fernet(key).decrypt(token).decode()
    values: dict[str, str] = json.loads(text)
    return values
