"""The rosters of channels over HTTP."""

from __future__ import annotations

from angelia.api import Access, Answer, Call, Route
from angelia.api.route import declared
from angelia.channels.model import Shown
from angelia.channels.rosters import Rosters
from angelia.channels.routes import ROSTER_BODY, WRITE, named_channel
from angelia.envelope.rosters import RosterDocument, parse_roster, roster_document


def routes(rosters: Rosters) -> list[Route]:
    async def show(call: Call) -> Answer:
        found = await rosters.roster(call.agent, named_channel(call), call.now)
        return Answer(body=roster_document(found))

    async def put(call: Call) -> Answer:
        channel_id, roster = named_channel(call), parse_roster(call.json(RosterDocument))
        return Answer(body=await rosters.put(call.agent, channel_id, roster, call.now))

    return [
        declared(
            "GET", "/v1/channels/{channel}/roster", show, Access.AGENT, "The roster that a channel's owner signed",
            {200: RosterDocument},
        ),
        declared(
            "PUT", "/v1/channels/{channel}/roster", put, Access.AGENT,
            "Store the next roster, with the list and the policy that it means; for the owner",
            {200: Shown}, takes=RosterDocument, rule=WRITE, body_limit=ROSTER_BODY,
        ),
    ]  # fmt: skip
