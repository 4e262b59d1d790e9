"""`runtime.json` of a data directory: how other programs of this machine find the server that runs on it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

RUNTIME, LOCK = "runtime.json", "lock"


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A running server, as `runtime.json` shows it to other programs on this machine; its URLs carry passwords."""

    pid: int
    url: str
    database_url: str
    redis_url: str
    sockets: str


def read_runtime(path: Path) -> Runtime | None:
    """The server that runs on a data directory, or None; a file left by a dead server does not count."""
    data_dir = path.expanduser().resolve()
    try:
        runtime = msgspec.json.decode((data_dir / RUNTIME).read_bytes(), type=Runtime)
        # Both: a pid may belong to another process by now, and the lock to the next server, which is just starting.
        return runtime if _is_locked(data_dir / LOCK) and is_taken(runtime.pid) else None
    except (OSError, msgspec.DecodeError):
        return None


def is_taken(pid: int) -> bool:
    """Whether a pid belongs to a process, be it one that ended and was not waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
