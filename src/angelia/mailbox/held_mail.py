"""Mail of senders that are not on the allowlist. The server keeps it; here are only the ids to ask for it later."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from datetime import datetime

from angelia.mailbox.database import MailboxDatabase

# A stranger must not fill this disk; messages beyond the limit are delivered again anyway.
MOST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMessage:
    """A message that waits at the server until its sender is allowed, or until it expires."""

    replay_key: str
    sender: str
    lease_token: str = field(repr=False)
    kept_at: datetime
    expires_at: datetime


class HeldMail:
    """The table `kept_out`."""

    def __init__(self, database: MailboxDatabase) -> None:
        self._database = database

    def add(self, *messages: HeldMessage) -> None:
        """Remembers messages, each with its lease token; the oldest beyond a thousand are forgotten.

        A redelivery writes nothing: any of the message's leases settles it, once no other process holds it."""
        new = [one for one in messages if self._database.row("is_kept_out", one.replay_key) is None]
        if not new:
            return
        with self._database.transaction() as tx:
            for one in new:
                tx.write("keep_out", *astuple(one))
            tx.write("prune_kept_out", max(one.kept_at for one in new), MOST)

    def admitted(self, now: datetime, limit: int = 100) -> list[HeldMessage]:
        """Returns the held messages of senders that are allowed by now, oldest first."""
        return self._database.records(HeldMessage, "admitted", now, limit)

    def forget(self, replay_key: str) -> None:
        self._database.write("forget_kept_out", replay_key)
