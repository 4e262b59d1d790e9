"""Delta tables by delta-rs: made when first needed, and each write one commit that can be told from all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from angelia.errors import Conflict
from angelia.pipeline.lake.tables import DAY, Table
from angelia.stores.objects import Objects

SIMULATED = "simulate"  # the app id of what never happened


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells a commit from all others: whose it is, and its number there."""

    app_id: str
    version: int


def find(objects: Objects, table: Table) -> DeltaTable | None:
    """The table as it is now; None before its first write."""
    try:
        return DeltaTable(objects.table(table.name), storage_options=dict(objects.options))
    except TableNotFoundError:
        return None


def opened(objects: Objects, table: Table) -> DeltaTable:
    """The table, made if it is not there; columns that are new since it was made are added to it."""
    found = find(objects, table)
    if found is None:
        DeltaTable.create(
            objects.table(table.name),
            Schema.from_arrow(table.schema),
            mode="ignore",  # two who come first make one
            partition_by=[DAY],
            name=table.name,
            description=table.about,
            configuration=dict(table.configuration),
            storage_options=dict(objects.options),
        )
        found = find(objects, table)
        assert found is not None
    have = set(pa.schema(found.schema().to_arrow()).names)
    new = [field for field in table.schema if field.name not in have]
    if new:
        added = Schema.from_arrow(pa.schema([field.with_nullable(True) for field in new]))
        found.alter.add_columns(added.fields)
        found = find(objects, table)
        assert found is not None
    return found


def version_of(objects: Objects, table: Table, app_id: str) -> int | None:
    """The last version that somebody committed to a table."""
    found = find(objects, table)
    return None if found is None else found.transaction_version(app_id)


def refuse_simulated(objects: Objects, table: Table) -> None:
    """What really happened does not go where something is only pretended to have happened."""
    if version_of(objects, table, SIMULATED) is not None:
        raise Conflict(
            f"the archive at {objects.root} holds simulated rows in {table.name}",
            hint=f"remove {objects.table(table.name)}, or name another archive with --lake",
        )


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
    """Make files part of a table, once: False when this mark was committed before, and the files are left over.
    They can take the place of what the table had of the days from one up to, and without, another; and they can be
    right only behind a certain version.

    Of two who commit under one mark at the same time, the second is refused by delta-rs; one who comes later is
    not, so it looks first."""
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
