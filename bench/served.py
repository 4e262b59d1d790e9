"""`angelia serve` as a process tree of its own on a fresh data directory, and the CPU time of each of its processes.

All settings are the defaults, unless a benchmark names others: the request log is on, as JSON lines in a file, and the
metric files are written. So what is measured is what an operator gets.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path

import httpx
import psutil
import redis

import cpu_time
from angelia.runtime_file import Runtime, read_runtime

ANGELIA = str(Path(sys.executable).parent / "angelia")
# One line a round trip: asyncpg sends a statement, or the parse of one, and waits for the answer. A bind comes with its
# execute.
_ROUND_TRIP = re.compile(rb"^.* \[\d+\] LOG:  duration: \S+ ms  (?:statement|parse|execute)\b", re.MULTILINE)
_LOG_SECONDS = 0.5  # until PostgreSQL's log collector has written its lines, and all backends have read new settings


@dataclass(frozen=True)
class Cost:
    """CPU seconds by process: the web processes, PostgreSQL, Valkey, the main process, and this one, which is the
    client."""

    web: float = 0.0
    postgres: float = 0.0
    valkey: float = 0.0
    main: float = 0.0
    client: float = 0.0

    @property
    def server(self) -> float:
        return self.web + self.postgres + self.valkey + self.main

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __truediv__(self, count: float) -> Cost:
        return Cost(*(part / count for part in astuple(self)))

    def __str__(self) -> str:
        web, postgres, valkey, main, client = (f"{part * 1e6:,.0f}" for part in astuple(self))
        return f"CPU-µs: web {web}, PostgreSQL {postgres}, Valkey {valkey}, main {main}; client {client}"


@dataclass(frozen=True)
class Served:
    """A running server."""

    runtime: Runtime
    data_dir: Path
    _main: psutil.Process = field(repr=False)

    @property
    def port(self) -> int:
        return int(self.runtime.url.rpartition(":")[2])

    def cost(self) -> Cost:
        """What all processes have spent so far; the difference of two is what happened between them cost."""
        client = time.process_time()
        web = postgres = valkey = 0.0
        main = cpu_time.of_process(self._main.pid) + cpu_time.of_ended_children(self._main)
        for child in self._main.children():
            seconds = cpu_time.of_tree(child)
            if child.name() == "postgres":
                postgres += seconds
            elif child.name() == "valkey-server":
                valkey += seconds
            elif "angelia.worker" in child.cmdline():
                web += seconds
            else:
                main += seconds
        return Cost(web, postgres, valkey, main, client)

    @contextmanager
    def statement_log(self) -> Iterator[None]:
        """Lets PostgreSQL log every statement during the block."""
        settings = self.data_dir / "postgres" / "postgresql.auto.conf"
        before = settings.read_bytes()
        try:
            self._configure(settings, before + b"log_min_duration_statement = 0\n")
            yield
        finally:
            self._configure(settings, before)

    def round_trips(self) -> int:
        """How many round trips to PostgreSQL its log has by now, those of connections that another client made too."""
        time.sleep(_LOG_SECONDS)
        logs = (self.data_dir / "log").glob("postgres-*.log")
        return sum(len(_ROUND_TRIP.findall(log.read_bytes())) for log in logs)

    def scripts(self) -> int:
        """How many scripts Valkey has run so far."""
        with redis.Redis.from_url(self.runtime.redis_url) as hot:
            told = hot.info("commandstats")
        return sum(int(told[name]["calls"]) for name in ("cmdstat_eval", "cmdstat_evalsha") if name in told)

    def _configure(self, settings: Path, content: bytes) -> None:
        settings.write_bytes(content)
        for child in self._main.children():
            if child.name() == "postgres":
                child.send_signal(signal.SIGHUP)
        time.sleep(_LOG_SECONDS)


@contextmanager
def server(workers: int = 1, limits: str = "", **settings: str) -> Iterator[Served]:
    """Runs `angelia serve` on a fresh data directory. `limits` are rate limits other than the default ones, `settings`
    other settings by their names."""
    directory = Path(tempfile.mkdtemp(prefix="angelia-bench-", dir="/tmp"))
    directory.chmod(0o755)
    data_dir = directory / "data"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ANGELIA_")}
    environ |= {"ANGELIA_LIMITS": limits, "ANGELIA_WORKERS": str(workers)}
    environ |= {f"ANGELIA_{name.upper()}": value for name, value in settings.items()}
    command = [ANGELIA, "serve", "--data-dir", str(data_dir), "--port", "0"]
    with (directory / "log").open("wb") as log:
        child = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while (runtime := read_runtime(data_dir)) is None or runtime.pid != child.pid:
            assert child.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)
        while httpx.get(f"{runtime.url}/health").status_code != 200:
            time.sleep(0.05)
        time.sleep(1.1)  # requests signed in the second of the hot tier's birth are refused
        yield Served(runtime, data_dir, psutil.Process(child.pid))
    finally:
        child.terminate()
        child.wait(60)
        shutil.rmtree(directory, ignore_errors=True)
