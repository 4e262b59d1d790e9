"""What the pipeline does and did: read from the ledger, without Spark."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from angelia.cli import pipeline_place
from angelia.cli.command_context import Session
from angelia.cli.errors import Usage, nearest
from angelia.cli.paging import Page, ago, full_id, short, show_list
from angelia.cli.tables import Column, counted
from angelia.cli.times import age, full

if TYPE_CHECKING:
    from angelia.mail.model import ReceiptBacklog
    from angelia.runs.model import Run, State
    from angelia.stores.ledger import Ledger

_FIRST = "angelia pipeline run archive receipts"
_MANY = 100  # ids that begin alike, and are not shown


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How the pipeline stands, for programs."""

    open: list[Run]
    last_done: list[Run]
    receipts_waiting: int
    oldest_late_seconds: int | None


def show_status(session: Session) -> None:
    """Runs that are not over, the last good one of each job, and what waits."""
    if not pipeline_place.has_ledger(session.settings):
        session.out.note("no runs yet")
        session.out.note(f"hint: {_FIRST}")
        return

    async def look(ledger: Ledger) -> tuple[list[Run], list[Run], ReceiptBacklog]:
        from angelia.mail import receipts
        from angelia.runs.service import Runs

        runs = Runs(ledger)
        async with ledger.reading() as tx:
            waiting = await receipts.waiting(tx, datetime.now(UTC), session.settings.max_ttl_seconds)
        return await runs.unfinished(), await runs.last_done(), waiting

    with pipeline_place.ledger(session.settings) as url:
        unfinished, done, waiting = pipeline_place.ask(url, look)
    late = waiting.late
    if session.shared.json:
        seconds = None if late is None else int(late.total_seconds())
        session.out.records(
            [Status(open=unfinished, last_done=done, receipts_waiting=waiting.rows, oldest_late_seconds=seconds)]
        )
        return
    shown = [*unfinished, *done]
    if shown:
        session.out.rows(shown, _COLUMNS)
    else:
        session.out.note("no runs yet")
    oldest = "" if late is None else f", the oldest is {age(late)} late"
    session.out.line(
        f"{counted(waiting.rows, 'receipt')} {'waits' if waiting.rows == 1 else 'wait'} for the archive{oldest}"
    )
    if waiting.rows:
        session.out.note(f"hint: {_FIRST}")


def show_run(session: Session, given: str) -> None:
    """One run in full."""

    async def look(ledger: Ledger) -> list[Run]:
        from angelia.runs.service import Runs

        return await Runs(ledger).beginning_with(given.lower(), _MANY)

    found: list[Run] = []
    if pipeline_place.has_ledger(session.settings):
        with pipeline_place.ledger(session.settings) as url:
            found = pipeline_place.ask(url, look)
    known = {str(run.run_id): run for run in found}
    run = known[full_id(given, known, "run", "angelia pipeline history")]
    session.out.thing(run, _facts(run), quietly=str(run.run_id))


def list_runs(session: Session, job: str | None, state: str | None) -> None:
    """Runs, newest first, page by page."""
    wanted = _state(state)
    if job is not None:
        _check_job(job)

    def listed(url: str, cursor: str | None, limit: int) -> Page[Run]:
        from angelia.api import cursor_after, parse_cursor

        before = parse_cursor(cursor)

        def look(ledger: Ledger) -> Awaitable[list[Run]]:
            from angelia.runs.service import Runs

            return Runs(ledger).page(job, wanted, before, limit + 1)

        found = pipeline_place.ask(url, look)
        shown, more = found[:limit], len(found) > limit
        return Page(shown, cursor_after(shown[-1].started_at, shown[-1].run_id) if more else None)

    nothing, hint = (
        ("no runs yet", _FIRST) if job is None and state is None else ("no such runs", "angelia pipeline history")
    )
    if not pipeline_place.has_ledger(session.settings):
        show_list(session, lambda cursor, limit: Page([], None), _COLUMNS, nothing=nothing, hint=hint)
        return
    with pipeline_place.ledger(session.settings) as url:
        show_list(session, lambda cursor, limit: listed(url, cursor, limit), _COLUMNS, nothing=nothing, hint=hint)


def _state(text: str | None) -> State | None:
    from angelia.runs.model import State

    if text is None:
        return None
    try:
        return State(text)
    except ValueError as error:
        raise Usage(f"--state: {text!r} is no state of a run", hint=f"one of {', '.join(State)}") from error


def _check_job(name: str) -> None:
    from angelia.pipeline.jobs.catalog import JOBS

    if name not in JOBS:
        near = nearest(name, JOBS)
        hint = f"did you mean --job {near!r}?" if near else f"one of: {', '.join(JOBS)}"
        raise Usage(f"there is no job {name!r}", hint=hint)


def _facts(run: Run) -> list[tuple[str, str]]:
    return [
        ("run", str(run.run_id)),
        ("job", run.job),
        ("state", run.standing),
        ("rows", "" if run.rows is None else f"{run.rows:,}"),
        ("from", _time(run.since)),
        ("to", _time(run.until)),
        ("cutoff", _time(run.cutoff)),
        ("version", f"{run.version:,}"),
        ("started", full(run.started_at)),
        ("changed", full(run.updated_at)),
        ("report", "" if run.report is None else _worded(run.report)),
    ]


def _worded(report: dict[str, Any]) -> str:
    return msgspec.json.encode(report).decode()


def _time(at: datetime | None) -> str:
    return "" if at is None else full(at)


def _took(run: Run) -> str:
    return age(run.took) if run.took >= timedelta(seconds=1) else ""


_COLUMNS: list[Column[Run]] = [
    Column("RUN", lambda r: short(r.run_id)),
    Column("JOB", lambda r: r.job),
    Column("STATE", lambda r: r.standing),
    Column("ROWS", lambda r: "" if r.rows is None else f"{r.rows:,}", right=True),
    Column("TIME", _took, right=True),
    Column("STARTED", lambda r: ago(r.started_at), right=True),
    Column("WHY", lambda r: str((r.report or {}).get("error", "")), long=True),
]
