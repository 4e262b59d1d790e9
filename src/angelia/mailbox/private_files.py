"""Files that only their owner may read: created with mode 0600, replaced whole or not at all, no symlinks."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from angelia.errors import AngeliaError, DiskFull, NotFound

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700


class UnsafeFile(AngeliaError, code="unsafe_file"):
    """Others could read or change a private file"""


class CannotWrite(AngeliaError, code="system"):
    """The operating system refused to write a private file"""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns the operating system's errors on writing to the path into Angelia's."""
    try:
        yield
    except OSError as error:
        raise unwritten(path, error) from error


def make_directory(path: Path) -> None:
    """Makes a directory with its parents, and refuses one that another user may write to."""
    with writing(path):
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    _refuse_changed_by_others(path, path.stat())


def make_below(path: Path) -> None:
    """Makes a directory inside a private one, and refuses an existing one that another user may read or change."""
    try:
        path.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:
        check_directory(path)
        return
    except OSError as error:
        raise unwritten(path, error) from error
    with opened_directory(path.parent) as above, writing(path):
        os.fsync(above)


def check_directory(path: Path) -> None:
    """Refuses a directory that another user may read or change, or a symlink in its place."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeFile(f"{path} is a symlink or not a directory, and is not followed")
    refuse_shared(path, status, hint=f"chmod 700 {path}")


def refuse_shared(path: Path, status: os.stat_result, *, hint: str) -> None:
    """Refuses a file or directory that another user owns, or may read or change."""
    refuse_foreign(path, status)
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise UnsafeFile(f"{path} may be read or changed by others (mode {mode:04o})", hint=hint)


def refuse_foreign(path: Path, status: os.stat_result) -> None:
    """Refuses what belongs to another user, who can change it at any time. Root could open it, and is refused too."""
    if status.st_uid != os.geteuid():
        raise UnsafeFile(f"{path} belongs to another user", hint="run this as that user, or make agents of your own")


@contextmanager
def opened_directory(path: Path, *, within: int | None = None) -> Iterator[int]:
    """The descriptor of a private directory; below another one (`within`) a symlink in its place is refused."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if within is None else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, dir_fd=within)
    except OSError as error:
        raise explained(path, error) from error
    try:
        _refuse_changed_by_others(path, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def read(directory: int, name: str, *, shown: Path) -> bytes:
    """Returns the content of a private file; `shown` is its path in errors."""
    check = partial(refuse_shared, hint=f"chmod 600 {shown}")
    return read_regular(name, shown, check, directory=directory, most=1 << 20)


def read_regular(
    name: str | Path, shown: Path, check: Callable[[Path, os.stat_result], None], *, directory: int | None, most: int
) -> bytes:
    """Returns the content of a regular file that the check lets pass. Refuses symlinks, pipes and too big files."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        raise explained(shown, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeFile(f"{shown} is not a regular file")
        check(shown, status)
        if status.st_size > most:
            raise UnsafeFile(f"{shown} has {status.st_size:,} bytes, more than such a file can have")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most + 1)
    except OSError as error:
        raise explained(shown, error) from error
    finally:
        os.close(descriptor)


def write(directory: int, name: str, content: bytes) -> None:
    """Replaces a file atomically and durably: a crash leaves the old one or the new one."""
    place(directory, name, content)
    os.fsync(directory)


def place(directory: int, name: str, content: bytes) -> None:
    """Replaces a file atomically; its name is durable only once the directory is synced."""
    temporary = f".{name}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, FILE_MODE, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.unlink(temporary, dir_fd=directory)
        raise


def sweep(directory: int, *names: str) -> None:
    """Removes temporary files that a crash left half written. The caller makes sure that no process is writing now."""
    left_over = re.compile(rf"\A\.(?:{'|'.join(map(re.escape, names))})\.[0-9a-f]{{16}}\Z")
    with os.scandir(directory) as entries:
        found = [entry.name for entry in entries if left_over.match(entry.name)]
    for name in found:
        os.unlink(name, dir_fd=directory)


def exists(directory: int, name: str) -> bool:
    """Whether a name is taken, be it by a file, a directory or a link."""
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _refuse_changed_by_others(path: Path, status: os.stat_result) -> None:
    refuse_foreign(path, status)
    if status.st_mode & 0o022:
        raise UnsafeFile(f"{path} can be changed by others, so keys in it are not safe", hint=f"chmod 700 {path}")


def unwritten(path: Path, error: OSError) -> AngeliaError:
    """Returns the error for a file that could not be written."""
    said = f"{path} cannot be written: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(said, hint="make room on its disk, then try again")
    return CannotWrite(said, hint="see whether its disk works and is yours to write")


def explained(path: Path, error: OSError) -> AngeliaError:
    """Returns the error for a file that could not be opened or read."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return unwritten(path, error)
    if error.errno == errno.ENOENT:
        return NotFound(f"there is no {path}")
    # A symlink opened with O_NOFOLLOW is ELOOP; together with O_DIRECTORY it is ENOTDIR.
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return UnsafeFile(f"{path} is a symlink or not what it should be, and is not followed")
    return UnsafeFile(f"{path} cannot be opened: {error.strerror}")
