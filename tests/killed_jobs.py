"""Pipeline jobs that end at a step that the test names: killed in another process, or broken off in this one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from angelia.pipeline.runs import JobRun
from angelia.stores.objects import Objects

_HERE = Path(__file__).parent


class Died(BaseException):
    """Breaks a job off like a kill: no code catches it, and connections end with their locks."""


def dies_at(step: str) -> Callable[[str, JobRun], None]:
    """Returns a function that breaks a job off at a step."""

    def told(name: str, _run: JobRun) -> None:
        if name == step:
            raise Died(step)

    return told


def dies_at_the_second(step: str) -> Callable[[str, JobRun], None]:
    """Returns a function that breaks a job off when it comes to a step for the second time."""
    seen: list[str] = []

    def told(name: str, _run: JobRun) -> None:
        seen.append(name)
        if seen.count(step) == 2:
            raise Died(step)

    return told


def meanwhile(step: str, act: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[str, JobRun], None]:
    """Returns a function that acts in a thread of its own when a job comes to a step."""

    def told(name: str, _run: JobRun) -> None:
        if name == step:
            other = threading.Thread(target=lambda: asyncio.run(act()))
            other.start()
            other.join()

    return told


# Killed in another process, with a Spark of its own: realistic and slow. At other steps jobs break off in this process.
killed = pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.chaos)])


async def dying(database_url: str, objects: Objects, job: str, step: str, **options: str) -> None:
    """Runs a job in another process, and kills it at a step."""
    program = [str(_HERE / "pipeline" / "killed.py"), database_url, objects.root, job, step, json.dumps(options)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_HERE), *sys.path])},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), 240)
    assert process.returncode == -9, said.decode()
