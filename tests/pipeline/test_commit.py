"""Commits to a table of the archive: each mark once, whoever repeats it or races for it."""

from __future__ import annotations

import dataclasses
import threading
from datetime import date

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from angelia.errors import AngeliaError, Conflict
from angelia.pipeline.lake.commit import Mark, commit, is_done, settle
from angelia.pipeline.lake.listing import files as files_of
from angelia.pipeline.lake.listing import find
from angelia.pipeline.lake.tables import ArchiveColumn, Table
from angelia.pipeline.lake.writer import Files
from angelia.stores.objects import Objects

DAYS = [date(2026, 10, day) for day in (1, 2, 3, 5)]
NUMBERS = Table(
    name="numbers",
    about="numbers",
    id="n",
    columns=(ArchiveColumn(name="n", type=pa.int64(), about="a number", nullable=False),),
)


def put(objects: Objects, days: list[date], value: int, mark: Mark, **more: tuple[date, date]) -> bool:
    with Files(objects, NUMBERS, f"{mark.app_id}-{mark.version}-{value}") as files:
        for day in days:
            files.add(pa.RecordBatch.from_pydict({"n": pa.array([value]), "day": pa.array([day])}))
    return commit(objects, NUMBERS, files.written, mark, **more)


def rows(objects: Objects) -> list[tuple[date, int]]:
    table = DeltaTable(objects.table("numbers")).to_pyarrow_table()
    return sorted(zip(table["day"].to_pylist(), table["n"].to_pylist(), strict=True))


def test_a_repeated_version_changes_nothing_even_from_a_fresh_handle(objects: Objects) -> None:
    assert put(objects, DAYS, 1, Mark("job", 1))
    assert not put(objects, DAYS, 2, Mark("job", 1))
    assert rows(objects) == [(day, 1) for day in DAYS]


def test_an_older_version_of_the_same_job_counts_as_done(objects: Objects) -> None:
    put(objects, DAYS, 1, Mark("job", 7))
    assert not put(objects, DAYS, 2, Mark("job", 3))
    assert put(objects, DAYS, 3, Mark("another job", 3))
    assert rows(objects) == sorted([(day, 1) for day in DAYS] + [(day, 3) for day in DAYS])


@pytest.mark.parametrize("versions", [(2, 2), (2, 3)])
def test_of_two_who_commit_at_once_under_one_job_each_row_counts_once(
    objects: Objects, versions: tuple[int, int]
) -> None:
    put(objects, DAYS[:1], 0, Mark("job", 1))
    barrier, outcomes = threading.Barrier(2), dict[int, bool | AngeliaError]()

    def race(number: int) -> None:
        barrier.wait()
        try:
            outcomes[number] = put(objects, DAYS[1:2], number, Mark("job", versions[number - 1]))
        except Conflict as error:
            outcomes[number] = error

    threads = [threading.Thread(target=race, args=[number]) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = sorted(number for number, outcome in outcomes.items() if outcome is True)
    assert rows(objects) == [(DAYS[0], 0), *((DAYS[1], number) for number in taken)]
    assert len(taken) == 1 or versions == (2, 3)


def test_days_are_replaced_whole_and_their_neighbours_stay(objects: Objects) -> None:
    put(objects, DAYS, 1, Mark("job", 1))
    assert put(objects, [DAYS[1]], 9, Mark("job", 2), replacing=(DAYS[1], date(2026, 10, 4)))
    assert rows(objects) == [(DAYS[0], 1), (DAYS[1], 9), (DAYS[3], 1)]


def test_files_that_were_never_committed_are_seen_by_nobody(objects: Objects) -> None:
    put(objects, DAYS[:1], 1, Mark("job", 1))
    with Files(objects, NUMBERS, "crashed") as files:
        files.add(pa.RecordBatch.from_pydict({"n": pa.array([5]), "day": pa.array([DAYS[1]])}))
    assert rows(objects) == [(DAYS[0], 1)]
    found = find(objects, NUMBERS)
    assert found is not None
    assert not is_done(found, Mark("job", 2))


def test_a_run_that_is_resumed_writes_no_file_of_its_own_again(objects: Objects) -> None:
    names = []
    for _ in range(2):
        with Files(objects, NUMBERS, "run-0-0") as files:
            files.add(pa.RecordBatch.from_pydict({"n": pa.array([1]), "day": pa.array([DAYS[0]])}))
        names += [file.path for file in files.written]
    assert len(set(names)) == 2


def test_a_commit_that_goes_on_from_another_version_is_refused(objects: Objects) -> None:
    with Files(objects, NUMBERS, "run") as files:
        files.add(pa.RecordBatch.from_pydict({"n": pa.array([1]), "day": pa.array([DAYS[0]])}))
    assert commit(objects, NUMBERS, files.written, Mark("job", 10), behind=0)
    with pytest.raises(Conflict, match="meanwhile"):
        commit(objects, NUMBERS, files.written, Mark("job", 20), behind=0)
    assert rows(objects) == [(DAYS[0], 1)]


def test_what_is_settled_is_on_the_disk_with_its_log_and_directories(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, DAYS[:1], 1, Mark("job", 1))
    found = find(objects, NUMBERS)
    assert found is not None
    synced: set[str] = set()
    monkeypatch.setattr("angelia.pipeline.lake.commit._sync", lambda path: synced.add(str(path)))
    settle(objects, NUMBERS, files_of(objects, NUMBERS))
    root = objects.table("numbers")
    assert {*found.file_uris(), root, f"{root}/_delta_log", f"{root}/day={DAYS[0]}"} <= synced
    assert len([path for path in synced if path.endswith(".json")]) == 2


def test_a_table_that_is_not_there_is_no_error(objects: Objects) -> None:
    assert find(objects, NUMBERS) is None


def test_a_file_of_an_ordered_table_whose_log_does_not_say_what_it_has_is_not_passed_over(objects: Objects) -> None:
    put(objects, DAYS[:1], 1, Mark("job", 1))  # the log keeps bounds of the column that orders a table alone
    with pytest.raises(Conflict, match="the log of numbers does not say which n are in day=2026-10-01"):
        files_of(objects, dataclasses.replace(NUMBERS, ordered="n"))
