"""What the pipeline does to what others rely on is recorded like everything else, in the transaction of the act."""

from __future__ import annotations

import json
import uuid
from datetime import datetime

from angelia.audit.model import Detail, Event
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import Work


def record(work: Work, database: Database, kind: str, detail: Detail, at: datetime | None = None) -> None:
    """Write an event of now, by the audit's own statement; of another time only if it is a moment ago, for one that
    committed much later than it says would look as if it had been written in afterwards."""
    event = Event(event_id=uuid.uuid4(), occurred_at=at or work.clock(), event_type=kind, detail=detail)
    values = (str(event.event_id), event.occurred_at, kind, event.actor, event.object, json.dumps(detail), event.hash())
    database.execute(work.sql("audit")["record"], *values)
