"""Payloads of encrypted queues: AES-256-GCM, each bound to its queue, partition and message."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from angelia import metrics
from angelia.errors import AngeliaError
from angelia.keys.data_key_rotation import CountedKey
from angelia.keys.field_encryption import DataKey, Fields, with_lengths
from angelia.keys.master_key import CorruptRecord, KeyRefused
from angelia.keys.model import DataKeyPurpose
from angelia.queues.model import ChunkIds, Partition
from angelia.stores.ledger import Ledger

_ID_LABEL = b"angelia/v1/queue-key-id\0"
_ID_BYTES = 16
_ID_LENGTH = _ID_BYTES.to_bytes(2, "big")
_NULL = msgspec.Raw(b"null")


class EncryptionUnavailable(AngeliaError, code="encryption_unavailable"):
    """No key encrypts payloads at the moment"""


class Opener:
    """Decrypts payloads by one key."""

    def __init__(self, key: DataKey) -> None:
        self._key = key
        self._last: tuple[Partition, bytes] | None = None  # messages come by partition

    def open(self, partition: Partition, message_id: str, sealed: bytes) -> bytes:
        """Returns a payload. Raises CorruptRecord if it is damaged, or of another message, partition or queue."""
        if self._last is None or self._last[0] is not partition:
            self._last = partition, _place(partition)
        try:
            return self._key.decrypt(self._last[1] + bytes.fromhex(message_id.replace("-", "")), sealed)
        except CorruptRecord:
            metrics.QUEUE_ENCRYPTION_ERRORS.labels("decrypt").inc()
            raise


class Payloads:
    """Encrypts by the data key of queues, or by an own key of the operator in its place. Every key that encrypted
    payloads before decrypts them, except an own key that is not set any more."""

    def __init__(self, ledger: Ledger, fields: Fields, own_key: bytes | None) -> None:
        self._ledger = ledger
        self._fields = fields
        self._counted = CountedKey(ledger, fields, DataKeyPurpose.QUEUE)
        self._own = None if own_key is None else DataKey.of(_id_of(own_key), own_key)
        self._openers: dict[UUID, Opener] = {}

    @property
    def key_id(self) -> UUID | None:
        """The id of the key that encrypts new payloads; None if there was no need of one yet."""
        return self._counted.key_id if self._own is None else self._own.key_id

    async def ready(self, now: datetime) -> None:
        """To be awaited before payloads are sealed. Raises EncryptionUnavailable if no key can be had."""
        if self._own is not None:
            return
        try:
            await self._counted.ready(now)
        except (KeyRefused, CorruptRecord) as error:
            metrics.QUEUE_ENCRYPTION_ERRORS.labels("encrypt").inc()
            why = error.message if isinstance(error, KeyRefused) else "the data key of queues is damaged"
            hint = error.hint or "restore its row of data_keys, or `angelia key rotate-data queue` makes a new key"
            raise EncryptionUnavailable(why, hint=hint) from error

    def sealed(self, partition: Partition, ids: ChunkIds, payloads: Sequence[bytes]) -> tuple[UUID, list[bytes]]:
        """Returns the id of the key, and nonce, ciphertext and tag of each payload; message i has the id i of `ids`."""
        began = time.perf_counter()
        place, first = _place(partition), ids.first.int
        bound = (place + (first + number).to_bytes(_ID_BYTES, "big") for number in range(len(payloads)))
        if self._own is not None:
            key_id, sealed = self._own.key_id, self._own.encrypt_batch(bound, payloads)
        else:
            key_id, sealed = self._counted.encrypt_batch(bound, payloads)
        metrics.QUEUE_ENCRYPTION_SECONDS.observe(time.perf_counter() - began)
        return key_id, sealed

    async def opener(self, key_id: UUID) -> Opener:
        """What decrypts the payloads of a key. Raises CorruptRecord if there is no such key, Unavailable if it cannot
        be had at the moment."""
        found = self._openers.get(key_id)
        if found is None:
            found = self._openers[key_id] = Opener(await self._key(key_id))
        return found

    async def shown(
        self, partition: Partition | None, key_id: UUID | None, message_id: UUID, body: bytes
    ) -> msgspec.Raw:
        """A payload as operators see it: null if it cannot be decrypted, so that one such payload does not hide the
        rest of a list. Without a key id it is plain."""
        if key_id is None:
            return msgspec.Raw(body)
        if partition is None:  # what the payload is bound to was deleted
            return _NULL
        try:
            return msgspec.Raw((await self.opener(key_id)).open(partition, str(message_id), body))
        except (CorruptRecord, KeyRefused):
            return _NULL

    async def _key(self, key_id: UUID) -> DataKey:
        if self._own is not None and self._own.key_id == key_id:
            return self._own
        try:
            async with self._ledger.reading() as tx:
                return await self._fields.by_id(tx, key_id)
        except CorruptRecord as error:
            metrics.QUEUE_ENCRYPTION_ERRORS.labels("decrypt").inc()
            raise CorruptRecord(
                f"there is no key {key_id}, or it is damaged",
                hint="if it was queue_encryption_key, set that key again; else restore its row of data_keys",
            ) from error


def _id_of(own_key: bytes) -> UUID:
    """The id of an own key: the same for the same key, and it reveals nothing of it."""
    return UUID(bytes=hashlib.sha256(_ID_LABEL + own_key).digest()[:_ID_BYTES])


def _place(partition: Partition) -> bytes:
    """What a payload is bound to, up to its message id."""
    return with_lengths(partition.queue.name.encode(), partition.name.encode()) + _ID_LENGTH
