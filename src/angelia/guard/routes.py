"""Tokens and blocked addresses over HTTP: binds the operations to their services."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from angelia.api import Answer, Call, PageQuery, Route, cursor_after, parse_cursor, uuid_of
from angelia.guard import api
from angelia.guard.blocks import AddressBlocks
from angelia.guard.tokens import Tokens


def routes(tokens: Tokens, blocks: AddressBlocks) -> list[Route]:
    async def list_tokens(call: Call) -> Answer:
        query = call.query(PageQuery)
        found, total = await tokens.list_tokens(parse_cursor(query.cursor), query.and_one_more)
        shown, following = query.cut(found, lambda token: cursor_after(token.created_at, token.id))
        return Answer(body=api.TokenList(shown, following, total))

    async def make_token(call: Call) -> Answer:
        body = call.json(api.TokenBody)
        life = timedelta(seconds=body.expires_in) if body.expires_in else None
        token, text = await tokens.make(
            call.caller, call.now, role=body.role, agent=body.agent, label=body.label, life=life
        )
        return Answer(201, api.MadeToken(token=text, **msgspec.structs.asdict(token)))

    async def revoke_token(call: Call) -> Answer:
        await tokens.revoke(call.caller, uuid_of(call.path("id"), "a token is named by its id"), call.now)
        return Answer(204)

    async def list_blocks(call: Call) -> Answer:
        query = call.query(PageQuery)
        found, total = await blocks.list_blocks(call.now, query.cursor, query.and_one_more)
        shown, following = query.cut(found, lambda block: block.address)
        return Answer(body=api.BlockList(shown, following, total))

    async def block(call: Call) -> Answer:
        body = call.json(api.BlockBody)
        life = timedelta(seconds=body.expires_in) if body.expires_in else None
        return Answer(201, await blocks.block(call.caller, body.address, body.reason, life, call.now))

    async def unblock(call: Call) -> Answer:
        await blocks.unblock(call.caller, call.path("address"), call.now)
        return Answer(204)

    return [
        Route(api.LIST_TOKENS, list_tokens),
        Route(api.MAKE_TOKEN, make_token),
        Route(api.REVOKE_TOKEN, revoke_token),
        Route(api.LIST_BLOCKS, list_blocks),
        Route(api.BLOCK_ADDRESS, block),
        Route(api.UNBLOCK_ADDRESS, unblock),
    ]
