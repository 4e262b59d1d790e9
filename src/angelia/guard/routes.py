"""The guard's own routes, for operators: bearer tokens and blocked addresses."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec

from angelia.guard.blocks import Blocks
from angelia.guard.declarations import (
    Access,
    Answer,
    Call,
    PageSize,
    Route,
    cursor_after,
    parse_cursor,
    uuid_of,
)
from angelia.guard.model import Block, Token
from angelia.guard.tokens import Tokens

Seconds = Annotated[int, msgspec.Meta(ge=1, le=10 * 366 * 86_400)]


class TokenBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to make: its role, and the agent that it acts for, if any."""

    role: str
    agent: str | None = None
    label: str = ""
    expires_in: Seconds | None = None


class MadeToken(Token, frozen=True, kw_only=True):
    """A new token with its secret, which is shown this once."""

    token: str


class TokenQuery(msgspec.Struct, frozen=True):
    cursor: str | None = None
    limit: PageSize = 50


class TokenList(msgspec.Struct, frozen=True):
    tokens: list[Token]
    next: str | None
    total: int


class BlockBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An address to block; for good if no end is given."""

    address: str
    reason: str = ""
    expires_in: Seconds | None = None


class BlockQuery(msgspec.Struct, frozen=True):
    cursor: str | None = None
    limit: PageSize = 50


class BlockList(msgspec.Struct, frozen=True):
    blocks: list[Block]
    next: str | None
    total: int


def routes(tokens: Tokens, blocks: Blocks) -> list[Route]:
    async def list_tokens(call: Call) -> Answer:
        query = call.query(TokenQuery)
        found, total = await tokens.list_tokens(parse_cursor(query.cursor), query.limit + 1)
        shown = found[: query.limit]
        more = len(found) > query.limit
        return Answer(body=TokenList(shown, cursor_after(shown[-1].created_at, shown[-1].id) if more else None, total))

    async def make_token(call: Call) -> Answer:
        body = call.json(TokenBody)
        token, text = await tokens.make(
            call.caller,
            call.now,
            role=body.role,
            agent=body.agent,
            label=body.label,
            life=timedelta(seconds=body.expires_in) if body.expires_in else None,
        )
        return Answer(201, MadeToken(token=text, **msgspec.structs.asdict(token)))

    async def revoke_token(call: Call) -> Answer:
        await tokens.revoke(call.caller, uuid_of(call.path("id"), "a token is named by its id"), call.now)
        return Answer(204)

    async def list_blocks(call: Call) -> Answer:
        query = call.query(BlockQuery)
        found, total = await blocks.list_blocks(call.now, query.cursor, query.limit + 1)
        shown = found[: query.limit]
        return Answer(body=BlockList(shown, shown[-1].address if len(found) > query.limit else None, total))

    async def block(call: Call) -> Answer:
        body = call.json(BlockBody)
        life = timedelta(seconds=body.expires_in) if body.expires_in else None
        return Answer(201, await blocks.block(call.caller, body.address, body.reason, life, call.now))

    async def unblock(call: Call) -> Answer:
        await blocks.unblock(call.caller, call.path("address"), call.now)
        return Answer(204)

    admin = Access.ADMIN
    return [
        Route("GET", "/v1/tokens", list_tokens, admin, "Tokens, without secrets", {200: TokenList}, query=TokenQuery),
        Route("POST", "/v1/tokens", make_token, admin, "Make a bearer token", {201: MadeToken}, takes=TokenBody),
        Route("DELETE", "/v1/tokens/{id}", revoke_token, admin, "Revoke a bearer token", {204: None}),
        Route("GET", "/v1/guard/blocks", list_blocks, admin, "Blocked addresses", {200: BlockList}, query=BlockQuery),
        Route("POST", "/v1/guard/blocks", block, admin, "Block an address", {201: Block}, takes=BlockBody),
        Route("DELETE", "/v1/guard/blocks/{address}", unblock, admin, "Unblock an address", {204: None}),
    ]  # fmt: skip
