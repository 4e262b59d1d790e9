"""A process that streams the audit until it is killed. python streaming.py URL LAKE DATA_DIR CHECKPOINT"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.stream_audit import stream_audit
from angelia.settings import Settings
from angelia.stores.objects import Objects
from quick_spark import QUICK


def main(url: str, lake: str, data_dir: str, checkpoint: str) -> None:
    with ExitStack() as stack:
        stream_audit(
            JobContext(
                settings=Settings(data_dir=Path(data_dir)),
                database_url=url,
                objects=Objects.at(lake),
                now=datetime.now(UTC),
                stack=stack,
                where=QUICK,
                options={"stop": threading.Event(), "checkpoint": checkpoint, "rows": 500, "every": "50 milliseconds"},
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
