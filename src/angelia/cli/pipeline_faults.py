"""Faults of the pipeline's outside world, in our words."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from angelia.cli.command_context import Session
from angelia.errors import AngeliaError


class JobFailed(AngeliaError):
    """The job failed"""

    code = "job_failed"


@contextmanager
def in_our_words(session: Session, hint: str) -> Iterator[None]:
    """Faults of Spark, of the ledger's driver and of the archive's store, as one sentence; -v shows the rest. What one
    of Spark's processes raised as an error of ours is that error here, too."""
    from adbc_driver_manager import Error as LedgerError
    from deltalake.exceptions import DeltaError
    from py4j.protocol import Py4JError
    from pyarrow.lib import ArrowException
    from pyspark.errors import PySparkException

    from angelia.pipeline.spark_errors import raised_by_us, telling

    try:
        yield
    except (LedgerError, DeltaError, Py4JError, PySparkException, ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the operating system's, which is told as such
            raise
        for line in traceback.format_exc().splitlines():
            session.out.detail(line)
        ours = raised_by_us(error) or JobFailed(telling(error))
        ours.hint = hint
        raise ours from error
