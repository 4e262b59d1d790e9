"""The guard: verifies the credential, the rights and the rate limits of a request before its handler runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from angelia import metrics
from angelia.agents.service import Agents
from angelia.api import (
    ROLES,
    Access,
    AgentRow,
    AicqAuthorProof,
    AuthorProof,
    Caller,
    Operation,
    Role,
    SignatureAuthorProof,
    Surface,
    http_signature,
)
from angelia.envelope.ed25519 import verifying_key
from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.times import unix_ms
from angelia.errors import Denied, FromFuture, NotFound, Stale, Unauthenticated
from angelia.guard import aicq_signature
from angelia.guard.jwt import JwtVerifier
from angelia.guard.model import ClientAddress
from angelia.guard.rate_limiter import RateLimiter, RequestProof
from angelia.guard.tokens import Tokens
from angelia.settings import Settings

ReadBody = Callable[[], Awaitable[bytes]]


class UnverifiedRequest(msgspec.Struct, frozen=True):
    """A request whose credential is not verified."""

    operation: Operation[Any]
    path: str
    query: str
    headers: Mapping[str, str]
    client: ClientAddress
    surface: Surface
    now: datetime

    @property
    def now_ms(self) -> int:
        return unix_ms(self.now)


class Guard:
    """Admits requests in two stages: the address before the credential is verified, the caller afterwards."""

    def __init__(
        self, *, agents: Agents, tokens: Tokens, limiter: RateLimiter, settings: Settings, open_mode: bool
    ) -> None:
        self._agents = agents
        self._tokens = tokens
        self._limiter = limiter
        self._settings = settings
        self._past_ms = settings.signature_past_seconds * 1000
        self._ahead_ms = settings.signature_ahead_seconds * 1000
        self._open_mode = open_mode
        self._jwt = JwtVerifier(settings) if settings.jwt_enabled else None
        self._public = _authority_of(settings.public_url) if settings.public_url else None
        self._local = _local_authorities(settings)

    async def check_address(
        self, operation: Operation[Any] | None, client: ClientAddress, now: datetime
    ) -> dict[str, str]:
        """Stage one: refuses blocked addresses, and addresses over their limit. Returns the X-RateLimit headers."""
        return await self._limiter.check_address(operation, client, now)

    async def identify(self, request: UnverifiedRequest, read_body: ReadBody) -> tuple[Caller, bytes, dict[str, str]]:
        """Stage two: verifies the caller, uses up its nonce, counts the request. Returns caller, body and headers."""
        try:
            caller, body, proof = await self._prove(request, read_body)
            self._check_role(request, caller, proof)
            agent = caller.agent.id if caller.agent else None
            return caller, body, await self._limiter.admit(request.operation, request.client, agent, proof)
        except Unauthenticated as error:
            await self._count_refusal(request, error)
            raise

    def author_proof(self, request: UnverifiedRequest, caller: Caller, body: bytes) -> AuthorProof | None:
        """The signature by which `identify` knows the caller; None for other credentials, and for a body that is no
        text, since what is kept of it could not be verified."""
        headers = request.headers
        if caller.agent is None or caller.name is not None:
            return None
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if "signature-input" in headers:
            return SignatureAuthorProof(
                method=request.operation.method,
                authority=self._authority(request),
                path=request.path,
                query=request.query,
                content_digest=headers["content-digest"],
                signature_input=headers["signature-input"],
                signature=headers["signature"],
                request=text,
            )
        _, nonce, timestamp, signature = (headers[name] for name in aicq_signature.HEADERS)
        return AicqAuthorProof(
            body_hash=aicq_signature.body_hash(body), nonce=nonce, ts=int(timestamp), signature=signature, request=text
        )

    async def prove_possession(self, request: UnverifiedRequest, body: bytes, public_key: bytes) -> bool:
        """Whether the request is signed with this key, which need not be registered. A wrong signature is an error."""
        if "signature-input" not in request.headers:
            return False
        try:
            presented = self._presented(request)
            id_ = key_id(KeyType.ED25519, public_key)
            if presented.key_id != id_:
                raise Unauthenticated("keyid is not the key that the body names", hint="sign with that key")
            self._verify_head(presented, request, public_key)
            self._verify_body(request, body)
            await self._limiter.spend_nonce(RequestProof(id_, presented.nonce, presented.created * 1000))
        except Unauthenticated as error:
            await self._count_refusal(request, error)
            raise
        return True

    async def _prove(
        self, request: UnverifiedRequest, read_body: ReadBody
    ) -> tuple[Caller, bytes, RequestProof | None]:
        access, headers = request.operation.access, request.headers
        if access is Access.ANYONE:
            return Caller(request.client.address), await read_body(), None
        if "signature-input" in headers or "signature" in headers:
            presented = self._presented(request)
            found = await self._agents.by_key_id(presented.key_id, request.now)
            if found is None:
                raise Unauthenticated("no agent has this key", hint="register it first: angelia agent register")
            agent, key = found
            self._verify_head(presented, request, key)
            body = await read_body()
            self._verify_body(request, body)
            proof = RequestProof(agent.id, presented.nonce, presented.created * 1000)
            return Caller(request.client.address, Role.READ_WRITE, agent), body, proof
        if request.surface is Surface.ROOT and any(name in headers for name in aicq_signature.HEADERS):
            body = await read_body()
            agent, proof = await self._prove_aicq(request, body)
            return Caller(request.client.address, Role.READ_WRITE, agent), body, proof
        if "authorization" in headers:
            caller = await self._bearer(request, headers["authorization"])
            return caller, await read_body(), None
        if self._open_mode and request.operation.open_locally:
            return Caller(request.client.address, Role.ADMIN, name="local"), await read_body(), None
        raise Unauthenticated(
            {Surface.ROOT: "missing auth headers", Surface.QUEUES: "Authentication required"}.get(
                request.surface, "this route needs a credential"
            ),
            hint="sign the request (see /docs), or send Authorization: Bearer",
        )

    def _check_role(self, request: UnverifiedRequest, caller: Caller, proof: RequestProof | None) -> None:
        access = request.operation.access
        if access is Access.ANYONE:
            return
        needed = access.role
        if access is Access.SIGNED and proof is None:
            raise Denied("this needs the agent's own signature, not a token", hint="how to sign is told at /docs")
        if access is Access.AGENT:
            if caller.agent is None:
                raise Denied(
                    "the token is bound to no agent", hint="angelia token create --role read-write --agent HANDLE"
                )
            needed = Role.READ_ONLY if request.operation.method == "GET" else Role.READ_WRITE
        if caller.role < needed:
            queues = request.surface is Surface.QUEUES
            text = "Insufficient permissions" if queues else f"this needs the role {needed.label}"
            raise Denied(text, hint=f"angelia token create --role {needed.label}")

    def _presented(self, request: UnverifiedRequest) -> http_signature.Presented:
        headers = request.headers
        presented = http_signature.parse(
            headers.get("signature-input", ""),
            headers.get("signature", ""),
            room_key_sent=http_signature.ROOM_KEY in headers,
        )
        signed_ms = presented.created * 1000
        now_ms = request.now_ms
        if now_ms - signed_ms > self._past_ms:
            raise Stale("the request was signed too long ago", hint="sign it again; check this machine's clock")
        if signed_ms - now_ms > self._ahead_ms:
            raise FromFuture("the request was signed later than now", hint="check this machine's clock")
        return presented

    def _verify_body(self, request: UnverifiedRequest, body: bytes) -> None:
        if not http_signature.digest_matches(request.headers.get("content-digest", ""), body):
            raise Unauthenticated("Content-Digest does not match the body", hint="it is part of what is signed")

    def _verify_head(self, presented: http_signature.Presented, request: UnverifiedRequest, public_key: bytes) -> None:
        """Verifies the signature. It covers the digest of the body, so this works before the body is read."""
        target = http_signature.Target(
            method=request.operation.method,
            authority=self._authority(request),
            path=request.path,
            query=request.query,
            content_digest=request.headers.get("content-digest", ""),
            room_key=request.headers.get(http_signature.ROOM_KEY),
        )
        try:
            holds = verifying_key(public_key).holds(presented.signature, presented.base(target))
        except UnicodeEncodeError:
            holds = False
        if not holds:
            hint = "method, authority, path, query and body must be what was signed"
            if self._public is not None:
                hint = f"{hint}; this server is called {self._settings.public_url}"
            raise Unauthenticated("the signature does not hold", hint=hint)

    def _authority(self, request: UnverifiedRequest) -> str:
        """The authority that the signature must name: that of the public URL, or on loopback a name of this machine.

        Any other `Host` is refused, or else a request signed for another server would be accepted here.
        """
        if self._public is not None:
            return self._public
        called = request.headers.get("host", "").lower()
        if called not in self._local:
            raise Unauthenticated(
                "the request is signed for another server",
                hint=f"this one is called {' or '.join(self._local)}; another name needs --public-url",
            )
        return called

    async def _prove_aicq(self, request: UnverifiedRequest, body: bytes) -> tuple[AgentRow, RequestProof]:
        if not self._settings.aicq_signatures:
            raise Unauthenticated("X-AICQ signatures are turned off", hint="sign by RFC 9421, see /docs")
        given = aicq_signature.parse(request.headers, request.now_ms, self._past_ms, self._ahead_ms)
        try:
            agent = await self._agents.by_id(given.agent)
        except NotFound as error:
            raise Unauthenticated("agent not found") from error
        if not agent.aicq_signatures:
            raise Unauthenticated("this agent has turned X-AICQ signatures off")
        signature, signed = given.signature_bytes(), given.signed(body)
        if not verifying_key(agent.public_key).holds(signature, signed):
            # These headers name no key, so each former key that is still valid is tried.
            former = await self._agents.valid_former_keys(agent.id, request.now)
            if not any(verifying_key(key).holds(signature, signed) for key in former):
                raise Unauthenticated("invalid signature")
        return agent, RequestProof(agent.id, given.nonce, given.timestamp_ms, aicq_signature.OUT_OF_TIME)

    async def _bearer(self, request: UnverifiedRequest, header: str) -> Caller:
        secret = header[7:].strip() if header[:7].lower() == "bearer " else header.strip()
        if secret.startswith("agt_"):
            token, agent = await self._tokens.find(secret, request.now)
            return Caller(request.client.address, ROLES[token.role], agent, name=f"token {token.id}")
        if self._jwt is None:
            raise Unauthenticated(
                "Authentication required", hint="this is no token of Angelia, and JWT is not configured"
            )
        subject, role = await self._jwt.verify(secret)
        try:
            agent = await self._agents.named(subject) if subject else None
        except NotFound:
            agent = None
        return Caller(request.client.address, role, agent, name=f"jwt {subject}")

    async def _count_refusal(self, request: UnverifiedRequest, error: Unauthenticated) -> None:
        """Counts a credential that does not verify against the address of the request."""
        metrics.AUTH_REFUSED.labels(error.code).inc()
        await self._limiter.charge_unproven(request.client, request.now)


def _local_authorities(settings: Settings) -> tuple[str, ...]:
    """The authorities of this machine on loopback; none if others can reach it, since then only the public URL
    counts."""
    if not settings.loopback:
        return ()
    host = settings.host.lower().strip("[]")
    names = dict.fromkeys(("localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host))
    port = "" if settings.port == 80 else f":{settings.port}"
    return tuple(f"{name}{port}" for name in names)


def _authority_of(url: str) -> str:
    """Host and port of a URL in the form of RFC 9421: lower case, without a default port."""
    scheme, _, rest = url.rstrip("/").lower().partition("://")
    return rest.removesuffix({"http": ":80", "https": ":443"}[scheme])
