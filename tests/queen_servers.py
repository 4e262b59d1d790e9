"""A Queen as it leaves itself behind: the tables of version 0.15 in a PostgreSQL, as far as an import reads them."""

from __future__ import annotations

import base64
import json
import os
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

BORN = datetime(2026, 11, 1, 12, tzinfo=UTC)
NOTHING = UUID(int=0)
QUEEN_TABLES = """
CREATE SCHEMA queen;
CREATE TABLE queen.queues (
  id UUID PRIMARY KEY, name VARCHAR(255) UNIQUE NOT NULL, namespace VARCHAR(255), task VARCHAR(255),
  priority INTEGER DEFAULT 0, lease_time INTEGER DEFAULT 300, retry_limit INTEGER DEFAULT 3,
  retry_delay INTEGER DEFAULT 1000, ttl INTEGER DEFAULT 3600, dead_letter_queue BOOLEAN DEFAULT false,
  dlq_after_max_retries BOOLEAN DEFAULT false, delayed_processing INTEGER DEFAULT 0, window_buffer INTEGER DEFAULT 0,
  retention_seconds INTEGER DEFAULT 0, completed_retention_seconds INTEGER DEFAULT 0,
  retention_enabled BOOLEAN DEFAULT false, encryption_enabled BOOLEAN DEFAULT false,
  max_wait_time_seconds INTEGER DEFAULT 0, max_queue_size INTEGER DEFAULT 0, created_at TIMESTAMPTZ DEFAULT now()
);
CREATE TABLE queen.partitions (
  id UUID PRIMARY KEY, queue_id UUID REFERENCES queen.queues ON DELETE CASCADE, name VARCHAR(255) NOT NULL,
  created_at TIMESTAMPTZ DEFAULT now(), last_activity TIMESTAMPTZ DEFAULT now(), UNIQUE (queue_id, name)
);
CREATE TABLE queen.messages (
  id UUID PRIMARY KEY, transaction_id VARCHAR(255) NOT NULL, trace_id UUID,
  partition_id UUID REFERENCES queen.partitions ON DELETE CASCADE, payload JSONB NOT NULL,
  created_at TIMESTAMPTZ DEFAULT now(), is_encrypted BOOLEAN DEFAULT false, producer_sub TEXT,
  UNIQUE (partition_id, transaction_id)
);
CREATE INDEX ON queen.messages (partition_id, created_at, id);
CREATE TABLE queen.partition_consumers (
  id UUID PRIMARY KEY DEFAULT gen_random_uuid(), partition_id UUID REFERENCES queen.partitions ON DELETE CASCADE,
  consumer_group VARCHAR(255) DEFAULT '__QUEUE_MODE__',
  last_consumed_id UUID DEFAULT '00000000-0000-0000-0000-000000000000', last_consumed_created_at TIMESTAMPTZ,
  total_messages_consumed BIGINT DEFAULT 0, batch_retry_count INTEGER DEFAULT 0, created_at TIMESTAMPTZ DEFAULT now(),
  UNIQUE (partition_id, consumer_group)
);
CREATE TABLE queen.consumer_groups_metadata (
  id UUID PRIMARY KEY DEFAULT gen_random_uuid(), consumer_group TEXT NOT NULL, queue_name TEXT NOT NULL DEFAULT '',
  partition_name TEXT NOT NULL DEFAULT '', namespace TEXT NOT NULL DEFAULT '', task TEXT NOT NULL DEFAULT '',
  subscription_mode TEXT NOT NULL, subscription_timestamp TIMESTAMPTZ NOT NULL,
  created_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE TABLE queen.dead_letter_queue (
  id UUID PRIMARY KEY, message_id UUID REFERENCES queen.messages ON DELETE CASCADE,
  partition_id UUID REFERENCES queen.partitions ON DELETE CASCADE, consumer_group VARCHAR(255), error_message TEXT,
  retry_count INTEGER DEFAULT 0, original_created_at TIMESTAMPTZ, failed_at TIMESTAMPTZ DEFAULT now()
);
"""


@dataclass
class Queen:
    """A Queen's tables over one connection. Each message is pushed a second after the one before."""

    connection: asyncpg.Connection
    url: str
    at: datetime = BORN
    places: dict[tuple[str, str], UUID] = field(default_factory=dict)

    @classmethod
    async def open(cls, url: str) -> Queen:
        connection = await asyncpg.connect(url)
        await connection.execute(QUEEN_TABLES)
        return cls(connection, url)

    async def queue(self, name: str, *partitions: str, **columns: Any) -> UUID:
        id_ = uuid.uuid4()
        columns = {"id": id_, "name": name, "created_at": BORN, **columns}
        places = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
        await self.connection.execute(
            f"INSERT INTO queen.queues ({', '.join(columns)}) VALUES ({places})",  # noqa: S608
            *columns.values(),
        )
        for partition in partitions or ("Default",):
            place = self.places[name, partition] = uuid.uuid4()
            await self.connection.execute(
                "INSERT INTO queen.partitions (id, queue_id, name, created_at) VALUES ($1, $2, $3, $4)",
                place, id_, partition, BORN,
            )  # fmt: skip
        return id_

    async def push(
        self,
        queue: str,
        *payloads: Any,
        partition: str = "Default",
        producer: str | None = None,
        key: bytes | None = None,
        apart: timedelta = timedelta(seconds=1),
        nonce_bytes: int = 12,
    ) -> list[UUID]:
        """Pushes messages, whose transaction ids are `t-` and a number. Returns their ids."""
        ids = []
        for payload in payloads:
            self.at += apart
            ids.append(uuid.uuid4())
            text = json.dumps(payload)
            await self.connection.execute(
                "INSERT INTO queen.messages (id, transaction_id, trace_id, partition_id, payload, created_at, "
                "is_encrypted, producer_sub) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                ids[-1], f"t-{payload}", ids[-1], self.places[queue, partition],
                text if key is None else encrypted(key, text, nonce_bytes), self.at, key is not None, producer,
            )  # fmt: skip
        return ids

    async def consume(self, message: UUID, group: str = "__QUEUE_MODE__", attempts: int = 0) -> None:
        """A consumer group has consumed a message and all before it."""
        await self.connection.execute(
            "INSERT INTO queen.partition_consumers (partition_id, consumer_group, last_consumed_id, "
            "last_consumed_created_at, batch_retry_count) SELECT partition_id, $2, id, created_at, $3 "
            "FROM queen.messages WHERE id = $1 ON CONFLICT (partition_id, consumer_group) DO UPDATE SET "
            "last_consumed_id = excluded.last_consumed_id, batch_retry_count = excluded.batch_retry_count, "
            "last_consumed_created_at = excluded.last_consumed_created_at",
            message, group, attempts,
        )  # fmt: skip

    async def subscribe(self, queue: str, group: str, mode: str, at: datetime) -> None:
        """A consumer group begins at a time."""
        await self.connection.execute(
            "INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_name, subscription_mode, "
            "subscription_timestamp, created_at) VALUES ($1, $2, $3, $4, $4)",
            group, queue, mode, at,
        )  # fmt: skip

    async def bury(self, message: UUID, group: str, error: str, at: datetime | None = None) -> None:
        """A message becomes a dead letter."""
        self.at += timedelta(seconds=1)
        await self.connection.execute(
            "INSERT INTO queen.dead_letter_queue (id, message_id, partition_id, consumer_group, error_message, "
            "retry_count, original_created_at, failed_at) SELECT $2, id, partition_id, $3, $4, 3, created_at, $5 "
            "FROM queen.messages WHERE id = $1",
            message, uuid.uuid4(), group, error, at or self.at,
        )  # fmt: skip


def encrypted(key: bytes, payload: str, nonce_bytes: int = 12) -> str:
    """A payload as Queen encrypts it: of an initialisation vector of 16 bytes, its server uses 12."""
    vector = os.urandom(16)
    sealed = AESGCM(key).encrypt(vector[:nonce_bytes], payload.encode(), None)
    parts = {"encrypted": sealed[:-16], "iv": vector, "authTag": sealed[-16:]}
    return json.dumps({name: base64.b64encode(part).decode() for name, part in parts.items()})
