"""Mail of senders who are not allowed. The relay keeps it; here is only what it takes to ask for it by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from angelia.mailbox.database import SQL, MailboxDatabase, stamp, unstamp

# A stranger must not fill this disk; what is beyond comes again by itself.
MOST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMessage:
    """A message that waits at the relay until its sender is allowed, or until it expires."""

    replay_key: str
    sender: str
    lease_token: str = field(repr=False)
    kept_at: datetime
    expires_at: datetime


class HeldMail:
    """The table `kept_out`."""

    def __init__(self, database: MailboxDatabase) -> None:
        self._database = database

    def add(self, *waiting: HeldMessage) -> None:
        """Remember messages, each with the token of a lease; the oldest beyond a thousand are forgotten.

        One that comes again costs nothing: any of its leases settles it, once nobody else has it."""
        new = [one for one in waiting if self._database.row("is_kept_out", one.replay_key) is None]
        if not new:
            return
        with self._database.transaction() as tx:
            tx.executemany(SQL["keep_out"], [_values(one) for one in new])
            tx.execute(SQL["prune_kept_out"], (stamp(max(one.kept_at for one in new)), MOST))

    def admitted(self, now: datetime, limit: int = 100) -> list[HeldMessage]:
        """What waits from senders who are allowed by now, oldest first."""
        return [_waiting(row) for row in self._database.rows("admitted", stamp(now), limit)]

    def forget(self, replay_key: str) -> None:
        with self._database.transaction() as tx:
            tx.execute(SQL["forget_kept_out"], (replay_key,))


def _values(one: HeldMessage) -> tuple[str, ...]:
    return one.replay_key, one.sender, one.lease_token, stamp(one.kept_at), stamp(one.expires_at)


def _waiting(row: tuple[Any, ...]) -> HeldMessage:
    replay_key, sender, token, kept_at, expires_at = row
    return HeldMessage(
        replay_key=replay_key,
        sender=sender,
        lease_token=token,
        kept_at=unstamp(kept_at),
        expires_at=unstamp(expires_at),
    )
