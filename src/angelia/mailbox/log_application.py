"""What an application brings to a group log: the state that members edit together, and how messages change it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from angelia.mailbox.database import MailboxTx


@dataclass(frozen=True, slots=True, repr=False)
class LogEntry:
    """An update of a group log, opened: its sender's signature holds. The time is the sender's word."""

    sender: str
    sender_id: bytes
    seq: int
    written_at: datetime
    body: bytes

    def __repr__(self) -> str:
        """Which update it is, and nothing of its content: it may end up in a log."""
        return f"<update {self.seq} of {self.sender}, {len(self.body):,} bytes>"

    @property
    def text(self) -> str:
        """The content as text; bytes that are no UTF-8 become U+FFFD."""
        return self.body.decode(errors="replace")


class LogApplication(ABC):
    """State that members of a group edit together, in tables of the log's own SQLite database on this device.

    Each method runs in a transaction that also moves the state vector, so a crash leaves both as they were. Updates
    come in any order, and an update may come again as part of a snapshot, so the state has to be one that joins: the
    order of changes does not matter, and a change that is there already changes nothing.

    Tables need names of their own: `meta` and those that begin with `log_` are taken."""

    name: ClassVar[str]
    """Which application it is. A log's database belongs to the one that made it."""

    @abstractmethod
    def prepare(self, tx: MailboxTx) -> None:
        """Makes its tables, unless they are there."""

    @abstractmethod
    def apply(self, tx: MailboxTx, entry: LogEntry) -> None:
        """Changes the state by one update. Content that makes no sense is left out: an error here would come again with
        the same update, and hold up all that follow."""

    @abstractmethod
    def snapshot(self, tx: MailboxTx) -> bytes:
        """Returns the whole state."""

    @abstractmethod
    def merge(self, tx: MailboxTx, content: bytes) -> None:
        """Joins a state that `snapshot` returned, on this device or another, into this one. It came from another
        member, so content that makes no sense is left out here too."""
