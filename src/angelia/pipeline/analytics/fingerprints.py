"""Fingerprints of what each day is computed from: a day whose fingerprint is unchanged is not computed again."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from angelia.pipeline import runs
from angelia.pipeline.database import Database
from angelia.pipeline.jobs import archive_receipts
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.lake import listing, small_tables
from angelia.pipeline.lake.tables import DAY, DAYS, RECEIPTS

_MOST_DAYS = 92  # computed together: what a crash makes the next run repeat, and what the driver holds in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class DayInputs:
    """The receipts of a day: its files in the archive, and the number and hash of its rows in the ledger."""

    day: date
    files: tuple[listing.TableFile, ...] = ()
    ledger_rows: int = 0
    ledger_hash: str = "0"

    @property
    def rows(self) -> int:
        return self.ledger_rows + sum(file.rows for file in self.files)

    @property
    def fingerprint(self) -> str:
        parts = [f"{file.path} {file.rows}" for file in sorted(self.files, key=lambda one: one.path)]
        return hashlib.sha256("\n".join([*parts, f"{self.ledger_rows} {self.ledger_hash}"]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class DayRange:
    """Neighbouring days that are computed together."""

    days: list[DayInputs] = field(default_factory=list)

    @property
    def first(self) -> date:
        return self.days[0].day

    @property
    def end(self) -> date:
        """The day after the last."""
        return self.days[-1].day + timedelta(days=1)

    @property
    def rows(self) -> int:
        return sum(day.rows for day in self.days)


def present(work: JobContext, database: Database) -> dict[date, DayInputs]:
    """Every day that has receipts, in the archive or the ledger; of a simulated archive, in the archive alone. The
    caller holds the archive's lock, so that no row moves meanwhile.

    A run that died after its commit has left the same rows in both: until the next run finishes it, the ledger's are
    counted, and its files are not."""
    dead = runs.open_run(database, archive_receipts.JOB)
    by_day: dict[date, list[listing.TableFile]] = defaultdict(list)
    for file in listing.files(work.objects, RECEIPTS):
        if dead is None or not file.name.startswith(dead.run_id):
            by_day[file.day].append(file)
    counted = [] if work.simulated else database.rows(work.sql("mail")["receipts_fingerprints"])
    ledger = {row["day"]: {"ledger_rows": row["row_count"], "ledger_hash": row["hash_sum"]} for row in counted}
    days = sorted(by_day.keys() | ledger.keys())
    return {day: DayInputs(day=day, files=tuple(by_day[day]), **ledger.get(day, {})) for day in days}


def computed(work: JobContext) -> dict[date, str]:
    """The fingerprints of the days that were computed."""
    return {row[DAY]: row["fingerprint"] for row in small_tables.rows(work.objects, DAYS)}


def changed(
    days: Mapping[date, DayInputs], before: Mapping[date, str], within: tuple[datetime | None, datetime | None]
) -> list[DayInputs]:
    """Days that are new, changed, or gone; a day that is gone has no rows."""
    since, until = (None if one is None else one.astimezone(UTC).date() for one in within)
    wanted = (day for day in sorted(days.keys() | before.keys()) if not _outside(day, since, until))
    found = (days.get(day, DayInputs(day=day)) for day in wanted)
    return [one for one in found if not one.rows or before.get(one.day) != one.fingerprint]


def ranges(days: Iterable[DayInputs]) -> Sequence[DayRange]:
    """Days as ranges of neighbours, of at most 92 days each."""
    found: list[DayRange] = []
    for day in days:
        if not found or found[-1].end != day.day or len(found[-1].days) == _MOST_DAYS:
            found.append(DayRange())
        found[-1].days.append(day)
    return found


def _outside(day: date, since: date | None, until: date | None) -> bool:
    return (since is not None and day < since) or (until is not None and day >= until)
