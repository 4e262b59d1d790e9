"""What became of the rows of an import, counted for its report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MOST_LISTED = 1_000


@dataclass(slots=True)
class ImportTally:
    """The rows of one kind: how many were imported, were there already, or were left out, and why."""

    imported: int = 0
    there: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    listed: Counter[tuple[str, str]] = field(default_factory=Counter)

    def skip(self, which: object, why: str, count: int = 1) -> None:
        """Counts rows that are left out. `which` is the id of an agent or a room, or the place of messages; the first
        ones are listed."""
        if not count:
            return
        self.skipped[why] += count
        if (str(which), why) in self.listed or len(self.listed) < MOST_LISTED:
            self.listed[str(which), why] += count

    def document(self) -> dict[str, Any]:
        listed = [{"id": which, "why": why, "rows": rows} for (which, why), rows in self.listed.items()]
        return {"imported": self.imported, "there": self.there, "skipped": dict(self.skipped), "listed": listed}
