"""An agent with all its keys in memory, which signs bundles as a correct or a faulty client does."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import msgspec

from angelia.api import AgentRow as AgentRecord
from angelia.api import Tick
from angelia.envelope import bundles
from angelia.envelope.bundles import Bundle, KemEntry, KemKeyStatus, Link, OneTimeKey, TrustAnchor
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPrivateKey
from angelia.envelope.signing import SigningPair
from angelia.envelope.times import moment, unix_ms
from angelia.keys.bundle_succession import Emergency
from angelia.keys.model import BundleAnswer, Reason, bundle_document, one_time_document, parse_bundle, rotation_document
from angelia.keys.service import PublishedBundle
from assembled_slices import Assembled
from http_agents import Agent, Server

NO_LIMITS = {"keys": "off", "bundles": "off", "register": "off", "identity": "off"}
_BITS = {KeyType.ML_KEM_768: 1, KeyType.XWING: 2}
_TABLES = (
    "agents",
    "agent_former_keys",
    "key_records",
    "bundles",
    "one_time_keys",
    "rotation_events",
    "ratchet_states",
    "data_keys",
    "audit_events",
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class KeySlice:
    """The services of the keys slice; a test passes the time."""

    def __init__(self, process: Assembled) -> None:
        self.process = process
        self.ledger = process.stores.ledger
        self.wake = process.stores.wake
        self.agents = process.slices.agents.agents
        self.policy = process.slices.policy.policy
        self.keys = process.slices.keys.keys
        self.schedules = process.slices.keys.schedules
        self.hot = self.keys._hot

    def tick(self, name: str) -> Tick:
        return next(one for one in self.process.slices.keys.ticks() if one.name == name)

    async def fetched(self, name: str) -> BundleAnswer:
        return msgspec.json.decode(await self.read(name), type=BundleAnswer)

    async def read(self, name: str) -> bytes:
        """Returns an agent's bundle, read as operator."""
        return await self.keys.bundle(name, None, datetime.now(UTC))


class KeyHolder(Agent):
    """An agent with a signing pair, KEM keys and its own chain of bundles."""

    def __init__(self, *kinds: KeyType) -> None:
        self.pair = SigningPair.generate()
        super().__init__(self.pair.seeds[0])
        self.kem = {kind: KemPrivateKey.generate(kind) for kind in kinds or (KeyType.XWING,)}
        self.grace: tuple[KemEntry, ...] = ()
        self.made_at: dict[UUID, int] = {}
        self.last: TrustAnchor | None = None
        self.handle = ""

    # Signing.

    @property
    def kem_ids(self) -> list[UUID]:
        return [key.public.key_id for key in self.kem.values()]

    def bundle(self, *, at: int | None = None, **how: Any) -> Bundle:
        """Returns the next bundle of this agent's chain, with its present keys."""
        issued = now_ms() if at is None else at
        active = tuple(
            KemEntry(
                key=key.public,
                status=KemKeyStatus.ACTIVE,
                created_at=self.made_at.setdefault(key.public.key_id, issued),
            )
            for key in self.kem.values()
        )
        mask = sum(_BITS[kind] for kind in self.kem) | 8
        values = {"suites": mask, "after": self.last, "agent_nhi": self.handle, "kem_keys": active + self.grace, **how}
        return bundles.sign_bundle(self.pair, issued_at=issued, **values)

    def rotation(self, *, at: int | None = None, kem: bool = True, signer: bool = False, grace: bool = True) -> Link:
        """Returns the next bundle with new keys, and the statement of both pairs. The new keys become its keys."""
        issued, statement = now_ms() if at is None else at, None
        if kem:
            replaced = tuple(self._in_grace(key, issued) for key in self.kem.values())
            self.grace = (*replaced, *self.grace) if grace else ()
            self.kem = {kind: KemPrivateKey.generate(kind) for kind in self.kem}
        if signer:
            old, self.pair = self.pair, SigningPair.generate()
            statement = bundles.sign_rotation(old, self.pair, self.handle, issued)
        return Link(self.bundle(at=issued), statement)

    def one_time_keys(self, count: int, at: int | None = None, kind: KeyType = KeyType.XWING) -> list[OneTimeKey]:
        made = [KemPrivateKey.generate(kind) for _ in range(count)]
        at = now_ms() if at is None else at
        return [bundles.sign_one_time_key(self.pair, self.handle, key.public, at) for key in made]

    def _in_grace(self, key: KemPrivateKey, at: int) -> KemEntry:
        made_at = self.made_at[key.public.key_id]
        return KemEntry(key=key.public, status=KemKeyStatus.GRACE, created_at=made_at, rotated_at=at)

    # Over HTTP.

    async def join(self, server: Server, handle: str) -> KeyHolder:
        """Registers, claims a handle, and publishes the first bundle."""
        await self.claim(server, handle)
        answer = await self.publish(server, self.bundle())
        assert answer.status_code == 201, answer.text
        return self

    async def claim(self, server: Server, handle: str) -> KeyHolder:
        await server.register(self)
        answer = await self.put(server, "/v1/agents/me/handle", {"handle": handle})
        assert answer.status_code == 200, answer.text
        self.handle = handle
        return self

    async def publish(self, server: Server, bundle: Bundle, one_time: list[OneTimeKey] | None = None) -> httpx.Response:
        return await self.send(server, "/v1/keys/bundle", Link(bundle), one_time)

    async def rotate(self, server: Server, link: Link, **body: Any) -> httpx.Response:
        """Publishes the link of a rotation; the old pair still signs the request."""
        answer = await self.send(server, "/v1/keys/rotate", link, **body)
        if answer.status_code == 201:
            self.use_pair()
        return answer

    async def emergency(self, server: Server, link: Link, **body: Any) -> httpx.Response:
        values = {"agent_nhi": self.handle, "reason": "the laptop was stolen", **body}
        answer = await self.send(server, "/v1/keys/emergency-rotate", link, **values)
        if answer.status_code == 201:
            self.use_pair()
        return answer

    def use_pair(self) -> None:
        """From now on the present pair signs requests."""
        id_ = self.id
        Agent.__init__(self, self.pair.seeds[0])
        self.id = id_

    async def send(
        self, server: Server, path: str, link: Link, one_time: list[OneTimeKey] | None = None, **extra: Any
    ) -> httpx.Response:
        answer = await self.post(server, path, publication(link, one_time or [], **extra))
        if answer.status_code == 201:
            self.last = bundles.anchor_of(link.bundle)
        return answer

    async def get(self, server: Server, url: str, **headers: str) -> httpx.Response:
        return await server.request("GET", url, headers={**self.signed("GET", url), **headers})

    async def post(self, server: Server, url: str, content: object = None) -> httpx.Response:
        return await server.send_signed(self, "POST", url, b"" if content is None else msgspec.json.encode(content))

    async def put(self, server: Server, url: str, content: object) -> httpx.Response:
        return await server.send_signed(self, "PUT", url, msgspec.json.encode(content))

    async def delete(self, server: Server, url: str) -> httpx.Response:
        return await server.send_signed(self, "DELETE", url)

    # Through the services, at any time.

    async def exist(self, slice_: KeySlice, handle: str, now: datetime) -> KeyHolder:
        """Registers the agent under a handle, without a bundle."""
        registered = await slice_.agents.register(self.public_text, "", "", now)
        self.id, self.handle = str(registered.id), handle
        await slice_.agents.claim_handle(await slice_.agents.by_id(registered.id), handle, now)
        return self

    async def enter(self, slice_: KeySlice, handle: str, now: datetime) -> KeyHolder:
        """Registers the agent under a handle, with a first bundle."""
        await self.exist(slice_, handle, now)
        await self.accepted(slice_, Link(self.bundle(at=unix_ms(now))))
        return self

    async def record(self, slice_: KeySlice) -> AgentRecord:
        return await slice_.agents.by_id(UUID(self.id))

    async def accepted(
        self,
        slice_: KeySlice,
        link: Link,
        one_time: list[OneTimeKey] | None = None,
        *,
        now: datetime | None = None,
        reason: Reason | None = None,
        emergency: Emergency | None = None,
    ) -> PublishedBundle:
        now = moment(link.bundle.issued_at) if now is None else now
        agent = await self.record(slice_)
        done = await slice_.keys.accept(agent, link, one_time or [], now, reason, emergency)
        self.last = bundles.anchor_of(link.bundle)
        return done

    async def rotated(
        self, slice_: KeySlice, now: datetime, *, kem: bool = True, signer: bool = False
    ) -> PublishedBundle:
        link = self.rotation(at=unix_ms(now), kem=kem, signer=signer)
        return await self.accepted(slice_, link, reason=Reason.ON_DEMAND)


def publication(link: Link, one_time: list[OneTimeKey], **extra: Any) -> dict[str, Any]:
    """Returns the body of a request that publishes a bundle."""
    body = {"bundle": bundle_document(link.bundle), "one_time_keys": [one_time_document(one) for one in one_time]}
    if link.statement is not None:
        extra = {"rotation_statement": rotation_document(link.statement), **extra}
    return body | extra


def fetched(answer: httpx.Response) -> Bundle:
    """Returns the bundle of an answer, verified as a client does."""
    assert answer.status_code == 200, answer.text
    found = parse_bundle(msgspec.json.decode(answer.content, type=BundleAnswer).bundle)
    bundles.check_bundle(found)
    return found


def whole_ms(at: datetime) -> datetime:
    """Returns a time in whole milliseconds, as bundles hold it."""
    return moment(unix_ms(at.astimezone(UTC)))


async def everything(connection: asyncpg.Connection) -> dict[str, list[str]]:
    """Returns all rows of the ledger about agents and keys, as text."""
    return {
        table: sorted(row["t"] for row in await connection.fetch(f"SELECT t::text AS t FROM {table} AS t"))  # noqa: S608
        for table in _TABLES
    }


async def audited(connection: asyncpg.Connection, *, since: int = 0) -> list[tuple[str, str | None, str | None]]:
    """Returns the audit events about keys, in order: kind, actor, subject."""
    rows = await connection.fetch(
        "SELECT event_type, actor_nhi, object_nhi FROM audit_events"
        " WHERE event_type ~ '^(key|prekey|emergency|schedule|session)' ORDER BY xid, occurred_at OFFSET $1",
        since,
    )
    return [tuple(row) for row in rows]
