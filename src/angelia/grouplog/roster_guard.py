"""The guard of a spool node: callers are the members in a group's roster, and nonces are remembered in memory."""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from datetime import datetime
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import msgspec

from angelia import metrics
from angelia.api import Access, AuthorProof, Caller, ClientAddress, Operation, UnverifiedRequest, clock
from angelia.api.admission import ReadBody
from angelia.api.request_verifier import RequestVerifier
from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.times import unix_ms
from angelia.errors import Denied, InvalidArgument, NotMember, ReplayRejected, Stale, Unauthenticated, Unavailable
from angelia.grouplog.live_group import LiveGroup
from angelia.grouplog.live_groups import LiveGroups
from angelia.grouplog.member_caller import MemberCaller
from angelia.grouplog.model.documents import NewGroup, raw
from angelia.grouplog.model.ids import parse_group

NONCE_LIFE_MS = 240_000  # longer than any signature is accepted, with the time that its body takes
_MOST_NONCES = 2_000_000


class Nonces:
    """The nonces of the last minute. What was signed before the memory began is refused."""

    def __init__(self, began_ms: int) -> None:
        self._began_ms = began_ms
        self._seen: set[tuple[UUID, str]] = set()
        self._order: deque[tuple[int, tuple[UUID, str]]] = deque()

    def spend(self, key: UUID, nonce: str, signed_ms: int, now_ms: int) -> None:
        while self._order and self._order[0][0] <= now_ms - NONCE_LIFE_MS:
            self._seen.discard(self._order.popleft()[1])
        if signed_ms < self._began_ms:
            raise Stale("the request was signed before this node started", hint="sign it again")
        if (key, nonce) in self._seen:
            raise ReplayRejected
        if len(self._seen) >= _MOST_NONCES:
            raise Unavailable("the node has too many requests in memory", retry_after=5)
        self._seen.add((key, nonce))
        self._order.append((now_ms, (key, nonce)))


class RosterGuard:
    """Admits members. `token` is asked for besides the signature where a group is created; None in open mode, and
    behind a web process, which asks for it itself."""

    def __init__(self, groups: LiveGroups, verifier: RequestVerifier, token: str | None) -> None:
        self._groups = groups
        self._verifier = verifier
        self._token = token
        self._nonces = Nonces(unix_ms(clock()))

    async def check_address(
        self, operation: Operation[Any] | None, client: ClientAddress, now: datetime
    ) -> dict[str, str]:
        return {}

    async def check_token(self, request: UnverifiedRequest) -> None:
        if self._token is None:
            return
        header = request.headers.get("authorization", "")
        scheme, _, secret = header.partition(" ")
        if not header:
            raise Unauthenticated(
                "a group is created with a token besides", hint="Authorization: Bearer, see docs/logs.md"
            )
        if scheme.lower() != "bearer" or not hmac.compare_digest(secret.strip().encode(), self._token.encode()):
            raise Unauthenticated("the token is not this node's", hint="it is in admin.token of its data directory")

    async def identify(self, request: UnverifiedRequest, read_body: ReadBody) -> tuple[Caller, bytes, dict[str, str]]:
        if request.operation.access is Access.ANYONE:
            return Caller(request.client.address), await read_body(), {}
        if request.operation.access is not Access.SIGNED:
            await self.check_token(request)
            return Caller(request.client.address), await read_body(), {}
        if "signature-input" not in request.headers:
            raise Unauthenticated("this route needs a signed request", hint="how to sign is told at /docs")
        presented = self._verifier.presented(request)
        if request.path_values:
            caller, body = await self._member(request, presented.key_id), None
        else:
            await self.check_token(request)
            body = await read_body()
            caller = _founder(request, presented.key_id, body)
        self._verifier.verify_head(presented, request, caller.public_key)
        if body is None:
            body = await read_body()
        self._verifier.verify_body(request, body)
        # A request signed slightly ahead of our clock waits for its own time: after a restart, all that was accepted
        # before is older than the node's memory.
        if (early_ms := presented.created * 1000 - unix_ms(clock())) > 0:
            await asyncio.sleep(early_ms / 1000)
        self._nonces.spend(presented.key_id, presented.nonce, presented.created * 1000, unix_ms(clock()))
        if caller.group is not None:
            # The roster is that of now: a member may have been removed while its body came.
            caller = _member_of(caller.group, presented.key_id, request)
        return caller, body, {}

    async def count_refusal(self, request: UnverifiedRequest, code: str) -> None:
        metrics.AUTH_REFUSED.labels(code).inc()

    async def prove_possession(self, request: UnverifiedRequest, body: bytes, public_key: bytes) -> bool:
        return False

    def author_proof(self, request: UnverifiedRequest, caller: Caller, body: bytes) -> AuthorProof | None:
        return None

    async def _member(self, request: UnverifiedRequest, key: UUID) -> MemberCaller:
        group = await self._groups.live(parse_group(unquote(request.path_values[0])))
        return _member_of(group, key, request)


def _member_of(group: LiveGroup, key: UUID, request: UnverifiedRequest) -> MemberCaller:
    group.check_live()
    member = group.member(key)
    if member is None:
        raise NotMember("no member of the group has this key", hint="an admin of the group adds members")
    return MemberCaller(address=request.client.address, public_key=member.public_key, group=group, member=member)


def _founder(request: UnverifiedRequest, key: UUID, body: bytes) -> MemberCaller:
    """The key of a new group's roster that signed. Its right to create is for the service to check."""
    try:
        new = msgspec.json.decode(body, type=NewGroup)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body does not fit: {error}") from error
    for entry in new.roster:
        public_key = raw(entry.public_key, 32)
        if key_id(KeyType.ED25519, public_key) == key:
            return MemberCaller(address=request.client.address, public_key=public_key)
    raise Denied("the request is not signed by a member of the roster that it brings", hint="sign with an admin's key")
