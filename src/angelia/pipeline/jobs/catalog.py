"""The jobs of the pipeline by name. A job is loaded when it runs, so that the list needs no Spark."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from angelia.pipeline.simulation import capacity
from angelia.pipeline.simulation.fleet import Fleet

if TYPE_CHECKING:
    from angelia.pipeline.jobs.job_context import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Destruction:
    """What a job destroys, for the question before it."""

    verb: str
    doing: str
    whose: str | None = None  # the option that names whose rows they are


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """A job, and the options that it takes. `angelia pipeline run --help` says what it is for."""

    name: str
    options: tuple[str, ...] = ()
    simulated: bool = False  # whether it takes --simulated
    more: tuple[str, ...] = ()  # options without a flag of their own, for --set
    since: bool = False  # whether it takes --from
    until: bool = False  # and --to
    looks: bool = True  # whether it takes --dry-run
    destroys: Destruction | None = None

    def load(self) -> Job:
        """The job's function, which is named like the job, as is its module."""
        name = self.name.replace(" ", "_")
        job: Job = getattr(importlib.import_module(f"angelia.pipeline.jobs.{name}"), name)
        return job


_ALL = (
    JobEntry(name="archive receipts", since=True, until=True),
    JobEntry(name="archive sessions", until=True),
    JobEntry(name="archive rooms"),
    JobEntry(name="archive queues"),
    JobEntry(name="archive audit"),
    JobEntry(name="retention", destroys=Destruction(verb="remove", doing="removing")),
    JobEntry(name="analytics", simulated=True, since=True, until=True),
    JobEntry(name="replay audit", looks=False),
    JobEntry(name="verify audit", looks=False),
    JobEntry(name="verify logs", options=("exports",), looks=False),
    JobEntry(name="export", options=("agent", "out", "format"), looks=False),
    JobEntry(
        name="erase",
        options=("agent", "reason"),
        destroys=Destruction(verb="erase", doing="erasing", whose="agent"),
    ),
    JobEntry(
        name="simulate",
        simulated=True,
        options=("agents", "months", "messages_per_agent_per_day", "seed", "audit"),
        more=(*(field.name for field in fields(Fleet)), *capacity.OPTIONS),
        since=True,
        until=True,
    ),
    JobEntry(name="remove simulated"),
    JobEntry(name="maintain", simulated=True),
    JobEntry(name="import aicq", options=("database", "redis")),
    JobEntry(name="import queen", options=("database",)),
)
JOBS = {entry.name: entry for entry in _ALL}
