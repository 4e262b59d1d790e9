"""The user that the stores run as. PostgreSQL refuses root, so under root the stores run as another user."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from angelia.errors import StartFailed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SystemUser:
    """A user of this machine, and its group."""

    uid: int
    gid: int

    @staticmethod
    def ourselves() -> SystemUser:
        return SystemUser(os.geteuid(), os.getegid())

    @property
    def is_us(self) -> bool:
        return self.uid == os.geteuid()

    @property
    def popen_options(self) -> dict[str, Any]:
        """What `subprocess.Popen` needs to start a process as this user."""
        return {} if self.is_us else {"user": self.uid, "group": self.gid, "extra_groups": []}

    @property
    def name(self) -> str:
        entry = _entry(pwd.getpwuid, self.uid)
        return entry.pw_name if entry else f"uid {self.uid}"

    def command_again(self, data_dir: Path) -> str:
        """Returns the present command, to be run again as this user; `sudo` resets path and environment."""
        ours = Path(sys.prefix) / "bin/angelia"
        words = [str(ours) if ours.exists() else "angelia", *sys.argv[1:]]
        return shlex.join(["sudo", "-u", self.name, "env", f"ANGELIA_DATA_DIR={data_dir}", *words])

    def require_name(self) -> None:
        """StartFailed if the user has no entry in the passwd database: PostgreSQL would not start."""
        if _entry(pwd.getpwuid, self.uid) is None:
            raise StartFailed(
                f"the stores would run as uid {self.uid}, which has no entry in the passwd database",
                hint="set DATABASE_URL and REDIS_URL, or give the data directory to a named user",
            )

    def can_enter(self, directory: Path) -> bool:
        """Tries it as that user, since modes of parents, access lists and mounts all count."""
        return self.run(("/bin/sh", "-c", 'test -x "$0"', str(directory))).returncode == 0

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Runs a short command as this user; PermissionError if it may not execute it."""
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd="/",
            timeout=60,
            env=store_environment(),
            **self.popen_options,
        )


def choose_store_user(directory: Path) -> SystemUser:
    """Returns our own user; as root: the owner of the directory or of the stores in it, else the caller of sudo, else
    the user `nobody`."""
    if os.geteuid() != 0:
        return SystemUser.ourselves()
    for place in (directory, directory / "postgres", directory / "log"):
        with contextlib.suppress(FileNotFoundError):
            status = place.lstat()
            if status.st_uid != 0:
                return _by_uid(status.st_uid, status.st_gid)
    caller = os.environ.get("SUDO_UID", "")
    if caller.isdecimal() and int(caller) != 0:
        return _by_uid(int(caller), int(os.environ.get("SUDO_GID", caller)))
    entry = _entry(pwd.getpwnam, "nobody")
    if entry is None:
        raise StartFailed(
            "PostgreSQL refuses to run as root, and there is no user nobody to run it as",
            hint="start Angelia as an ordinary user, or give the data directory to one",
        )
    return SystemUser(entry.pw_uid, entry.pw_gid)


def owner_of_secrets(directory: Path) -> SystemUser | None:
    """The user that gets the secrets that root writes here: the owner of the directory, so that a later start works
    without root. None to leave them to root; never the user `nobody`, since other services share that account.
    """
    if os.geteuid() != 0:
        return None
    status = directory.stat()
    shared = _entry(pwd.getpwnam, "nobody")
    if status.st_uid == 0 or (shared is not None and status.st_uid == shared.pw_uid):
        return None
    return SystemUser(status.st_uid, status.st_gid)


def store_environment() -> dict[str, str]:
    """The environment of a store: without PGPORT and the like, and without our secrets."""
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {**{name: os.environ[name] for name in kept if name in os.environ}, "LC_ALL": "C", "TZ": "UTC"}


def _by_uid(uid: int, gid: int) -> SystemUser:
    entry = _entry(pwd.getpwuid, uid)
    return SystemUser(uid, entry.pw_gid if entry else gid)


def _entry(look_up: Callable[[T], pwd.struct_passwd], user: T) -> pwd.struct_passwd | None:
    """The entry of a user in the passwd database, if there is one."""
    try:
        return look_up(user)
    except KeyError:
        return None
