"""The agent's private KEM keys: the current and the next one in the key file, the others in the table `kem_keys`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPrivateKey, KemPublicKey
from angelia.keys.model import TYPE_NAMES
from angelia.mailbox.database import MailboxDatabase, MailboxTx
from angelia.mailbox.keyfile import NEXT, XWING, Seeds
from angelia.mailbox.local_key import LocalKey

_KINDS = {name: kind for kind, name in TYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class KeyringEntry:
    """A private key. A one-time key is destroyed together with the message that used it."""

    key: KemPrivateKey
    one_time: bool = False


class Keyring:
    """Finds the private key that an envelope was sealed to. Keys of the database are parsed anew each time, so that
    none stays in memory once it is destroyed."""

    def __init__(self, database: MailboxDatabase, local: LocalKey, seeds: Seeds) -> None:
        self._database = database
        self._local = local
        self._in_file: dict[UUID, KeyringEntry] = {}
        self.load_seeds(seeds)

    def load_seeds(self, seeds: Seeds) -> None:
        """Takes over the keys of the key file as it is now."""
        present = [seeds[name] for name in (XWING, NEXT + XWING) if name in seeds]
        keys = [KemPrivateKey.from_seed(KeyType.XWING, seed) for seed in present]
        self._in_file = {key.public.key_id: KeyringEntry(key) for key in keys}

    def find(self, key_id: UUID, now: datetime) -> KeyringEntry | None:
        if entry := self._in_file.get(key_id):
            return entry
        found = self._database.row("kem_key", key_id, now)
        if found is None:
            return None
        type_name, usage, nonce, sealed = found
        seed = self._local.decrypt("kem_keys", str(key_id), nonce, sealed)
        return KeyringEntry(KemPrivateKey.from_seed(_KINDS[type_name], seed), usage == "one_time")

    def make_separate(self, tx: MailboxTx, now: datetime) -> KemPublicKey:
        """Makes an ML-KEM key for suite 1, which has no place in the key file, and returns its public half."""
        key = KemPrivateKey.generate(KeyType.ML_KEM_768)
        self.store(tx, key, "signed", created_at=now)
        return key.public

    def store(
        self,
        tx: MailboxTx,
        key: KemPrivateKey,
        usage: str,
        *,
        created_at: datetime,
        rotated_at: datetime | None = None,
        destroy_at: datetime | None = None,
    ) -> None:
        """Stores a private key as a row: active, or in grace if it was rotated."""
        key_id = str(key.public.key_id)
        encrypted = self._local.encrypt("kem_keys", key_id, key.seed)
        tx.write(
            "put_kem_key",
            key_id,
            TYPE_NAMES[key.kind],
            usage,
            "active" if rotated_at is None else "grace",
            key.public.raw,
            *encrypted,
            created_at,
            rotated_at,
            destroy_at,
        )
