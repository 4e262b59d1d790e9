"""The rotation of data keys: by an operator, and by itself before a key has encrypted too much."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from angelia.keys import data_keys_store as store
from angelia.keys.field_encryption import DataKey, Fields
from angelia.keys.model import DataKeyPurpose
from angelia.stores.ledger import Ledger, Tx

# Nonces of 12 random bytes are safe for 2^32 encryptions by one key. It is replaced before 2^31: batches may go beyond
# what their process reserved.
MOST_USES = (1 << 31) - (1 << 24)
# How many encryptions a process reserves at once. Those that it does not come to, because it ends, count as done.
RESERVED_AT_ONCE = 1 << 20


class DataKeys:
    """The data keys of a ledger, for operators."""

    def __init__(self, ledger: Ledger, fields: Fields) -> None:
        self._ledger = ledger
        self._fields = fields

    async def rotate(self, purpose: DataKeyPurpose, now: datetime, by: str) -> UUID:
        """Makes a new active key and returns its id. All processes encrypt by it within ACTIVE_FOR; nothing that is
        stored is encrypted again."""
        async with self._ledger.transaction() as tx:
            return await self._fields.rotate_data_key(tx, purpose, now, by)


class CountedKey:
    """The active data key of a purpose, for batches. Encryptions are counted in the ledger before they happen, so that
    no crash loses count, and the key is replaced when MOST_USES are reached."""

    def __init__(self, ledger: Ledger, fields: Fields, purpose: DataKeyPurpose) -> None:
        self._ledger = ledger
        self._fields = fields
        self._purpose = purpose
        self._key: DataKey | None = None
        self._left = 0  # of what is reserved; below 0 if batches took more than that since
        self._renewing = asyncio.Lock()

    @property
    def key_id(self) -> UUID | None:
        return None if self._key is None else self._key.key_id

    async def ready(self, now: datetime) -> None:
        """To be awaited before batches: the key is the active one of the last ACTIVE_FOR, and encryptions are
        reserved. Raises KeyRefused or CorruptRecord if no key can be had."""
        if self._is_ready(now):
            return
        async with self._renewing:
            if not self._is_ready(now):
                await self._renew(now)

    def encrypt_batch(self, bound: Iterable[bytes], plaintexts: Sequence[bytes]) -> tuple[UUID, list[bytes]]:
        """Returns the key's id, and nonce, ciphertext and tag of each plaintext."""
        assert self._key is not None, "ready() comes first"
        self._left -= len(plaintexts)
        return self._key.key_id, self._key.encrypt_batch(bound, plaintexts)

    def _is_ready(self, now: datetime) -> bool:
        known = self._fields.known_active(self._purpose, now)
        return known is not None and known is self._key and self._left >= RESERVED_AT_ONCE // 2

    async def _renew(self, now: datetime) -> None:
        async with self._ledger.transaction() as tx:
            key = await self._fields.active(tx, self._purpose, now)
            reserved = await self._reserve(tx, key)
        if reserved is None:
            async with self._ledger.transaction() as tx:
                # Of several processes, the first makes the new key, and the others find it after they waited here.
                await store.lock(tx)
                key = await self._fields.active(tx, self._purpose, now)
                reserved = await self._reserve(tx, key)
                if reserved is None:
                    await self._fields.rotate_data_key(tx, self._purpose, now)
                    key = await self._fields.active(tx, self._purpose, now)
                    reserved = await self._reserve(tx, key)
                    assert reserved is not None, "a new key has encrypted nothing"
        # After the commit: a key or a reservation that was rolled back is none. Batches may have gone on meanwhile.
        self._left = reserved + (self._left if key is self._key else 0)
        self._key = key

    async def _reserve(self, tx: Tx, key: DataKey) -> int | None:
        """How many encryptions were reserved, 0 if none are needed; None if the key must be replaced."""
        left = self._left if key is self._key else 0
        if left >= RESERVED_AT_ONCE // 2:
            return 0
        uses = RESERVED_AT_ONCE - min(left, 0)
        return uses if await store.reserve(tx, key.key_id, uses, MOST_USES) else None
