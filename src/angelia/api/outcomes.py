"""Outcomes of a batch: each item has its own, a result or an error, and none suffers for another's sake."""

from __future__ import annotations

from typing import Any

import msgspec

from angelia.errors import AngeliaError


class ItemProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why one of several things was refused: the words of a problem document."""

    code: str
    title: str
    hint: str = ""
    retry_after: int | None = None
    members: dict[str, Any] = {}


def item_problem(error: AngeliaError) -> ItemProblem:
    return ItemProblem(
        code=error.code,
        title=error.message,
        hint=error.hint,
        retry_after=error.retry_after,
        members=dict(error.members),
    )
