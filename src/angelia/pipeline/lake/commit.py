"""Commits to Delta tables, by delta-rs: tables are made when first needed, and each write is one commit with a mark, by
which a run that resumes after a crash knows what it did."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from angelia.errors import Conflict
from angelia.pipeline.lake import listing
from angelia.pipeline.lake.listing import TableFile, find
from angelia.pipeline.lake.tables import DAY, RECEIPTS, SIMULATED_PROPERTY, Table
from angelia.stores.objects import Objects

_RUN, _ROWS = "angelia.run", "angelia.rows"  # metadata of a commit, for the run that resumes after a crash
_APPEND_ONLY = "delta.appendOnly"


@dataclass(frozen=True, slots=True)
class Mark:
    """The identity of a commit: its app id and its version."""

    app_id: str
    version: int


def opened(objects: Objects, table: Table) -> DeltaTable:
    """The table, which is made if it is missing; columns that are new in the code are added to it."""
    found = find(objects, table)
    if found is None:
        made = as_in(objects, table)
        found = DeltaTable.create(
            objects.table(table.name),
            Schema.from_arrow(made.schema),
            mode="ignore",  # of two processes that make it, one does
            partition_by=[DAY],
            name=table.name,
            description=made.about,
            configuration=dict(made.configuration),
            storage_options=dict(objects.options),
            raise_if_key_not_exists=False,  # a property of ours, unknown to Delta
        )
    have = set(pa.schema(found.schema().to_arrow()).names)
    new = [field for field in table.schema if field.name not in have]
    if new:
        added = Schema.from_arrow(pa.schema([field.with_nullable(True) for field in new]))
        found.alter.add_columns(added.fields)
        found.update_incremental()
    return found


def version_of(objects: Objects, table: Table, app_id: str) -> int | None:
    """The last version that an app id has committed to a table."""
    found = find(objects, table)
    return None if found is None else found.transaction_version(app_id)


def is_simulated(objects: Objects) -> bool:
    """Whether `simulate` made this archive; receipts are the first table that it makes."""
    found = find(objects, RECEIPTS)
    return found is not None and SIMULATED_PROPERTY in found.metadata().configuration


def as_in(objects: Objects, table: Table) -> Table:
    """A table as this archive has it: with a mark in every row, if it is a simulated one."""
    return table.marked() if not table.simulated and is_simulated(objects) else table


def is_done(table: DeltaTable, mark: Mark) -> bool:
    have = table.transaction_version(mark.app_id)
    return have is not None and have >= mark.version


def commit(
    objects: Objects,
    table: Table,
    files: Sequence[AddAction],
    mark: Mark,
    *,
    replacing: tuple[date, date] | None = None,
    behind: int | None = None,
) -> bool:
    """Adds files to a table, once for a mark: returns False if the mark was committed before, and the files are not
    added. With `replacing`, they replace the days from the first up to, but not including, the second; with `behind`,
    the last version of the app id must be that.

    delta-rs refuses the second of two commits with one mark at the same time, but not a later one, so that is checked
    first."""
    present = opened(objects, table)
    if is_done(present, mark):
        return False
    if behind is not None and (present.transaction_version(mark.app_id) or 0) != behind:
        raise Conflict(f"somebody else has written {table.name} meanwhile", hint="run it again")
    try:
        present.create_write_transaction(
            list(files),
            "append" if replacing is None else "overwrite",
            present.schema(),
            partition_by=[DAY],
            partition_filters=replacing and [(DAY, ">=", f"{replacing[0]}"), (DAY, "<", f"{replacing[1]}")],
            commit_properties=CommitProperties(app_transactions=[Transaction(mark.app_id, mark.version)]),
        )
    except CommitFailedError as error:
        if is_done(opened(objects, table), mark):
            return False
        raise Conflict(f"somebody else writes {table.name}", hint="run it again") from error
    return True


def replace(
    objects: Objects, table: Table, mark: Mark, run: str, gone: Collection[str], come: Sequence[AddAction], rows: int
) -> bool:
    """Replaces files of a table, once for a mark: returns False if the mark was committed before. `rows` is how many
    rows the change is about, which the commit records.

    Raises Conflict, and changes nothing, if one of the files was replaced meanwhile."""
    present = find(objects, table)
    assert present is not None
    if is_done(present, mark):
        return False
    now = time.time_ns() // 1_000_000
    out = [
        RemoveAction(file.path, True, now, file.size, {DAY: f"{file.day}"})
        for file in listing.files(objects, table)
        if file.path in gone
    ]
    if len(out) != len(gone):
        raise Conflict(f"files of {table.name} were replaced by somebody else", hint="run it again")
    try:
        present.create_write_transaction(
            [*out, *come],
            "append",
            present.schema(),
            partition_by=[DAY],
            commit_properties=CommitProperties(
                custom_metadata={_RUN: run, _ROWS: rows}, app_transactions=[Transaction(mark.app_id, mark.version)]
            ),
        )
    except CommitFailedError as error:
        raise Conflict(f"somebody else writes {table.name}", hint="run it again") from error
    return True


@dataclass(frozen=True, slots=True)
class CommittedChange:
    """What a run changed in a table: how many rows it was about, and the files that it removed."""

    rows: int
    gone: list[str]


def change(objects: Objects, table: Table, run: str) -> CommittedChange:
    """What a run changed in a table in its one commit, by the log, so that it is known after a crash."""
    found = find(objects, table)
    said = [] if found is None else [one for one in found.history() if one.get(_RUN) == run]
    if not said:
        return CommittedChange(0, [])
    done = actions(objects, table, said[0]["version"])
    return CommittedChange(int(said[0][_ROWS]), [one["remove"]["path"] for one in done if "remove" in one])


def is_done_by(objects: Objects, table: Table, mark: Mark, run: str) -> bool:
    """Whether a run has made its commit. The version alone does not tell: an archive may have seen more runs than a
    ledger that is new or was restored."""
    found = find(objects, table)
    return found is not None and is_done(found, mark) and bool(change(objects, table, run).gone)


def actions(objects: Objects, table: Table, version: int) -> list[dict[str, Any]]:
    """The actions of one commit, from the log."""
    path = objects.path(f"{objects.table(table.name)}/_delta_log/{version:020}.json")
    with objects.filesystem().open_input_stream(path) as opened:
        return [json.loads(line) for line in opened.read().splitlines()]


def open_up(objects: Objects, table: Table, said: Mapping[str, str] | None = None) -> None:
    """Allows the removal of rows also in an append-only table. The properties in `said` are written first, and stay."""
    lifted = {_APPEND_ONLY: "false"} if _APPEND_ONLY in table.configuration else {}
    _set(objects, table, {**(said or {}), **lifted})


def close_again(objects: Objects, table: Table) -> None:
    """Restores the table's own properties; idempotent, so it is called after a crash as well."""
    _set(objects, table, table.configuration)


def _set(objects: Objects, table: Table, properties: Mapping[str, str]) -> None:
    found = find(objects, table)
    if found is not None and properties.items() - found.metadata().configuration.items():
        found.alter.set_table_properties(dict(properties), raise_if_not_exists=False)


def settle(objects: Objects, table: Table, files: Sequence[TableFile]) -> None:
    """Makes commits survive a power cut, before rows are removed elsewhere: syncs files of a table, its log and their
    directories to disk. An object store is durable when it answers."""
    if objects.remote:
        return
    log = Path(objects.table(table.name), "_delta_log")
    paths = [Path(file.uri) for file in files]
    if log.is_dir():
        paths += [path for path in log.iterdir() if path.is_file()]
    directories = {path.parent for path in paths}
    for path in [*paths, *sorted(directories | {log.parent, log.parent.parent})]:
        if path.exists():
            _sync(path)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
