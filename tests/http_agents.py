"""HTTP for tests: keys, signed requests, and a client that sends exactly what a test says."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import redis.asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.api import http_signature
from angelia.envelope.ids import KeyType, key_id

HOST = "localhost:8080"


class Agent:
    """A key pair that signs requests, as a correct or a faulty client does."""

    authority = HOST  # the name of the server in signatures

    def __init__(self, seed: bytes | None = None) -> None:
        self.key = Ed25519PrivateKey.from_private_bytes(seed) if seed else Ed25519PrivateKey.generate()
        self.public_key = self.key.public_key().public_bytes_raw()
        self.public_text = base64.b64encode(self.public_key).decode()
        self.key_id = key_id(KeyType.ED25519, self.public_key)
        self.id = ""

    def signed(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        *,
        created: int | None = None,
        nonce: str | None = None,
        authority: str | None = None,
        keyid: UUID | None = None,
    ) -> dict[str, str]:
        parts = urlsplit(url)
        target = http_signature.Target(
            method, authority or self.authority, parts.path, parts.query, http_signature.digest(body)
        )
        headers = http_signature.sign(
            self.key,
            keyid or self.key_id,
            target,
            created=int(time.time()) if created is None else created,
            nonce=nonce or secrets.token_urlsafe(18),
        )
        if body:
            headers["content-type"] = "application/json"
        return headers

    def aicq(self, body: bytes = b"", *, nonce: str | None = None, at_ms: int | None = None) -> dict[str, str]:
        nonce = nonce or secrets.token_hex(12)
        at = str(int(time.time() * 1000) if at_ms is None else at_ms)
        text = f"{hashlib.sha256(body or b'{}').hexdigest()}|{nonce}|{at}"
        return {
            "x-aicq-agent": self.id,
            "x-aicq-nonce": nonce,
            "x-aicq-timestamp": at,
            "x-aicq-signature": base64.b64encode(self.key.sign(text.encode())).decode(),
        }


class Server:
    """An application in this process, and an HTTP client of it."""

    def __init__(self, application: Any, admin_token: str, database_url: str, redis_url: str) -> None:
        self.admin_token = admin_token
        self.database_url = database_url
        self.redis_url = redis_url
        self.application = application
        self.client = self.client_from("127.0.0.1")

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.aclose()

    def client_from(self, address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.application, client=(address, 50000))
        return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}")

    @property
    def admin(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.admin_token}"}

    async def request(self, method: str, url: str, **kwargs: Any) -> httpx.Response:
        return await self.client.request(method, url, **kwargs)

    async def get(self, url: str, **kwargs: Any) -> httpx.Response:
        return await self.client.get(url, **kwargs)

    async def post(self, url: str, **kwargs: Any) -> httpx.Response:
        return await self.client.post(url, **kwargs)

    async def send_signed(self, agent: Agent, method: str, url: str, body: bytes = b"", **how: Any) -> httpx.Response:
        headers = agent.signed(method, url, body, **how)
        return await self.client.request(method, url, content=body, headers=headers)

    async def register(self, agent: Agent | None = None, **extra: str) -> Agent:
        agent = agent or Agent()
        answer = await self.post("/register", json={"public_key": agent.public_text, **extra})
        assert answer.status_code in (200, 201), answer.text
        agent.id = answer.json()["id"]
        return agent

    async def redis(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(self.redis_url)

    async def hot_tier_is_old_enough(self) -> None:
        """Moves the birth mark into the past, as on a server that has run for a while."""
        client = await self.redis()
        run_id = (await client.info("server"))["run_id"]
        await client.set("ang:birth", f"{run_id}:{int(time.time() * 1000) - 60_000}")
        await client.aclose()
