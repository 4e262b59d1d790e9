"""The schedule of a running server: what is due, and how it is started, watched and stopped."""

from __future__ import annotations

import json
import stat
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import asyncpg
import psutil
import pytest

from angelia.pipeline.jobs.catalog import JOBS
from angelia.pipeline_schedule import FIRST_LOOK, LOG_MOST, Attempt, PipelineSchedule, due
from angelia.runs.model import Latest, RunState
from angelia.settings import SCHEDULABLE, SCHEDULE, Settings
from angelia.stores.embedded.datadir import DataDir

NOW = datetime(2026, 11, 16, 9, tzinfo=UTC)
HOUR, DAY, SECOND = timedelta(hours=1), timedelta(days=1), timedelta(seconds=1)
DAILY = {"analytics": "1d"}
Make = Callable[..., PipelineSchedule]


def stood(job: str, state: RunState, began: datetime) -> dict[str, Latest]:
    return {job: Latest(job, state, began, None)}


# What is due.


def test_a_job_that_never_ran_is_due() -> None:
    assert due(DAILY, {}, {}, NOW) == "analytics"


@pytest.mark.parametrize(("ago", "what"), [(DAY - SECOND, None), (DAY, "analytics")])
def test_a_job_is_due_when_its_period_has_passed(ago: timedelta, what: str | None) -> None:
    assert due(DAILY, stood("analytics", RunState.DONE, NOW - ago), {}, NOW) == what
    assert due(DAILY, {}, {"analytics": Attempt(NOW - ago, good=True)}, NOW) == what


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.COMMITTED])
@pytest.mark.parametrize(("ago", "what"), [(HOUR - SECOND, None), (HOUR, "analytics")])
def test_one_that_failed_or_died_is_tried_again_after_an_hour(
    state: RunState, ago: timedelta, what: str | None
) -> None:
    assert due(DAILY, stood("analytics", state, NOW - ago), {}, NOW) == what
    assert due(DAILY, {}, {"analytics": Attempt(NOW - ago, good=False)}, NOW) == what


def test_what_is_off_is_never_due() -> None:
    assert due({"analytics": "off"}, {}, {}, NOW) is None


def test_the_job_that_is_latest_goes_first() -> None:
    stands = stood("archive audit", RunState.DONE, NOW - 3 * HOUR) | stood("analytics", RunState.DONE, NOW - DAY - HOUR)
    assert due({"analytics": "1d", "archive audit": "1h"}, stands, {}, NOW) == "archive audit"


def test_what_asks_a_person_invents_rows_or_has_to_be_told_of_files_is_not_schedulable() -> None:
    never = {
        "retention",
        "export",
        "erase",
        "simulate",
        "remove simulated",
        "verify logs",
        "import aicq",
        "import queen",
    }
    assert {name for name, job in JOBS.items() if name not in SCHEDULABLE} == never
    assert set(SCHEDULE) <= set(SCHEDULABLE) <= set(JOBS)


# How it is done.


@pytest.fixture
def schedule(database_url: str, data_dir: DataDir) -> Iterator[Make]:
    """`schedule("python code", analytics="1d")` runs that code in the place of a job."""
    made: list[PipelineSchedule] = []

    def make(code: str, *, first_look: float = 0.0, **jobs: str) -> PipelineSchedule:
        settings = Settings(database_url=database_url, pipeline_schedule=jobs)
        command = (sys.executable, "-c", f"import os, signal, sys, time\n{code}")
        made.append(PipelineSchedule(settings, data_dir, 0.0, command=command, first_look=first_look))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def tended(schedule: PipelineSchedule, until: Callable[[], Any], now: float = 0.0) -> list[str]:
    """Tend it as the server does, until something is so; what it had to say."""
    lines, deadline = list[str](), time.monotonic() + 30
    while not until():
        assert time.monotonic() < deadline
        lines += schedule.tend(now)
        time.sleep(0.01)
    return lines


def log_of(data_dir: DataDir) -> Path:
    return data_dir.logs / "pipeline.log"


def over(schedule: PipelineSchedule, data_dir: DataDir) -> Callable[[], bool]:
    return lambda: schedule.running is None and log_of(data_dir).exists()


def test_a_due_job_runs_in_a_process_of_its_own_and_speaks_to_a_private_log(schedule: Make, data_dir: DataDir) -> None:
    one = schedule("print(os.environ['ANGELIA_DATA_DIR'], *sys.argv[1:])", analytics="1d")
    assert tended(one, over(one, data_dir)) == []
    assert log_of(data_dir).read_text() == f"{data_dir.path} pipeline run analytics -q\n"
    assert stat.S_IMODE(log_of(data_dir).stat().st_mode) == 0o600


def test_what_ran_is_not_started_again_before_its_period(schedule: Make, data_dir: DataDir) -> None:
    one = schedule("print('ran')", analytics="1d")
    tended(one, over(one, data_dir))
    one.look()
    assert list(one.tend(0.0)) == []
    assert one.running is None


async def test_what_another_server_did_is_not_done_again(
    schedule: Make, data_dir: DataDir, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "INSERT INTO pipeline_runs (run_id, job, app_id, version, state, started_at, updated_at)"
        " VALUES (gen_random_uuid(), 'analytics', 'analytics', 1, 'done', now(), now())"
    )
    one = schedule("print(sys.argv[3])", analytics="1d", maintain="1w")
    tended(one, over(one, data_dir))
    assert log_of(data_dir).read_text() == "maintain\n"


def test_one_job_runs_at_a_time(schedule: Make) -> None:
    one = schedule("time.sleep(60)", analytics="1d", maintain="1w")
    tended(one, lambda: one.running)
    first, ours = one.running, psutil.Process().children()
    for now in (100.0, 200.0, 300.0):
        assert list(one.tend(now)) == []
    assert (one.running, psutil.Process().children()) == (first, ours)


def test_a_job_that_fails_is_told_with_where_it_says_why(schedule: Make, data_dir: DataDir) -> None:
    one = schedule("sys.exit('error: no (job_failed)')", analytics="1d")
    lines = tended(one, over(one, data_dir))
    assert lines == [f"the job analytics ended with exit code 1; {log_of(data_dir)} says more"]


def test_that_another_server_is_at_work_is_no_failure(schedule: Make, data_dir: DataDir) -> None:
    report = {"state": "failed", "code": "conflict", "error": "it is at work", "at_work": True}
    one = schedule(f"print({json.dumps(report)!r}); sys.exit(1)", analytics="1d")
    assert tended(one, over(one, data_dir)) == []


def test_a_job_that_refuses_is_told_with_what_it_says(schedule: Make, data_dir: DataDir) -> None:
    """Whatever it wrote before, another's word that it is at work among it."""
    report = {"state": "failed", "code": "conflict", "error": "the archive holds simulated rows"}
    code = f"""print('{{"at_work":true}}'); print('x' * {LOG_MOST}); print({json.dumps(report)!r}); sys.exit(1)"""
    one = schedule(code, analytics="1d")
    lines = tended(one, over(one, data_dir))
    assert lines == [f"the job analytics failed: the archive holds simulated rows; {log_of(data_dir)} says more"]


def test_that_a_job_outlives_its_period_is_told_once(schedule: Make) -> None:
    one = schedule("time.sleep(60)", analytics="1d")
    tended(one, lambda: one.running)
    day = DAY.total_seconds()
    assert [list(one.tend(now)) for now in (day, day + 1, day + 2)] == [
        [], ["the job analytics takes longer than its period; nothing else is started until it is over"], []
    ]  # fmt: skip


def test_a_log_that_is_large_makes_room(schedule: Make, data_dir: DataDir) -> None:
    log_of(data_dir).write_bytes(b"x" * (LOG_MOST + 1))
    one = schedule("print('new')", analytics="1d")
    tended(one, lambda: one.running)
    tended(one, lambda: one.running is None)
    assert log_of(data_dir).read_text() == "new\n"
    assert (data_dir.logs / "pipeline.1.log").stat().st_size == LOG_MOST + 1


def test_a_stopping_server_ends_the_job_and_starts_no_other(schedule: Make) -> None:
    one = schedule("time.sleep(60)", analytics="1d")
    tended(one, lambda: one.running)
    (child,) = [p for p in psutil.Process().children() if "time.sleep(60)" in " ".join(p.cmdline())]
    one.ask_to_stop()
    one.stop()
    assert (one.running, child.is_running()) == (None, False)
    assert list(one.tend(1e9)) == []


def test_nothing_is_looked_at_before_a_server_has_served_for_a_while(schedule: Make, data_dir: DataDir) -> None:
    one = schedule("print('ran')", first_look=FIRST_LOOK, analytics="1d")
    looks = iter(range(100))
    tended(one, lambda: next(looks) > 50, now=FIRST_LOOK - 1)
    assert not log_of(data_dir).exists()
    tended(one, over(one, data_dir), now=FIRST_LOOK)


def test_a_ledger_that_is_away_is_asked_again(data_dir: DataDir, database_url: str, tmp_path: Path) -> None:
    path, _, query = database_url.partition("?host=")
    sockets, ampersand, rest = query.partition("&")
    place = tmp_path / "sockets"
    settings = Settings(database_url=f"{path}?host={place}{ampersand}{rest}", pipeline_schedule=DAILY)
    one = PipelineSchedule(
        settings, data_dir, 0.0, command=(sys.executable, "-c", "print('ran')"), first_look=FIRST_LOOK
    )
    one.look()
    assert list(one.tend(0.0)) == []
    assert one.running is None
    place.symlink_to(unquote(sockets))
    tended(one, over(one, data_dir), now=FIRST_LOOK)
    assert log_of(data_dir).read_text() == "ran\n"
