"""Message contents and private keys in the database are encrypted under the agent's local key, each bound to its row.

An emergency rotation replaces that key too. Both keys are in the key file until every row is under the new one:

    the key file gets `next.local`     then the database names it, and new rows are encrypted under it
    rows are encrypted again, in batches     then the key file promotes `next.local`, and the old key is gone

A crash anywhere leaves rows under two keys that are both in the key file; the replacement starts again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.mailbox.database import BrokenDatabase, MailboxDatabase
from angelia.mailbox.keyfile import LOCAL, NEXT, Seeds

NONCE = 12
# The tables with columns under the local key, and the statements that read and write these columns.
TABLES = {
    "inbox": ("inbox_sealed", "inbox_seal_again"),
    "outbox": ("outbox_sealed", "outbox_seal_again"),
    "kem_keys": ("kem_keys_sealed", "kem_keys_seal_again"),
    "channel_keys": ("channel_keys_sealed", "channel_keys_seal_again"),
    "log_keys": ("log_keys_sealed", "log_keys_seal_again"),
}
_NAMED = "local_key"
_TOGETHER = 100  # rows of one transaction: other processes wait no longer than that


class LocalKey:
    """AES-256-GCM with a fresh nonce; table and row id are authenticated, so that no row passes for another.

    `reread` returns the seeds of the key file as it is now: another process may have replaced the key."""

    def __init__(self, database: MailboxDatabase, seeds: Seeds, reread: Callable[[], Seeds]) -> None:
        self._database = database
        self._reread = reread
        self._ciphers: dict[str, AESGCM] = {}
        self.load_seeds(seeds)

    def load_seeds(self, seeds: Seeds) -> None:
        """Takes over the keys of the key file as it is now."""
        keys = [seeds[name] for name in (LOCAL, NEXT + LOCAL) if name in seeds]
        self._ciphers = {_id(key): AESGCM(key) for key in keys}
        self._first = _id(seeds[LOCAL])

    def encrypt(self, table: str, row: str, plain: bytes) -> tuple[bytes, bytes]:
        """Encrypts for a row, and returns its columns nonce and content. Called inside the transaction that writes it,
        so that the key is the one that the database names."""
        nonce = os.urandom(NONCE)
        return nonce, self._present().encrypt(nonce, plain, _bound_to(table, row))

    def decrypt(self, table: str, row: str, nonce: bytes, content: bytes) -> bytes:
        opened = self._opened(nonce, content, _bound_to(table, row))
        if opened is None:
            self.load_seeds(self._reread())
            opened = self._opened(nonce, content, _bound_to(table, row))
        if opened is None:
            raise _not_ours(table)
        return opened

    def check(self) -> None:
        """Raises if the key file does not belong to this mailbox."""
        self._present()

    def replace(self, seeds: Seeds) -> None:
        """Encrypts every row again, under `next.local` of the seeds. A row that cannot be decrypted stays as it is: it
        must not keep the others under a key that may be stolen."""
        self.load_seeds(seeds)
        self.check()
        self._database.write("write_meta", _NAMED, _id(seeds[NEXT + LOCAL]))
        for table in TABLES:
            after = ""
            while (last := self._sealed_again(table, after)) is not None:
                after = last

    def unreadable(self) -> Iterator[tuple[str, str]]:
        """Yields table and key of every row that cannot be decrypted."""
        for table, (read, _) in TABLES.items():
            after = ""
            while found := self._database.rows(read, after, _TOGETHER):
                after = str(found[-1][0])
                for key, bound, nonce, content in found:
                    try:
                        self.decrypt(table, bound, nonce, content)
                    except BrokenDatabase:
                        yield table, str(key)

    def _sealed_again(self, table: str, after: str) -> str | None:
        """Encrypts the next rows of a table again; returns the key of the last one, or None if there are no more."""
        read, write = TABLES[table]
        with self._database.transaction() as tx:
            found = tx.rows(read, after, _TOGETHER)
            for key, bound, nonce, content in found:
                try:
                    plain = self.decrypt(table, bound, nonce, content)
                except BrokenDatabase:
                    continue
                tx.write(write, *self.encrypt(table, bound, plain), key)
        return str(found[-1][0]) if found else None

    def _present(self) -> AESGCM:
        named = self._database.meta(_NAMED) or self._first
        if named not in self._ciphers:
            self.load_seeds(self._reread())
        if named not in self._ciphers:
            raise _not_ours("the mailbox")
        return self._ciphers[named]

    def _opened(self, nonce: bytes, content: bytes, bound_to: bytes) -> bytes | None:
        for cipher in self._ciphers.values():
            try:
                return cipher.decrypt(nonce, content, bound_to)
            except InvalidTag:
                continue
        return None


def _not_ours(table: str) -> BrokenDatabase:
    return BrokenDatabase(
        f"a row of {table} does not open with this agent's local key",
        hint="key file and mailbox belong together: put both back from the same back-up",
    )


def _id(key: bytes) -> str:
    """Returns the id of a local key in the database: a hash, which does not reveal the key."""
    return hashlib.sha256(b"angelia/v1/local-key-id\0" + key).hexdigest()


def _bound_to(table: str, row: str) -> bytes:
    return f"{table}\0{row}".encode("ascii")
