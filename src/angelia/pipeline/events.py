"""What the pipeline does to what others rely on is recorded like everything else, in the transaction of the act."""

from __future__ import annotations

import json
import uuid
from datetime import datetime

from angelia.audit.model import Detail, Event
from angelia.pipeline.database import Database


def record(database: Database, statement: str, kind: str, now: datetime, *, object: str | None, detail: Detail) -> None:
    """Write an event by the audit's own statement `record`."""
    event = Event(event_id=uuid.uuid4(), occurred_at=now, event_type=kind, object=object, detail=detail)
    values = (str(event.event_id), now, kind, event.actor, event.object, json.dumps(detail), event.hash())
    database.execute(statement, *values)
