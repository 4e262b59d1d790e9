"""The guard: who are you, not twice, not too often. Everything that a request must pass before a handler runs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from angelia import metrics
from angelia.agents.model import Agent
from angelia.agents.service import Agents
from angelia.envelope.ids import KeyType, key_id
from angelia.errors import (
    Denied,
    FromFuture,
    NotFound,
    RateLimited,
    ReplayRejected,
    Stale,
    Unauthenticated,
    Unavailable,
)
from angelia.guard import aicq, profile, store
from angelia.guard.blocks import Blocks
from angelia.guard.declarations import Access, Route, Surface
from angelia.guard.jwt import JwtVerifier
from angelia.guard.model import (
    UNPROVEN,
    Address,
    Caller,
    Per,
    Role,
    Rule,
    SlidingWindows,
    Spent,
    parse_networks,
    with_limits,
    within,
)
from angelia.guard.tokens import Tokens
from angelia.settings import Settings
from angelia.stores.valkey import HotTier, now_ms

NONCE_LIFE_MS = 180_000

ReadBody = Callable[[], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Knock:
    """A request before anything is believed about it."""

    route: Route
    path: str
    query: str
    headers: Mapping[str, str]
    address: Address
    surface: Surface
    now: datetime

    @property
    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class _Proof:
    """A request that an agent signed, verified but for its nonce."""

    subject: UUID
    nonce: str
    signed_ms: int
    too_old: str = "the request was signed before the nonce memory began"


class Guard:
    """Admits requests in two stages: the address before the signature, the agent after it."""

    def __init__(
        self,
        *,
        hot: HotTier,
        agents: Agents,
        tokens: Tokens,
        blocks: Blocks,
        settings: Settings,
        rules: Mapping[str, Rule],
        open_mode: bool,
    ) -> None:
        self._hot = hot
        self._agents = agents
        self._tokens = tokens
        self._blocks = blocks
        self._settings = settings
        self._rules = with_limits([*rules.values(), UNPROVEN], settings.limits)
        self._open_mode = open_mode
        self._whitelist = parse_networks("rate_limit_whitelist", settings.rate_limit_whitelist)
        self._local = SlidingWindows()
        self._jwt = JwtVerifier(settings) if settings.jwt_enabled else None
        public = settings.public_url
        self._authority = public.split("//")[1].rstrip("/").lower() if public else None

    async def check_address(self, route: Route | None, address: Address, now: datetime) -> dict[str, str]:
        """Stage one: blocked addresses and address limits. Returns the headers that tell what is left."""
        if within(address, self._whitelist):
            return {}
        rule = self._rules.get(route.rule.name) if route and route.rule else None
        counted = rule is not None and rule.per is Per.ADDRESS
        if not counted:
            rule = self._rules[UNPROVEN.name] if route and route.access is not Access.ANYONE else None
        spent = await self._spend_address(address, rule, now, charge=counted)
        return spent.headers() if spent and counted else {}

    async def identify(self, knock: Knock, read_body: ReadBody) -> tuple[Caller, bytes, dict[str, str]]:
        """Stage two: prove the caller, spend its nonce, count the request. Returns caller, body and headers."""
        try:
            caller, body, proof = await self._prove(knock, read_body)
            self._check_role(knock, caller)
            headers = await self._spend_agent(knock, caller, proof)
        except Unauthenticated as error:
            metrics.AUTH_REFUSED.labels(error.code).inc()
            if not within(knock.address, self._whitelist):
                await self._charge_unproven(knock)
            raise
        return caller, body, headers

    async def prove_possession(self, knock: Knock, body: bytes, public_key: bytes) -> bool:
        """Whether the request is signed with this key, registered or not. A wrong signature is an error."""
        if "signature-input" in knock.headers:
            presented = self._presented(knock)
            id_ = key_id(KeyType.ED25519, public_key)
            if presented.key_id != id_:
                raise Unauthenticated("keyid is not the key that the body names")
            self._verify(presented, knock, Ed25519PublicKey.from_public_bytes(public_key), body)
            await self._spend_nonce(_Proof(id_, presented.nonce, presented.created * 1000), None)
            return True
        if "x-aicq-signature" in knock.headers:
            agent, proof = await self._prove_aicq(knock, body)
            if agent.public_key == public_key:
                await self._spend_nonce(proof, None)
                return True
        return False

    async def _prove(self, knock: Knock, read_body: ReadBody) -> tuple[Caller, bytes, _Proof | None]:
        access, headers = knock.route.access, knock.headers
        if access is Access.ANYONE:
            return Caller(knock.address), await read_body(), None
        if "signature-input" in headers or "signature" in headers:
            presented = self._presented(knock)
            agent, key = await self._agent_of(presented.key_id)
            self._verify_head(presented, knock, key)
            body = await read_body()
            if not profile.digest_matches(headers.get("content-digest", ""), body):
                raise Unauthenticated("Content-Digest does not match the body")
            proof = _Proof(agent.id, presented.nonce, presented.created * 1000)
            return Caller(knock.address, Role.READ_WRITE, agent), body, proof
        if knock.surface is Surface.ROOT and any(name.startswith("x-aicq-") for name in headers):
            body = await read_body()
            agent, proof = await self._prove_aicq(knock, body)
            return Caller(knock.address, Role.READ_WRITE, agent), body, proof
        if "authorization" in headers:
            caller = await self._bearer(knock, headers["authorization"])
            return caller, await read_body(), None
        if self._open_mode and knock.route.open_locally:
            return Caller(knock.address, Role.ADMIN, name="local"), await read_body(), None
        raise Unauthenticated(
            {Surface.ROOT: "missing auth headers", Surface.QUEUES: "Authentication required"}.get(
                knock.surface, "this route needs a credential"
            ),
            hint="sign the request (see /docs), or send Authorization: Bearer",
        )

    def _check_role(self, knock: Knock, caller: Caller) -> None:
        access = knock.route.access
        if access is Access.AGENT and caller.agent is None:
            raise Denied(
                "this needs an agent, and the token is bound to none",
                hint="angelia token create --agent HANDLE",
            )
        if caller.role < access.role:
            text = (
                "Insufficient permissions"
                if knock.surface is Surface.QUEUES
                else f"this needs the role {access.role.label}"
            )
            raise Denied(text, hint="angelia token create --role " + access.role.label)

    def _presented(self, knock: Knock) -> profile.Presented:
        headers = knock.headers
        presented = profile.parse(
            headers.get("signature-input", ""),
            headers.get("signature", ""),
            room_key_sent=profile.ROOM_KEY in headers,
        )
        signed_ms = presented.created * 1000
        if knock.now_ms - signed_ms > self._settings.signature_past_seconds * 1000:
            raise Stale("the request was signed too long ago", hint="sign it again; check this machine's clock")
        if signed_ms - knock.now_ms > self._settings.signature_ahead_seconds * 1000:
            raise FromFuture("the request was signed later than now", hint="check this machine's clock")
        return presented

    def _verify(self, presented: profile.Presented, knock: Knock, key: Ed25519PublicKey, body: bytes) -> None:
        self._verify_head(presented, knock, key)
        if not profile.digest_matches(knock.headers.get("content-digest", ""), body):
            raise Unauthenticated("Content-Digest does not match the body")

    def _verify_head(self, presented: profile.Presented, knock: Knock, key: Ed25519PublicKey) -> None:
        """The signature covers the digest, not the body, so it is checked before a body is even read."""
        target = profile.Target(
            method=knock.route.method,
            authority=self._authority or knock.headers.get("host", "").lower(),
            path=knock.path,
            query=knock.query,
            content_digest=knock.headers.get("content-digest", ""),
            room_key=knock.headers.get(profile.ROOM_KEY),
        )
        try:
            key.verify(presented.signature, presented.base(target))
        except (InvalidSignature, UnicodeEncodeError) as error:
            raise Unauthenticated(
                "the signature does not hold",
                hint="method, authority, path, query and body must be what was signed",
            ) from error

    async def _prove_aicq(self, knock: Knock, body: bytes) -> tuple[Agent, _Proof]:
        if not self._settings.aicq_signatures:
            raise Unauthenticated("X-AICQ signatures are turned off", hint="sign by RFC 9421, see /docs")
        past, ahead = (
            self._settings.signature_past_seconds * 1000,
            self._settings.signature_ahead_seconds * 1000,
        )
        given = aicq.parse(knock.headers, knock.now_ms, past, ahead)
        try:
            agent = await self._agents.by_id(given.agent)
        except NotFound as error:
            raise Unauthenticated("agent not found") from error
        if not agent.aicq_signatures:
            raise Unauthenticated("this agent has turned X-AICQ signatures off")
        try:
            Ed25519PublicKey.from_public_bytes(agent.public_key).verify(given.signature_bytes(), given.signed(body))
        except InvalidSignature as error:
            raise Unauthenticated("invalid signature") from error
        return agent, _Proof(agent.id, given.nonce, given.timestamp_ms, aicq.OUT_OF_TIME)

    async def _bearer(self, knock: Knock, header: str) -> Caller:
        secret = header[7:].strip() if header[:7].lower() == "bearer " else header.strip()
        if secret.startswith("agt_"):
            token = await self._tokens.find(secret, knock.now)
            agent = await self._agents.by_id(token.agent_id) if token.agent_id else None
            return Caller(knock.address, token.role, agent, name=f"token {token.label or token.id}")
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

    async def _agent_of(self, id_: UUID) -> tuple[Agent, Ed25519PublicKey]:
        agent = await self._agents.by_key_id(id_)
        if agent is None:
            raise Unauthenticated("no agent has this key", hint="register it first: angelia agent register")
        return agent, Ed25519PublicKey.from_public_bytes(agent.public_key)

    async def _spend_agent(self, knock: Knock, caller: Caller, proof: _Proof | None) -> dict[str, str]:
        rule = self._rules[knock.route.rule.name] if knock.route.rule else None
        if (rule and rule.per is Per.ADDRESS) or within(knock.address, self._whitelist):
            rule = None
        if proof is None:
            if rule is None or caller.agent is None:
                return {}
            # A bearer token brings no nonce of its own; a fresh one makes the same script count the request.
            proof = _Proof(caller.agent.id, uuid.uuid4().hex, now_ms() + 1)
        spent = await self._spend_nonce(proof, rule)
        return spent.headers() if spent else {}

    async def _spend_nonce(self, proof: _Proof, rule: Rule | None) -> Spent | None:
        # A request from the near future waits for its own time: otherwise a hot tier that forgets its nonce a
        # moment later could not tell, by the birth mark alone, that the request was accepted before.
        early_ms = proof.signed_ms - now_ms()
        if early_ms > 1:
            await asyncio.sleep(early_ms / 1000)
        at = now_ms()
        verdict = await store.spend_agent(
            self._hot, proof.subject, proof.nonce, proof.signed_ms, NONCE_LIFE_MS, rule, at
        )
        if verdict.before_birth:
            raise Stale(proof.too_old, hint="sign it again")
        if verdict.nonce_used:
            raise ReplayRejected("nonce already used", hint="each request needs a nonce of its own")
        if verdict.spent and not verdict.spent.allowed:
            raise _limited(verdict.spent, at)
        return verdict.spent

    async def _spend_address(self, address: Address, rule: Rule | None, now: datetime, *, charge: bool) -> Spent | None:
        at = int(now.timestamp() * 1000)
        if rule is not None and rule.limit == 0:
            rule = None
        if self._blocks.includes(address, now):
            metrics.BLOCKED.inc()
            raise Denied("temporarily blocked")
        if rule is None:
            return None  # what this process remembers is enough where nothing is counted
        try:
            verdict = await store.spend_address(
                self._hot,
                address,
                rule,
                at,
                uuid.uuid4().hex,
                charge=charge,
                auto_block=self._settings.auto_block_enabled,
            )
        except Unavailable:
            metrics.LIMITER_FALLBACK.inc()
            spent: Spent | None = self._local.spend(rule, str(address), at, charge=charge)
        else:
            if verdict.blocked:
                metrics.BLOCKED.inc()
                raise Denied("temporarily blocked")
            if verdict.blocked_now:
                metrics.ADDRESSES_BLOCKED.inc()
                await self._blocks.record_automatic(address, now, timedelta(milliseconds=store.BLOCK_MS))
            spent = verdict.spent
        if spent and not spent.allowed:
            raise _limited(spent, at)
        return spent

    async def _charge_unproven(self, knock: Knock) -> None:
        try:
            await self._spend_address(knock.address, self._rules[UNPROVEN.name], knock.now, charge=True)
        except RateLimited:
            return  # this request is refused anyway, the next one will be told


def _limited(spent: Spent, at_ms: int) -> RateLimited:
    metrics.RATE_LIMITED.labels(spent.rule.name).inc()
    error = RateLimited("rate limit exceeded", retry_after=spent.retry_after(at_ms))
    error.headers = spent.headers()
    return error
