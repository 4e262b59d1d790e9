"""Spark sessions: embedded in this process, on a cluster by its master's URL, or on a Connect server."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import angelia
from angelia.errors import InvalidArgument, StartFailed, Unavailable
from angelia.pipeline import shims
from angelia.pipeline.java import find_java
from angelia.pipeline.secret_options import forget_key, make_key
from angelia.pipeline.spark_errors import telling
from angelia.settings import SPARK_MASTER, SPARK_REMOTE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = Path(angelia.__file__).parent
# Settings of every session: times are read and written in UTC.
_ALWAYS = {"spark.sql.session.timeZone": "UTC", "spark.sql.execution.arrow.maxRecordsPerBatch": "20000"}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Up to so many rows, a job is over before Java's optimising compiler has paid for itself: a month of 1,000 agents
# (136,000 receipts) takes 12 CPU-seconds less without it and with one collector thread, 2.7 million receipts take 8
# less. By these figures the two meet at 8 million.
SMALL_ROWS = 2_000_000
_SMALL_JAVA, _ONE_COLLECTOR = "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"
# Where else a collector may be named: Java does not start with two of them.
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
_PYTHON = "spark.pyspark.python"
_ADDRESS = re.compile(r"(?:\[([^\]]+)\]|([^:]+))(?::(\d+))?")
_ANSWER_SECONDS, _READY_SECONDS = 5, 30
_LOOK = "`angelia doctor` says which Java is used; --conf passes settings on to Spark"
# Variables of a shell that is set up for another Spark.
_FOREIGN = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_SUBMIT_ARGS")
_FOREIGN_GATEWAY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_PIN_THREAD")
_EMBEDDED = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    # Above this, Spark lists files by a job, which took half of the time of a query over 90 files.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where Spark runs: embedded, at a master or at a Connect server; and settings for it."""

    master: str | None = None
    remote: str | None = field(default=None, repr=False)  # its parameters may hold a token
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    java_home: Path | None = None

    def __post_init__(self) -> None:
        if self.master and self.remote:
            raise InvalidArgument("a run has a master or a remote, not both")
        if self.master and not SPARK_MASTER.fullmatch(self.master):
            raise InvalidArgument(
                f"{self.master} is no master of Spark", hint="spark://host:7077, yarn, k8s://…, or local[*]"
            )
        if self.remote and not SPARK_REMOTE.fullmatch(self.remote):
            raise InvalidArgument(f"{_shown(self.remote)} is no Connect server", hint="sc://host:15002")

    def __str__(self) -> str:
        return _shown(self.remote or self.master or "local")

    @property
    def embedded(self) -> bool:
        return self.remote is None and (self.master is None or self.master.startswith("local"))


@contextmanager
def session(where: Where, name: str, rows: float | None = None) -> Iterator[SparkSession]:
    """A session for one run; it ends with the run. `rows` is how many rows it is about, at most, if that is known: the
    Java of a small run is set to start quickly, where it is ours to start."""
    _hush()
    spark = _connected(where) if where.remote else _started(where, name, rows)
    # Executors may fetch these files as long as the session lasts.
    with tempfile.TemporaryDirectory() as directory:
        try:
            if not where.embedded:
                for path in (_packed(Path(directory)), make_key(Path(directory))):
                    spark.addArtifact(str(path), pyfile=True)
            yield spark
        finally:
            spark.stop()
            forget_key()


def _connected(where: Where) -> SparkSession:
    from grpc import FutureTimeoutError, channel_ready_future
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import DefaultChannelBuilder

    assert where.remote is not None
    _check_answers_at(where.remote, 15002)
    channel = DefaultChannelBuilder(where.remote).toChannel()
    try:
        channel_ready_future(channel).result(_READY_SECONDS)
    except FutureTimeoutError as error:
        raise Unavailable(f"what listens at {where} is no Connect server, or too busy", hint="try it again") from error
    finally:
        channel.close()
    for name in _FOREIGN:
        os.environ.pop(name, None)
    try:
        spark = SparkSession.builder.remote(where.remote).getOrCreate()
    except PySparkException as error:
        raise StartFailed(f"there is no session at {where}: {telling(error)}", hint=_LOOK) from error
    for key, value in {**_ALWAYS, **where.conf}.items():
        try:
            spark.conf.set(key, value)
        except PySparkException as error:
            spark.stop()
            raise InvalidArgument(
                f"{key} is not ours to set on a Connect server that runs", hint="set it where that server is started"
            ) from error
    return spark


def _started(where: Where, name: str, rows: float | None) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if where.master and where.master.startswith("spark://"):
        _check_answers_at(where.master, 7077)
    for variable in _FOREIGN + _FOREIGN_GATEWAY:
        os.environ.pop(variable, None)
    # Read when the Java process starts; a Python of another environment would lack our packages.
    own_python = str(shims.python()) if where.embedded else sys.executable
    os.environ["PYSPARK_PYTHON"] = where.conf.get(_PYTHON, own_python)
    os.environ["PYSPARK_DRIVER_PYTHON"] = own_python  # by which Java looks for data sources
    os.environ["JAVA_HOME"] = str(find_java(where.java_home).home)
    conf = dict(_ALWAYS)
    if where.embedded:
        os.environ.pop("SPARK_CONF_DIR", None)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf |= _EMBEDDED | java_settings(rows, where.conf)
    conf |= where.conf
    logging = f"-Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')}"
    conf[_JAVA_OPTIONS] = f"{conf.get(_JAVA_OPTIONS, '')} {logging}".strip()
    builder = SparkSession.builder.master(where.master or "local[*]").appName(f"angelia {name}")
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise StartFailed(f"Spark does not start at {where}: {telling(error)}", hint=_LOOK) from error


def java_settings(rows: float | None, conf: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The settings of Java for a run of so many rows; a large one, or one of unknown size, leaves them as they are. The
    same setting by --conf takes the place of ours, and a collector that is named elsewhere stays."""
    if rows is None or rows > SMALL_ROWS:
        return {}
    elsewhere = [conf.get(_DEFAULT_OPTIONS, ""), *(os.environ.get(name, "") for name in _JAVA_VARIABLES)]
    named = any(re.search(r"-XX:\+Use\w+GC", text) for text in elsewhere)
    return {_JAVA_OPTIONS: _SMALL_JAVA if named else f"{_SMALL_JAVA} {_ONE_COLLECTOR}"}


def _check_answers_at(url: str, port: int) -> None:
    """Raises Unavailable if no host answers, because Spark would retry for minutes."""
    hosts = url.partition("://")[2].partition("/")[0].partition(";")[0]
    for address in filter(None, map(_ADDRESS.fullmatch, hosts.split(","))):
        try:
            socket.create_connection((address[1] or address[2], int(address[3] or port)), _ANSWER_SECONDS).close()
        except (OSError, OverflowError):  # no valid port
            continue
        return
    raise Unavailable(f"nobody answers at {_shown(url)}", hint="is it running, and is that its address?")


def _shown(url: str) -> str:
    """The URL without its parameters, which may hold a token."""
    return url.partition(";")[0]


def _packed(directory: Path) -> Path:
    """Our code as a zip, for executors that have our dependencies but not this package."""
    packed = directory / "angelia.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, Path("angelia") / path.relative_to(_PACKAGE))
    return packed


def _hush() -> None:
    """Silences PySpark, which logs each error with Java's stack before raising it, and Py4J, which logs each
    interrupt."""
    from pyspark.logger import PySparkLogger

    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_no_interrupt)  # Py4J logs that to the root logger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("KeyboardInterrupt while sending command")


def tasks_of(spark: SparkSession) -> Callable[[], tuple[int, int]]:
    """A function for any thread that returns how many tasks of the running stages are done, and how many there are."""
    from pyspark.sql.utils import is_remote

    if is_remote():
        seen: dict[str, tuple[int, int]] = {}

        def handler(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
            counted = [(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()]
            seen["now"] = (0, 0) if done else (sum(one for one, _ in counted), sum(all_ for _, all_ in counted))

        spark.registerProgressHandler(handler)  # type: ignore[arg-type]
        return lambda: seen.get("now", (0, 0))
    from py4j.protocol import Py4JError

    tracker = spark.sparkContext.statusTracker()

    def ask() -> tuple[int, int]:
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except (Py4JError, OSError):  # Java is gone, which the job will report
            return 0, 0
        running = [stage for stage in stages if stage is not None]
        return sum(stage.numCompletedTasks for stage in running), sum(stage.numTasks for stage in running)

    return ask
