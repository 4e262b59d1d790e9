"""The application that keeps every update as it is: what the command line reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from angelia.envelope.times import unix_ms
from angelia.grouplog.model.ids import MAX_SEQ
from angelia.grouplog.model.updates import LATEST
from angelia.mailbox.database import MailboxTx, NamedStatements
from angelia.mailbox.log_application import LogApplication, LogEntry

_ROW = struct.Struct(">8sQQI")


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One update. `place` is where it stands in the order in which this device got them."""

    place: int
    sender: bytes
    seq: int
    written_at: int
    body: bytes


class Journal(LogApplication):
    """Keeps updates in the order in which they arrive here. Its snapshots hold all of them."""

    name: ClassVar[str] = "journal"

    def prepare(self, tx: MailboxTx) -> None:
        tx.write("journal_prepare")

    def apply(self, tx: MailboxTx, entry: LogEntry) -> None:
        tx.write("add_journal", entry.sender_id, entry.seq, unix_ms(entry.written_at), entry.body)

    def snapshot(self, tx: MailboxTx) -> bytes:
        rows = tx.rows("journal_all")
        return b"".join(_ROW.pack(sender, seq, at, len(body)) + body for sender, seq, at, body in rows)

    def merge(self, tx: MailboxTx, content: bytes) -> None:
        at = 0
        while at + _ROW.size <= len(content):
            sender, seq, written_at, length = _ROW.unpack_from(content, at)
            at += _ROW.size
            if seq <= MAX_SEQ and written_at < LATEST:
                tx.write("add_journal", sender, seq, written_at, content[at : at + length])
            at += length


def rows_after(database: NamedStatements, place: int, limit: int) -> Sequence[JournalRow]:
    """The next rows behind a place."""
    return database.records(JournalRow, "journal", place, limit)


def last_rows(database: NamedStatements, limit: int) -> Sequence[JournalRow]:
    return database.records(JournalRow, "journal_end", limit)
