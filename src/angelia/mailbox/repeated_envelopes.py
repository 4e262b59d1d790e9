"""Envelopes that a server delivers again after they were handled. Their ack or nack is repeated once an hour.

An ack or nack that the server does not confirm is repeated after 5, 10, 20 … seconds, and at most an hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from angelia.mailbox.database import MailboxDatabase

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
        return self._database.record(LastReport, "repeated_told", replay_key)

    def record_report(self, replay_keys: Iterable[str], now: datetime) -> None:
        """Records that outcomes are about to be reported. They count as unconfirmed until `record_confirmation`, so
        that they are reported again after a crash in between."""
        reported = list(replay_keys)
        if not reported:
            return
        with self._database.transaction() as tx:
            for replay_key in reported:
                tx.write("tell_repeated", replay_key, now)
            tx.write("prune_repeated", now - _KEPT)

    def record_confirmation(self, replay_keys: Iterable[str]) -> None:
        """Records that the server confirmed the reports of these envelopes."""
        confirmed = list(replay_keys)
        if not confirmed:
            return
        with self._database.transaction() as tx:
            for replay_key in confirmed:
                tx.write("heard_repeated", replay_key)
