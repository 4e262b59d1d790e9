"""An agent with all its keys in memory, that signs bundles the way a careful, or a careless, client would."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import httpx
import msgspec

from angelia.envelope import bundles
from angelia.envelope.bundles import Bundle, KemEntry, Link, Listed, OneTimeKey, Trusted
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPrivateKey
from angelia.envelope.signing import SigningPair
from angelia.keys.model import bundle_document, one_time_document, rotation_document, unix_ms
from support import Agent, Server


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class KeyHolder(Agent):
    """An agent with a signing pair, KEM keys and its own chain of bundles."""

    def __init__(self, kinds: tuple[KeyType, ...] = (KeyType.XWING,)) -> None:
        self.pair = SigningPair.generate()
        super().__init__(self.pair.seeds[0])
        self.kem = {kind: KemPrivateKey.generate(kind) for kind in kinds}
        self.retired: list[KemPrivateKey] = []
        self.last: Trusted | None = None
        self.handle = ""

    async def join(self, server: Server, handle: str) -> KeyHolder:
        """Register, claim a handle, publish the first bundle."""
        await server.register(self)
        body = msgspec.json.encode({"handle": handle})
        assert (await server.send_signed(self, "PUT", "/v1/agents/me/handle", body)).status_code == 200
        self.handle = handle
        answer = await self.publish(server, self.bundle())
        assert answer.status_code == 201, answer.text
        return self

    def bundle(self, *, at: int | None = None, grace: tuple[KemEntry, ...] = (), **how: Any) -> Bundle:
        issued = now_ms() if at is None else at
        active = tuple(
            KemEntry(key=key.public, status=Listed.ACTIVE, created_at=issued) for key in self.kem.values()
        )
        mask = sum({KeyType.XWING: 2, KeyType.ML_KEM_768: 1}[kind] for kind in self.kem) | 8
        how = {"suites": mask, "after": self.last, "agent_nhi": self.handle, **how}
        return bundles.sign_bundle(self.pair, issued_at=issued, kem_keys=active + grace, **how)

    def one_time_keys(self, count: int, at: int | None = None) -> list[OneTimeKey]:
        made = [KemPrivateKey.generate(KeyType.XWING) for _ in range(count)]
        at = now_ms() if at is None else at
        return [bundles.sign_one_time_key(self.pair, self.handle, key.public, at) for key in made]

    def renewed_kem(self, at: int) -> tuple[KemEntry, ...]:
        """New KEM keys in place of the old, which are listed in grace."""
        old = tuple(self.kem.values())
        self.retired += old
        self.kem = {kind: KemPrivateKey.generate(kind) for kind in self.kem}
        return tuple(
            KemEntry(key=key.public, status=Listed.GRACE, created_at=at - 1, rotated_at=at) for key in old
        )

    async def publish(self, server: Server, bundle: Bundle, one_time: list[OneTimeKey] | None = None) -> httpx.Response:
        return await self._post(server, "/v1/keys/bundle", bundle, one_time=one_time)

    async def rotate(self, server: Server, *, signer: bool = False, **body: Any) -> httpx.Response:
        """New KEM keys, and a new signing pair if asked for; the request is signed by the old one."""
        at = now_ms()
        grace = self.renewed_kem(at)
        extra = dict(body)
        if signer:
            old, self.pair = self.pair, SigningPair.generate()
            statement = bundles.sign_rotation(old, self.pair, self.handle, at)
            extra.setdefault("rotation_statement", rotation_document(statement))
        answer = await self._post(server, "/v1/keys/rotate", self.bundle(at=at, grace=grace), **extra)
        if answer.status_code == 201 and signer:
            self.use_pair()
        return answer

    def use_pair(self) -> None:
        """From now on requests are signed by the present pair."""
        id_ = self.id
        Agent.__init__(self, self.pair.seeds[0])
        self.id = id_

    async def _post(
        self, server: Server, path: str, bundle: Bundle, *, one_time: list[OneTimeKey] | None = None, **extra: Any
    ) -> httpx.Response:
        body = msgspec.json.encode(
            {"bundle": bundle_document(bundle), "one_time_keys": [one_time_document(o) for o in one_time or []], **extra}
        )
        answer = await server.send_signed(self, "POST", path, body)
        if answer.status_code == 201:
            self.last = bundles.trusted_by(bundle)
        return answer

    async def get(self, server: Server, url: str, **headers: str) -> httpx.Response:
        return await server.request("GET", url, headers={**self.signed("GET", url), **headers})

    async def post(self, server: Server, url: str, content: object = None) -> httpx.Response:
        return await server.send_signed(self, "POST", url, b"" if content is None else msgspec.json.encode(content))


def link_of(bundle: Bundle) -> Link:
    return Link(bundle)


def ms(at: datetime) -> int:
    return unix_ms(at)
