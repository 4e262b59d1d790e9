"""Runs of the pipeline's jobs, as the ledger remembers them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec


class RunState(StrEnum):
    """How far a run has come: committed rows are in the archive, purged rows have left the ledger."""

    PLANNED = "planned"
    COMMITTED = "committed"
    VERIFIED = "verified"
    PURGED = "purged"
    DONE = "done"
    FAILED = "failed"

    @property
    def open(self) -> bool:
        return self not in (RunState.DONE, RunState.FAILED)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job. A run that is open but not `at_work` has died; the next run of its job resumes it."""

    run_id: UUID
    job: str
    state: RunState
    at_work: bool
    version: int  # tells its commits to the archive from those of other runs
    since: datetime | None = msgspec.field(name="from")  # the data's time, up to and without `to`
    until: datetime | None = msgspec.field(name="to")
    cutoff: datetime | None
    rows: int | None
    report: dict[str, Any] | None
    started_at: datetime
    updated_at: datetime

    @property
    def took(self) -> timedelta:
        return self.updated_at - self.started_at

    @property
    def standing(self) -> str:
        """The state in words: whether a run that is open is at work or has died."""
        if not self.state.open:
            return self.state.value
        return f"at work, {self.state}" if self.at_work else f"died, {self.state}"


@dataclass(frozen=True, slots=True)
class Latest:
    """The state of a job: its last run to begin, and the time when a run was done last."""

    job: str
    state: RunState
    started_at: datetime
    done_at: datetime | None
