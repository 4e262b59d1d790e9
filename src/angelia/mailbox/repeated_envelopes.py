"""Envelopes that a server delivers again after they were handled. Their ack or nack is repeated once an hour.

An ack or nack that the server does not confirm is repeated after 5, 10, 20 … seconds, and at most an hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from angelia.mailbox.database import SQL, MailboxDatabase, stamp, unstamp

SPAN = timedelta(hours=1)
# The first pause before an unconfirmed ack is repeated; it doubles each time. Well before the last lease of an opened
# message ends, when the message would become a dead letter.
SOON = timedelta(seconds=5)
_MOST_DOUBLINGS = 10
# Longer than any envelope can live.
_KEPT = timedelta(days=31)


@dataclass(frozen=True, slots=True)
class LastReport:
    """When an envelope's outcome was last reported; `unconfirmed` counts reports in a row that were not confirmed."""

    at: datetime
    unconfirmed: int

    def is_recent(self, now: datetime) -> bool:
        """Whether it is too early to report again. A time in the future comes from a clock that was wrong."""
        pause = SPAN if not self.unconfirmed else min(SOON * 2 ** min(self.unconfirmed - 1, _MOST_DOUBLINGS), SPAN)
        return self.at <= now < self.at + pause


class RepeatedEnvelopes:
    """The table `repeated`."""

    def __init__(self, database: MailboxDatabase) -> None:
        self._database = database

    def last_report(self, replay_key: str) -> LastReport | None:
        """Returns the last report of an envelope, if there was one."""
        found = self._database.row("repeated_told", replay_key)
        return None if found is None else LastReport(unstamp(found[0]), found[1])

    def record_report(self, replay_keys: Iterable[str], now: datetime) -> None:
        """Records that outcomes are about to be reported. They count as unconfirmed until `record_confirmation`, so
        that they are reported again after a crash in between."""
        rows = [(replay_key, stamp(now)) for replay_key in replay_keys]
        if not rows:
            return
        with self._database.transaction() as tx:
            tx.executemany(SQL["tell_repeated"], rows)
            tx.execute(SQL["prune_repeated"], (stamp(now - _KEPT),))

    def record_confirmation(self, replay_keys: Iterable[str]) -> None:
        """Records that the server confirmed the reports of these envelopes."""
        rows = [(replay_key,) for replay_key in replay_keys]
        if rows:
            with self._database.transaction() as tx:
                tx.executemany(SQL["heard_repeated"], rows)
