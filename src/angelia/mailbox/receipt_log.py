"""The log of receipts that this agent signed: one JSON line each, one file a day, `receipts_YYYY-MM-DD.jsonl`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from angelia.envelope.receipts import Receipt, ReceiptDocument, parse_receipt, receipt_document
from angelia.envelope.refusals import Refused
from angelia.mailbox import private_files
from angelia.mailbox.envelope_files import FileProblem
from angelia.mailbox.private_files import UnsafeFile

_NAME = re.compile(r"\Areceipts_\d{4}-\d\d-\d\d\.jsonl\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoggedReceipts:
    """The receipts of a log, oldest first, and the lines that are no receipts."""

    receipts: tuple[Receipt, ...]
    problems: tuple[FileProblem, ...]


class ReceiptLog:
    """The receipt files of one mailbox."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def append(self, receipts: Sequence[Receipt], now: datetime) -> None:
        """Appends receipts durably."""
        if not receipts:
            return
        path = self._directory / f"receipts_{now.astimezone(UTC):%Y-%m-%d}.jsonl"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, private_files.FILE_MODE)
        except OSError as error:
            raise private_files.explained(path, error) from error
        with private_files.writing(path), os.fdopen(descriptor, "ab") as log:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise UnsafeFile(f"{path} is not a regular file of its own")
            private_files.refuse_shared(path, status, hint=f"chmod 600 {path}")
            if status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n":
                log.write(b"\n")  # a crash cut off the last line: the next one must not be joined to it
            for receipt in receipts:
                log.write(msgspec.json.encode(receipt_document(receipt)) + b"\n")
            log.flush()
            os.fsync(descriptor)
        if status.st_size == 0:
            with private_files.opened_directory(self._directory) as directory, private_files.writing(path):
                os.fsync(directory)

    def read(self) -> LoggedReceipts:
        """Returns the receipts of all days."""
        receipts, problems = list[Receipt](), list[FileProblem]()
        for path in sorted(path for path in self._directory.iterdir() if _NAME.match(path.name)):
            for number, line in enumerate(_lines(path), 1):
                try:
                    receipts.append(parse_receipt(msgspec.json.decode(line, type=ReceiptDocument)))
                except (msgspec.DecodeError, UnicodeDecodeError, Refused) as error:
                    problems.append(FileProblem(path, f"line {number} is no receipt: {error}"))
        return LoggedReceipts(tuple(receipts), tuple(problems))


def _lines(path: Path) -> Iterator[bytes]:
    if path.is_symlink() or not path.is_file():
        return
    with path.open("rb") as file:
        yield from (line for line in file if line.strip())
