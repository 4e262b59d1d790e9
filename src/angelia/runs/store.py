"""Every SQL statement about runs. All of them read; the pipeline writes."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from angelia.runs.model import Latest, Run, RunState
from angelia.stores.ledger import Tx
from angelia.stores.sql import record_of, statements

SQL = statements(__file__)


async def page(
    tx: Tx,
    *,
    job: str | None = None,
    state: RunState | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int,
    prefix: str | None = None,
    only_open: bool = False,
) -> list[Run]:
    at, id_ = before or (None, None)
    value = None if state is None else state.value
    return [record_of(Run, row) for row in await tx.fetch(SQL["page"], job, value, at, id_, limit, prefix, only_open)]


async def latest(tx: Tx) -> list[Latest]:
    return [record_of(Latest, row) for row in await tx.fetch(SQL["latest"])]


async def last_done(tx: Tx) -> list[Run]:
    return [record_of(Run, row) for row in await tx.fetch(SQL["last_done"])]
