"""Counts of recent failures by source, in the hot tier."""

from __future__ import annotations

from datetime import datetime

from angelia.stores.valkey import HotTier, Script

_COUNT = Script.read(__file__, "failures.lua")
_TAKE = Script.read(__file__, "failures_take.lua")


class FailureCounts:
    """Failures by kind and source, per minute and per hour."""

    def __init__(self, hot: HotTier) -> None:
        self._hot = hot

    async def add(self, kind: str, source: str, now: datetime) -> tuple[int, int]:
        """Counts one. Returns the source's failures of this minute, and those of this kind of this hour."""
        named = [f"{kind} {source}", f"* {source}"]
        minute, hour = await self._hot.run(_COUNT, [_minute(now), f"ang:fail:h:{now:%Y%m%d%H}"], named)
        return int(minute), int(hour)

    async def above(self, most: int, minute: datetime) -> list[tuple[str, str, int]]:
        """Kind, source and count of the failures of the sources that had more than `most` in a minute."""
        counts = await self._hot.run(_TAKE, [_minute(minute)], [most])
        named = [bytes(name).decode().partition(" ") for name in counts[::2]]
        return [(kind, source, int(count)) for (kind, _, source), count in zip(named, counts[1::2], strict=True)]

    async def forget(self, minute: datetime) -> None:
        await self._hot.forget(_minute(minute))


def _minute(at: datetime) -> str:
    return f"ang:fail:{at:%Y%m%d%H%M}"
