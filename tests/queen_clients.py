"""The official Python clients of Queen MQ, unmodified: the one of the contract, and the newest.

Two versions of one package exclude each other, so each runs in a process of its own. Run as a program, this file is
that process: it reads the name of a test per line, runs the test's body, and answers with what went wrong.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import distributions
from pathlib import Path
from traceback import TracebackException
from typing import Any

import pytest

OLD, NEWEST = "0.15", "newest"
# ./dev installs the old one there; the newest is an ordinary dependency.
_PLACES = {OLD: [str(Path(sys.prefix) / "queen-0.15")], NEWEST: sys.path}
_SECONDS = 20
# The clients return nothing where a pop, a listing or a trace was refused; they print why.
_COMPLAINT = re.compile(r"fail|error", re.IGNORECASE)

Step = Callable[[Any, str], Awaitable[None]]


def by(*clients: str) -> Callable[[Step], Callable[[ClientProcess], None]]:
    """Makes the body of a test run in the process of each of these clients: `queen` is a `Queen` that is connected to
    the server, `name` a name that no queue has yet."""

    def make(step: Step) -> Callable[[ClientProcess], None]:
        def test(client: ClientProcess) -> None:
            client.run(step.__name__)

        test.__name__, test.__module__, test.__dict__["step"] = step.__name__, step.__module__, step
        return pytest.mark.parametrize("client", clients, indirect=True, scope="module")(test)

    return make


class ClientProcess:
    """A process that has one version of the client."""

    def __init__(self, client: str, url: str, tests: Path) -> None:
        found = next(iter(distributions(name="queen-mq", path=_PLACES[client])), None)
        if found is None:
            pytest.skip(f"the {client} client of Queen MQ, which ./dev installs")
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        path = os.pathsep.join([*(_PLACES[client] if client == OLD else []), kept.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, url, str(tests), found.version],
            env=kept | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, f"the client's process ended with {self._process.wait(10)}"
        problem, printed = json.loads(answer)
        complaints = [line for line in printed.splitlines() if _COMPLAINT.search(line)]
        if problem or complaints:
            pytest.fail(f"{problem}\nprinted by the client:\n{printed}", pytrace=False)

    def stop(self) -> None:
        self._process.communicate(timeout=10)


def _serve(url: str, file: str, version: str) -> None:
    import queen

    assert next(iter(distributions(name="queen-mq"))).version == version, queen.__file__
    spec = importlib.util.spec_from_file_location("steps", file)
    assert spec is not None
    assert spec.loader is not None
    steps = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(steps)

    async def run(name: str) -> None:
        # One attempt: a fault that a second attempt would hide is a finding.
        async with asyncio.timeout(_SECONDS), queen.Queen({"urls": [url], "retry_attempts": 1}) as client:
            await getattr(steps, name).step(client, f"{name.removeprefix('test_')}-{secrets.token_hex(4)}")

    for line in sys.stdin:
        problem, printed = "", io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            try:
                asyncio.run(run(line.strip()))
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever it is, the test reports it
                problem = _told(error, file)
        print(json.dumps([problem, printed.getvalue()]), flush=True)


def _told(error: BaseException, file: str) -> str:
    """The trace of the test's own lines, with their variables: here no assertion is rewritten."""
    told = TracebackException.from_exception(error, capture_locals=True)
    told.stack[:] = [frame for frame in told.stack if frame.filename == file]
    return "".join(told.format(chain=False))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
