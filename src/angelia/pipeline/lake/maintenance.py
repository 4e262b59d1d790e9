"""Compacts the small files of a day, and removes files that no reader can still be using."""

from __future__ import annotations

import functools
import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import date, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import fs

from angelia.errors import AngeliaError, Conflict, InvalidArgument
from angelia.pipeline.lake import commit, listing
from angelia.pipeline.lake.listing import TableFile
from angelia.pipeline.lake.tables import DAY, Table
from angelia.stores.objects import Objects

KEPT = timedelta(days=7)  # longer than any job runs
LEAST_KEPT = timedelta(hours=24)
_FILE_BYTES = 128_000_000
_SMALL_BYTES = 32_000_000
MADE_BY = "angelia.compaction"  # metadata of its commits
_WRITTEN = WriterProperties(compression="ZSTD", compression_level=3)


class StoreRefuses(AngeliaError, code="archive_locked"):
    """The store does not let files of the archive be removed"""


class RowsDiffer(AngeliaError, code="archive_differs"):
    """A compaction did not put back the rows that it took out"""


def crowded(objects: Objects, table: Table) -> dict[date, list[TableFile]]:
    """The files of days with more than one small file, oldest first."""
    by_day: dict[date, list[TableFile]] = defaultdict(list)
    for file in listing.files(objects, table):
        by_day[file.day].append(file)
    return {day: files for day, files in sorted(by_day.items()) if sum(file.size < _SMALL_BYTES for file in files) > 1}


def compact(objects: Objects, table: Table, day: date) -> int:
    """Compacts the files of a day in a commit that changes no row, so that readers and other jobs go on. Returns the
    number of files that the day has after that.

    delta-rs allows this for append-only tables as well."""
    present = listing.find(objects, table)
    assert present is not None
    before, own = present.version(), str(uuid.uuid4())
    try:
        present.optimize.compact(
            partition_filters=[(DAY, "=", f"{day}")],
            target_size=_FILE_BYTES,
            max_concurrent_tasks=1,  # a file is held in memory while it is made
            writer_properties=_WRITTEN,
            commit_properties=CommitProperties(custom_metadata={MADE_BY: own}),
        )
    except CommitFailedError as error:
        raise Conflict(f"somebody else writes {table.name}", hint="angelia pipeline run maintain") from error
    compare(objects, table, own, before)
    return len(listing.files(objects, table, (day, day + timedelta(days=1))))


def compare(objects: Objects, table: Table, own: str, before: int) -> None:
    """Compares the rows of the files that a compaction's own commits removed and added, and raises RowsDiffer if they
    are not as many. Other commits after version `before` are ignored."""
    found = listing.find(objects, table)
    assert found is not None
    behind = found.history(found.version() - before) if found.version() > before else []
    for version in [one["version"] for one in behind if one.get(MADE_BY) == own]:
        found.load_as_version(version - 1)
        files_then = pa.table(found.get_add_actions()).select(["path", "num_records"]).to_pylist()
        had = {file["path"]: file["num_records"] for file in files_then}
        done = commit.actions(objects, table, version)
        gone = sum(had[one["remove"]["path"]] for one in done if "remove" in one)
        added = [one["add"] for one in done if "add" in one]
        told = sum(json.loads(one["stats"])["numRecords"] for one in added)
        come = _counted(objects, [f"{objects.table(table.name)}/{one['path']}" for one in added])
        if not gone == told == come:
            raise RowsDiffer(
                f"commit {version} of {table.name} took out files with {gone:,} rows and put in {come:,}",
                hint="the files of before are still there: do not run maintain again, and read docs/archive.md",
            )


def vacuum(objects: Objects, table: Table, kept: timedelta, *, dry_run: bool) -> list[str]:
    """Removes files that left the table at least `kept` ago, or that no commit names: a run that died left them.
    Returns their paths below the table.

    The time protects files that a job has written and not committed yet."""
    if kept < LEAST_KEPT:
        raise InvalidArgument(
            f"files are kept for {LEAST_KEPT.days} day at least: a job may be about to commit younger ones",
            hint="leave kept_hours out, or say 24 or more",
        )
    present = listing.find(objects, table)
    assert present is not None
    remove = functools.partial(
        present.vacuum,
        retention_hours=int(kept / timedelta(hours=1)),
        enforce_retention_duration=False,
        full=True,
    )
    gone = remove(dry_run=True)
    if gone and not dry_run:
        try:
            remove(dry_run=False)
        except (DeltaError, OSError) as error:
            raise StoreRefuses(
                f"the store does not let files of {table.name} be removed",
                hint="may the key delete objects? docs/archive.md says what it needs",
            ) from error
    return gone


def _counted(objects: Objects, uris: Collection[str]) -> int:
    """The number of rows in files, by their own metadata."""
    filesystem = objects.filesystem()
    total = 0
    for uri in uris:
        with filesystem.open_input_file(objects.path(uri)) as opened:
            total += pq.ParquetFile(opened).metadata.num_rows
    return total


def leftovers(objects: Objects, table: Table, writing: Callable[[], Collection[str]]) -> list[str]:
    """Files in the table's directory that its present version does not have: removed before, or of a write that never
    ended. Files of runs that are `writing`, whose names begin with the run's id, are left out.

    Without a log there are none, since the table's files are unknown."""
    root = objects.path(objects.table(table.name))
    listed = objects.filesystem().get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    # In this order: the run that wrote a listed file is still open, or has committed it by now.
    sparing = writing()
    if listing.find(objects, table) is None:
        return []
    present = {file.path for file in listing.files(objects, table)}
    below_root = (one.path.removeprefix(root).lstrip("/") for one in listed if one.type == fs.FileType.File)
    return [
        path
        for path in below_root
        if path.startswith(f"{DAY}=")
        and path not in present
        and not any(path.rpartition("/")[2].startswith(run) for run in sparing)
    ]


def delete(objects: Objects, table: Table, paths: Collection[str]) -> None:
    """Deletes files; one that is gone was deleted before a crash."""
    filesystem, root = objects.filesystem(), objects.path(objects.table(table.name))
    for path in paths:
        try:
            filesystem.delete_file(f"{root}/{path}")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreRefuses(
                f"the store does not let a file of {table.name} be removed: {error}",
                hint="is the bucket under object lock, or may the key not delete? docs/retention.md; then run it again",
            ) from error
