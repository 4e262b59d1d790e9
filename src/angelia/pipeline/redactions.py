"""Redacted events of the archived audit. No hash covers what is left of them, so they are listed and summed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

MOST_LISTED = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEFT = ("position", "event_id", "event_type", "message_id", "replay_key")  # and the two times


@dataclass(slots=True)
class Redactions:
    """The redacted events of some rows. The sum is equal for equal rows, and the ledger computes the same."""

    count: int = 0
    hash_sum: int = 0
    positions: list[int] = field(default_factory=list)  # the first of them
    times: dict[datetime, tuple[int, int]] = field(default_factory=dict)  # the first of each time, and how many

    def add(self, row: Mapping[str, Any]) -> None:
        position, at = row["position"], row["redacted_at"]
        self.join(Redactions(1, _hash(row), [position], {at: (position, 1)}))

    def join(self, behind: Redactions) -> None:
        """Adds the redactions of the rows that follow."""
        self.count += behind.count
        self.hash_sum += behind.hash_sum
        self.positions += behind.positions[: MOST_LISTED - len(self.positions)]
        for at, (first, number) in behind.times.items():
            before = self.times.get(at, (first, 0))
            self.times[at] = (before[0], before[1] + number)

    def told(self) -> str:
        """The text in which a task sends it to the driver."""
        times = [[_micros(at), *said] for at, said in self.times.items()]
        return json.dumps([self.count, self.hash_sum, self.positions, times])

    @classmethod
    def heard(cls, told: str) -> Redactions:
        count, hash_sum, positions, times = json.loads(told)
        by_time = {_EPOCH + timedelta(microseconds=at): (first, number) for at, first, number in times}
        return cls(count, hash_sum, positions, by_time)


def _hash(row: Mapping[str, Any]) -> int:
    left = ["" if row[name] is None else str(row[name]) for name in _LEFT]
    text = "|".join([*left, str(_micros(row["occurred_at"])), str(_micros(row["redacted_at"]))])
    return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)
