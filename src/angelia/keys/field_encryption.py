"""Field encryption: fields that the server must read are encrypted by data keys, and those by the master key."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.audit.model import Detail
from angelia.audit.service import event, record
from angelia.errors import StartFailed
from angelia.keys import data_keys_store as store
from angelia.keys import master_key as master
from angelia.keys.data_keys_store import WrappedKey
from angelia.keys.master_key import KEY_BYTES, NONCE_BYTES, TAG_BYTES, CorruptRecord, KeyProvider, KeyRefused
from angelia.stores.ledger import Ledger, Tx

# How long a process may go on encrypting with a data key that has been replaced.
ACTIVE_FOR = timedelta(seconds=60)
_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """The field of the ledger that a ciphertext is bound to."""

    table: str
    row: bytes
    column: str

    def bound(self) -> bytes:
        return with_lengths(self.table.encode(), self.row, self.column.encode())


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key in the clear, for records whose key id is stored beside them. Its calls ask no store, so a whole batch is
    encrypted or decrypted without an await."""

    key_id: UUID
    cipher: AESGCM = field(repr=False, compare=False)

    @classmethod
    def of(cls, key_id: UUID, key: bytes) -> DataKey:
        return cls(key_id, AESGCM(key))

    def encrypt_batch(self, bound: Iterable[bytes], plaintexts: Sequence[bytes]) -> list[bytes]:
        """Returns nonce, ciphertext and tag of each plaintext, bound to the bytes of the same place in `bound`."""
        drawn, encrypt = os.urandom(NONCE_BYTES * len(plaintexts)), self.cipher.encrypt
        nonces = (drawn[at : at + NONCE_BYTES] for at in range(0, len(drawn), NONCE_BYTES))
        return [
            nonce + encrypt(nonce, plaintext, place)
            for nonce, plaintext, place in zip(nonces, plaintexts, bound, strict=True)
        ]

    def decrypt(self, bound: bytes, sealed: bytes) -> bytes:
        """Raises CorruptRecord if the ciphertext is damaged, of another key, or bound to other bytes."""
        if len(sealed) < NONCE_BYTES + TAG_BYTES:
            raise CorruptRecord
        try:
            return self.cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound)
        except InvalidTag:
            raise CorruptRecord from None


@dataclass(frozen=True, slots=True)
class _Active:
    """The active data key of a purpose, as it was read at a time."""

    key: DataKey
    seen: datetime


class Fields:
    """Encrypts and decrypts fields. Each data key is unwrapped once and kept in memory while the process runs."""

    def __init__(self, provider: KeyProvider) -> None:
        self._provider = provider
        self._keys: dict[UUID, DataKey] = {}
        self._active: dict[str, _Active] = {}
        # The data keys made here, with the transaction that made each, which may still roll back.
        self._made: dict[UUID, str] = {}

    async def encrypt(self, tx: Tx, purpose: str, place: FieldPlace, plaintext: bytes, now: datetime) -> bytes:
        """Returns data key id, nonce, ciphertext and tag. Makes the purpose's first data key in this transaction."""
        key = self.known_active(purpose, now) or await self.active(tx, purpose, now)
        (sealed,) = key.encrypt_batch([place.bound()], [plaintext])
        return key.key_id.bytes + sealed

    async def decrypt(self, tx: Tx, place: FieldPlace, sealed: bytes) -> bytes:
        """Returns the plaintext of a field. Raises CorruptRecord if the ciphertext is damaged or of another field."""
        if len(sealed) < _ID_BYTES + NONCE_BYTES + TAG_BYTES:
            raise CorruptRecord
        key = await self.by_id(tx, UUID(bytes=sealed[:_ID_BYTES]))
        return key.decrypt(place.bound(), sealed[_ID_BYTES:])

    async def by_id(self, tx: Tx, key_id: UUID) -> DataKey:
        """A data key, active or not. Raises CorruptRecord if there is none of that id, or it is damaged."""
        found = self._keys.get(key_id)
        if found is None:
            key = await store.by_id(tx, key_id)
            if key is None:
                raise CorruptRecord
            found = self._unwrapped(key)
        return found

    def known_active(self, purpose: str, now: datetime) -> DataKey | None:
        """The active data key of a purpose, if the ledger was asked for it within ACTIVE_FOR."""
        active = self._active.get(purpose)
        return None if active is None or abs(now - active.seen) >= ACTIVE_FOR else active.key

    async def active(self, tx: Tx, purpose: str, now: datetime) -> DataKey:
        """The active data key of a purpose by the ledger. The first one is made in this transaction, so only what is
        committed with it, or later, may be encrypted by it."""
        found = await store.active(tx, purpose)
        if found is None:
            await store.lock(tx)
            # Of two transactions that race here, the second finds the key of the first.
            found = await store.active(tx, purpose)
        if found is None:
            await self._make(tx, purpose, now)
            found = await store.active(tx, purpose)
            assert found is not None
        row, xid = found
        key = self._unwrapped(row)
        # Remembered only when committed: after a roll-back, fields encrypted by this key could never be read.
        made_by = self._made.get(key.key_id)
        if made_by is None or made_by != xid:
            self._made.pop(key.key_id, None)
            self._active[purpose] = _Active(key, now)
        return key

    async def rotate_data_key(self, tx: Tx, purpose: str, now: datetime, by: str = "angelia") -> UUID:
        """Makes a new active data key and returns its id. Fields encrypted by older ones stay readable.

        A purpose needs a new one before 2^32 encryptions: beyond that, random nonces of 12 bytes may repeat.
        """
        await store.lock(tx)
        before = await store.active(tx, purpose)
        key_id = await self._make(tx, purpose, now)
        self._active.pop(purpose, None)
        detail: Detail = {"from": None if before is None else str(before[0].key_id), "to": str(key_id)}
        await record(tx, [event("data_key_rotated", now, actor=by, object=purpose, detail=detail)])
        return key_id

    async def _make(self, tx: Tx, purpose: str, now: datetime) -> UUID:
        ours = self._provider.master_key_id()
        if await store.master_keys(tx) - {ours}:
            raise _foreign_master_key()
        key_id, data_key = uuid.uuid4(), os.urandom(KEY_BYTES)
        wrapped = self._provider.wrap(data_key, _context(purpose, key_id))
        self._made[key_id] = await store.add(tx, WrappedKey(purpose, key_id, wrapped, ours), now)
        return key_id

    def _unwrapped(self, key: WrappedKey) -> DataKey:
        found = self._keys.get(key.key_id)
        if found is None:
            if key.master_key_id != self._provider.master_key_id():
                raise _foreign_master_key()
            found = self._keys[key.key_id] = DataKey.of(key.key_id, _unwrap(self._provider, key))
        return found


async def settle_master_key(ledger: Ledger, path: Path, now: datetime, *, rotate: bool) -> None:
    """At the start, before anything is encrypted: makes the first master key, rotates it, or finishes a rotation that
    was interrupted.

    The next key is on disk before a row is wrapped by it, and replaces the present one after the rows are committed; so
    the master key that the rows name tells how far a rotation came.
    """
    async with ledger.lasting_transaction() as alone:
        await store.lock_master_key(alone)
        async with ledger.transaction() as tx:
            # A rotation whose server died may still be committing; its lock is waited for, and then the rows are final.
            await store.lock(tx)
            wrapped_by = await store.master_keys(tx)
        pending = master.find(master.next_of(path))
        if pending is not None and wrapped_by == {pending.master_key_id()}:
            master.promote(path)
            return
        present = master.find(path)
        if present is None:
            present = master.load(path) if wrapped_by else master.make(path)
        if wrapped_by - {present.master_key_id()}:
            raise StartFailed(
                f"{path} is not the master key that the ledger's data keys are wrapped by",
                hint="restore the right one from a back-up; servers that share a ledger need the same file",
            )
        if rotate or pending is not None:
            await _rewrap(ledger, present, path, now)
            master.promote(path)


async def _rewrap(ledger: Ledger, old: KeyProvider, path: Path, now: datetime) -> None:
    async with ledger.transaction() as tx:
        await store.lock(tx)
        keys = await store.all_keys(tx)
        data_keys = [_unwrap_at_start(old, key) for key in keys]
        # A next key that is there already is used: were it replaced, rows that it wraps could never be read.
        new = master.find(master.next_of(path)) or master.make(master.next_of(path))
        contexts = [_context(key.purpose, key.key_id) for key in keys]
        wrapped = [new.wrap(data_key, context) for data_key, context in zip(data_keys, contexts, strict=True)]
        await store.rewrap(tx, keys, wrapped, new.master_key_id())
        detail: Detail = {"from": old.master_key_id(), "to": new.master_key_id(), "data_keys": len(keys)}
        await record(tx, [event("master_key_rotated", now, actor="angelia", detail=detail)])


def _unwrap_at_start(provider: KeyProvider, key: WrappedKey) -> bytes:
    try:
        return _unwrap(provider, key)
    except CorruptRecord as error:
        raise StartFailed(
            f"the data key {key.key_id} ({key.purpose}) is damaged, so the master key cannot be rotated",
            hint="restore its row of data_keys from a back-up",
        ) from error


def _unwrap(provider: KeyProvider, key: WrappedKey) -> bytes:
    return provider.unwrap(key.wrapped_key, _context(key.purpose, key.key_id))


def _context(purpose: str, key_id: UUID) -> bytes:
    return with_lengths(purpose.encode(), key_id.bytes)


def with_lengths(*parts: bytes) -> bytes:
    """Parts as one text that only these parts make, each with its length in two bytes."""
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def _foreign_master_key() -> KeyRefused:
    return KeyRefused(
        "the data keys are wrapped by another master key than this server's",
        hint="give all servers of a ledger the same master key file, and start this one again",
    )
