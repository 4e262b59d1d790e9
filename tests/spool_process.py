"""`angelia spool serve` in a process of its own, which tests may kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

START_SECONDS = 30


class SpoolProcess:
    """One data directory and the node on it, which can be started and killed any number of times."""

    def __init__(self, data_dir: Path, **environ: str) -> None:
        self.data_dir = data_dir
        self.log = data_dir.with_suffix(".log")
        self.url = ""
        self.started_at = 0.0
        self._environ = {"ANGELIA_" + name.upper(): value for name, value in environ.items()}
        self._port = "0"  # a free port for the first start; later starts use the same
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Starts the node, and waits until it takes requests that are signed now. Returns its URL."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANGELIA_")}
        program = Path(sys.executable).parent / "angelia"
        self.started_at = time.time()
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, "spool", "serve", "--data-dir", self.data_dir, "--port", self._port],
                env=kept | self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            ready = re.search(rb"is ready   (http\S+)", self.log.read_bytes()[begin:])
            if ready:
                self.url = ready[1].decode()
                if "ANGELIA_PUBLIC_URL" not in self._environ:
                    self._port = self.url.rpartition(":")[2]
                # A signature names the second in which it was made, and those from before the start are refused.
                time.sleep(1 - time.time() % 1)
                return self.url
            time.sleep(0.02)
        raise AssertionError(f"the node did not start: {self.log.read_text()[-3000:]}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> int:
        """Stops the node cleanly. Returns the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(40)
