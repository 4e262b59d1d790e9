"""Agents with keys in memory that seal, sign and prepare requests, and the connections that they are sent on."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from angelia.agents.service import Agents
from angelia.api import http_signature
from angelia.envelope import bundles, sealing
from angelia.envelope.bundles import KemEntry, KemKeyStatus, Link
from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.kem import KemPrivateKey
from angelia.envelope.sealing import Letter
from angelia.envelope.signing import SigningPair
from angelia.envelope.wire import Envelope
from angelia.keys.service import Keys
from angelia.keys.store import HotBundles
from angelia.policy.service import Policy
from angelia.policy.store import HotRates
from angelia.runtime_file import Runtime
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake


class Line:
    """One HTTP connection that is kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, runtime: Runtime) -> Line:
        host, port = runtime.url.removeprefix("http://").rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return int(head[9:12]), await self.reader.readexactly(length)


class Member:
    """An agent that seals and signs in memory; every request has a nonce of its own."""

    def __init__(self, handle: str) -> None:
        self.handle = handle
        self.pair = SigningPair.generate()
        self.kem = KemPrivateKey.generate(KeyType.XWING)
        self.key = self.pair.request_key
        self.key_id = key_id(KeyType.ED25519, self.pair.public.ed25519)

    def seal(self, to: Member, body: bytes) -> Envelope:
        return sealing.seal(_letter(to, body), self.handle, self.pair)

    def seal_batch(self, to: Sequence[Member], body: bytes) -> list[Envelope]:
        """Returns one envelope for each recipient, all under one pair of signatures."""
        return sealing.seal_batch([_letter(one, body) for one in to], self.handle, self.pair)

    def request(
        self,
        url: str,
        method: str,
        target: str,
        body: bytes = b"",
        content_type: str = "application/json",
        accept: str = "",
    ) -> bytes:
        """Returns a whole signed HTTP/1.1 request."""
        authority = urlsplit(url).netloc
        path, _, query = target.partition("?")
        signed = http_signature.Target(method, authority, path, query, http_signature.digest(body))
        nonce = secrets.token_urlsafe(18)
        headers = http_signature.sign(self.key, self.key_id, signed, created=int(time.time()), nonce=nonce)
        headers |= {"host": authority, "content-length": str(len(body))}
        if body:
            headers["content-type"] = content_type
        if accept:
            headers["accept"] = accept
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + body


def enroll(runtime: Runtime, names: list[str]) -> list[Member]:
    """Returns agents that are registered and have published their keys."""
    members = [Member(name) for name in names]

    async def all_of_them() -> None:
        ledger, hot = await Ledger.open(runtime.database_url, 4), HotTier(runtime.redis_url)
        agents, policy = Agents(ledger), Policy(ledger, HotRates(hot))
        keys = Keys(ledger, HotBundles(hot), agents, policy, Wake(hot))
        for member in members:
            await _enroll(agents, keys, member)
        await agents.close()
        await hot.close()
        await ledger.close()

    asyncio.run(all_of_them())
    return members


async def _enroll(agents: Agents, keys: Keys, member: Member) -> None:
    now = datetime.now(UTC)
    public = base64.b64encode(member.pair.public.ed25519).decode()
    registered = await agents.register(public, "", "", now)
    agent = await agents.claim_handle(await agents.by_id(registered.id), member.handle, now)
    entry = KemEntry(key=member.kem.public, status=KemKeyStatus.ACTIVE, created_at=_now_ms())
    bundle = bundles.sign_bundle(
        member.pair, agent_nhi=member.handle, kem_keys=(entry,), suites=10, issued_at=_now_ms(), after=None
    )
    await keys.accept(agent, Link(bundle), [], now)


def _letter(to: Member, body: bytes) -> Letter:
    return Letter(recipient=to.handle, key=to.kem.public, body=body, message_id=uuid.uuid4(), created_at=_now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
