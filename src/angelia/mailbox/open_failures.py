"""How often a sender's envelopes did not open. Each failure tells a prober a little, so there are not many an hour."""

from __future__ import annotations

from datetime import datetime, timedelta

from angelia.errors import RateLimited
from angelia.mailbox.database import SQL, MailboxDatabase, stamp

MOST = 10
SPAN = timedelta(hours=1)


def check(database: MailboxDatabase, sender_fp: str, sender: str, now: datetime) -> None:
    """Refuse a sender with too many failures before a private key is used for it."""
    (count,) = database.row("count_failures", sender_fp, stamp(now - SPAN))
    if count >= MOST:
        raise RateLimited(
            f"{MOST} envelopes of {sender} did not open within an hour; no more are tried for now",
            hint="look at them in the mailbox's dead/ directory",
            retry_after=int(SPAN.total_seconds()),
        )


def record(database: MailboxDatabase, replay_key: str, sender_fp: str, now: datetime) -> None:
    """Count a failure; the same envelope again is the same failure."""
    with database.transaction() as tx:
        tx.execute(SQL["prune_failures"], (stamp(now - SPAN),))
        tx.execute(SQL["add_failure"], (replay_key, sender_fp, stamp(now)))
