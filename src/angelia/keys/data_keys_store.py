"""Every SQL statement about data keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__, "data_keys.sql")


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key as the ledger has it, encrypted by the master key."""

    purpose: str
    key_id: UUID
    wrapped_key: bytes = field(repr=False)
    master_key_id: str


async def lock(tx: Tx) -> None:
    """Keeps other writers of data keys waiting until the transaction ends."""
    await tx.execute(SQL["lock"])


async def lock_master_key(tx: Tx) -> None:
    """Keeps other servers away from the file of the master key until the transaction ends."""
    await tx.execute(SQL["lock_master_key"])


async def active(tx: Tx, purpose: str) -> tuple[WrappedKey, str | None] | None:
    """The active key of a purpose, and the id of the present transaction, if it has one."""
    row = await tx.fetchrow(SQL["active"], purpose)
    return None if row is None else (record_of(WrappedKey, row), row["xid"])


async def by_id(tx: Tx, key_id: UUID) -> WrappedKey | None:
    row = await tx.fetchrow(SQL["by_id"], key_id)
    return None if row is None else record_of(WrappedKey, row)


async def all_keys(tx: Tx) -> list[WrappedKey]:
    return [record_of(WrappedKey, row) for row in await tx.fetch(SQL["all"])]


async def master_keys(tx: Tx) -> set[str]:
    """The ids of the master keys that wrap the data keys: one, or none if there are no data keys."""
    return {row["master_key_id"] for row in await tx.fetch(SQL["master_keys"])}


async def add(tx: Tx, key: WrappedKey, now: datetime) -> str:
    """Makes a key the active one of its purpose. Returns the id of the present transaction."""
    await tx.execute(SQL["retire"], key.purpose)
    made_by: str = await tx.fetchval(SQL["add"], key.purpose, key.key_id, key.wrapped_key, key.master_key_id, now)
    return made_by


async def reserve(tx: Tx, key_id: UUID, uses: int, most: int) -> bool:
    """Counts encryptions before they happen. False if the key would pass `most`, or is not active any more."""
    found: bool | None = await tx.fetchval(SQL["reserve"], key_id, uses, most)
    return found is not None


async def rewrap(tx: Tx, keys: Sequence[WrappedKey], wrapped: Sequence[bytes], master_key_id: str) -> None:
    await tx.execute(SQL["rewrap"], [key.key_id for key in keys], wrapped, master_key_id)
