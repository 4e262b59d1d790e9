"""The audit over HTTP: binds the operations to the services."""

from __future__ import annotations

import base64

from angelia.api import Answer, Call, Route, cursor_after
from angelia.audit import api
from angelia.audit.service import Audit
from angelia.audit.witness_service import Witnessed
from angelia.errors import Denied, InvalidArgument


def routes(audit: Audit, witnessed: Witnessed) -> list[Route]:
    async def events(call: Call) -> Answer:
        query = call.query(api.EventQuery)
        found = await audit.events(query)
        shown, following = query.cut(found, lambda event: cursor_after(event.occurred_at, event.event_id))
        return Answer(body=api.EventPage(shown, following))

    async def chain(call: Call) -> Answer:
        query = call.query(api.PositionQuery)
        return Answer(body=await audit.chain(query.after, query.limit))

    async def checkpoints(call: Call) -> Answer:
        query = call.query(api.PositionQuery)
        return Answer(body=api.CheckpointList(await audit.checkpoints(query.after, query.limit)))

    async def checkpoint(call: Call) -> Answer:
        position = call.path("position")
        if not position.isascii() or not position.isdecimal() or len(position) > 18:
            raise InvalidArgument("a checkpoint is named by its position, a whole number")
        return Answer(body=await audit.checkpoint(int(position)))

    async def unsealed(call: Call) -> Answer:
        query = call.query(api.UnsealedQuery)
        strays, tail = await audit.unsealed(query.limit, query.since, query.until)
        return Answer(body=api.UnsealedEvents(strays, tail))

    async def witness(call: Call) -> Answer:
        if call.caller.agent is not None:
            raise Denied(
                "agents are no nodes to witness for",
                hint="an operator makes the node a token: angelia token create --role read-write",
            )
        testimony = call.json(api.Testimony)
        try:
            public_key = base64.b64decode(testimony.public_key, validate=True)
        except ValueError as error:
            raise InvalidArgument("public_key is not base64") from error
        return Answer(body=api.WitnessedPosition(await witnessed.take(public_key, testimony.checkpoints, call.now)))

    async def list_witnessed(call: Call) -> Answer:
        query = call.query(api.WitnessQuery)
        return Answer(body=api.CheckpointList(await witnessed.of_node(query.node, query.after, query.limit)))

    return [
        Route(api.WITNESS, witness),
        Route(api.WITNESSED, list_witnessed),
        Route(api.EVENTS, events),
        Route(api.CHAIN, chain),
        Route(api.CHECKPOINTS, checkpoints),
        Route(api.CHECKPOINT, checkpoint),
        Route(api.UNSEALED, unsealed),
    ]
