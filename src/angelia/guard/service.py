"""The guard: who are you? Everything that a request must pass before a handler runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from angelia import metrics
from angelia.agents.service import Agents
from angelia.api import Access, Address, AgentRow, Caller, Operation, Role, Surface, http_signature
from angelia.envelope.ids import KeyType, key_id
from angelia.errors import Denied, FromFuture, NotFound, Stale, Unauthenticated
from angelia.guard import aicq_signature
from angelia.guard.jwt import JwtVerifier
from angelia.guard.rate_limiter import RateLimiter, RequestProof
from angelia.guard.tokens import Tokens
from angelia.settings import Settings

ReadBody = Callable[[], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class UnverifiedRequest:
    """A request before anything is believed about it."""

    operation: Operation[Any]
    path: str
    query: str
    headers: Mapping[str, str]
    address: Address
    surface: Surface
    now: datetime

    @property
    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1000)


class Guard:
    """Admits requests in two stages: the address before the signature, the agent after it."""

    def __init__(
        self, *, agents: Agents, tokens: Tokens, limiter: RateLimiter, settings: Settings, open_mode: bool
    ) -> None:
        self._agents = agents
        self._tokens = tokens
        self._limiter = limiter
        self._settings = settings
        self._open_mode = open_mode
        self._jwt = JwtVerifier(settings) if settings.jwt_enabled else None
        self._public = _authority_of(settings.public_url) if settings.public_url else None
        self._local = _local_authorities(settings)

    async def check_address(self, operation: Operation[Any] | None, address: Address, now: datetime) -> dict[str, str]:
        """Stage one: blocked addresses and address limits. Returns the headers that tell what is left."""
        return await self._limiter.check_address(operation, address, now)

    async def identify(self, knock: UnverifiedRequest, read_body: ReadBody) -> tuple[Caller, bytes, dict[str, str]]:
        """Stage two: prove the caller, spend its nonce, count the request. Returns caller, body and headers."""
        try:
            caller, body, proof = await self._prove(knock, read_body)
            self._check_role(knock, caller, proof)
            headers = await self._limiter.admit(knock.operation, caller, proof)
        except Unauthenticated as error:
            await self._refuse(knock, error)
            raise
        return caller, body, headers

    async def prove_possession(self, knock: UnverifiedRequest, body: bytes, public_key: bytes) -> bool:
        """Whether the request is signed with this key, registered or not. A wrong signature is an error."""
        if "signature-input" not in knock.headers:
            return False
        try:
            presented = self._presented(knock)
            id_ = key_id(KeyType.ED25519, public_key)
            if presented.key_id != id_:
                raise Unauthenticated("keyid is not the key that the body names", hint="sign with that key")
            self._verify_head(presented, knock, Ed25519PublicKey.from_public_bytes(public_key))
            self._verify_body(knock, body)
            await self._limiter.spend_nonce(RequestProof(id_, presented.nonce, presented.created * 1000))
        except Unauthenticated as error:
            await self._refuse(knock, error)
            raise
        return True

    async def _prove(self, knock: UnverifiedRequest, read_body: ReadBody) -> tuple[Caller, bytes, RequestProof | None]:
        access, headers = knock.operation.access, knock.headers
        if access is Access.ANYONE:
            return Caller(knock.address), await read_body(), None
        if "signature-input" in headers or "signature" in headers:
            presented = self._presented(knock)
            agent, key = await self._agent_of(presented.key_id, knock.now)
            self._verify_head(presented, knock, key)
            body = await read_body()
            self._verify_body(knock, body)
            proof = RequestProof(agent.id, presented.nonce, presented.created * 1000)
            return Caller(knock.address, Role.READ_WRITE, agent), body, proof
        if knock.surface is Surface.ROOT and any(name in headers for name in aicq_signature.HEADERS):
            body = await read_body()
            agent, proof = await self._prove_aicq(knock, body)
            return Caller(knock.address, Role.READ_WRITE, agent), body, proof
        if "authorization" in headers:
            caller = await self._bearer(knock, headers["authorization"])
            return caller, await read_body(), None
        if self._open_mode and knock.operation.open_locally:
            return Caller(knock.address, Role.ADMIN, name="local"), await read_body(), None
        raise Unauthenticated(
            {Surface.ROOT: "missing auth headers", Surface.QUEUES: "Authentication required"}.get(
                knock.surface, "this route needs a credential"
            ),
            hint="sign the request (see /docs), or send Authorization: Bearer",
        )

    def _check_role(self, knock: UnverifiedRequest, caller: Caller, proof: RequestProof | None) -> None:
        access, needed = knock.operation.access, knock.operation.access.role
        if access is Access.SIGNED and proof is None:
            raise Denied("this needs the agent's own signature, not a token", hint="how to sign is told at /docs")
        if access is Access.AGENT:
            if caller.agent is None:
                raise Denied(
                    "the token is bound to no agent", hint="angelia token create --role read-write --agent HANDLE"
                )
            needed = Role.READ_ONLY if knock.operation.method == "GET" else Role.READ_WRITE
        if caller.role < needed:
            queues = knock.surface is Surface.QUEUES
            text = "Insufficient permissions" if queues else f"this needs the role {needed.label}"
            raise Denied(text, hint=f"angelia token create --role {needed.label}")

    def _presented(self, knock: UnverifiedRequest) -> http_signature.Presented:
        headers = knock.headers
        presented = http_signature.parse(
            headers.get("signature-input", ""),
            headers.get("signature", ""),
            room_key_sent=http_signature.ROOM_KEY in headers,
        )
        signed_ms = presented.created * 1000
        if knock.now_ms - signed_ms > self._settings.signature_past_seconds * 1000:
            raise Stale("the request was signed too long ago", hint="sign it again; check this machine's clock")
        if signed_ms - knock.now_ms > self._settings.signature_ahead_seconds * 1000:
            raise FromFuture("the request was signed later than now", hint="check this machine's clock")
        return presented

    def _verify_body(self, knock: UnverifiedRequest, body: bytes) -> None:
        if not http_signature.digest_matches(knock.headers.get("content-digest", ""), body):
            raise Unauthenticated("Content-Digest does not match the body", hint="it is part of what is signed")

    def _verify_head(
        self, presented: http_signature.Presented, knock: UnverifiedRequest, key: Ed25519PublicKey
    ) -> None:
        """The signature covers the digest, not the body, so it is checked before a body is even read."""
        target = http_signature.Target(
            method=knock.operation.method,
            authority=self._authority(knock),
            path=knock.path,
            query=knock.query,
            content_digest=knock.headers.get("content-digest", ""),
            room_key=knock.headers.get(http_signature.ROOM_KEY),
        )
        try:
            key.verify(presented.signature, presented.base(target))
        except (InvalidSignature, UnicodeEncodeError) as error:
            hint = "method, authority, path, query and body must be what was signed"
            if self._public is not None:
                hint = f"{hint}; this server is called {self._settings.public_url}"
            raise Unauthenticated("the signature does not hold", hint=hint) from error

    def _authority(self, knock: UnverifiedRequest) -> str:
        """What the caller must have signed for: our public name, or on loopback one of this machine's own.

        Any other `Host` is the caller's word alone: a request signed for another server would be good here.
        """
        if self._public is not None:
            return self._public
        called = knock.headers.get("host", "").lower()
        if called not in self._local:
            raise Unauthenticated(
                "the request is signed for another server",
                hint=f"this one is called {' or '.join(self._local)}; another name needs --public-url",
            )
        return called

    async def _prove_aicq(self, knock: UnverifiedRequest, body: bytes) -> tuple[AgentRow, RequestProof]:
        if not self._settings.aicq_signatures:
            raise Unauthenticated("X-AICQ signatures are turned off", hint="sign by RFC 9421, see /docs")
        past, ahead = (
            self._settings.signature_past_seconds * 1000,
            self._settings.signature_ahead_seconds * 1000,
        )
        given = aicq_signature.parse(knock.headers, knock.now_ms, past, ahead)
        try:
            agent = await self._agents.by_id(given.agent)
        except NotFound as error:
            raise Unauthenticated("agent not found") from error
        if not agent.aicq_signatures:
            raise Unauthenticated("this agent has turned X-AICQ signatures off")
        signature, signed = given.signature_bytes(), given.signed(body)
        if not _verifies(agent.public_key, signature, signed):
            # These headers name no key, so each one that is still good is tried.
            former = await self._agents.valid_former_keys(agent.id, knock.now)
            if not any(_verifies(key, signature, signed) for key in former):
                raise Unauthenticated("invalid signature")
        return agent, RequestProof(agent.id, given.nonce, given.timestamp_ms, aicq_signature.OUT_OF_TIME)

    async def _bearer(self, knock: UnverifiedRequest, header: str) -> Caller:
        secret = header[7:].strip() if header[:7].lower() == "bearer " else header.strip()
        if secret.startswith("agt_"):
            token = await self._tokens.find(secret, knock.now)
            agent = await self._agents.by_id(token.agent_id) if token.agent_id else None
            return Caller(knock.address, token.role, agent, name=f"token {token.id}")
        if self._jwt is None:
            raise Unauthenticated(
                "Authentication required", hint="this is no token of Angelia, and JWT is not configured"
            )
        subject, role = await self._jwt.verify(secret)
        try:
            agent = await self._agents.named(subject) if subject else None
        except NotFound:
            agent = None
        return Caller(knock.address, role, agent, name=f"jwt {subject}")

    async def _agent_of(self, id_: UUID, now: datetime) -> tuple[AgentRow, Ed25519PublicKey]:
        found = await self._agents.by_key_id(id_, now)
        if found is None:
            raise Unauthenticated("no agent has this key", hint="register it first: angelia agent register")
        agent, public_key = found
        return agent, Ed25519PublicKey.from_public_bytes(public_key)

    async def _refuse(self, knock: UnverifiedRequest, error: Unauthenticated) -> None:
        metrics.AUTH_REFUSED.labels(error.code).inc()
        await self._limiter.charge_unproven(knock.address, knock.now)


def _verifies(public_key: bytes, signature: bytes, signed: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _local_authorities(settings: Settings) -> tuple[str, ...]:
    """The names that lead to this machine alone, none when others reach it: then only the public URL names it."""
    if not settings.loopback:
        return ()
    host = settings.host.lower().strip("[]")
    names = dict.fromkeys(("localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host))
    port = "" if settings.port == 80 else f":{settings.port}"
    return tuple(f"{name}{port}" for name in names)


def _authority_of(url: str) -> str:
    """Host and port of a URL as RFC 9421 has them: lower case, no default port."""
    scheme, _, rest = url.rstrip("/").lower().partition("://")
    return rest.removesuffix({"http": ":80", "https": ":443"}[scheme])
