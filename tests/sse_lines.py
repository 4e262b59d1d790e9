"""A client's end of server-sent events, as tests read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Said:
    """One event of a stream."""

    event: str
    data: Any
    id: str | None


class Line:
    """A client's end of a stream."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.began = ""  # the id that a stream begins with
        self._blocks = self._read()

    async def _read(self) -> AsyncIterator[str]:
        block: list[str] = []
        async for line in self.answer.aiter_lines():
            if line:
                block.append(line)
            else:
                yield "\n".join(block)
                block = []

    async def block(self, seconds: float = 5) -> str | None:
        """The next block of lines, heartbeats among them; None at the end."""
        async with asyncio.timeout(seconds):
            return await anext(self._blocks, None)

    async def next(self, seconds: float = 5) -> Said:
        """The next event."""
        while (block := await self.block(seconds)) is not None:
            fields = dict(one.split(": ", 1) for one in block.split("\n") if not one.startswith(":"))
            if "data" in fields:
                return Said(fields["event"], json.loads(fields["data"]), fields.get("id"))
        raise AssertionError("the stream ended")
