"""How an import of another server's data writes into the ledger: in batches, each of them one transaction."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import angelia
from angelia.audit.model import Detail, Event
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.runs import JobRun
from angelia.stores.sql import statements

T = TypeVar("T")
_PACKAGE = Path(angelia.__file__).parent


@dataclass(kw_only=True)
class LedgerImport:
    """One call of an import. Without a run it only looks."""

    work: JobContext
    database: Database
    run: JobRun | None

    def sql(self, slice_name: str) -> Mapping[str, str]:
        """The statements by which a slice lets an import read and write its tables."""
        return _import_sql(slice_name)

    def batch(self, what: str, act: Callable[[], T]) -> T:
        """Does one batch, in one transaction of the ledger if there is a run; returns its result."""
        if self.run is None:
            return act()
        run = self.run

        def then() -> T:
            done = act()
            self.work.step(f"writing {what}", run)
            return done

        result = self.database.patiently(then)
        self.work.step(what, run)
        return result

    def record(self, kind: str, about: str, detail: Detail) -> None:
        """Writes an audit event that the import made something."""
        assert self.run is not None, "only a run writes"
        event = Event(
            event_id=uuid.uuid4(),
            occurred_at=self.work.clock(),
            event_type=kind,
            object=about,
            detail={"run": self.run.run_id, **detail},
        )
        said = (event.actor, event.object, json.dumps(event.detail), event.hash())
        self.database.execute(self.work.sql("audit")["record"], str(event.event_id), event.occurred_at, kind, *said)


@functools.cache
def _import_sql(slice_name: str) -> Mapping[str, str]:
    return statements(str(_PACKAGE / slice_name / "model.py"), "import.sql")
