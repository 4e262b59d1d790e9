"""How far a device is in a group: what it applied of each sender, in tables beside the application's state."""

from __future__ import annotations

from angelia.grouplog.model.vectors import ReceivedSeqs, ReceivedVector
from angelia.mailbox.database import MailboxTx, NamedStatements


class LogProgress:
    """The senders that one transaction touches, read when they are first asked for."""

    def __init__(self, tx: NamedStatements) -> None:
        self._tx = tx
        self._touched: dict[bytes, ReceivedSeqs] = {}

    def of(self, sender: bytes) -> ReceivedSeqs:
        found = self._touched.get(sender)
        if found is None:
            row = self._tx.row("log_received_of", sender)
            ranges = self._tx.rows("log_ranges_of", sender)
            found = self._touched[sender] = ReceivedSeqs(0 if row is None else row[0], ranges)
        return found

    def save(self, tx: MailboxTx) -> None:
        """Writes the senders that were asked for."""
        for sender, received in self._touched.items():
            tx.write("put_log_received", sender, received.confirmed)
            tx.write("drop_log_ranges", sender)
            for first, last in received.ranges:
                tx.write("add_log_range", sender, first, last)


def received(tx: NamedStatements) -> ReceivedVector:
    """What was applied of all senders."""
    ranges: dict[bytes, list[tuple[int, int]]] = {}
    for sender, first, last in tx.rows("log_ranges"):
        ranges.setdefault(sender, []).append((first, last))
    found = {sender: ReceivedSeqs(confirmed, ranges.get(sender, ())) for sender, confirmed in tx.rows("log_received")}
    return ReceivedVector(found)
