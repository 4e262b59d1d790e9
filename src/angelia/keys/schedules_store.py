"""Every SQL statement about rotation schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia.envelope.ids import bucket_of
from angelia.keys.model import RotationPolicy, RotationSchedule
from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "schedules.sql")


async def of_agent(tx: Tx, handle: str, after: str, limit: int) -> list[RotationSchedule]:
    """A page of an agent's schedules in the order of its peers, after a peer."""
    rows = await tx.fetch(SQL["of_agent"], bucket_of(handle), handle, after, limit)
    return [record_of(RotationSchedule, row) for row in rows]


async def lock(tx: Tx, handle: str, peer: str) -> RotationSchedule | None:
    """An agent's schedule with a peer, locked until the transaction ends."""
    row = await tx.fetchrow(SQL["lock"], bucket_of(handle), handle, peer)
    return None if row is None else record_of(RotationSchedule, row)


async def put(
    tx: Tx, handle: str, peer: str, session_id: UUID, key_id: UUID, policy: RotationPolicy, now: datetime
) -> RotationSchedule:
    seconds, following = None, None
    if policy.interval is not None:
        seconds, following = int(policy.interval.total_seconds()), now + policy.interval
    place = (bucket_of(handle), session_id, handle, peer)
    row = await tx.fetchrow(SQL["put"], *place, key_id, policy.value, seconds, now, following)
    assert row is not None
    return record_of(RotationSchedule, row)


async def remove(tx: Tx, handle: str, peer: str) -> UUID | None:
    removed: UUID | None = await tx.fetchval(SQL["remove"], bucket_of(handle), handle, peer)
    return removed


async def rotated(
    tx: Tx, held: RotationSchedule, key_id: UUID, version: int, now: datetime, grace_keys: bytes
) -> RotationSchedule:
    place, interval = (bucket_of(held.agent), held.agent, held.peer), held.policy.interval
    following = None if interval is None else now + interval
    row = await tx.fetchrow(SQL["rotated"], *place, key_id, version, now, following, grace_keys)
    assert row is not None, "the caller has locked it"
    return record_of(RotationSchedule, row)


async def announce_due(tx: Tx, now: datetime, limit: int) -> Sequence[RotationSchedule]:
    return [record_of(RotationSchedule, row) for row in await tx.fetch(SQL["announce_due"], now, limit)]


async def make_all_due(tx: Tx, handle: str, now: datetime) -> None:
    await tx.execute(SQL["make_all_due"], bucket_of(handle), handle, now)
