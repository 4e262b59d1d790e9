"""Envelopes that a relay hands out again. It is told once an hour what became of each, and nothing more is written.

What it does not confirm is said again after 5, 10, 20 … seconds, and at most an hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from angelia.mailbox.database import SQL, MailboxDatabase, stamp, unstamp

SPAN = timedelta(hours=1)
# After which an acknowledgment is said again that the relay did not confirm: well before the last lease of an opened
# message ends, when it would be a dead letter. Each further time it is twice as long.
SOON = timedelta(seconds=5)
_MOST_DOUBLINGS = 10
# Longer than any envelope lives.
_KEPT = timedelta(days=31)


@dataclass(frozen=True, slots=True)
class LastReport:
    """When the relay was told something; `unheard` is how often in succession it did not confirm that."""

    at: datetime
    unconfirmed: int

    def is_recent(self, now: datetime) -> bool:
        """Whether it is too early to say it again. A time in the future is that of a clock that was wrong."""
        pause = SPAN if not self.unconfirmed else min(SOON * 2 ** min(self.unconfirmed - 1, _MOST_DOUBLINGS), SPAN)
        return self.at <= now < self.at + pause


class RepeatedEnvelopes:
    """The table `repeated`."""

    def __init__(self, database: MailboxDatabase) -> None:
        self._database = database

    def last_report(self, replay_key: str) -> LastReport | None:
        """When the relay was last told of an envelope that was not opened, and whether it heard that."""
        found = self._database.row("repeated_told", replay_key)
        return None if found is None else LastReport(unstamp(found[0]), found[1])

    def record_report(self, replay_keys: Iterable[str], now: datetime) -> None:
        """The relay is about to be told. It counts as unheard until `heard`, so that a crash in between silences
        nothing."""
        rows = [(replay_key, stamp(now)) for replay_key in replay_keys]
        if not rows:
            return
        with self._database.transaction() as tx:
            tx.executemany(SQL["tell_repeated"], rows)
            tx.execute(SQL["prune_repeated"], (stamp(now - _KEPT),))

    def record_confirmation(self, replay_keys: Iterable[str]) -> None:
        """The relay confirmed it."""
        rows = [(replay_key,) for replay_key in replay_keys]
        if rows:
            with self._database.transaction() as tx:
                tx.executemany(SQL["heard_repeated"], rows)
