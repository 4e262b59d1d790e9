"""What went wrong in one of Spark's processes is told in one line, and an error of ours comes out as what it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from angelia.cli.pipeline_archive import _statement
from angelia.errors import AuditBroken, DiskFull, Unavailable
from angelia.pipeline.database import Database
from angelia.pipeline.spark_errors import raised_by_us, telling


class _Planning(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        raise AuditBroken("the chain has a gap")

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        raise AssertionError("planning failed before")


class _Broken(DataSource):
    @classmethod
    def name(cls) -> str:
        return "broken"

    def schema(self) -> str:
        return "id long"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Planning()


def _away(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        try:
            raise ConnectionError("refused")
        except ConnectionError as error:
            raise Unavailable("the ledger does not answer") from error
        yield batch


def _faulty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        raise ValueError("a fault of ours")
        yield batch


def test_an_error_of_ours_in_a_worker_is_that_error_here(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.range(1).mapInArrow(_away, "id long").toArrow()
    ours = raised_by_us(caught.value)
    assert (type(ours), str(ours)) == (Unavailable, "the ledger does not answer")
    assert telling(caught.value) == "the ledger does not answer"


def test_an_error_of_ours_in_the_planning_is_that_error_here(spark: SparkSession) -> None:
    spark.dataSource.register(_Broken)
    with pytest.raises(PySparkException) as caught:
        spark.read.format("broken").load().toArrow()
    assert type(raised_by_us(caught.value)) is AuditBroken


def test_another_error_in_a_worker_is_told_by_its_last_line(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.range(1).mapInArrow(_faulty, "id long").toArrow()
    assert (raised_by_us(caught.value), telling(caught.value)) == (None, "ValueError: a fault of ours")


def test_an_error_of_sql_is_told_without_its_codes(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.sql("SELECT cast('x' AS int)").toArrow()
    assert telling(caught.value).startswith("The value 'x' of the type")
    assert "SQLSTATE" not in telling(caught.value)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("An error occurred while calling o122.getResult.\n: org.apache.spark.SparkException: Job aborted\n"
         "\tat org.x.Y(Y.scala:1)\nCaused by: java.io.IOException: No space left on device\n\tat z",
         "No space left on device"),
        ("An error occurred while calling o1.x.\n: org.apache.spark.SparkException: No such thing.\n\tat z",
         "No such thing"),
        ("", "RuntimeError"),
        ("Answer from Java side is empty", "Spark's Java process ended in the middle of it"),
        ("x" * 5000, "x" * 300),
    ],
)  # fmt: skip
def test_what_java_says_is_told_by_its_cause(said: str, line: str) -> None:
    assert telling(RuntimeError(said)) == line


def test_nothing_but_a_query_is_understood_as_one(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ParseException, match="INSERT"):
        spark.sql(_statement(f"FROM range(3) INSERT OVERWRITE DIRECTORY '{out}' USING parquet SELECT *"))
    assert not out.exists()


@pytest.mark.parametrize(
    "query",
    ["SELECT\n7 AS n", "-- why\n/* and\nhow */ WITH a AS (SELECT 7 AS n)\nSELECT n FROM a -- so", "(SELECT 7 AS n);"],
)
def test_a_query_may_begin_with_comments_and_go_over_lines(spark: SparkSession, query: str) -> None:
    assert spark.sql(_statement(query)).limit(2).toArrow().to_pylist() == [{"n": 7}]


def test_a_table_can_be_described(spark: SparkSession) -> None:
    spark.range(1).createOrReplaceTempView("numbers")
    assert spark.sql(_statement("DESCRIBE numbers")).limit(2).toArrow().to_pylist()[0]["col_name"] == "id"


def test_a_full_disk_of_the_ledger_is_called_so(database_url: str) -> None:
    with Database.open(database_url) as database, pytest.raises(DiskFull, match="disk is full"):
        database.execute("DO $$ BEGIN RAISE disk_full; END $$")
