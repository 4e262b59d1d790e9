"""The archive is everybody's: whatever opens a table finds the same rows in it, on a disk and in a bucket."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import s3_servers
from angelia.pipeline.lake import listing, maintenance
from angelia.pipeline.lake.commit import Mark
from angelia.pipeline.lake.tables import RECEIPTS, column
from angelia.pipeline.sources import archive
from angelia.stores.objects import Objects
from lake_tables import put
from s3_servers import KEYS, ObjectStore

DAYS = [date(2026, 10, 1) + timedelta(days=offset) for offset in range(3)]
LATER = dataclasses.replace(RECEIPTS, columns=(*RECEIPTS.columns, column("mood", pa.string(), "how it went")))
Figures = tuple[object, ...]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with s3_servers.moto(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture(params=["directory", "bucket"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "directory":
        return Objects.at(str(tmp_path / "lake"))
    return Objects.at(request.getfixturevalue("store").url(tmp_path.name), KEYS)


@pytest.fixture
def lake(objects: Objects) -> Objects:
    """Three days; the first of them was compacted."""
    for version, day in enumerate(DAYS, 1):
        put(objects, RECEIPTS, day, 120, files=2, mark=Mark("a job", version))
    maintenance.compact(objects, RECEIPTS, DAYS[0])
    return objects


def by_delta(lake: Objects, spark: SparkSession) -> Figures:
    table = DeltaTable(lake.table(RECEIPTS.name), storage_options=dict(lake.options)).to_pyarrow_table()
    return (
        table.num_rows,
        pc.sum(table["wire_bytes"]).as_py(),
        pc.count_distinct(table["receipt_id"]).as_py(),
        pc.count(table["failure_reason"]).as_py(),
        pc.min(table["sent_at"]).as_py(),
        pc.max(table["acknowledged_at"]).as_py(),
        pc.max(table["day"]).as_py(),
    )


def by_polars(lake: Objects, spark: SparkSession) -> Figures:
    rows = pl.scan_delta(lake.table(RECEIPTS.name), storage_options=_keys(lake))
    return (
        rows.select(
            pl.len(),
            pl.col("wire_bytes").sum(),
            pl.col("receipt_id").n_unique(),
            pl.col("failure_reason").count(),
            pl.col("sent_at").min(),
            pl.col("acknowledged_at").max().alias("last"),
            pl.col("day").max(),
        )
        .collect()
        .row(0)
    )


def by_duckdb(lake: Objects, spark: SparkSession) -> Figures:
    table = DeltaTable(lake.table(RECEIPTS.name), storage_options=dict(lake.options))
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    if lake.remote:  # what reads buckets is not part of the package
        connection.register("receipts", table.to_pyarrow_dataset())
    else:
        files = table.file_uris()
        connection.execute("CREATE TABLE receipts AS FROM read_parquet($1, hive_partitioning = true)", [files])
    found = connection.execute(
        "SELECT count(*), sum(wire_bytes)::bigint, count(DISTINCT receipt_id), count(failure_reason), "
        "epoch_us(min(sent_at)), epoch_us(max(acknowledged_at)), max(day) FROM receipts"
    ).fetchone()
    assert found is not None
    return (*found[:4], _time(found[4]), _time(found[5]), found[6])


def by_spark(lake: Objects, spark: SparkSession) -> Figures:
    rows = archive.read(spark, lake, RECEIPTS, listing.files(lake, RECEIPTS))
    found = rows.agg(
        f.count("*"),
        f.sum("wire_bytes"),
        f.count_distinct("receipt_id"),
        f.count("failure_reason"),
        f.unix_micros(f.min("sent_at")),
        f.unix_micros(f.max("acknowledged_at")),
        f.max("day"),
    ).collect()[0]
    return (*found[:4], _time(found[4]), _time(found[5]), found[6])


def _keys(lake: Objects) -> dict[str, str]:
    """Without how patient delta-rs is to be, which Polars has other words for."""
    return {name: value for name, value in lake.options.items() if name.startswith("AWS_")}


def _time(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def test_every_reader_finds_the_same_rows(lake: Objects, spark: SparkSession) -> None:
    expected = by_delta(lake, spark)
    assert expected[0] == expected[2] == 360
    others: list[Callable[[Objects, SparkSession], Figures]] = [by_polars, by_duckdb, by_spark]
    assert {one.__name__: one(lake, spark) for one in others} == {one.__name__: expected for one in others}


def test_of_some_days_only_their_files_are_opened(lake: Objects, spark: SparkSession) -> None:
    wanted = listing.files(lake, RECEIPTS, (DAYS[1], DAYS[2]))
    for file in set(listing.files(lake, RECEIPTS)) - set(wanted):
        lake.filesystem().delete_file(lake.path(file.uri))
    rows = archive.read(spark, lake, RECEIPTS, wanted)
    assert [row["day"] for row in rows.select("day").distinct().collect()] == [DAYS[1]]
    assert rows.count() == 120


def test_of_some_columns_only_these_are_given(lake: Objects, spark: SparkSession) -> None:
    files = listing.files(lake, RECEIPTS)
    narrow = replace(RECEIPTS, columns=tuple(one for one in RECEIPTS.columns if one.name == "wire_bytes"))
    rows = archive.read(spark, lake, narrow, files)
    assert rows.columns == ["wire_bytes", "day"]
    whole = archive.read(spark, lake, RECEIPTS, files).select("wire_bytes", "day")
    assert sorted(rows.collect()) == sorted(whole.collect())


def test_a_column_that_came_later_is_null_in_what_is_older(lake: Objects, spark: SparkSession) -> None:
    put(lake, LATER, DAYS[2], 9, mark=Mark("a job", 9))
    uri = lake.table(LATER.name)
    delta = DeltaTable(uri, storage_options=dict(lake.options)).to_pyarrow_table(columns=["mood"])
    moods = {
        "Spark": archive.read(spark, lake, LATER, listing.files(lake, LATER)).where("mood IS NOT NULL").count(),
        "delta-rs": pc.count(delta["mood"]).as_py(),
        "Polars": pl.scan_delta(uri, storage_options=_keys(lake)).select(pl.col("mood").count()).collect().item(),
    }
    assert moods == {"Spark": 3, "delta-rs": 3, "Polars": 3}
    assert archive.read(spark, lake, LATER, listing.files(lake, LATER)).count() == 369


def test_a_directory_may_have_a_blank_in_its_name(tmp_path: Path, spark: SparkSession) -> None:
    lake = Objects.at(str(tmp_path / "a lake"))
    put(lake, RECEIPTS, DAYS[0], 40, files=2, mark=Mark("a job", 1))
    rows = archive.read(spark, lake, RECEIPTS, listing.files(lake, RECEIPTS, (DAYS[0], DAYS[1])))
    assert (rows.count(), [row["day"] for row in rows.select("day").distinct().collect()]) == (40, [DAYS[0]])


def test_small_files_of_a_bucket_share_a_task(store: ObjectStore, spark: SparkSession) -> None:
    lake = Objects.at(store.url("small"), KEYS)
    put(lake, RECEIPTS, DAYS[0], 40, files=40, mark=Mark("a job", 1))
    rows = archive.read(spark, lake, RECEIPTS, listing.files(lake, RECEIPTS))
    tasks = rows.select(f.spark_partition_id().alias("task")).distinct().count()
    assert (tasks, rows.count()) == (2, 40)


def test_a_plan_does_not_show_the_key(store: ObjectStore, spark: SparkSession, capfd: Any) -> None:
    lake = Objects.at(store.url("shown"), KEYS)
    put(lake, RECEIPTS, DAYS[0], 4, mark=Mark("a job", 1))
    archive.read(spark, lake, RECEIPTS, listing.files(lake, RECEIPTS)).explain("extended")
    shown = capfd.readouterr()
    assert "angelia_archive" in shown.out
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in shown.out + shown.err
