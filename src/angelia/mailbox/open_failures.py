"""Limits how often a sender's envelopes may fail to open: each failure tells an attacker a little."""

from __future__ import annotations

from datetime import datetime, timedelta

from angelia.errors import RateLimited
from angelia.mailbox.database import MailboxDatabase

MOST = 10
SPAN = timedelta(hours=1)


def check(database: MailboxDatabase, sender_fp: str, sender: str, now: datetime) -> None:
    """Raises RateLimited for a sender with too many failures, before a private key is used for its envelope."""
    (count,) = database.row("count_failures", sender_fp, now - SPAN)
    if count >= MOST:
        raise RateLimited(
            f"{MOST} envelopes of {sender} did not open within an hour; no more are tried for now",
            hint="look at them in the mailbox's dead/ directory",
            retry_after=int(SPAN.total_seconds()),
        )


def record(database: MailboxDatabase, replay_key: str, sender_fp: str, now: datetime) -> None:
    """Counts a failure; the same envelope counts once."""
    with database.transaction() as tx:
        tx.write("prune_failures", now - SPAN)
        tx.write("add_failure", replay_key, sender_fp, now)
