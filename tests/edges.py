"""An edge around routes of a test's own, put together as the application does it."""

from __future__ import annotations

from collections.abc import Sequence

from angelia.guard.blocks import Blocks
from angelia.guard.declarations import Route
from angelia.guard.model import parse_networks
from angelia.guard.rate_limiter import Limiter
from angelia.guard.service import Guard
from angelia.http.edge import Edge
from angelia.settings import Settings
from angelia.stores.valkey import HotTier


def limiter_of(routes: Sequence[Route], hot: HotTier, blocks: Blocks, settings: Settings) -> Limiter:
    return Limiter(hot, blocks, settings, {route.rule.name: route.rule for route in routes if route.rule})


def edge_of(routes: Sequence[Route], guard: Guard, settings: Settings, *, open_mode: bool) -> Edge:
    proxies = parse_networks("trusted_proxies", settings.trusted_proxies)
    return Edge(routes, guard, open_mode=open_mode, loopback=settings.loopback, proxies=proxies)
