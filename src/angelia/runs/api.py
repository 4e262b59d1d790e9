"""The operation on runs of the pipeline: the operator's list."""

from __future__ import annotations

from typing import Annotated

import msgspec

from angelia.api import Access, Operation, PageQuery
from angelia.runs.model import Run, RunState


class RunQuery(PageQuery, frozen=True, kw_only=True):
    """Filters of the list of runs; newest first."""

    job: Annotated[str, msgspec.Meta(description="Only runs of this job, such as `archive audit`")] | None = None
    state: Annotated[RunState, msgspec.Meta(description="Only runs in this state")] | None = None


class RunPage(msgspec.Struct, frozen=True):
    """Runs of the pipeline, newest first."""

    runs: list[Run]
    next: str | None


LIST = Operation(
    "runs", "GET", "/v1/runs", Access.ADMIN, "Runs of the pipeline, newest first", RunPage, query=RunQuery
)  # fmt: skip
