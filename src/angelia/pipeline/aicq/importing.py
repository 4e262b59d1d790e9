"""What all parts of an import share: the ledger, the run, and which agent here is which of AICQ."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from angelia.pipeline.aicq.rows import ImportedRoom
from angelia.pipeline.import_ledger import LedgerImport
from angelia.pipeline.import_tally import ImportTally


@dataclass(kw_only=True)
class Import(LedgerImport):
    """One call of the import. Without a run it only looks."""

    holders: dict[UUID, UUID] = field(default_factory=dict)  # by id in AICQ, the id of the agent here
    mapped: dict[str, str] = field(default_factory=dict)  # those of them that have another id here
    renamed: dict[str, str] = field(default_factory=dict)  # rooms that have another name here
    found: dict[UUID, ImportedRoom] = field(default_factory=dict)  # the rooms of AICQ that can be imported
    agents: ImportTally = field(default_factory=ImportTally)
    rooms: ImportTally = field(default_factory=ImportTally)
    messages: ImportTally = field(default_factory=ImportTally)
    dms: ImportTally = field(default_factory=ImportTally)

    @property
    def tallies(self) -> dict[str, ImportTally]:
        return {"agents": self.agents, "rooms": self.rooms, "messages": self.messages, "dms": self.dms}
