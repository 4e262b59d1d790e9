"""A stolen mailbox: the rows of its database, and those that a stolen local key opens."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from uuid import uuid4

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from angelia.envelope.sealing import ChannelKey, EpochKey
from angelia.mailbox.database import FILE
from angelia.mailbox.mailbox import Mailbox
from log_members import first_edition

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
CHANNEL = uuid4()
COLUMNS = {
    "inbox": ("replay_key", "body_nonce", "body"),
    "outbox": ("replay_key", "body_nonce", "body"),
    "kem_keys": ("key_id", "seed_nonce", "seed"),
    "channel_keys": ("key_id", "secret_nonce", "secret"),
    "log_keys": ("row_id", "secret_nonce", "secret"),
}

Send = Callable[..., bytes]


def sealed_rows(box: Mailbox) -> Iterator[tuple[str, str, bytes, bytes]]:
    """Returns everything in the database that a local key encrypts: table, bound data, nonce and content."""
    connection = sqlite3.connect(box.directory / FILE)
    for table, (key, nonce, content) in COLUMNS.items():
        query = f"SELECT {key}, {nonce}, {content} FROM {table} WHERE {content} IS NOT NULL"  # noqa: S608
        for row in connection.execute(query).fetchall():
            yield (table, *row)
    connection.close()


def opens(key: bytes, table: str, bound: str, nonce: bytes, content: bytes) -> bool:
    try:
        AESGCM(key).decrypt(nonce, content, f"{table}\0{bound}".encode())
    except InvalidTag:
        return False
    return True


def fill(box: Mailbox, send: Send) -> EpochKey:
    """Makes a row of every kind."""
    box.receive(send(body=b"kept in the inbox"), now=NOW)
    known = box.pinned_keys.bundle("alice", NOW)
    assert known is not None
    box.outbox.seal(known.bundle, b"kept in the outbox", now=NOW)
    box.own_keys.make_one_time_keys(3, NOW)
    key = EpochKey.generate()
    box.channels.keep(ChannelKey(CHANNEL, 1, key), "alice", NOW)
    epoch_key = EpochKey.generate()
    box.logs.publish(first_edition("team", [box], key=epoch_key), epoch_key, NOW)
    return key
