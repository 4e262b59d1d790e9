"""Fills tables of an archive without Spark, in any number of small files."""

from __future__ import annotations

import uuid
from datetime import date, timedelta

import pyarrow as pa

from angelia.pipeline.jobs.job_context import midnight
from angelia.pipeline.lake import commit
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.tables import DAY, Table
from angelia.pipeline.lake.writer import Files
from angelia.stores.objects import Objects


def rows(table: Table, day: date, count: int, first: int = 0) -> pa.RecordBatch:
    """Returns rows of a day: numbers count up, times advance by a second, ids are unique."""
    numbers = range(first, first + count)

    def column(field: pa.Field) -> pa.Array:
        if field.name == DAY:
            return pa.array([day] * count, field.type)
        if field.name == table.id and pa.types.is_string(field.type):
            return pa.array([str(uuid.uuid5(uuid.NAMESPACE_OID, f"{day} {number}")) for number in numbers])
        if pa.types.is_timestamp(field.type):
            return pa.array([midnight(day) + timedelta(seconds=number) for number in numbers], field.type)
        if pa.types.is_integer(field.type):
            return pa.array([number % 251 for number in numbers], field.type)
        if pa.types.is_floating(field.type):
            return pa.array([number / 4 for number in numbers], field.type)
        if field.nullable:
            return pa.array([None if number % 3 else f"{number}" for number in numbers]).cast(field.type)
        return pa.array([f"{field.name} {number}" for number in numbers]).cast(field.type)

    return pa.RecordBatch.from_arrays([column(field) for field in table.schema], schema=table.schema)


def put(objects: Objects, table: Table, day: date, count: int, *, files: int = 1, mark: Mark) -> None:
    """Adds rows of a day to a table, in one commit of so many files."""
    written = []
    each = count // files
    for number in range(files):
        with Files(objects, table, f"{mark.app_id.replace(' ', '-')}-{mark.version}-{number}") as made:
            made.add(rows(table, day, each, (mark.version * files + number) * each))
        written += made.written
    assert commit.commit(objects, table, written, mark)
