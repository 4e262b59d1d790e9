"""`angelia serve` in a process of its own, which tests may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil

from angelia.runtime_file import Runtime, read_runtime

START_SECONDS = 60


class ServerProcess:
    """One data directory and the server on it, which can be started and killed any number of times."""

    def __init__(self, data_dir: Path, *, port: int = 0, **environ: str) -> None:
        self.data_dir = data_dir
        given = {"pipeline_schedule": "off", **environ}
        self.environ = {"ANGELIA_" + name.upper(): value for name, value in given.items()}
        self.process: subprocess.Popen[bytes] | None = None
        self.log = data_dir.with_suffix(".log")
        self.start_url = ""
        self._port = str(port)  # 0: a free port for the first start; later starts use the same

    def start(self) -> Runtime:
        """Starts the server and waits until its runtime.json tells its URL."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANGELIA_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).parent / "angelia", "serve", "--data-dir", self.data_dir, "--port", self._port],
                env=kept | self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            runtime = read_runtime(self.data_dir)
            if runtime is not None and runtime.pid == self.process.pid:
                self.start_url = runtime.url
                self._port = runtime.url.rpartition(":")[2]
                return runtime
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the server did not start: {self.log.read_text()[-3000:]}")

    def pid_of(self, name: str) -> int:
        """Returns the server's main process, its `worker` or `spool_worker`, or the main process of its `postgres` or
        `valkey-server`."""
        assert self.process is not None
        if name == "server":
            return self.process.pid
        for child in psutil.Process(self.process.pid).children():
            command = child.cmdline()
            if f"angelia.{name}" in command or Path(command[0]).name.startswith(name):
                return child.pid
        raise AssertionError(f"no {name} is running")

    def kill(self, name: str) -> None:
        os.kill(self.pid_of(name), signal.SIGKILL)
        if name == "server":
            assert self.process is not None
            self.process.wait(10)

    def stop(self) -> int:
        """Stops the server cleanly. Returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def wait_until_healthy(self, url: str, seconds: float = 15) -> float:
        """Waits until every store answers again. Returns how long it took."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            try:
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    return time.monotonic() - began
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"not healthy after {seconds} s: {self.log.read_text()[-3000:]}")
