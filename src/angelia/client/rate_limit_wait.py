"""Waits out the rate limits of a server: as long as it says, up to a limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from angelia.client.exchange import Exchange, Request, Response, driven
from angelia.errors import RateLimited

T = TypeVar("T")


@dataclass(slots=True)
class Patience:
    """How many seconds may be spent on waiting, in all and at once."""

    left: float
    at_once: float = 120.0

    def takes(self, seconds: float) -> bool:
        """Returns whether to wait so long, and spends it if so."""
        if seconds > min(self.left, self.at_once):
            return False
        self.left -= seconds
        return True


def patiently(call: Exchange[T], patience: Patience) -> Exchange[T]:
    """Carries a call out; a request that came too often is sent again after the time that the server names."""

    def send(request: Request) -> Exchange[Response]:
        while True:
            try:
                return (yield request)
            except RateLimited as refusal:
                wait = max(1, refusal.retry_after or 1)
                if not patience.takes(wait):
                    raise
                request = replace(request, after=wait)

    return driven(call, send)
