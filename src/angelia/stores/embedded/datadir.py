"""The data directory of a server: its owner, its lock, the paths of its files and of its sockets."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import time
from functools import cached_property
from pathlib import Path

import msgspec

from angelia.errors import StartFailed
from angelia.runtime_file import LOCK, RUNTIME, Runtime
from angelia.stores.private_files import make_private_directory, write_private
from angelia.stores.system_user import SystemUser, choose_store_user

# A socket path has at most 107 bytes on Linux, 103 on macOS. PostgreSQL's socket has the longer name of the two.
LONGEST_SOCKET_PATH = 100
POSTGRES_SOCKET = ".s.PGSQL.5432"
VALKEY_SOCKET = "valkey.sock"
SPOOL_SOCKET = "spool.sock"

# What a new data directory may hold: the agents' home and the archive with its checkpoints lie here by default, a fresh
# volume has lost+found, and an interrupted first start may have left logs.
_EXPECTED = {"agents", "checkpoints", "lake", "lake-simulated", "lost+found", "log", ".DS_Store"}


class DataDir:
    """One data directory. Call `prepare` and `lock` before anything else."""

    def __init__(self, path: Path, owner: SystemUser | None = None) -> None:
        """`owner` is the user that the stores run as, if it need not be chosen."""
        self.path = path = path.expanduser().resolve()
        self.postgres = path / "postgres"
        self.valkey = path / "valkey"
        self.spool = path / "spool"
        self.logs = path / "log"
        self.binaries = path / "bin"
        self.lock_file = path / LOCK
        self.runtime_file = path / RUNTIME
        self.admin_token = path / "admin.token"
        self.node_key = path / "node.key"
        self.master_key = path / "master.key"
        self.postgres_password = path / "postgres.password"
        self.valkey_password = path / "valkey.password"
        self._given_owner = owner
        self._lock: int | None = None
        self.left_by_a_crash = False

    @cached_property
    def owner(self) -> SystemUser:
        """The user that the stores run as."""
        return self._given_owner or choose_store_user(self.path)

    @cached_property
    def runtime(self) -> Path:
        """The directory of sockets and metrics, on a short path. It belongs to the server's user, also when another
        user runs the stores.

        Its name cannot be guessed: in a directory open to all, another user could create it first and so prevent a
        start.
        """
        named = f"{os.geteuid()}:{self.path}:{self.secret(self.path / 'runtime.name')}"
        key = hashlib.sha256(named.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        places = [place / f"angelia-{key}" for place in _runtime_places()]
        fitting = [place for place in places if _fits(place / "s")]
        return (fitting or places)[0]

    @property
    def sockets(self) -> Path:
        return self.runtime / "s"

    @property
    def spool_socket(self) -> Path:
        """Not among the sockets of the stores, whose user could put another one in its place."""
        return self.runtime / SPOOL_SOCKET

    @property
    def metrics(self) -> Path:
        return self.runtime / "metrics"

    def prepare(self) -> None:
        """Creates the directory, readable by its owner only. If the stores run as another user, that user may pass
        through to their directories."""
        try:
            self._refuse_foreign_content()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_ownership()
            # The first file: it marks the directory as ours, also for a start after a crash at this point.
            os.close(os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            make_private_directory(self.logs, self.owner)
            self._prepare_runtime()
        except OSError as error:
            raise StartFailed(
                f"the data directory {self.path} cannot be used: {error.strerror}",
                hint="name another with --data-dir, or mend its owner and permissions",
            ) from error

    def refuse_another_users(self) -> None:
        """For commands beside the server: as root, `prepare` would take the directory from the user that runs the
        server."""
        if os.geteuid() != 0 or not self.path.is_dir():
            return
        status = self.path.stat()
        owner = SystemUser(status.st_uid, status.st_gid)
        if not owner.is_us:
            raise StartFailed(
                f"the data directory {self.path} belongs to {owner.name}, who could not start a server on it any more",
                hint=f"do it as that user: `{owner.command_again(self.path)}`",
            )

    def lock(self) -> None:
        """Locks the directory until `release` or the end of the process. StartFailed if another server holds the
        lock."""
        descriptor = self._locked()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor
        self.left_by_a_crash = self.runtime_file.exists()
        self.runtime_file.unlink(missing_ok=True)

    def release(self) -> None:
        """Releases the lock. The file stays, since after a removal two servers could lock two different files."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write_runtime(self, runtime: Runtime) -> None:
        """Tells other programs of this machine how to reach the server."""
        write_private(self.runtime_file, msgspec.json.encode(runtime) + b"\n")

    def remove_runtime(self) -> None:
        """Removes runtime.json, the sockets and the metrics."""
        self.runtime_file.unlink(missing_ok=True)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def secret(self, path: Path) -> str:
        """Returns the password in a private file; makes one on first use."""
        try:
            return path.read_text("ascii").strip()
        except FileNotFoundError:
            made = secrets.token_urlsafe(24)
            write_private(path, made.encode())
            return made

    def last_lines(self, log: str, count: int = 5) -> str:
        """Returns the end of a store's newest log that is not empty, for the hint of an error."""
        newest_first = sorted(self.logs.glob(f"{log}*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest_first:
            if lines := path.read_text("utf-8", "replace").splitlines()[-count:]:
                return f"{path} ends with:\n" + "\n".join(lines)
        return f"look into {self.logs}"

    def _locked(self) -> int:
        """Returns the descriptor of the lock file, with the lock held."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self.lock_file, flags, 0o600)
        except OSError as error:
            raise StartFailed(f"{self.lock_file} cannot be locked: {error.strerror}") from error
        if not _flock_shortly(descriptor):
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise StartFailed(
                f"another server (pid {holder or 'unknown'}) uses this data directory, {self.path}",
                hint="stop that one, or start this one with another --data-dir",
            )
        return descriptor

    def _refuse_foreign_content(self) -> None:
        # As root we change its owner and mode, so /tmp or a home directory must not be named by mistake.
        if not self.path.is_dir() or self.lock_file.exists():
            return
        foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name not in _EXPECTED)
        if foreign:
            raise StartFailed(
                f"{self.path} is no data directory of Angelia: it holds {', '.join(foreign[:3])}",
                hint="name a new or an empty directory with --data-dir",
            )

    def _take_ownership(self) -> None:
        owner, us = self.owner, os.geteuid()
        status = self.path.stat()
        if status.st_uid != us and us != 0:
            raise StartFailed(
                f"the data directory {self.path} belongs to {SystemUser(status.st_uid, status.st_gid).name}",
                hint="start the server as that user, or name another directory with --data-dir",
            )
        if owner.is_us:
            self.path.chmod(0o700)
            return
        # Under the lock: a running server of another user would lose its files to us.
        held = self._locked()
        try:
            # Take the directory before looking at its files: until then the user of the stores could replace them.
            os.chown(self.path, us, owner.gid)
            self.path.chmod(0o710)
            self._take_secrets()
        finally:
            os.close(held)
        if not owner.can_enter(self.path):
            raise StartFailed(
                f"the stores run as {owner.name}, who cannot reach {self.path}",
                hint="name one below /var/lib or /srv with --data-dir, or open the directories above it",
            )

    def _take_secrets(self) -> None:
        """Takes ownership of the files beside the stores' directories: keys, tokens, passwords and signed
        checkpoints."""
        for path in self.path.iterdir():
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_uid != os.geteuid():
                os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)

    def _prepare_runtime(self) -> None:
        if not _fits(self.sockets):
            raise StartFailed(
                f"the path of the sockets, {self.sockets}, is too long",
                hint="set TMPDIR to a shorter path",
            )
        # The user of the stores may pass through to its sockets, but not replace root's files beside them.
        make_private_directory(self.runtime, SystemUser.ourselves(), 0o700 if self.owner.is_us else 0o711)
        make_private_directory(self.sockets, self.owner)
        if not self.owner.is_us and not self.owner.can_enter(self.sockets):
            raise StartFailed(
                f"the stores run as {self.owner.name}, who cannot reach {self.sockets}",
                hint="set TMPDIR to a directory that everybody may pass through, such as /tmp",
            )


def _flock_shortly(descriptor: int) -> bool:
    # A reader of runtime.json holds a shared lock for a moment, so try for 0.3 s.
    for _ in range(6):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return True
    return False


def _runtime_places() -> list[Path]:
    # Not XDG_RUNTIME_DIR first: it is emptied when its user logs out, while the server may go on.
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = [Path(session)] if os.geteuid() != 0 and session and _is_ours(Path(session)) else []
    return [place.resolve() for place in (Path(tempfile.gettempdir()), *usable, Path("/tmp"))]  # noqa: S108


def _is_ours(directory: Path) -> bool:
    try:
        status = directory.stat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and os.access(directory, os.W_OK | os.X_OK)


def _fits(sockets: Path) -> bool:
    return len(os.fsencode(sockets / POSTGRES_SOCKET)) < LONGEST_SOCKET_PATH
