"""A made-up fleet: its size, how its agents talk, and what becomes of their messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, timedelta
from itertools import accumulate
from math import isfinite
from typing import Any

from angelia.errors import InvalidArgument

_MOST_AGENTS = 1_000_000  # a handle has six digits
_WORKING = (0.06, 0.04, 0.03, 0.03, 0.03, 0.05, 0.1, 0.2, 0.45, 0.8, 0.95, 1.0)
_EVENING = (0.9, 0.95, 1.0, 0.95, 0.85, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08)
_WEEKEND = 0.55


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Options of `simulate`. Equal options give equal rows."""

    agents: int = 1000
    messages_per_agent_per_day: float = 4.5  # in the mean of a week; fewer at the weekend
    seed: int = 1
    sizes: tuple[float, float] = (800.0, 1.0)  # of what is sealed: median in bytes, sigma of its logarithm
    priorities: tuple[float, ...] = (0.10, 0.70, 0.15, 0.05)  # shares of low, normal, high and critical
    failure_share: float = 0.005
    expiry_share: float = 0.003
    delays: tuple[float, ...] = (240.0, 80.0, 40.0, 20.0)  # to delivery, by priority: median in milliseconds
    delay_sigma: float = 1.1  # of the logarithm of these
    attempts: tuple[float, ...] = (0.97, 0.02, 0.01)  # shares of what is delivered at the first, second, … attempt
    hours: tuple[float, ...] = _WORKING + _EVENING  # weights of the hours of a day
    skew: float = 0.6  # 0: all agents send alike; near 1: a few send nearly everything

    def __post_init__(self) -> None:
        _check(
            isinstance(self.agents, int) and 2 <= self.agents <= _MOST_AGENTS,
            "agents",
            f"a number from 2 to {_MOST_AGENTS:,}",
        )
        _check(isinstance(self.seed, int) and abs(self.seed) < 2**63, "seed", "a whole number of 64 bits")
        _check(0 < self.messages_per_agent_per_day <= 1e6, "messages_per_agent_per_day", "from 0 to 1,000,000")
        _check(len(self.sizes) == 2 and self.sizes[0] >= 1 and self.sizes[1] >= 0, "sizes", "median and sigma")
        _check(len(self.priorities) == 4 and _are_shares(self.priorities), "priorities", "four shares that make 1")
        outcomes = min(self.failure_share, self.expiry_share) >= 0 and self.failure_share + self.expiry_share <= 1
        _check(outcomes, "failure_share and expiry_share", "shares that make 1 at most")
        _check(len(self.delays) == 4 and min(self.delays) > 0, "delays", "four medians in milliseconds")
        _check(0 <= self.delay_sigma <= 5, "delay_sigma", "a number from 0 to 5")
        _check(len(self.attempts) > 0 and _are_shares(self.attempts), "attempts", "shares that make 1")
        _check(len(self.hours) == 24 and min(self.hours) > 0, "hours", "24 numbers above 0")
        _check(0 <= self.skew < 1, "skew", "a number from 0, less than 1")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Fleet:
        """From a job's options; lists become tuples, and unknown names are ignored."""
        known = {one.name for one in fields(cls)}
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
        }
        wanted = {name: value for name, value in given.items() if name in known and value is not None}
        for name, value in wanted.items():
            _check(are_numbers(value), name, "a number, or a list of numbers where there are several")
            _check(isinstance(value, tuple) == isinstance(getattr(_PLAIN, name), tuple), name, "one number or several")
        return cls(**wanted)

    def messages(self, day: date) -> int:
        """The number of messages of a day: fewer at the weekend, with a little random variation."""
        drawn = hashlib.sha256(f"{self.seed} {day}".encode()).digest()
        wobble = 0.96 + 0.08 * int.from_bytes(drawn[:4], "big") / 2**32
        weekly = 7 / (5 + 2 * _WEEKEND) * (_WEEKEND if day.weekday() >= 5 else 1.0)
        return max(1, round(self.agents * self.messages_per_agent_per_day * weekly * wobble))

    def times_of_day(self, points: int) -> list[float]:
        """The times of day, in seconds, by which equal shares of the messages are sent: the quantiles of `hours`."""
        reached = [0.0, *accumulate(self.hours)]
        found, hour = [], 0
        for point in range(points + 1):
            wanted = reached[-1] * point / points
            while hour < 23 and reached[hour + 1] < wanted:
                hour += 1
            found.append(3600 * (hour + (wanted - reached[hour]) / self.hours[hour]))
        return found


def days_between(first: date, last: date) -> list[date]:
    """The days from the first up to, but not including, the last."""
    return [first + timedelta(days=offset) for offset in range((last - first).days)]


def cumulative(shares: Sequence[float]) -> list[float]:
    """The cumulative sums of shares, without the last."""
    return list(accumulate(shares))[:-1]


def pieces(days: Sequence[date], rows: Mapping[date, int], most: int) -> list[list[date]]:
    """Days in order, in pieces of at most `most` rows; a larger day is a piece of its own."""
    found: list[list[date]] = []
    size = 0
    for day in days:
        if not found or size + rows[day] > most:
            found.append([])
            size = 0
        found[-1].append(day)
        size += rows[day]
    return found


def are_numbers(value: object) -> bool:
    """Whether a value from the command line is a finite number, or a tuple of such."""
    if isinstance(value, tuple):
        return len(value) > 0 and all(map(are_numbers, value))
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _are_shares(shares: Sequence[float]) -> bool:
    return min(shares) >= 0 and abs(sum(shares) - 1) < 1e-9


def _check(holds: bool, name: str, wanted: str) -> None:
    if not holds:
        raise InvalidArgument(f"{name} must be {wanted}", hint="angelia pipeline run simulate --help")


_PLAIN = Fleet()
