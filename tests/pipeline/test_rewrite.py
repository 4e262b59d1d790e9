"""Files of a table change places in one commit, and go for good only when no commit names them; in a bucket as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import lake_tables
from angelia.errors import Conflict
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.remove_simulated import remove_simulated
from angelia.pipeline.lake import commit, listing, maintenance, simulated
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.tables import RECEIPTS, SESSIONS
from angelia.pipeline.lake.writer import Files
from angelia.settings import Settings
from angelia.stores.objects import Objects
from s3_servers import KEYS, ObjectStore, moto

DAYS = (date(2026, 5, 1), date(2026, 5, 2))
AT = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with moto(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture(params=["directory", "bucket"])
def lake(request: pytest.FixtureRequest, store: ObjectStore, tmp_path: Path) -> Objects:
    if request.param == "directory":
        return Objects.at(str(tmp_path / "lake"))
    return Objects.at(store.url(tmp_path.name), KEYS)


def row_of(day: date) -> pa.RecordBatch:
    row = {
        "session_id": "s", "agent_a_nhi": "a", "agent_b_nhi": "b", "current_key_id": "k", "current_key_version": 1,
        "rotation_policy": "daily", "last_rotated_at": AT, "last_used_at": AT, "created_at": AT, "updated_at": AT,
        "bucket": 1, "day": day,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([row], schema=SESSIONS.schema)


def written(objects: Objects, run: str) -> list[str]:
    """One file a day, in the table; their paths below it."""
    with Files(objects, SESSIONS, run) as files:
        for day in DAYS:
            files.add(row_of(day))
    commit.commit(objects, SESSIONS, files.written, Mark("test", len(run)))
    return sorted(file.path for file in files.written)


def test_what_a_run_took_out_is_known_from_the_log_and_removed_with_nothing_else(lake: Objects) -> None:
    first, second = written(lake, "one")
    assert commit.replace(lake, SESSIONS, Mark("retention", 1), "run-1", [first], [], 1)
    assert not commit.replace(lake, SESSIONS, Mark("retention", 1), "run-1", [second], [], 1), "a mark counts once"
    change = commit.change(lake, SESSIONS, "run-1")
    assert (change.rows, change.gone) == (1, [first])
    maintenance.delete(lake, SESSIONS, change.gone)
    maintenance.delete(lake, SESSIONS, change.gone)
    assert [file.path for file in listing.files(lake, SESSIONS)] == [second]
    assert maintenance.leftovers(lake, SESSIONS, list) == []
    assert commit.change(lake, SESSIONS, "another").gone == []


def test_leftovers_are_what_the_table_does_not_have_but_for_files_of_runs_at_work(lake: Objects) -> None:
    first, _ = written(lake, "one")
    commit.replace(lake, SESSIONS, Mark("retention", 1), "run-1", [first], [], 1)
    with Files(lake, SESSIONS, "at-work") as files:
        files.add(pa.RecordBatch.from_pylist([], schema=SESSIONS.schema))
    assert maintenance.leftovers(lake, SESSIONS, lambda: ["at-work"]) == [first]
    assert maintenance.leftovers(lake, SESSIONS, lambda: ["one"]) == []


def test_who_commits_while_leftovers_are_looked_for_keeps_its_files(lake: Objects) -> None:
    written(lake, "one")
    with Files(lake, SESSIONS, "late") as files:
        files.add(row_of(DAYS[0]))

    def writing() -> list[str]:
        """Nobody any more: the last of them has just come to its end."""
        written(lake, "another")
        commit.commit(lake, SESSIONS, files.written, Mark("late", 1))
        return []

    assert maintenance.leftovers(lake, SESSIONS, writing) == []


def test_a_simulated_archive_is_marked_wherever_it_lies(lake: Objects) -> None:
    assert not commit.is_simulated(lake)
    commit.opened(lake, RECEIPTS.marked())
    assert commit.is_simulated(lake)
    with Files(lake, commit.as_in(lake, SESSIONS), "one") as files:
        files.add(row_of(DAYS[0]))
    commit.commit(lake, SESSIONS, files.written, Mark("test", 1))
    found = listing.find(lake, SESSIONS)
    assert found is not None
    assert found.metadata().configuration["angelia.simulated"] == "true"
    assert found.to_pyarrow_table(columns=["simulated"]).to_pylist() == [{"simulated": True}]


async def test_simulated_rows_are_taken_out_wherever_they_lie(lake: Objects, database_url: str) -> None:
    rows = lake_tables.rows(RECEIPTS, DAYS[0], 4)
    with Files(lake, RECEIPTS, "one") as files:
        files.add(rows)
    commit.commit(lake, RECEIPTS, files.written, Mark("simulate", 1))
    with ExitStack() as stack:
        work = JobContext(settings=Settings(), database_url=database_url, objects=lake, now=AT, stack=stack)
        assert remove_simulated(work).rows == 4
    assert (listing.files(lake, RECEIPTS), maintenance.leftovers(lake, RECEIPTS, list)) == ([], [])
    assert simulated.mixed(lake) == []


def test_without_a_log_nothing_is_left_over(lake: Objects) -> None:
    with Files(lake, SESSIONS, "first") as files:
        files.add(row_of(DAYS[0]))
    assert maintenance.leftovers(lake, SESSIONS, list) == []


def test_a_version_that_another_ledger_has_given_is_not_taken_for_the_runs_own(lake: Objects) -> None:
    first, second = written(lake, "one")
    commit.replace(lake, SESSIONS, Mark("retention", 5), "of another ledger", [first], [], 1)
    assert not commit.is_done_by(lake, SESSIONS, Mark("retention", 1), "run-1")
    assert commit.replace(lake, SESSIONS, Mark("retention", 6), "run-1", [second], [], 1)
    assert commit.is_done_by(lake, SESSIONS, Mark("retention", 1), "run-1")


def test_a_file_that_somebody_else_replaced_is_no_longer_ours_to_take_out(lake: Objects) -> None:
    first, second = written(lake, "one")
    commit.replace(lake, SESSIONS, Mark("compaction", 1), "run-1", [first], [], 0)
    with pytest.raises(Conflict):
        commit.replace(lake, SESSIONS, Mark("retention", 1), "run-2", [first, second], [], 2)
    assert [file.path for file in listing.files(lake, SESSIONS)] == [second]
