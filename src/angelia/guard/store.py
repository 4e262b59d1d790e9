"""Every SQL statement and Lua script of the guard."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from uuid import UUID

import msgspec

from angelia.api import Rule, random_id
from angelia.guard.model import Block, RateDecision
from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements
from angelia.stores.valkey import BIRTH, HotTier, Script

SQL = statements(__file__)
_ADDRESS = Script.read(__file__, "address.lua")
_AGENT = Script.read(__file__, "agent.lua")

VIOLATIONS_THAT_BLOCK = 10
VIOLATION_LIFE_MS = 3_600_000
BLOCK_MS = 86_400_000
Publication = tuple[str, bytes]  # a topic and a text
NO_PUBLICATION: Publication = ("", b"")


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token that is not revoked, with the hash of its secret."""

    id: UUID
    secret_hash: bytes
    label: str
    role: str
    agent_id: UUID | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class AddressVerdict(msgspec.Struct, frozen=True):
    """The hot tier's answer about an address."""

    decision: RateDecision | None
    blocked: bool
    blocked_now: bool


class AgentVerdict(msgspec.Struct, frozen=True):
    """The hot tier's answer about a signed request."""

    decision: RateDecision | None
    nonce_used: bool
    before_birth: bool


async def spend(
    hot: HotTier,
    subject: str,
    rule: Rule,
    now_ms: int,
    *,
    charge: bool = True,
    if_counted: Publication = NO_PUBLICATION,
    if_blocked: Publication | None = None,
) -> AddressVerdict:
    """Counts a request of an address, or of an agent without a nonce; without `charge` only checks the limit. Refusals
    block an address when there is something to publish about it."""
    tag, most = _tag(subject), VIOLATIONS_THAT_BLOCK if if_blocked else 0
    told = (*if_counted, *(if_blocked or NO_PUBLICATION))
    verdict, remaining, reset = await hot.run(
        _ADDRESS,
        [f"ang:block:{tag}", f"ang:rl:{tag}:{rule.name}", f"ang:viol:{tag}"],
        [now_ms, rule.limit, rule.window_ms, int(charge), random_id().hex(), most, VIOLATION_LIFE_MS, BLOCK_MS, *told],
    )
    decision = RateDecision(rule, verdict == 0, remaining, reset) if verdict != 2 else None
    return AddressVerdict(decision, blocked=verdict == 2, blocked_now=verdict == 3)


async def spend_nonce(
    hot: HotTier, subject: UUID, nonce: str, signed_ms: int, life_ms: int, rule: Rule | None, now_ms: int
) -> AgentVerdict:
    tag = _tag(str(subject))
    name, limit, window, member = (
        (rule.name, rule.limit, rule.window_ms, random_id().hex()) if rule else ("none", 0, 0, "")
    )
    verdict, remaining, reset = await hot.run(
        _AGENT,
        [BIRTH, f"ang:nonce:{tag}:{nonce}", f"ang:rl:{tag}:{name}"],
        [now_ms, hot.run_id, hot.birth_ms(now_ms), signed_ms, life_ms, limit, window, member],
    )
    decision = RateDecision(rule, verdict == 0, remaining, reset) if rule and rule.limit and verdict in (0, 1) else None
    return AgentVerdict(decision, nonce_used=verdict == 2, before_birth=verdict == 3)


async def set_block(hot: HotTier, subject: str, life_ms: int | None) -> None:
    await hot.set_mark(f"ang:block:{_tag(subject)}", life_ms)


async def clear_block(hot: HotTier, subject: str) -> bool:
    """Removes a block and the count of refusals. Returns whether there was one."""
    tag = _tag(subject)
    return await hot.forget(f"ang:block:{tag}", f"ang:viol:{tag}") > 0


async def make_token(tx: Tx, token: TokenRow, *, first_admin: bool) -> bool:
    """Stores a token. Returns whether it is new."""
    rights = (token.id, token.secret_hash, token.label, token.role, token.agent_id, first_admin)
    return await tx.fetchval(SQL["make_token"], *rights, token.created_at, token.expires_at) is not None


async def token(tx: Tx, id: UUID) -> TokenRow | None:
    row = await tx.fetchrow(SQL["token"], id)
    return None if row is None else record_of(TokenRow, row)


async def used(tx: Tx, id: UUID, at: datetime) -> None:
    await tx.execute(SQL["used"], id, at)


async def tokens(tx: Tx, after: tuple[datetime, UUID] | None, limit: int) -> tuple[list[TokenRow], int]:
    at, id_ = after or (None, None)
    rows = await tx.fetch(SQL["tokens"], at, id_, limit)
    return [record_of(TokenRow, row) for row in rows], int(await tx.fetchval(SQL["count_tokens"]))


async def count_made_tokens(tx: Tx) -> int:
    return int(await tx.fetchval(SQL["count_made_tokens"]))


async def revoke_token(tx: Tx, id: UUID, now: datetime) -> str | None:
    label: str | None = await tx.fetchval(SQL["revoke_token"], id, now)
    return label


async def block(tx: Tx, block: Block) -> None:
    await tx.execute(SQL["block"], *msgspec.structs.astuple(block))


async def unblock(tx: Tx, subject: str) -> bool:
    return await tx.fetchval(SQL["unblock"], subject) is not None


async def blocks(tx: Tx, now: datetime, after: str | None, limit: int) -> tuple[list[Block], int]:
    rows = await tx.fetch(SQL["blocks"], now, after, limit)
    return [record_of(Block, row) for row in rows], int(await tx.fetchval(SQL["count_blocks"], now))


@lru_cache(maxsize=10_000)
def _tag(subject: str) -> str:
    """A hash tag, so that a subject's keys share a cluster slot; hashed, so that a subject cannot forge a key name."""
    return "{" + hashlib.sha256(subject.encode()).hexdigest()[:32] + "}"
