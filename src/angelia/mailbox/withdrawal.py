"""Messages that their sender takes back. The request is on disk before the server is asked."""

from __future__ import annotations

from datetime import datetime

from angelia.errors import Conflict
from angelia.mailbox.database import MailboxDatabase
from angelia.mailbox.outbox import Outbox
from angelia.mailbox.outbox_message import OutboxMessage, OutboxStatus, current_row


class Withdrawals:
    """The column `withdraw_asked_at` of the table `outbox`. A message with a request is not sent."""

    def __init__(self, database: MailboxDatabase, outbox: Outbox) -> None:
        self._database = database
        self._outbox = outbox

    def pending(self, now: datetime) -> list[OutboxMessage]:
        """Returns the messages with a request that the server has not answered."""
        return self._database.records(OutboxMessage, "outbox_to_withdraw", now)

    def request(self, replay_key: str, now: datetime) -> OutboxMessage:
        """Records the sender's request and returns the message. A server that reports a message as withdrawn is
        believed only if there was a request."""
        row = self._outbox.message(replay_key)
        with self._database.transaction() as tx:
            row = current_row(tx, row.replay_key) or row
            if not row.withdrawable and not row.withdrawn:
                raise too_late(row)
            tx.write("ask_withdrawal", now, row.replay_key)
        return row

    def cancel(self, replay_key: str) -> None:
        """Drops the request, because the server refused it."""
        self._database.write("forget_withdrawal", replay_key)

    def complete(self, replay_key: str, now: datetime, *, seen: OutboxStatus | None = None) -> bool:
        """Marks a message as withdrawn: it failed, and its content is destroyed. False if it is too late for that, or
        if its status is not `seen` any more."""
        with self._database.transaction() as tx:
            row = current_row(tx, replay_key)
            if row is None or not row.withdrawable or (seen is not None and row.status is not seen):
                return False
            tx.write("ask_withdrawal", now, row.replay_key)
            tx.write("set_outbox_status", OutboxStatus.FAILED.value, row.replay_key)
            tx.write("clear_outbox_body", row.replay_key)
        return True


def too_late(row: OutboxMessage) -> Conflict:
    """Returns the error for a message that cannot be withdrawn any more."""
    return Conflict(f"the message to {row.recipient} is {row.status} and not taken back")
