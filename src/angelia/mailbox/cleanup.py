"""Housekeeping of the mailbox: prunes old rows, destroys keys and plaintexts in time, clears away after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from angelia.envelope.times import SKEW
from angelia.mailbox import replay
from angelia.mailbox.database import MailboxDatabase, unstamp
from angelia.mailbox.envelope_files import EnvelopeFiles
from angelia.mailbox.notices import NoticeKind, Notices
from angelia.mailbox.replay import RETENTION_HOURS, PruneResult

_CLOCK = "clock_shown"
_BELIEVED_AFTER = timedelta(hours=1)
_CHUNK = 1_000
# How long the content of a sent message is kept after the message expired: until then a receipt may arrive.
KEPT_AFTER_END = timedelta(days=1)


@dataclass(eq=False, repr=False)
class Cleanup:
    """Runs when the mailbox is opened and, cheaply, with every operation that writes."""

    _database: MailboxDatabase
    _files: Sequence[EnvelopeFiles]
    _inbox_files: EnvelopeFiles
    _notices: Notices

    def start(self, now: datetime) -> None:
        self._tidy(now)
        self.run_due(now)

    def run_due(self, now: datetime) -> None:
        """Destroys private keys and plaintexts whose time has surely passed; once a day it prunes as well."""
        reached = self._reached(now)
        if reached is not None and self._database.row("something_overdue", reached, reached - KEPT_AFTER_END):
            with self._database.transaction() as tx:
                tx.write("destroy_overdue", reached)
                tx.write("expire_outbox", reached - KEPT_AFTER_END)
                tx.write("destroy_channel_keys", reached)
        if replay.prune_due(self._database, now):
            self._tidy(now)

    def prune(self, now: datetime, retention_hours: int = RETENTION_HOURS, *, force: bool = False) -> PruneResult:
        """Prunes replay state, channel offsets, spent one-time keys and handled control messages that are too old."""
        pruned = replay.prune(self._database, now, retention_hours, force=force)
        if pruned.warning is None:
            replay.prune_channel_offsets(self._database, now)
            self._database.write("prune_spent", now - SKEW)  # too old to be handed out again
            self._prune_controls(now)
        for directory in self._files:
            directory.sweep(now)
        return pruned

    def _reached(self, now: datetime) -> datetime | None:
        """Returns a time that has surely passed: the clock showed it, and an hour later it had not gone back.

        Destruction is final, so a clock that runs ahead for a moment must not be believed.
        """
        found = self._database.meta(_CLOCK)
        shown = None if found is None else unstamp(found)
        if shown is not None and shown <= now < shown + _BELIEVED_AFTER:
            return None
        self._database.write("write_meta", _CLOCK, now)
        return shown if shown is not None and shown <= now else None

    def _prune_controls(self, now: datetime) -> None:
        """Deletes control messages that were handled and have expired: they cannot be delivered again."""
        before = now - SKEW
        while self._database.row("something_handled", before):
            self._inbox_files.remove([key for (key,) in self._database.write("prune_controls", before, _CHUNK)])

    def _tidy(self, now: datetime) -> None:
        warning = self.prune(now).warning
        if warning is not None:
            self._notices.tell(NoticeKind.WARNING, warning)
