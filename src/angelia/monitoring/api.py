"""Operations for monitors and operators: /health, /healthz, /api, /metrics and /v1/settings."""

from __future__ import annotations

from datetime import datetime

import msgspec

from angelia.api import NOTHING, Access, Operation

TAG = "server"


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """One store's state: pass or fail."""

    status: str
    latency: str = ""
    message: str = ""


class Health(msgspec.Struct, frozen=True):
    """The state of the server: all fields that monitors of AICQ and of Queen read. `status` is healthy or degraded."""

    status: str
    version: str
    checks: dict[str, Check]
    timestamp: datetime
    database: str
    server: str
    worker_id: int


class Alive(msgspec.Struct, frozen=True):
    """The process is running."""

    status: str


class ServerName(msgspec.Struct, frozen=True):
    """Name and version, by which AICQ's tools recognise a server."""

    name: str
    version: str
    docs: str


class SettingLine(msgspec.Struct, frozen=True):
    """The effective value of a setting, and its origin; secrets are masked."""

    name: str
    value: str
    origin: str
    about: str


class SettingList(msgspec.Struct, frozen=True):
    """All settings."""

    settings: list[SettingLine]


HEALTH = Operation(
    TAG, "GET", "/health", Access.ANYONE, "State of the server and its stores", Health, statuses=(200, 503)
)
ALIVE = Operation(TAG, "GET", "/healthz", Access.ANYONE, "Whether the process lives", Alive)
NAME = Operation(TAG, "GET", "/api", Access.ANYONE, "Name and version", ServerName)
METRICS = Operation(
    TAG, "GET", "/metrics", Access.ANYONE, "Everything counted, as Prometheus text", NOTHING, media="text/plain"
)
METRICS_PROMETHEUS = Operation(
    TAG, "GET", "/metrics/prometheus", Access.ANYONE, "The same text", NOTHING, media="text/plain"
)
SETTINGS = Operation(TAG, "GET", "/v1/settings", Access.ADMIN, "Effective settings", SettingList)
