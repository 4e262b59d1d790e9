"""Every SQL statement about rules, and the hot tier's counts of acts under rules that have a rate."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid4

import msgspec

from angelia.envelope.ids import hot_tag
from angelia.policy.model import PolicyRule, Rate
from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements
from angelia.stores.valkey import HotTier, Script

SQL = statements(__file__)
_RATE = Script.read(__file__, "rate.lua")


async def version(tx: Tx) -> int:
    return int(await tx.fetchval(SQL["version"]))


async def lock_version(tx: Tx) -> int:
    """The version; locked, so that it stays the same until the transaction ends."""
    return int(await tx.fetchval(SQL["lock_version"]))


async def bump_version(tx: Tx) -> int:
    """Raises the version. Other changes of rules wait until this transaction ends."""
    return int(await tx.fetchval(SQL["bump_version"]))


async def every_rule(tx: Tx) -> list[PolicyRule]:
    return [record_of(PolicyRule, row) for row in await tx.fetch(SQL["every_rule"])]


async def page(tx: Tx, after: tuple[datetime, UUID] | None, limit: int) -> list[PolicyRule]:
    at, id_ = after or (None, None)
    return [record_of(PolicyRule, row) for row in await tx.fetch(SQL["page"], at, id_, limit)]


async def count(tx: Tx) -> int:
    return int(await tx.fetchval(SQL["count"]))


async def count_made_by(tx: Tx, name: str) -> int:
    return int(await tx.fetchval(SQL["count_made_by"], name))


async def add(tx: Tx, rule: PolicyRule) -> None:
    await tx.execute(SQL["add"], *msgspec.structs.astuple(rule))


async def remove(tx: Tx, rule_id: UUID) -> PolicyRule | None:
    row = await tx.fetchrow(SQL["remove"], rule_id)
    return None if row is None else record_of(PolicyRule, row)


class HotRates:
    """Counts acts under rules that have a rate, in the hot tier."""

    def __init__(self, hot: HotTier) -> None:
        self._hot = hot

    async def spend(self, rule_id: UUID, rate: Rate, subject: str, now_ms: int) -> int:
        """Counts an act, if the window has room for it. Returns 0, or else when the window has room, in Unix ms."""
        key = f"ang:rl:{{{hot_tag(subject)}}}:policy:{rule_id}"
        return int(await self._hot.run(_RATE, [key], [now_ms, rate.limit, rate.window_ms, uuid4().hex]))
