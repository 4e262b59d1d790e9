"""The guard's records, and its rules without I/O: rate limits, addresses and networks."""

from __future__ import annotations

import ipaddress
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.api import Address, Per, Rule
from angelia.errors import InvalidArgument, SettingsError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


# Requests with a credential that does not verify, on any route.
UNPROVEN = Rule("unproven", 120, 60_000, Per.ADDRESS)

_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RATE = re.compile(r"(\d{1,9})/(\d{1,6})?([smhd])")


def with_limits(rules: Iterable[Rule], overrides: Mapping[str, str]) -> dict[str, Rule]:
    """Returns the rules by name, with the limits of the settings, such as `120/1m` or `off`."""
    named = {rule.name: rule for rule in rules}
    for name, text in overrides.items():
        if name not in named:
            raise SettingsError(f"limits names {name}, which is no rule", hint=f"rules: {', '.join(sorted(named))}")
        named[name] = _overridden(named[name], text)
    return named


def _overridden(rule: Rule, text: str) -> Rule:
    if text == "off":
        return Rule(rule.name, 0, rule.window_ms, rule.per)
    found = _RATE.fullmatch(text)
    if found is None or int(found[1]) == 0 or found[2] == "0":
        raise SettingsError(f"limits: {rule.name}={text} cannot be read", hint="write it as 120/1m, or off")
    return Rule(rule.name, int(found[1]), int(found[2] or 1) * _UNITS[found[3]], rule.per)


class RateDecision(msgspec.Struct, frozen=True):
    """Whether a rate limit allows a request, and how much of it is left."""

    rule: Rule
    allowed: bool
    remaining: int
    reset_ms: int

    def headers(self) -> dict[str, str]:
        """The X-RateLimit headers. Reset is when the next request will be accepted, rounded up to whole seconds."""
        return {
            "x-ratelimit-limit": str(self.rule.limit),
            "x-ratelimit-remaining": str(self.remaining),
            "x-ratelimit-reset": str(-(-self.reset_ms // 1000)),
        }

    def retry_after(self, now_ms: int) -> int:
        return max(1, -(-(self.reset_ms - now_ms) // 1000))


class SlidingWindows:
    """Rate limits in the memory of one process, while the hot tier is away; counts as the Lua script does."""

    def __init__(self, most_subjects: int = 10_000) -> None:
        self._hits: OrderedDict[tuple[str, str], list[int]] = OrderedDict()
        self._most = most_subjects

    def spend(self, rule: Rule, subject: str, now_ms: int, *, charge: bool) -> RateDecision:
        kept = [at for at in self._hits.get((rule.name, subject), ()) if at > now_ms - rule.window_ms]
        allowed = len(kept) < rule.limit
        if allowed and charge:
            kept.append(now_ms)
        self._hits[rule.name, subject] = kept
        self._hits.move_to_end((rule.name, subject))
        if len(self._hits) > self._most:
            self._hits.popitem(last=False)
        reset_ms = kept[len(kept) - rule.limit] + rule.window_ms if len(kept) >= rule.limit else now_ms
        return RateDecision(rule, allowed, max(0, rule.limit - len(kept)), reset_ms)


def parse_address(text: str) -> Address:
    """Parses an IP address; an IPv4 address written as IPv6 becomes the IPv4 address."""
    try:
        # The list of blocks shows IPv6 networks, so callers may send them back; any other network is refused.
        address = ipaddress.ip_address(text.removesuffix("/64") if ":" in text else text)
    except ValueError as error:
        raise InvalidArgument(f"{text[:60]!r} is no IP address", hint="write it as 192.0.2.1 or 2001:db8::1") from error
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        raise InvalidArgument("an address with a zone is only known to its own machine")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def parse_networks(setting: str, texts: Iterable[str]) -> tuple[Network, ...]:
    """Parses the addresses and networks of a setting."""
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
    except ValueError as error:
        raise SettingsError(f"{setting}: {error}", hint="write addresses or networks, such as 10.0.0.0/8") from error


def within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def client_address(peer: str, forwarded: str | None, proxies: tuple[Network, ...]) -> Address:
    """The caller's address: the socket's peer or, behind trusted proxies, the last hop in X-Forwarded-For that is none
    of them."""
    try:
        address = parse_address(peer)
    except InvalidArgument:
        return ipaddress.IPv4Address("127.0.0.1")  # a Unix socket or a test client has no address
    if forwarded is None:
        return address
    for hop in reversed(forwarded.split(",")):
        if not within(address, proxies):
            break
        try:
            address = parse_address(hop.strip())
        except InvalidArgument:
            break
    return address


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A bearer token as operators see it, without its secret."""

    id: UUID
    label: str
    role: str
    agent: str | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """An address, or an IPv6 /64, that is refused on every route until the block ends."""

    address: str
    reason: str
    blocked_by: str
    blocked_at: datetime
    expires_at: datetime | None
