"""The pipeline's runs over HTTP, for operators."""

from __future__ import annotations

import msgspec

from angelia.api import Access, Answer, Call, PageSize, Route, cursor_after, parse_cursor
from angelia.api.route import declared
from angelia.runs.model import Run, State
from angelia.runs.service import Runs


class RunQuery(msgspec.Struct, frozen=True):
    """Filters of the list of runs; newest first."""

    job: str | None = None
    state: State | None = None
    cursor: str | None = None
    limit: PageSize = 50


class RunPage(msgspec.Struct, frozen=True):
    """Runs of the pipeline, newest first."""

    runs: list[Run]
    next: str | None


def routes(runs: Runs) -> list[Route]:
    async def page(call: Call) -> Answer:
        query = call.query(RunQuery)
        found = await runs.page(query.job, query.state, parse_cursor(query.cursor), query.limit + 1)
        shown, more = found[: query.limit], len(found) > query.limit
        return Answer(body=RunPage(shown, cursor_after(shown[-1].started_at, shown[-1].run_id) if more else None))

    about = "Runs of the pipeline, newest first"
    return [declared("GET", "/v1/runs", page, Access.ADMIN, about, {200: RunPage}, query=RunQuery)]
