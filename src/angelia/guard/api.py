"""The guard's operations, for operators: bearer tokens and blocked addresses."""

from __future__ import annotations

from typing import Annotated

import msgspec

from angelia.api import NOTHING, Access, Operation, PageQuery
from angelia.guard.model import Block, Token

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


class TokenList(msgspec.Struct, frozen=True):
    """A page of bearer tokens, never with their secrets."""

    tokens: list[Token]
    next: str | None
    total: int


class BlockBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An address to block; for ever if no end is given."""

    address: str
    reason: str = ""
    expires_in: Seconds | None = None


class BlockList(msgspec.Struct, frozen=True):
    """A page of blocked addresses."""

    blocks: list[Block]
    next: str | None
    total: int


LIST_TOKENS = Operation(
    "tokens", "GET", "/v1/tokens", Access.ADMIN, "Tokens, without secrets", TokenList, query=PageQuery
)  # fmt: skip
MAKE_TOKEN = Operation(
    "tokens", "POST", "/v1/tokens", Access.ADMIN, "Make a bearer token", MadeToken,
    statuses=(201,), body=TokenBody, repeatable=False,
)  # fmt: skip
REVOKE_TOKEN = Operation(
    "tokens", "DELETE", "/v1/tokens/{id}", Access.ADMIN, "Revoke a bearer token", NOTHING,
    statuses=(204,), parameters={"id": "The token's id"}, repeatable=False,
)  # fmt: skip
LIST_BLOCKS = Operation(
    "guard", "GET", "/v1/guard/blocks", Access.ADMIN, "Blocked addresses", BlockList, query=PageQuery
)  # fmt: skip
BLOCK_ADDRESS = Operation(
    "guard", "POST", "/v1/guard/blocks", Access.ADMIN, "Block an address", Block,
    statuses=(201,), body=BlockBody, repeatable=False,
)  # fmt: skip
UNBLOCK_ADDRESS = Operation(
    "guard", "DELETE", "/v1/guard/blocks/{address}", Access.ADMIN, "Unblock an address", NOTHING,
    statuses=(204,), parameters={"address": "An IP address, or a /64 of IPv6"}, repeatable=False,
)  # fmt: skip
