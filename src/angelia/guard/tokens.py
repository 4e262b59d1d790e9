"""Bearer tokens: their secrets are stored hashed and compared in constant time; a revoked token stays revoked."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import re
import secrets
import time
import uuid
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from angelia.agents.service import Agents
from angelia.api import ROLES, AgentRow, Caller
from angelia.audit import service as audit
from angelia.errors import InvalidArgument, NotFound, Unauthenticated, Unavailable
from angelia.guard import store
from angelia.guard.model import Token
from angelia.stores.ledger import Ledger

_TEXT = re.compile(r"agt_([0-9a-f]{32})_([A-Za-z0-9_-]{43})")
_CACHE_SECONDS = 1.0  # how long a token that another process revoked still works here
_CACHE_MOST = 1_000
_USE_NOTED_EVERY = timedelta(minutes=1)


class _Known(msgspec.Struct, frozen=True):
    """A token and its agent, remembered until then by the monotonic clock."""

    until: float
    row: store.TokenRow
    agent: AgentRow | None


class Tokens:
    """The bearer tokens of this ledger."""

    def __init__(self, ledger: Ledger, agents: Agents) -> None:
        self._ledger = ledger
        self._agents = agents
        self._revoked = 0
        self._known: dict[str, _Known] = {}  # by the id in a token's text

    async def find(self, text: str, now: datetime) -> tuple[store.TokenRow, AgentRow | None]:
        """Returns a valid token by its text, and the agent that it acts for; all faults of a token get the same
        answer."""
        parsed = _TEXT.fullmatch(text)
        known = await self._look_up(parsed[1], now) if parsed else None
        presented = _hash(parsed[2]) if parsed else b""
        if known is None or not hmac.compare_digest(presented, known.row.secret_hash):
            raise Unauthenticated("Authentication required", hint="the token is unknown or revoked")
        row = known.row
        if row.expires_at is not None and row.expires_at <= now:
            raise Unauthenticated("Authentication required", hint="the token has expired")
        return row, None if known.agent is None else await self._present(known.agent, now)

    async def make(
        self, caller: Caller, now: datetime, *, role: str, agent: str | None, label: str, life: timedelta | None
    ) -> tuple[Token, str]:
        """Makes a token. Returns it with its text, which is stored nowhere."""
        if role not in ROLES:
            raise InvalidArgument(f"{role} is no role", hint=f"roles: {', '.join(ROLES)}")
        if len(label) > 100:
            raise InvalidArgument("a label has at most 100 characters")
        bound = await self._agents.named(agent) if agent is not None else None
        handle = bound.handle if bound else None
        text = new_text()
        row = token_row(text, label, role, bound.id if bound else None, now, now + life if life else None)
        async with self._ledger.transaction() as tx:
            await store.make_token(tx, row, first_admin=False)
            detail = {"id": str(row.id), "role": role, "label": label}
            made = audit.event("token_created", now, actor=caller.known_as, object=handle, detail=detail)
            await audit.record(tx, [made])
        return _shown(row, handle), text

    async def keep_admin(self, text: str, now: datetime) -> None:
        """Stores the operator's own token, unless it is there."""
        row = token_row(text, "admin.token", "admin", None, now, None)
        async with self._ledger.transaction() as tx:
            if await store.make_token(tx, row, first_admin=True):
                detail = {"id": str(row.id), "role": row.role, "label": row.label}
                await audit.record(tx, [audit.event("token_created", now, actor="angelia", detail=detail)])

    async def any_made(self) -> bool:
        """Whether tokens were made beside the operator's own; while there is none, a local server is open."""
        async with self._ledger.reading() as tx:
            return await store.count_made_tokens(tx) > 0

    async def list_tokens(self, after: tuple[datetime, UUID] | None, limit: int) -> tuple[list[Token], int]:
        async with self._ledger.reading() as tx:
            rows, total = await store.tokens(tx, after, limit)
        handles = await self._agents.handles([row.agent_id for row in rows if row.agent_id])
        return [_shown(row, handles.get(row.agent_id) if row.agent_id else None) for row in rows], total

    async def revoke(self, caller: Caller, id: UUID, now: datetime) -> None:
        async with self._ledger.transaction() as tx:
            label = await store.revoke_token(tx, id, now)
            if label is None:
                raise NotFound("there is no such token", hint="angelia token list")
            detail = {"id": str(id), "label": label}
            await audit.record(tx, [audit.event("token_revoked", now, actor=caller.known_as, detail=detail)])
        self._known.pop(id.hex, None)
        self._revoked += 1

    async def _look_up(self, id_: str, now: datetime) -> _Known | None:
        known = self._known.get(id_)
        if known is not None and known.until > time.monotonic():
            return known
        revoked = self._revoked
        async with self._ledger.reading() as tx:
            row = await store.token(tx, UUID(id_))
        if row is None:
            return None
        if row.last_used_at is None or now - row.last_used_at >= _USE_NOTED_EVERY:
            await self._note_use(row.id, now)
        agent = await self._agents.by_id(row.agent_id) if row.agent_id else None
        known = _Known(time.monotonic() + _CACHE_SECONDS, row, agent)
        if revoked == self._revoked:  # else it may have been read before it was revoked
            if len(self._known) >= _CACHE_MOST:
                self._known.clear()
            self._known[id_] = known
        return known

    async def _present(self, agent: AgentRow, now: datetime) -> AgentRow:
        """An agent as it is now, by its key: that is remembered too."""
        found = await self._agents.by_key_id(agent.key_id, now)
        return found[0] if found is not None and found[0].id == agent.id else await self._agents.by_id(agent.id)

    async def _note_use(self, id_: UUID, now: datetime) -> None:
        # On a full disk nothing is written, and callers that only read must go on.
        with contextlib.suppress(Unavailable):
            async with self._ledger.transaction() as tx:
                await store.used(tx, id_, now)


def new_text() -> str:
    """Returns the text of a new token: its id, and 256 random bits."""
    return f"agt_{uuid.uuid4().hex}_{secrets.token_urlsafe(32)}"


def token_row(
    text: str, label: str, role: str, agent_id: UUID | None, now: datetime, expires_at: datetime | None
) -> store.TokenRow:
    """Returns what the ledger keeps of a token: a hash instead of its secret."""
    parsed = _TEXT.fullmatch(text)
    if parsed is None:
        raise InvalidArgument("this is no token text of Angelia")
    return store.TokenRow(UUID(parsed[1]), _hash(parsed[2]), label, role, agent_id, now, expires_at, None)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _shown(row: store.TokenRow, agent: str | None) -> Token:
    return msgspec.convert({**dataclasses.asdict(row), "agent": agent}, Token)
