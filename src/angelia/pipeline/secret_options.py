"""Keys and passwords on their way to executors, in options of our data sources.

A Connect server writes down what it is asked to do, options and all, in its event log and on its pages, which are kept
and read for long. So what goes there is encrypted. The key goes the way that our code goes: it is in no log, but in a
file among the session's on every machine of the cluster, and as secret as their disks and the network between them."""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path

from cryptography.fernet import Fernet

# The key of this process's session, if it has one, by the name of the module that tells it. Each session has a name of
# its own: a process that serves several would remember the first.
_kept: dict[str, bytes] = {}


def make_key(directory: Path) -> Path:
    """From now on, what is hidden is encrypted. Gives the module by which executors learn the key."""
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
    """What was hidden, on either side."""
    if not text.startswith("{"):
        name, _, token = text.partition(" ")
        key = _kept.get(name) or importlib.import_module(name).KEY
        text = Fernet(key).decrypt(token).decode()
    values: dict[str, str] = json.loads(text)
    return values
