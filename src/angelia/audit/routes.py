"""The audit over HTTP, for operators: events with filters, and the raw chain for whoever verifies it."""

from __future__ import annotations

import base64
from typing import Annotated
from uuid import UUID

import msgspec

from angelia.api import Access, Answer, Call, Moment, PageSize, Per, Route, Rule, cursor_after, parse_cursor
from angelia.api.route import declared
from angelia.audit.model import ChainEntry, Checkpoint, Checkpoints, Floor, Newest, StoredEvent, Testimony
from angelia.audit.service import Audit, Page
from angelia.audit.witness_service import Witnessed
from angelia.errors import Denied, InvalidArgument

# A node tells once a second; those behind one address share this.
WITNESS = Rule("witness", 300, 60_000, Per.ADDRESS)


class EventQuery(msgspec.Struct, frozen=True):
    """Filters of the event list; newest first."""

    type: str | None = None
    actor: str | None = None
    message_id: UUID | None = None
    since: Moment | None = msgspec.field(default=None, name="from")
    until: Moment | None = msgspec.field(default=None, name="to")
    cursor: str | None = None
    limit: PageSize = 50


class PositionQuery(msgspec.Struct, frozen=True):
    """The next entries after a position."""

    after: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    limit: PageSize = 1000


class UnsealedQuery(msgspec.Struct, frozen=True):
    """Stray rows are looked for in one span of time, so that a call stays small however long the history is."""

    since: Moment | None = msgspec.field(default=None, name="from")
    until: Moment | None = msgspec.field(default=None, name="to")
    limit: PageSize = 1000


class Events(msgspec.Struct, frozen=True):
    events: list[StoredEvent]
    next: str | None


class Chain(msgspec.Struct, frozen=True):
    entries: list[ChainEntry]
    sealed_to: int
    floor: Floor


class WitnessQuery(msgspec.Struct, frozen=True):
    """The next checkpoints of a node, named by the id of its key."""

    node: UUID
    after: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    limit: PageSize = 1000


class Unsealed(msgspec.Struct, frozen=True):
    strays: list[StoredEvent]
    tail: list[StoredEvent]


def routes(audit: Audit, witnessed: Witnessed) -> list[Route]:
    async def list_events(call: Call) -> Answer:
        query = call.query(EventQuery)
        found = await audit.events(
            Page(
                event_type=query.type,
                actor=query.actor,
                message_id=query.message_id,
                since=query.since,
                until=query.until,
                before=parse_cursor(query.cursor),
                limit=query.limit + 1,
            )
        )
        shown = found[: query.limit]
        more = len(found) > query.limit
        return Answer(body=Events(shown, cursor_after(shown[-1].occurred_at, shown[-1].event_id) if more else None))

    async def chain(call: Call) -> Answer:
        query = call.query(PositionQuery)
        page = await audit.chain(query.after, query.limit)
        return Answer(body=Chain(page.entries, page.sealed_to, page.floor))

    async def checkpoints(call: Call) -> Answer:
        query = call.query(PositionQuery)
        return Answer(body=Checkpoints(await audit.checkpoints(query.after, query.limit)))

    async def checkpoint(call: Call) -> Answer:
        position = call.path("position")
        if not position.isascii() or not position.isdecimal() or len(position) > 18:
            raise InvalidArgument("a checkpoint is named by its position, a whole number")
        return Answer(body=await audit.checkpoint(int(position)))

    async def unsealed(call: Call) -> Answer:
        query = call.query(UnsealedQuery)
        strays, tail = await audit.unsealed(query.limit, query.since, query.until)
        return Answer(body=Unsealed(strays, tail))

    async def witness(call: Call) -> Answer:
        if call.caller.agent is not None:
            raise Denied(
                "agents are no nodes to witness for",
                hint="an operator makes the node a token: angelia token create --role read-write",
            )
        told = call.json(Testimony)
        try:
            public_key = base64.b64decode(told.public_key, validate=True)
        except ValueError as error:
            raise InvalidArgument("public_key is not base64") from error
        return Answer(body=Newest(await witnessed.take(public_key, told.checkpoints, call.now)))

    async def list_witnessed(call: Call) -> Answer:
        query = call.query(WitnessQuery)
        return Answer(body=Checkpoints(await witnessed.of_node(query.node, query.after, query.limit)))

    return [
        declared(
            "POST", "/v1/audit/witnessed", witness, Access.WRITE,
            "Keep another node's checkpoints: none goes back, none differs from one that is kept", {200: Newest},
            takes=Testimony, rule=WITNESS,
        ),
        declared(
            "GET", "/v1/audit/witnessed", list_witnessed, Access.READ,
            "What this node keeps of another's checkpoints", {200: Checkpoints}, query=WitnessQuery,
        ),
        declared(
            "GET", "/v1/audit/events", list_events, Access.ADMIN,
            "Audit events, newest first", {200: Events}, query=EventQuery,
        ),
        declared(
            "GET", "/v1/audit/chain", chain, Access.ADMIN,
            "Sealed entries, in order of position", {200: Chain}, query=PositionQuery,
        ),
        declared(
            "GET", "/v1/audit/checkpoints", checkpoints, Access.ADMIN,
            "Signed checkpoints, in order of position", {200: Checkpoints}, query=PositionQuery,
        ),
        declared(
            "GET", "/v1/audit/checkpoints/{position}", checkpoint, Access.ADMIN,
            "One signed checkpoint", {200: Checkpoint},
        ),
        declared(
            "GET", "/v1/audit/unsealed", unsealed, Access.ADMIN,
            "The tail that waits for its seal, and rows that no seal explains", {200: Unsealed}, query=UnsealedQuery,
        ),
    ]  # fmt: skip
