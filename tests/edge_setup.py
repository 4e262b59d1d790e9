"""An edge around the routes of a test, assembled as in the application."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from angelia.api import NOTHING, Access, Handler, Operation, Route
from angelia.guard.blocks import AddressBlocks
from angelia.guard.model import parse_networks
from angelia.guard.rate_limiter import RateLimiter
from angelia.guard.service import Guard
from angelia.http.edge import Edge
from angelia.settings import Settings
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake


def limiter_of(
    routes: Sequence[Route], hot: HotTier, wake: Wake, blocks: AddressBlocks, settings: Settings
) -> RateLimiter:
    rules = {one.operation.rule.name: one.operation.rule for one in routes if one.operation.rule}
    return RateLimiter(hot, wake, blocks, settings, rules)


def edge_of(routes: Sequence[Route], guard: Guard, settings: Settings, *, open_mode: bool) -> Edge:
    proxies = parse_networks("trusted_proxies", settings.trusted_proxies)
    return Edge(routes, guard, open_mode=open_mode, loopback=settings.loopback, proxies=proxies)


def route(method: str, path: str, handler: Handler, access: Access, **more: Any) -> Route:
    """Returns a route for a test; the rest of its operation has default values."""
    parameters = {name: f"the {name}" for name in re.findall(r"\{(\w+)\}", path)}
    return Route(Operation("test", method, path, access, "A test", NOTHING, parameters=parameters, **more), handler)
