"""`runtime.json` of a data directory: with it, other programs of this machine find the running server."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

RUNTIME, LOCK = "runtime.json", "lock"


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A running server, as `runtime.json` tells other programs of this machine. Its URLs contain passwords."""

    pid: int
    url: str
    database_url: str
    redis_url: str
    sockets: str


def read_runtime(path: Path) -> Runtime | None:
    """Returns the server that runs on a data directory, or None; a file left by a killed server does not count."""
    data_dir = path.expanduser().resolve()
    try:
        runtime = msgspec.json.decode((data_dir / RUNTIME).read_bytes(), type=Runtime)
        # Both are checked: the pid may belong to another process by now, and the lock to a server that is starting.
        return runtime if _is_locked(data_dir / LOCK) and is_taken(runtime.pid) else None
    except (OSError, msgspec.DecodeError):
        return None


def is_taken(pid: int) -> bool:
    """Whether a pid belongs to a process, running or a zombie."""
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
