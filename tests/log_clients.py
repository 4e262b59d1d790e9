"""Members of group logs over HTTP: each call is signed as a device signs it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.api.request_verifier import RequestVerifier
from angelia.envelope.json_form import to_text
from angelia.grouplog import routes
from angelia.grouplog.model import frames
from angelia.grouplog.model.frames import MEDIA, Backfill, End, FrameReader, Hello, LogMessage, Result, Status, Type
from angelia.grouplog.model.ids import base58, sender_id
from angelia.grouplog.model.records import Record
from angelia.grouplog.roster_guard import Nonces, RosterGuard
from angelia.http.edge import Edge
from grouplog.open_logs import Log
from http_agents import HOST, Agent

NODE = to_text(Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw())


def new_group() -> bytes:
    return secrets.token_bytes(32)


def roster_of(*agents: Agent, admins: int = 1) -> list[dict[str, Any]]:
    """The first agents are admins."""
    return [
        {"binding": number + 1, "public_key": to_text(agent.public_key), "admin": number < admins}
        for number, agent in enumerate(agents)
    ]


class LogClient:
    """One member of one group on one node."""

    def __init__(self, client: httpx.AsyncClient, agent: Agent, group: bytes, binding: int = 1) -> None:
        self.client = client
        self.agent = agent
        self.group = group
        self.path = f"/v1/groups/{base58(group)}"
        self.sender = sender_id(group, agent.public_key, binding)
        self._authority = client.headers.get("host") or client.base_url.netloc.decode()

    async def call(
        self, method: str, path: str, body: bytes | None = None, media: str = "application/json", **how: Any
    ) -> httpx.Response:
        """Sends a signed request. `path` is behind that of the group, unless it begins with /v1."""
        url = path if path.startswith("/v1") else self.path + path
        headers = self._headers(method, url, body or b"", media, **how)
        return await self.client.request(method, url, content=body, headers=headers)

    def _headers(self, method: str, url: str, body: bytes, media: str, **how: Any) -> dict[str, str]:
        more = how.pop("headers", {})
        signed = self.agent.signed(method, url, body, authority=self._authority, **how)
        return {**signed, **({"content-type": media} if body else {}), **more}

    async def create(
        self,
        roster: Sequence[Mapping[str, Any]] | None = None,
        nodes: Sequence[Mapping[str, str]] | None = None,
        config: Mapping[str, int] | None = None,
        **how: Any,
    ) -> httpx.Response:
        body = {
            "group": base58(self.group),
            "roster": roster or roster_of(self.agent),
            "nodes": nodes or [{"id": NODE, "url": "http://node.example"}],
            "config": {"min_copies": 1} if config is None else config,
        }
        return await self.call("POST", "/v1/groups", json.dumps(body).encode(), **how)

    async def append(self, *messages: LogMessage, **how: Any) -> httpx.Response:
        body = b"".join(message.encode() for message in messages)
        return await self.call("POST", "/messages", body, MEDIA, **how)

    def message(self, seq: int, data: bytes = b"data", level: int = 0) -> LogMessage:
        return LogMessage(self.sender, seq, Record(level, data).encode())

    async def statuses(self, *messages: LogMessage) -> list[Status]:
        answer = await self.append(*messages)
        assert answer.status_code == 200, answer.text
        return [Result.decode(body).status for body in frames.split(answer.content, Type.RESULT, 256)]

    async def backfill(self, hello: Hello | None = None, **page: Any) -> tuple[list[LogMessage], End]:
        answer = await self.call("POST", "/backfill", Backfill(hello or Hello({}, {}), **page).encode(), MEDIA)
        assert answer.status_code == 200, answer.text
        *rows, (_, end) = FrameReader().feed(answer.content)
        return [LogMessage.decode(body) for type_, body in rows if type_ == Type.MESSAGE], End.decode(end)

    async def held(self) -> set[tuple[bytes, int]]:
        """The ids of all that the node has of the group."""
        found: set[tuple[bytes, int]] = set()
        cursor = b""
        while True:
            messages, end = await self.backfill(limit=5_000, max_bytes=16 << 20, cursor=cursor)
            found |= {(message.sender, message.seq) for message in messages}
            if not end.has_more:
                return found
            cursor = end.cursor

    @asynccontextmanager
    async def subscribed(self, hello: Hello | None = None) -> AsyncIterator[AsyncIterator[tuple[int, bytes]]]:
        """The frames of a subscription, as they come."""
        url, body = f"{self.path}/subscribe", (hello or Hello({}, {})).encode()
        headers = self._headers("POST", url, body, MEDIA)
        async with self.client.stream("POST", url, content=body, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield _frames(answer)


async def _frames(answer: httpx.Response) -> AsyncIterator[tuple[int, bytes]]:
    reader = FrameReader()
    async for part in answer.aiter_raw():
        for frame in reader.feed(part):
            yield frame


def agent_of(number: int) -> Agent:
    """The member of an open log, as a client of it over HTTP."""
    return Agent(hashlib.sha256(b"member %d" % number).digest())


def edge_of_log(log: Log, *, token: str | None = None, began_ms: int | None = None) -> Edge:
    """The HTTP surface of an open log. Its memory of nonces began now, or at the time that is given."""
    verifier = RequestVerifier(
        public_url=None, host="127.0.0.1", port=8080, loopback=True, past_seconds=60, ahead_seconds=5
    )
    guard = RosterGuard(log.spool.groups, verifier, token)
    if began_ms is not None:
        guard._nonces = Nonces(began_ms)
    handlers = routes.routes(log.service, log.node.public)
    return Edge(handlers, guard, open_mode=token is None, loopback=True, proxies=())


@asynccontextmanager
async def served(log: Log, *, token: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an open log, whose node has run for long."""
    transport = httpx.ASGITransport(edge_of_log(log, token=token, began_ms=0))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        yield client
