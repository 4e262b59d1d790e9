"""The receipts that this agent gave, one signed JSON line each, in one file a day: `receipts_YYYY-MM-DD.jsonl`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import UUID

import msgspec

from angelia.envelope.jsonform import from_text, to_text
from angelia.envelope.receipts import Receipt, ReceiptStatus
from angelia.envelope.refusals import Refused
from angelia.envelope.signing import Signatures
from angelia.mailbox import private_files
from angelia.mailbox.files import Problem
from angelia.mailbox.private_files import UnsafeFile

_NAME = re.compile(r"\Areceipts_(\d{4}-\d\d-\d\d)\.jsonl\Z", re.ASCII)


class ReceiptDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON form of a receipt. Bytes are base64url without padding, the time Unix milliseconds."""

    status: str
    replay_key: str
    message_id: UUID
    sender_nhi: str
    recipient_nhi: str
    time_ms: int
    signer_id: UUID
    reason: str = ""
    signature_ed25519: str
    signature_ml_dsa: str


@dataclass(frozen=True, slots=True)
class Logged:
    """The receipts of a log, oldest first, and the lines that are none."""

    receipts: tuple[Receipt, ...]
    problems: tuple[Problem, ...]


class ReceiptLog:
    """The receipt files of one mailbox."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def append(self, receipts: Sequence[Receipt], now: datetime) -> None:
        """Add receipts, durably."""
        if not receipts:
            return
        path = self._directory / f"receipts_{now.astimezone(UTC):%Y-%m-%d}.jsonl"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, private_files.FILE_MODE)
        except OSError as error:
            raise private_files.explained(path, error) from error
        with os.fdopen(descriptor, "r+b", buffering=0):
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise UnsafeFile(f"{path} is not a regular file of its own")
            private_files.refuse_shared(path, status, hint=f"chmod 600 {path}")
            if status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n":
                os.write(descriptor, b"\n")  # a crash cut the last line: the next one must not be joined to it
            for receipt in receipts:
                os.write(descriptor, msgspec.json.encode(receipt_document(receipt)) + b"\n")
            os.fsync(descriptor)
        if status.st_size == 0:
            with private_files.opened_directory(self._directory) as directory:
                os.fsync(directory)

    def days(self) -> list[date]:
        """The days that have receipts."""
        found = (_NAME.match(path.name) for path in sorted(self._directory.iterdir()))
        return [date.fromisoformat(one[1]) for one in found if one]

    def read(self, day: date | None = None) -> Logged:
        """The receipts of a day, or of all days."""
        receipts, problems = list[Receipt](), list[Problem]()
        for one in self.days() if day is None else [day]:
            path = self._directory / f"receipts_{one.isoformat()}.jsonl"
            for number, line in enumerate(_lines(path), 1):
                try:
                    receipts.append(parse_receipt(msgspec.json.decode(line, type=ReceiptDocument)))
                except (msgspec.DecodeError, UnicodeDecodeError, Refused, KeyError) as error:
                    problems.append(Problem(path, f"line {number} is no receipt: {error}"))
        return Logged(tuple(receipts), tuple(problems))


def receipt_document(receipt: Receipt) -> ReceiptDocument:
    return ReceiptDocument(
        status=receipt.status.name.lower(),
        replay_key=receipt.replay_key,
        message_id=receipt.message_id,
        sender_nhi=receipt.sender_nhi,
        recipient_nhi=receipt.recipient_nhi,
        time_ms=receipt.time_ms,
        signer_id=receipt.signer_id,
        reason=receipt.reason,
        signature_ed25519=to_text(receipt.signatures.ed25519),
        signature_ml_dsa=to_text(receipt.signatures.ml_dsa),
    )


def parse_receipt(document: ReceiptDocument) -> Receipt:
    """The receipt of a document; its signatures are for `check_receipt`."""
    return Receipt(
        status=ReceiptStatus[document.status.upper()],
        replay_key=document.replay_key,
        message_id=document.message_id,
        sender_nhi=document.sender_nhi,
        recipient_nhi=document.recipient_nhi,
        time_ms=document.time_ms,
        signer_id=document.signer_id,
        reason=document.reason,
        signatures=Signatures(from_text(document.signature_ed25519), from_text(document.signature_ml_dsa)),
    )


def _lines(path: Path) -> Iterator[bytes]:
    if path.is_symlink() or not path.is_file():
        return
    with path.open("rb") as file:
        yield from (line for line in file if line.strip())
