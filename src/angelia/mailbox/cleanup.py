"""What the mailbox does without being asked: forget in time, destroy in time, and clear away after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from angelia.envelope.times import SKEW
from angelia.mailbox import channels, replay
from angelia.mailbox.database import SQL, MailboxDatabase, stamp, unstamp, write_meta
from angelia.mailbox.envelope_files import EnvelopeFiles
from angelia.mailbox.notices import NoticeKind, Notices
from angelia.mailbox.replay import RETENTION_HOURS, PruneResult

_CLOCK = "clock_shown"
_BELIEVED_AFTER = timedelta(hours=1)
_CHUNK = 1_000
# How long the content of a sent message outlives it: until then its recipient's receipt may come.
KEPT_AFTER_END = timedelta(days=1)


class Cleanup:
    """Runs at the start and, cheaply, with every operation that writes."""

    def __init__(
        self, database: MailboxDatabase, files: Sequence[EnvelopeFiles], inbox_files: EnvelopeFiles, notices: Notices
    ) -> None:
        self._database = database
        self._files = files
        self._inbox_files = inbox_files
        self._notices = notices

    def start(self, now: datetime) -> None:
        self._tidy(now)
        self.run_due(now)

    def run_due(self, now: datetime) -> None:
        """Destroy private keys and plaintexts whose time is surely over; once a day, prune as well."""
        reached = self._reached(now)
        ended = None if reached is None else stamp(reached - KEPT_AFTER_END)
        if reached is not None and self._database.row("something_overdue", stamp(reached), ended):
            with self._database.transaction() as tx:
                tx.execute(SQL["destroy_overdue"], (stamp(reached),))
                tx.execute(SQL["expire_outbox"], (ended,))
                tx.execute(SQL["destroy_channel_keys"], (stamp(reached),))
        if replay.prune_due(self._database, now):
            self._tidy(now)

    def prune(self, now: datetime, retention_hours: int = RETENTION_HOURS, *, force: bool = False) -> PruneResult:
        """Forget what can be forgotten now."""
        pruned = replay.prune(self._database, now, retention_hours, force=force)
        if pruned.warning is None:
            channels.prune(self._database, now)
            self._prune_spent(now)
            self._prune_controls(now)
        for directory in self._files:
            directory.sweep(now)
        return pruned

    def _reached(self, now: datetime) -> datetime | None:
        """A time that has surely come: the clock showed it, and at least an hour later it has not gone back.

        What is destroyed stays destroyed, so a clock that runs ahead for a moment must not be believed.
        """
        found = self._database.row("read_meta", _CLOCK)
        shown = None if found is None else unstamp(found[0])
        if shown is not None and shown <= now < shown + _BELIEVED_AFTER:
            return None
        with self._database.transaction() as tx:
            write_meta(tx, _CLOCK, stamp(now))
        return shown if shown is not None and shown <= now else None

    def _prune_controls(self, now: datetime) -> None:
        """Control messages that were handled and have expired: nobody looks for them again."""
        before = stamp(now - SKEW)
        while self._database.row("something_handled", before):
            with self._database.transaction() as tx:
                keys = [key for (key,) in tx.execute(SQL["prune_controls"], (before, _CHUNK))]
            self._inbox_files.remove(keys)

    def _prune_spent(self, now: datetime) -> None:
        """Others' one-time keys that are too old to be used."""
        with self._database.transaction() as tx:
            tx.execute(SQL["prune_spent"], (stamp(now - SKEW),))

    def _tidy(self, now: datetime) -> None:
        warning = self.prune(now).warning
        if warning is not None:
            self._notices.tell(NoticeKind.WARNING, warning)
