"""Runs of the pipeline over HTTP: binds the list to the service."""

from __future__ import annotations

from angelia.api import Answer, Call, Route, cursor_after, parse_cursor
from angelia.runs import api
from angelia.runs.service import Runs


def routes(runs: Runs) -> list[Route]:
    async def list_runs(call: Call) -> Answer:
        query = call.query(api.RunQuery)
        found = await runs.page(query.job, query.state, parse_cursor(query.cursor), query.and_one_more)
        shown, following = query.cut(found, lambda run: cursor_after(run.started_at, run.run_id))
        return Answer(body=api.RunPage(shown, following))

    return [Route(api.LIST, list_runs)]
