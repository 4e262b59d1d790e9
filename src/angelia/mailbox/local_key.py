"""Contents and private keys in the database are encrypted under the agent's local key, each bound to its row."""

from __future__ import annotations

import os
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.mailbox.database import BrokenDatabase

NONCE = 12


class Kept(NamedTuple):
    """Encrypted bytes, as two columns of a row."""

    nonce: bytes
    content: bytes


class LocalKey:
    """AES-256-GCM with a fresh nonce; table and row id are authenticated, so that no row passes for another."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def encrypt(self, table: str, row: str, plain: bytes) -> Kept:
        nonce = os.urandom(NONCE)
        return Kept(nonce, self._cipher.encrypt(nonce, plain, _bound_to(table, row)))

    def decrypt(self, table: str, row: str, nonce: bytes, content: bytes) -> bytes:
        try:
            return self._cipher.decrypt(nonce, content, _bound_to(table, row))
        except InvalidTag as error:
            raise BrokenDatabase(
                f"a row of {table} does not open with this agent's local key",
                hint="key file and mailbox belong together: put both back from the same back-up",
            ) from error


def _bound_to(table: str, row: str) -> bytes:
    return f"{table}\0{row}".encode("ascii")
