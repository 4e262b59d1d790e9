"""Envelopes that a relay hands out again. It is told once an hour what became of each, and nothing more is written."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from angelia.mailbox.database import SQL, Database, stamp, unstamp

SPAN = timedelta(hours=1)
# The relay could not be told: it is soon, but not at once. Well before the last lease of an opened message ends, after
# which it would be a dead letter.
SOON = timedelta(seconds=5)
# Longer than any envelope lives.
_KEPT = timedelta(days=31)


class Repeats:
    """The table `repeated`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def told_at(self, replay_key: str) -> datetime | None:
        """When the relay was last told of an envelope that was not opened."""
        found = self._database.row("repeated_told", replay_key)
        return None if found is None else unstamp(found[0])

    def tell(self, replay_keys: Iterable[str], now: datetime) -> None:
        """The relay is told now."""
        rows = [(replay_key, stamp(now)) for replay_key in replay_keys]
        if not rows:
            return
        with self._database.transaction() as tx:
            tx.executemany(SQL["tell_repeated"], rows)
            tx.execute(SQL["prune_repeated"], (stamp(now - _KEPT),))

    def missed(self, replay_keys: Iterable[str], now: datetime) -> None:
        """It could not be told after all."""
        self.tell(replay_keys, now - SPAN + SOON)
