"""Envelopes as files `<replay_key>.agl`: the name is the hash of the content, so `sha256sum` alone proves a file."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from angelia.envelope.refusals import Refused
from angelia.envelope.wire import MAX_ENVELOPE, Envelope, decode
from angelia.errors import NotFound
from angelia.mailbox import private_files
from angelia.mailbox.private_files import UnsafeFile

_NAME = re.compile(r"\A([0-9a-f]{64})\.agl\Z")
_TEMPORARY = re.compile(r"\A\.[0-9a-f]{64}\.agl\.[0-9a-f]{16}\Z")
_LEFT_OVER = timedelta(hours=1)


class ChangedFile(UnsafeFile):
    """A sealed file is not what was sealed"""


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file that is not what it should be."""

    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


class EnvelopeFiles:
    """One directory of envelopes, ours alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        private_files.make_below(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._directory = os.open(path, flags)

    def close(self) -> None:
        if self._directory != -1:
            os.close(self._directory)
            self._directory = -1

    def put(self, envelopes: Iterable[tuple[str, bytes]]) -> None:
        """Store envelopes durably: a crash leaves whole files or none. The same one again changes nothing."""
        for replay_key, wire in envelopes:
            self.place(replay_key, wire)
        self.sync()

    def place(self, replay_key: str, wire: bytes) -> None:
        """As `put` for one envelope, but it is durable only after `sync`."""
        name = f"{replay_key}.agl"
        if not private_files.exists(self._directory, name):
            with private_files.writing(self.path / name):
                private_files.place(self._directory, name, wire)
        elif read_safely(name, self.path / name, directory=self._directory) != wire:
            raise UnsafeFile(f"{self.path / name} holds something else than the envelope of that name")

    def sync(self) -> None:
        with private_files.writing(self.path):
            os.fsync(self._directory)

    def get(self, replay_key: str) -> bytes:
        """An envelope whose content is what its name says."""
        name = f"{replay_key}.agl"
        wire = read_safely(name, self.path / name, directory=self._directory)
        if hashlib.sha256(wire).hexdigest() != replay_key:
            raise ChangedFile(f"{self.path / name} was changed: its hash is not its name")
        return wire

    def has(self, replay_key: str) -> bool:
        return private_files.exists(self._directory, f"{replay_key}.agl")

    def move(self, replay_key: str, other: EnvelopeFiles) -> None:
        """Put an envelope into another drawer; one that is not here any more was put there by somebody else."""
        name = f"{replay_key}.agl"
        with private_files.writing(other.path / name):
            try:
                os.rename(name, name, src_dir_fd=self._directory, dst_dir_fd=other._directory)
            except FileNotFoundError:
                return
        other.sync()
        self.sync()

    def remove(self, replay_keys: Iterable[str]) -> None:
        """Forget envelopes; one that is not here is forgotten already."""
        for replay_key in replay_keys:
            with private_files.writing(self.path / f"{replay_key}.agl"), suppress(FileNotFoundError):
                os.unlink(f"{replay_key}.agl", dir_fd=self._directory)

    def envelopes(self) -> Iterator[tuple[str, Envelope]]:
        """The envelopes that are here, by their replay keys; what is none is among the problems."""
        for name in self._names():
            if found := _NAME.match(name):
                with suppress(UnsafeFile, NotFound, Refused):
                    yield found[1], decode(self.get(found[1]))

    def problems(self) -> Iterator[FileProblem]:
        """Everything in the directory that is not an envelope under its own hash."""
        for name in self._names():
            if _TEMPORARY.match(name):
                continue
            found = _NAME.match(name)
            if found is None:
                yield FileProblem(self.path / name, "is not named as an envelope is")
                continue
            try:
                self.get(found[1])
            except (UnsafeFile, NotFound) as error:
                yield FileProblem(self.path / name, error.message.removeprefix(f"{self.path / name} "))

    def _names(self) -> list[str]:
        with os.scandir(self._directory) as entries:
            return sorted(entry.name for entry in entries)

    def sweep(self, now: datetime) -> None:
        """Remove what a crash left half written."""
        for name in self._names():
            if _TEMPORARY.match(name):
                status = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
                if now.timestamp() - status.st_mtime > _LEFT_OVER.total_seconds():
                    os.unlink(name, dir_fd=self._directory)


def read_safely(name: str | Path, shown: Path, *, directory: int | None = None, most: int = MAX_ENVELOPE) -> bytes:
    """The bytes of a file that somebody else may have put there: no link of either kind, no pipe, not too big."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        raise private_files.explained(shown, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeFile(f"{shown} is not a regular file")
        if status.st_nlink > 1:
            raise UnsafeFile(f"{shown} has another name elsewhere (a hard link)")
        if status.st_size > most:
            raise UnsafeFile(f"{shown} has {status.st_size:,} bytes, more than such a file can have")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most + 1)
    except OSError as error:
        raise private_files.explained(shown, error) from error
    finally:
        os.close(descriptor)
