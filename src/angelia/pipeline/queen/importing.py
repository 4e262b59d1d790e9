"""What all parts of an import from Queen share: the ledger, the run, and where its partitions are here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from angelia.pipeline.import_ledger import LedgerImport
from angelia.pipeline.import_tally import ImportTally
from angelia.pipeline.queen.payloads import ImportedPayloads

Moment = tuple[datetime, UUID]  # a place in Queen's order: a time, and an id


@dataclass(slots=True, kw_only=True)
class ImportedPartition:
    """A partition of Queen, and how far it was imported. Without a run it may not be here yet."""

    id: UUID  # in Queen
    queue: str
    name: str
    created_at: datetime
    newest: Moment | None
    queue_no: int | None = None
    partition_no: int | None = None
    encrypted: bool = False  # whether new messages are encrypted here
    reached: Moment | None = None
    end_position: int = 0  # behind the last message that was imported
    letters: Moment | None = None

    def document(self) -> dict[str, Any]:
        created_at = self.created_at.isoformat()
        return {"partition_id": str(self.id), "queue": self.queue, "name": self.name, "created_at": created_at}


@dataclass(kw_only=True)
class QueenImport(LedgerImport):
    """One call of the import. Without a run it only looks."""

    payloads: ImportedPayloads
    partitions: dict[UUID, ImportedPartition] = field(default_factory=dict)  # by their ids in Queen
    queue_nos: dict[str, int] = field(default_factory=dict)
    group_nos: dict[tuple[int, str], int] = field(default_factory=dict)  # by the number of the queue, and their names
    queues: ImportTally = field(default_factory=ImportTally)
    messages: ImportTally = field(default_factory=ImportTally)
    cursors: ImportTally = field(default_factory=ImportTally)
    letters: ImportTally = field(default_factory=ImportTally)

    @property
    def tallies(self) -> dict[str, ImportTally]:
        return {
            "queues": self.queues,
            "messages": self.messages,
            "cursors": self.cursors,
            "dead_letters": self.letters,
        }

    @property
    def statements(self) -> Mapping[str, str]:
        return self.sql("queues")

    def known(self, messages: Iterable[tuple[int, str]]) -> dict[tuple[int, str], tuple[int, str]]:
        """Those of some messages that are here, given by the numbers of their partitions and their transaction ids:
        their positions, and their ids here."""
        given = [{"partition_no": number, "id": id_} for number, id_ in messages]
        rows = self.database.rows(self.statements["known"], json.dumps(given)) if given else []
        return {(row["partition_no"], row["id"]): (row["position"], row["message_id"]) for row in rows}
