"""The server that an import reads: its URL, and its faults, which are told from those of the ledger."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from adbc_driver_manager import Error

from angelia.errors import InvalidArgument, Unavailable
from angelia.pipeline.jobs.job_context import JobContext

_PASSWORD = re.compile(r"password\s*=", re.IGNORECASE)  # as libpq reads it, in a URL or without one


@dataclass(frozen=True, slots=True)
class SourceOption:
    """An option that names a store of the other server, and the environment variable for it."""

    name: str
    variable: str
    example: str

    def asked(self, work: JobContext) -> str | None:
        """What the option names, or its environment variable. A password is taken from the latter only: all users of
        the machine see the arguments of a process."""
        given = str(work.options.get(self.name) or "")
        if not given:
            found = os.environ.get(self.variable) or None
            if found is not None and "://" not in found and _PASSWORD.search(found):
                # It would count as the name of a file, and be printed.
                raise InvalidArgument(f"{self.variable} is a connection string, and not a URL", hint=self.example)
            return found
        if _PASSWORD.search(given) or ("://" in given and self._has_password(given)):
            raise InvalidArgument(
                f"--{self.name} has a password, which others see", hint=f"set {self.variable} instead"
            )
        return given

    def _has_password(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise InvalidArgument(f"--{self.name} is no URL", hint=self.example) from error
        return bool(parts.password) or "password" in parse_qs(parts.query)


@contextmanager
def faults_of(server: str, where: str, hint: str, url: str = "") -> Iterator[None]:
    """Raises faults of the other server's database as an AngeliaError that names the server, without the URL."""
    try:
        yield
    except (sqlite3.Error, Error) as error:
        raise InvalidArgument(
            f"{where} cannot be read as a database of {server}: {_said(error, url)}", hint=hint
        ) from error
    except Unavailable as error:
        raise Unavailable(
            f"{server}'s database does not answer: {_said(error.__cause__ or error, url)}",
            hint="is it running, and is the URL right?",
        ) from error


def _said(error: BaseException, url: str) -> str:
    """The first line of a driver's message, without the URL, which may have a password."""
    text = str(error)
    return (text.replace(url, "its URL") if url else text).strip().partition("\n")[0]
