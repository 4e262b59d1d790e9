"""The newest news of queues in the hot tier: by its number a process knows whether it has heard all of it."""

from __future__ import annotations

import secrets

from angelia.stores.valkey import HotTier, Script

_NEWS = Script.read(__file__, "news.lua")
_KEY = "ang:queues:news"
_EPOCH_BYTES = 8


class HotNews:
    """Numbers each piece of news and publishes it. Numbers of an epoch count on; a hot tier that lost its data begins
    another epoch."""

    def __init__(self, hot: HotTier) -> None:
        self._hot = hot

    async def publish(self, topic: str, tag: bytes, news: bytes) -> tuple[str, int]:
        """Returns epoch and number of the news."""
        return parse(await self._hot.run(_NEWS, [_KEY], [topic, tag, news, secrets.token_hex(_EPOCH_BYTES)]))

    async def newest(self) -> tuple[str, int]:
        """Epoch and number of the newest news."""
        return parse(await self._hot.run(_NEWS, [_KEY], ["", "", "", secrets.token_hex(_EPOCH_BYTES)]))


def parse(mark: bytes) -> tuple[str, int]:
    epoch, _, number = bytes(mark).decode().partition(":")
    return epoch, int(number)
