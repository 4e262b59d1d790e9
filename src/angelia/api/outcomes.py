"""Outcomes of a batch: each item has its own result or error, independent of the others."""

from __future__ import annotations

from typing import Any

import msgspec

from angelia.errors import AngeliaError


class ItemProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why one item of a batch was refused: the members of a problem document."""

    code: str
    title: str
    hint: str = ""
    retry_after: int | None = None
    members: dict[str, Any] = {}


def item_problem(error: AngeliaError) -> ItemProblem:
    """Returns an error as the problem of one item."""
    return ItemProblem(
        code=error.code,
        title=error.message,
        hint=error.hint,
        retry_after=error.retry_after,
        members=dict(error.members),
    )
