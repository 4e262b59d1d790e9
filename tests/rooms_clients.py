"""A client of rooms that sends what AICQ's Python client sends, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import httpx

from http_agents import Agent, Server

GLOBAL = "00000000-0000-0000-0000-000000000001"
KEY = "correct horse battery"


class RoomClient:
    """An agent with AICQ's headers."""

    def __init__(self, server: Server, agent: Agent) -> None:
        self.server = server
        self.agent = agent

    @classmethod
    async def registered(cls, server: Server, **profile: str) -> RoomClient:
        return cls(server, await server.register(**profile))

    @property
    def id(self) -> str:
        return self.agent.id

    async def ask(
        self, method: str, path: str, document: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> httpx.Response:
        """Sends a signed request; header names have underscores."""
        body = raw if raw is not None else b"" if document is None else json.dumps(document).encode()
        sent = self.agent.aicq(body) | {name.replace("_", "-"): value for name, value in headers.items()}
        if body:
            sent.setdefault("content-type", "application/json")
        return await self.server.client.request(method, path, content=body, headers=sent)

    async def create(self, name: str = "lounge", key: str | None = None) -> str:
        document = {"name": name} if key is None else {"name": name, "is_private": True, "key": key}
        answer = await self.ask("POST", "/room", document)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def post(self, room: str, body: str, pid: str | None = None, **headers: str) -> dict[str, Any]:
        document = {"body": body} if pid is None else {"body": body, "pid": pid}
        answer = await self.ask("POST", f"/room/{room}", document, **headers)
        assert answer.status_code == 201, answer.text
        posted: dict[str, Any] = answer.json()
        return posted

    async def read(self, room: str, query: str = "", **headers: str) -> dict[str, Any]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.server.client.get(f"/room/{room}{query}", headers=sent)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    async def find(self, query: str) -> list[str]:
        answer = await self.server.client.get("/find", params={"q": query})
        assert answer.status_code == 200, answer.text
        return [one["body"] for one in answer.json()["results"]]
