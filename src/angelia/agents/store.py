"""Every SQL statement about agents."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from angelia.agents.model import BlockedAgent, Registration
from angelia.api import AgentRow
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import columns, record_of, statements

SQL = statements(__file__)


async def register(tx: Tx, wanted: Sequence[Registration]) -> tuple[set[bytes], dict[bytes, UUID]]:
    """Registers keys. Returns the keys that made an agent, and the agent id of each present key; former keys are in
    neither."""
    await lock_keys(tx, [r.key_id for r in wanted])
    made = {row["public_key"] for row in await tx.fetch(SQL["register"], *columns(wanted, 6))}
    known = await tx.fetch(SQL["ids_of_keys"], [r.public_key for r in wanted])
    return made, {row["public_key"]: row["id"] for row in known}


async def by_id(tx: Tx, id: UUID) -> AgentRow | None:
    return _agent(await tx.fetchrow(SQL["by_id"], id))


async def lock(tx: Tx, id: UUID) -> AgentRow | None:
    """Returns the agent, locked until the transaction ends."""
    return _agent(await tx.fetchrow(SQL["lock"], id))


async def fix_handle(tx: Tx, id: UUID) -> None:
    await tx.execute(SQL["fix_handle"], id)


async def handles(tx: Tx, ids: Sequence[UUID]) -> dict[UUID, str]:
    return {row["id"]: row["handle"] for row in await tx.fetch(SQL["handles"], ids)}


async def known_handles(tx: Tx, handles: Sequence[str]) -> set[str]:
    return {row["handle"] for row in await tx.fetch(SQL["known_handles"], handles)}


async def by_key_ids(tx: Tx, key_ids: Sequence[UUID]) -> dict[UUID, AgentRow]:
    return {row["key_id"]: record_of(AgentRow, row) for row in await tx.fetch(SQL["by_key_ids"], key_ids)}


async def by_former_key_ids(tx: Tx, key_ids: Sequence[UUID], now: datetime) -> dict[UUID, tuple[AgentRow, bytes]]:
    """Returns the agents of these former keys, and the keys, as far as they are still valid for requests."""
    rows = await tx.fetch(SQL["by_former_key_ids"], key_ids, now)
    return {row["former_key_id"]: (record_of(AgentRow, row), row["former_key"]) for row in rows}


async def valid_former_keys(tx: Tx, id: UUID, now: datetime) -> list[bytes]:
    return [row["public_key"] for row in await tx.fetch(SQL["valid_former_keys"], id, now)]


async def lock_keys(tx: Tx, key_ids: Sequence[UUID]) -> None:
    """Keeps other transactions from giving these keys to an agent, or taking them from one, until this one ends."""
    # In one order for all transactions, so that two of them cannot wait for each other.
    await tx.execute(SQL["lock_keys"], sorted({int.from_bytes(key.bytes[:8], "big", signed=True) for key in key_ids}))


async def ever_used(tx: Tx, public_key: bytes) -> bool:
    """Whether a key is or was an agent's; the answer stays true while the key is locked."""
    return bool(await tx.fetchval(SQL["ever_used"], public_key))


async def replace_key(
    tx: Tx, agent: AgentRow, public_key: bytes, key_id: UUID, replaced_at: datetime, valid_until: datetime
) -> AgentRow:
    await tx.execute(SQL["keep_former_key"], agent.key_id, agent.public_key, agent.id, replaced_at, valid_until)
    row = await tx.fetchrow(SQL["replace_key"], agent.id, public_key, key_id, replaced_at)
    assert row is not None, "the caller has locked the agent"
    return record_of(AgentRow, row)


async def end_former_keys(tx: Tx, id: UUID) -> None:
    await tx.execute(SQL["end_former_keys"], id)


async def by_handle(tx: Tx, handle: str) -> AgentRow | None:
    return _agent(await tx.fetchrow(SQL["by_handle"], handle))


async def claim_handle(tx: Tx, id: UUID, handle: str, now: datetime) -> AgentRow | None:
    return _agent(await tx.fetchrow(SQL["claim_handle"], id, handle, now))


async def update(
    tx: Tx, id: UUID, name: str | None, email: str | None, aicq_signatures: bool | None, now: datetime
) -> AgentRow | None:
    return _agent(await tx.fetchrow(SQL["update"], id, name, email, aicq_signatures, now))


async def list_agents(
    tx: Tx, since: datetime | None, until: datetime | None, after: tuple[datetime, UUID] | None, limit: int
) -> tuple[list[AgentRow], int]:
    at, id_ = after or (None, None)
    rows = await tx.fetch(SQL["list"], since, until, at, id_, limit)
    return [record_of(AgentRow, row) for row in rows], int(await tx.fetchval(SQL["count"], since, until))


async def named(
    tx: Tx,
    name: str,
    since: datetime | None,
    until: datetime | None,
    after: tuple[datetime, UUID] | None,
    limit: int,
) -> tuple[list[AgentRow], int]:
    """Agents of a name, and then those whose name begins with it."""
    at, id_ = after or (None, None)
    pattern = re.sub(r"([\\%_])", r"\\\1", name) + "%"
    rows = await tx.fetch(SQL["named"], name, pattern, at, id_, since, until, limit)
    return [record_of(AgentRow, row) for row in rows], int(await tx.fetchval(SQL["count_named"], pattern, since, until))


async def block(tx: Tx, id: UUID, blocked: UUID, at: datetime) -> bool:
    """Blocks an agent. Returns whether it was not blocked before."""
    return await tx.fetchval(SQL["block"], id, blocked, at) is not None


async def unblock(tx: Tx, id: UUID, blocked: UUID) -> bool:
    """Unblocks an agent. Returns whether it was blocked."""
    return await tx.fetchval(SQL["unblock"], id, blocked) is not None


async def count_blocks(tx: Tx, id: UUID) -> int:
    return int(await tx.fetchval(SQL["count_blocks"], id))


async def blocks(tx: Tx, id: UUID, after: tuple[datetime, UUID] | None, limit: int) -> list[BlockedAgent]:
    at, blocked = after or (None, None)
    rows = await tx.fetch(SQL["blocks"], id, at, blocked, limit)
    return [BlockedAgent(row["blocked_id"], row["handle"], row["blocked_at"]) for row in rows]


async def blocked(tx: Tx, pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns those of the pairs (sender, recipient) whose recipient has blocked the sender."""
    rows = await tx.fetch(SQL["blocked"], *columns(pairs, 2))
    return {(row["sender"], row["recipient"]) for row in rows}


def _agent(row: Row | None) -> AgentRow | None:
    return None if row is None else record_of(AgentRow, row)


async def names(tx: Tx, ids: Collection[UUID]) -> dict[UUID, str]:
    return {row["id"]: row["name"] for row in await tx.fetch(SQL["names"], list(ids))}


async def count(tx: Tx) -> int:
    return int(await tx.fetchval(SQL["count"], None, None))
