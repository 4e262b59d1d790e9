"""A process that starts Spark, counts to 1,000 and lets a task fail. python starting.py [KEY=VALUE…]"""

from __future__ import annotations

import json
import os
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from angelia.errors import AngeliaError
from angelia.pipeline.session import Where, session
from angelia.pipeline.spark_errors import telling


def main(*conf: str) -> None:
    given = dict(pair.split("=", 1) for pair in conf)
    rows = given.pop("rows", None)
    try:
        where = Where(master=given.pop("master", None), remote=given.pop("remote", None), conf=given)
        with session(where, "test", None if rows is None else int(rows)) as spark:
            total = spark.range(1000).selectExpr("sum(id) AS total").collect()[0]["total"]
            kept = {key: spark.conf.get(key) for key in given}
            fault = _fault(spark)
            options = spark.conf.get("spark.driver.extraJavaOptions")
            told = {"total": total, "conf": kept, "java": os.environ["JAVA_HOME"], "options": options, "fault": fault}
            print(json.dumps(told))
    except AngeliaError as error:
        print(json.dumps({"code": error.code, "error": error.message, "hint": error.hint}))


def _fault(spark: SparkSession) -> str:
    """What is told of a task that failed."""
    try:
        spark.sql("SELECT raise_error('it is broken') FROM range(2)").collect()
    except PySparkException as error:
        return telling(error)
    return "none"


if __name__ == "__main__":
    main(*sys.argv[1:])
