"""Every SQL statement about rotation schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia.envelope.ids import bucket_of
from angelia.keys.model import Policy, Schedule
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import statements

SQL = statements(__file__, "schedules.sql")


async def of_agent(tx: Tx, handle: str, after: str, limit: int) -> list[Schedule]:
    """An agent's schedules in the order of its peers, after one of them."""
    rows = await tx.fetch(SQL["of_agent"], bucket_of(handle), handle, after, limit)
    return [_schedule(row) for row in rows]


async def lock(tx: Tx, handle: str, peer: str) -> Schedule | None:
    """An agent's schedule with a peer, and nobody else changes it until the transaction ends."""
    row = await tx.fetchrow(SQL["lock"], bucket_of(handle), handle, peer)
    return None if row is None else _schedule(row)


async def put(
    tx: Tx, handle: str, peer: str, session_id: UUID, key_id: UUID, policy: Policy, now: datetime
) -> Schedule:
    interval = policy.interval
    row = await tx.fetchrow(
        SQL["put"],
        bucket_of(handle),
        session_id,
        handle,
        peer,
        key_id,
        policy.value,
        None if interval is None else int(interval.total_seconds()),
        now,
        None if interval is None else now + interval,
    )
    assert row is not None
    return _schedule(row)


async def remove(tx: Tx, handle: str, peer: str) -> UUID | None:
    removed: UUID | None = await tx.fetchval(SQL["remove"], bucket_of(handle), handle, peer)
    return removed


async def rotated(
    tx: Tx, held: Schedule, key_id: UUID, version: int, now: datetime, following: datetime | None, grace_keys: bytes
) -> Schedule:
    place = (bucket_of(held.agent_a_nhi), held.agent_a_nhi, held.agent_b_nhi)
    row = await tx.fetchrow(SQL["rotated"], *place, key_id, version, now, following, grace_keys)
    assert row is not None, "the caller has locked it"
    return _schedule(row)


async def announce_due(tx: Tx, now: datetime, limit: int) -> Sequence[Schedule]:
    return [_schedule(row) for row in await tx.fetch(SQL["announce_due"], now, limit)]


async def kill(tx: Tx, handle: str, now: datetime) -> None:
    await tx.execute(SQL["kill"], bucket_of(handle), handle, now)


def _schedule(row: Row) -> Schedule:
    return Schedule(
        session_id=row["session_id"],
        agent_a_nhi=row["agent_a_nhi"],
        agent_b_nhi=row["agent_b_nhi"],
        current_key_id=row["current_key_id"],
        current_key_version=row["current_key_version"],
        policy=Policy(row["rotation_policy"]),
        last_rotated_at=row["last_rotated_at"],
        next_rotation_at=row["next_rotation_at"],
        due_since=row["due_since"],
        last_used_at=row["last_used_at"],
        grace_period_keys=row["grace_period_keys"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
