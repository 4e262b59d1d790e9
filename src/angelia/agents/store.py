"""Every SQL statement about agents."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from angelia.agents.model import Agent, Registration
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import statements

SQL = statements(__file__)


async def register(tx: Tx, wanted: Sequence[Registration]) -> tuple[set[bytes], dict[bytes, UUID]]:
    """The keys that became agents now, and the id of every key that was asked for."""
    # Two processes that insert the same keys in another order would wait for each other in a circle.
    ordered = sorted(wanted, key=lambda r: r.public_key)
    rows = await tx.fetch(
        SQL["register"],
        [r.id for r in ordered],
        [r.public_key for r in ordered],
        [r.key_id for r in ordered],
        [r.name for r in ordered],
        [r.email for r in ordered],
        [r.at for r in ordered],
    )
    made = {row["public_key"] for row in rows}
    known = await tx.fetch(SQL["ids_of_keys"], [r.public_key for r in ordered])
    return made, {row["public_key"]: row["id"] for row in known}


async def by_id(tx: Tx, id: UUID) -> Agent | None:
    return _agent(await tx.fetchrow(SQL["by_id"], id))


async def lock(tx: Tx, id: UUID) -> Agent | None:
    """The agent as it is, and stays until the transaction ends."""
    return _agent(await tx.fetchrow(SQL["lock"], id))


async def handles(tx: Tx, ids: Sequence[UUID]) -> dict[UUID, str]:
    return {row["id"]: row["handle"] for row in await tx.fetch(SQL["handles"], ids)}


async def by_key_id(tx: Tx, key_id: UUID) -> Agent | None:
    return _agent(await tx.fetchrow(SQL["by_key_id"], key_id))


async def by_handle(tx: Tx, handle: str) -> Agent | None:
    return _agent(await tx.fetchrow(SQL["by_handle"], handle))


async def claim_handle(tx: Tx, id: UUID, handle: str) -> Agent | None:
    return _agent(await tx.fetchrow(SQL["claim_handle"], id, handle))


async def update(
    tx: Tx,
    id: UUID,
    name: str | None,
    email: str | None,
    aicq_signatures: bool | None,
) -> Agent | None:
    return _agent(await tx.fetchrow(SQL["update"], id, name, email, aicq_signatures))


async def list_agents(
    tx: Tx, since: datetime | None, until: datetime | None, after: tuple[datetime, UUID] | None, limit: int
) -> tuple[list[Agent], int]:
    at, id_ = after or (None, None)
    rows = await tx.fetch(SQL["list"], since, until, at, id_, limit)
    return [_known(row) for row in rows], int(await tx.fetchval(SQL["count"], since, until))


def _agent(row: Row | None) -> Agent | None:
    return None if row is None else _known(row)


def _known(row: Row) -> Agent:
    return Agent(
        id=row["id"],
        handle=row["handle"],
        public_key=row["public_key"],
        key_id=row["key_id"],
        name=row["name"],
        email=row["email"],
        aicq_signatures=row["aicq_signatures"],
        registered_at=row["registered_at"],
    )
