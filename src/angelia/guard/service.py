"""The guard: verifies the credential, the rights and the rate limits of a request before its handler runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from angelia import metrics
from angelia.agents.service import Agents
from angelia.api import (
    ROLES,
    Access,
    AgentRow,
    AicqAuthorProof,
    AuthorProof,
    Caller,
    ClientAddress,
    Operation,
    Role,
    SignatureAuthorProof,
    Surface,
    UnverifiedRequest,
)
from angelia.api.admission import ReadBody
from angelia.api.request_verifier import RequestVerifier
from angelia.envelope.ed25519 import verifying_key
from angelia.envelope.ids import KeyType, key_id
from angelia.errors import Denied, NotFound, Unauthenticated
from angelia.guard import aicq_signature
from angelia.guard.jwt import JwtVerifier
from angelia.guard.rate_limiter import RateLimiter, RequestProof
from angelia.guard.tokens import Tokens
from angelia.settings import Settings


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
        self._verifier = RequestVerifier(
            public_url=settings.public_url,
            host=settings.host,
            port=settings.port,
            loopback=settings.loopback,
            past_seconds=settings.signature_past_seconds,
            ahead_seconds=settings.signature_ahead_seconds,
        )

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
            await self.count_refusal(request, error.code)
            raise

    async def check_token(self, request: UnverifiedRequest) -> None:
        """Verifies the token that a request has besides its signature; in open mode none is needed."""
        if self._open_mode:
            return
        try:
            if "authorization" not in request.headers:
                raise Unauthenticated(
                    "this needs a token besides the signature", hint="angelia token create --role read-write"
                )
            caller = await self._bearer(request, request.headers["authorization"])
        except Unauthenticated as error:
            await self.count_refusal(request, error.code)
            raise
        if caller.role < Role.READ_WRITE:
            raise Denied("this needs the role read-write", hint="angelia token create --role read-write")

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
                authority=self._verifier.authority(request),
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
            presented = self._verifier.presented(request)
            id_ = key_id(KeyType.ED25519, public_key)
            if presented.key_id != id_:
                raise Unauthenticated("keyid is not the key that the body names", hint="sign with that key")
            self._verifier.verify_head(presented, request, public_key)
            self._verifier.verify_body(request, body)
            await self._limiter.spend_nonce(RequestProof(id_, presented.nonce, presented.created * 1000))
        except Unauthenticated as error:
            await self.count_refusal(request, error.code)
            raise
        return True

    async def _prove(
        self, request: UnverifiedRequest, read_body: ReadBody
    ) -> tuple[Caller, bytes, RequestProof | None]:
        access, headers = request.operation.access, request.headers
        if access is Access.ANYONE:
            return Caller(request.client.address), await read_body(), None
        if "signature-input" in headers or "signature" in headers:
            presented = self._verifier.presented(request)
            found = await self._agents.by_key_id(presented.key_id, request.now)
            if found is None:
                raise Unauthenticated("no agent has this key", hint="register it first: angelia agent register")
            agent, key = found
            self._verifier.verify_head(presented, request, key)
            body = await read_body()
            self._verifier.verify_body(request, body)
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

    async def count_refusal(self, request: UnverifiedRequest, code: str) -> None:
        """Counts a credential that does not verify against the address of the request."""
        metrics.AUTH_REFUSED.labels(code).inc()
        await self._limiter.charge_unproven(request.client, request.now)
