"""Envelopes as files `<replay_key>.agl`: the name is the hash of the content, so `sha256sum` alone proves a file."""

from __future__ import annotations

import hashlib
import os
import re
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
    """A file that is missing, changed or misplaced, and what is wrong with it."""

    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


class EnvelopeFiles:
    """One private directory of envelopes."""

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
        """Stores envelopes durably: a crash leaves whole files or none. Idempotent."""
        for replay_key, wire in envelopes:
            self.place(replay_key, wire)
        self.sync()

    def place(self, replay_key: str, wire: bytes) -> None:
        """Stores one envelope; it is durable only after `sync`."""
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
        """Returns an envelope's bytes, after a check that their hash is the file's name."""
        name = f"{replay_key}.agl"
        wire = read_safely(name, self.path / name, directory=self._directory)
        if hashlib.sha256(wire).hexdigest() != replay_key:
            raise ChangedFile(f"{self.path / name} was changed: its hash is not its name")
        return wire

    def move(self, replay_key: str, other: EnvelopeFiles) -> None:
        """Moves an envelope to another directory. If it is not here any more, another process has moved it."""
        name = f"{replay_key}.agl"
        with private_files.writing(other.path / name):
            try:
                os.rename(name, name, src_dir_fd=self._directory, dst_dir_fd=other._directory)
            except FileNotFoundError:
                return
        other.sync()
        self.sync()

    def remove(self, replay_keys: Iterable[str]) -> None:
        """Deletes envelopes; those that do not exist are skipped."""
        for replay_key in replay_keys:
            with private_files.writing(self.path / f"{replay_key}.agl"), suppress(FileNotFoundError):
                os.unlink(f"{replay_key}.agl", dir_fd=self._directory)

    def envelopes(self) -> Iterator[tuple[str, Envelope]]:
        """Yields the envelopes of the directory with their replay keys; skips files that `problems` reports."""
        for name in self._names():
            if found := _NAME.match(name):
                with suppress(UnsafeFile, NotFound, Refused):
                    yield found[1], decode(self.get(found[1]))

    def problems(self) -> Iterator[FileProblem]:
        """Yields every file of the directory that is not an envelope under its own hash."""
        for name in self._names():
            if _TEMPORARY.match(name):
                continue
            if (found := _NAME.match(name)) is None:
                yield FileProblem(self.path / name, "is not named as an envelope is")
            elif problem := self.problem(found[1]):
                yield problem

    def problem(self, replay_key: str) -> FileProblem | None:
        """Returns what is wrong with an envelope's file: it is missing, changed or unsafe."""
        path = self.path / f"{replay_key}.agl"
        try:
            self.get(replay_key)
        except NotFound:
            return FileProblem(path, "is missing")
        except UnsafeFile as error:
            return FileProblem(path, error.message.removeprefix(f"{path} "))
        return None

    def missing(self, replay_keys: Iterable[str]) -> list[FileProblem]:
        """Returns those of the envelopes that have no file."""
        names = [f"{replay_key}.agl" for replay_key in replay_keys]
        missing = [name for name in names if not private_files.exists(self._directory, name)]
        return [FileProblem(self.path / name, "is missing") for name in missing]

    def sweep(self, now: datetime) -> None:
        """Removes temporary files that a crash left half written."""
        for name in self._names():
            if _TEMPORARY.match(name):
                status = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
                if now.timestamp() - status.st_mtime > _LEFT_OVER.total_seconds():
                    os.unlink(name, dir_fd=self._directory)

    def _names(self) -> list[str]:
        with os.scandir(self._directory) as entries:
            return sorted(entry.name for entry in entries)


def read_safely(name: str | Path, shown: Path, *, directory: int | None = None, most: int = MAX_ENVELOPE) -> bytes:
    """Returns the bytes of a file that another user may have put there. Refuses symlinks, hard links, pipes, and files
    that are too big."""
    return private_files.read_regular(name, shown, _refuse_hard_link, directory=directory, most=most)


def _refuse_hard_link(shown: Path, status: os.stat_result) -> None:
    if status.st_nlink > 1:
        raise UnsafeFile(f"{shown} has another name elsewhere (a hard link)")
