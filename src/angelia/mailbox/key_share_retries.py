"""Members to which a channel's key could not be sent, with a back-off: not every message tries to reach them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from angelia.errors import AngeliaError
from angelia.mailbox.database import MailboxDatabase, MailboxTx

FIRST_WAIT, LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=1)
_DOUBLINGS = 6  # from a minute to more than an hour


@dataclass(frozen=True, slots=True)
class KeyShareFailure:
    """Why the key could not be sent the last time."""

    code: str
    reason: str


class KeyShareRetries:
    """The table `channel_unreached`."""

    def __init__(self, database: MailboxDatabase) -> None:
        self._database = database

    def waiting(self, channel_id: UUID, epoch: int, now: datetime) -> dict[str, KeyShareFailure | None]:
        """Returns the members whose next retry is not due yet; None for a member that was sent the key and has not
        confirmed it."""
        rows = self._database.rows("channel_unreached", channel_id, epoch, now)
        return {nhi: None if code is None else KeyShareFailure(code, reason) for nhi, code, reason in rows}

    def back_off(self, channel_id: UUID, epoch: int, failed: Mapping[str, AngeliaError], now: datetime) -> None:
        """Notes failed attempts: the next retry is after a minute, and after twice as long each time, up to an hour."""
        with self._database.transaction() as tx:
            for nhi, error in failed.items():
                found = tx.row("channel_failures", channel_id, epoch, nhi)
                failures = found[0] if found else 0
                wait = min(FIRST_WAIT * (1 << min(failures, _DOUBLINGS)), LONGEST_WAIT)
                failed_with = (error.code, error.message)
                tx.write("put_off_channel_key", channel_id, epoch, nhi, failures + 1, now + wait, *failed_with)

    def await_confirmation(self, channel_id: UUID, epoch: int, names: Sequence[str], now: datetime) -> None:
        """Only the subscriber can confirm receipt, so the key is sent again after an hour."""
        with self._database.transaction() as tx:
            for nhi in names:
                tx.write("put_off_channel_key", channel_id, epoch, nhi, 0, now + LONGEST_WAIT, None, None)


def forget_before(tx: MailboxTx, channel_id: UUID, epoch: int) -> None:
    """Drops the retries of earlier epochs, whose keys are not sent any more."""
    tx.write("forget_unreached", channel_id, epoch)
