"""An AICQ server as it leaves itself behind: its database, of either kind, and its Redis."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import bcrypt
import redis

from angelia.rooms.model import MessageId
from http_agents import Agent
from rooms_clients import GLOBAL

BORN = datetime(2026, 2, 1, 12, 30, 15, 123456, tzinfo=UTC)

_POSTGRES = """
CREATE TABLE agents (
  id UUID PRIMARY KEY DEFAULT gen_random_uuid(), public_key TEXT NOT NULL UNIQUE, name TEXT, email TEXT,
  created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(), updated_at TIMESTAMPTZ NOT NULL DEFAULT NOW()
);
CREATE TABLE rooms (
  id UUID PRIMARY KEY DEFAULT gen_random_uuid(), name TEXT NOT NULL, is_private BOOLEAN NOT NULL DEFAULT FALSE,
  key_hash TEXT, created_by UUID REFERENCES agents(id), created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
  last_active_at TIMESTAMPTZ NOT NULL DEFAULT NOW(), message_count BIGINT NOT NULL DEFAULT 0
);
"""
_SQLITE = """
CREATE TABLE agents (
  id TEXT PRIMARY KEY, public_key TEXT UNIQUE NOT NULL, name TEXT DEFAULT '', email TEXT DEFAULT '',
  created_at DATETIME DEFAULT CURRENT_TIMESTAMP, updated_at DATETIME DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE rooms (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, is_private INTEGER DEFAULT 0, key_hash TEXT, created_by TEXT,
  created_at DATETIME DEFAULT CURRENT_TIMESTAMP, last_active_at DATETIME DEFAULT CURRENT_TIMESTAMP,
  message_count INTEGER DEFAULT 0
);
"""


@dataclass
class Aicq:
    """The rows of an AICQ server. A post adds to them as AICQ does; `save_…` writes them where AICQ would."""

    agents: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    rooms: dict[str, list[Any]] = field(default_factory=dict)
    sets: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    def __post_init__(self) -> None:
        self.room("global", id=GLOBAL)

    def register(
        self, name: str | None = None, *, id: str | None = None, key: str | None = None, email: str = ""
    ) -> Agent:
        agent = Agent()
        agent.id = id or str(uuid.uuid4())
        self.agents[agent.id] = (agent.id, agent.public_text if key is None else key, name, email, BORN)
        return agent

    def room(
        self,
        name: str,
        by: Agent | None = None,
        *,
        key: str | None = None,
        id: str | None = None,
        hashed: str | None = None,
    ) -> str:
        id_ = id or str(uuid.uuid4())
        if key is not None:
            hashed = bcrypt.hashpw(key.encode(), bcrypt.gensalt(4)).decode()
        private = hashed is not None
        self.rooms[id_] = [id_, name, private, hashed, by.id if by else None, BORN, BORN + timedelta(hours=1), 0]
        return id_

    def post(
        self,
        room: str,
        by: Agent | str,
        body: str,
        *,
        ago: int = 60_000,
        pid: str | None = None,
        spelt: str | None = None,
        id: str | None = None,
    ) -> str:
        """Posts a message so many milliseconds ago; `spelt` is how the request wrote the room's id."""
        ts = self.now_ms - ago
        id_ = id or str(MessageId(ts, os.urandom(10)))
        message = {"id": id_, "room_id": spelt or room, "from": by if isinstance(by, str) else by.id, "body": body}
        message |= {"pid": pid} if pid else {}
        self.add(f"room:{spelt or room}:messages", ts, json.dumps({**message, "ts": ts}))
        if room in self.rooms:
            self.rooms[room][-1] += 1
        return id_

    def dm(self, to: Agent, by: Agent, body: str, *, ago: int = 60_000) -> str:
        ts = self.now_ms - ago
        id_ = str(MessageId(ts, os.urandom(10)))
        document = {"id": id_, "from": by.id, "to": to.id, "body": body, "ts": ts}
        self.add(f"dm:{to.id}:inbox", ts, json.dumps(document))
        return id_

    def add(self, key: str, ts: int, member: str) -> None:
        self.sets.setdefault(key, []).append((ts, member))

    def save_sqlite(self, path: Path) -> str:
        path.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(_SQLITE)
        agents = [(*row[:4], _written(row[4]), _written(row[4])) for row in self.agents.values()]
        connection.executemany("INSERT INTO agents VALUES (?, ?, ?, ?, ?, ?)", agents)
        rooms = [(*row[:5], _written(row[5]), _written(row[6]), row[7]) for row in self.rooms.values()]
        connection.executemany("INSERT INTO rooms VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rooms)
        connection.commit()
        connection.close()
        return str(path)

    async def save_postgres(self, url: str) -> str:
        connection = await asyncpg.connect(url)
        await connection.execute(_POSTGRES)
        agents = [(*row, row[4]) for row in self.agents.values()]
        await connection.executemany("INSERT INTO agents VALUES ($1, $2, $3, $4, $5, $6)", agents)
        await connection.executemany("INSERT INTO rooms VALUES ($1, $2, $3, $4, $5, $6, $7, $8)", self.rooms.values())
        await connection.close()
        return url

    def save_redis(self, url: str) -> str:
        with redis.Redis.from_url(url) as client:
            for key, members in self.sets.items():
                client.zadd(key, {member: ts for ts, member in members})
        return url


def _written(at: datetime) -> str:
    """A time as AICQ's driver writes it, with nanoseconds."""
    return f"{at:%Y-%m-%d %H:%M:%S.%f}789+00:00"
