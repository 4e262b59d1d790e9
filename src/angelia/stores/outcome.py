"""Gives a waiting caller what came of its part of a shared round trip."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def settle(waiting: asyncio.Future[T], outcome: T | Exception) -> None:
    """Result or exception; a caller that has gone away meanwhile hears nothing."""
    if waiting.done():
        return
    if isinstance(outcome, Exception):
        waiting.set_exception(outcome)
    else:
        waiting.set_result(outcome)
