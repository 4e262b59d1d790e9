"""Files and directories that only their owner can read, written atomically."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from angelia.errors import StartFailed
from angelia.stores.system_user import SystemUser, owner_of_secrets


def write_private(path: Path, data: bytes, owner: SystemUser | None = None) -> None:
    """Writes a 0600 file atomically and durably. Root gives it to `owner`, or else to the directory's owner."""
    owner = owner or owner_of_secrets(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            if owner is not None and not owner.is_us:
                os.fchown(file.fileno(), owner.uid, owner.gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def read_private(path: Path, most: int) -> bytes:
    """Returns the first bytes of a secret file. StartFailed if others can read it, FileNotFoundError if there is
    none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StartFailed(f"{path} cannot be read: {error.strerror}") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise StartFailed(f"{path} is not a file", hint="move it away and start again")
        if mode & 0o077:
            raise StartFailed(f"{path} is open to others", hint=f"chmod 600 {path}")
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Makes renames inside a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(path: Path, owner: SystemUser, mode: int = 0o700) -> None:
    """Makes a directory for one user, or checks that an existing one is no link and belongs to that user."""
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        pass
    else:
        if not owner.is_us:
            os.chown(path, owner.uid, owner.gid, follow_symlinks=False)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StartFailed(f"{path} is not a directory", hint="move it away and start again")
    if status.st_uid != owner.uid:
        raise StartFailed(
            f"{path} belongs to {SystemUser(status.st_uid, status.st_gid).name}, not to {owner.name}",
            hint=f"move it away, or give it to {owner.name} with everything in it",
        )
    if stat.S_IMODE(status.st_mode) != mode:
        path.chmod(mode)


def open_log(directory: Path, name: str, owner: SystemUser) -> int:
    """Opens a log for appending, without following links: the user of the stores could lead root elsewhere."""
    no_links = os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | no_links)
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | no_links, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    if not owner.is_us:
        os.fchown(descriptor, owner.uid, owner.gid)
    return descriptor
