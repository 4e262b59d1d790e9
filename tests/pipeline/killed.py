"""A process that runs a job, and kills itself where it is told to. python killed.py URL LAKE JOB STEP OPTIONS"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack

from angelia.pipeline.jobs.archive_audit import archive_audit
from angelia.pipeline.jobs.archive_queues import archive_queues
from angelia.pipeline.jobs.archive_receipts import archive_receipts
from angelia.pipeline.jobs.archive_rooms import archive_rooms
from angelia.pipeline.jobs.archive_sessions import archive_sessions
from angelia.pipeline.jobs.erase import erase
from angelia.pipeline.jobs.job_context import JobContext
from angelia.pipeline.jobs.remove_simulated import remove_simulated
from angelia.pipeline.jobs.retention import retention
from angelia.pipeline.runs import JobRun
from angelia.settings import Settings
from angelia.stores.objects import Objects
from quick_spark import QUICK
from receipt_rows import NOW

JOBS = {
    "archive audit": archive_audit,
    "archive queues": archive_queues,
    "archive receipts": archive_receipts,
    "archive rooms": archive_rooms,
    "archive sessions": archive_sessions,
    "erase": erase,
    "remove simulated": remove_simulated,
    "retention": retention,
}


def main(url: str, lake: str, job: str, last: str, options: str) -> None:
    def step(name: str, _run: JobRun) -> None:
        if name == last:
            os.kill(os.getpid(), signal.SIGKILL)

    with ExitStack() as stack:
        work = JobContext(
            settings=Settings(),
            database_url=url,
            objects=Objects.at(lake),
            now=NOW,
            stack=stack,
            where=QUICK,
            options=json.loads(options),
            step=step,
        )
        JOBS[job](work)


if __name__ == "__main__":
    main(*sys.argv[1:])
