"""The operations on the audit: operators read events and the chain; other nodes hand in checkpoints to be witnessed."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from angelia.api import Access, Operation, PageSize, Per, Rule
from angelia.audit.model import ChainPage, Checkpoint, Since, StoredEvent, Until
from angelia.audit.model import EventQuery as EventQuery

TAG = "audit"
# A node hands in a checkpoint once a second; all nodes behind one address share this limit.
WITNESS_RULE = Rule("witness", 300, 60_000, Per.ADDRESS)

Position = Annotated[int, msgspec.Meta(ge=0, le=2**62, description="Only what comes after this position")]


class PositionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The next entries after a position."""

    after: Position = 0
    limit: PageSize = 1000


class UnsealedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Stray rows are looked for in one span of time, so that a call stays small however long the history is."""

    since: Since | None = msgspec.field(default=None, name="from")
    until: Until | None = msgspec.field(default=None, name="to")
    limit: PageSize = 1000


class WitnessQuery(PositionQuery, frozen=True, kw_only=True):
    """The next checkpoints of a node."""

    node: Annotated[UUID, msgspec.Meta(description="The id of the node's key")]


class EventPage(msgspec.Struct, frozen=True):
    """A page of audit events, newest first."""

    events: list[StoredEvent]
    next: str | None


class UnsealedEvents(msgspec.Struct, frozen=True):
    """Events outside the chain: strays, which no entry explains, and the tail, which waits for the sealer."""

    strays: list[StoredEvent]
    tail: list[StoredEvent]


class CheckpointList(msgspec.Struct, frozen=True):
    """Checkpoints in order of position."""

    checkpoints: list[Checkpoint]


class Testimony(msgspec.Struct, frozen=True, kw_only=True):
    """What a node hands to its witness: checkpoints in order, and the key that signed them, in base64."""

    public_key: str
    checkpoints: Annotated[list[Checkpoint], msgspec.Meta(max_length=100)]


class WitnessedPosition(msgspec.Struct, frozen=True):
    """The position of the newest checkpoint that the witness keeps of a node; 0 for none."""

    position: int


WITNESS = Operation(
    TAG, "POST", "/v1/audit/witnessed", Access.WRITE,
    "Keep another node's checkpoints: none goes back, none differs from one that is kept", WitnessedPosition,
    body=Testimony, rule=WITNESS_RULE,
)  # fmt: skip
WITNESSED = Operation(
    TAG, "GET", "/v1/audit/witnessed", Access.READ, "What this node keeps of another's checkpoints", CheckpointList,
    query=WitnessQuery,
)  # fmt: skip
EVENTS = Operation(
    TAG, "GET", "/v1/audit/events", Access.ADMIN, "Audit events, newest first", EventPage, query=EventQuery
)  # fmt: skip
CHAIN = Operation(
    TAG, "GET", "/v1/audit/chain", Access.ADMIN, "Sealed entries, in order of position", ChainPage, query=PositionQuery
)  # fmt: skip
CHECKPOINTS = Operation(
    TAG, "GET", "/v1/audit/checkpoints", Access.ADMIN, "Signed checkpoints, in order of position", CheckpointList,
    query=PositionQuery,
)  # fmt: skip
CHECKPOINT = Operation(
    TAG, "GET", "/v1/audit/checkpoints/{position}", Access.ADMIN, "One signed checkpoint", Checkpoint,
    parameters={"position": "The checkpoint's position in the chain"},
)  # fmt: skip
UNSEALED = Operation(
    TAG, "GET", "/v1/audit/unsealed", Access.ADMIN, "The tail that waits for its seal, and rows that no seal explains",
    UnsealedEvents, query=UnsealedQuery,
)  # fmt: skip
