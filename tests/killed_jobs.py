"""Jobs of the pipeline that end where a test says: killed in a process of their own, or broken off in this one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from angelia.pipeline.runs import JobRun
from angelia.stores.objects import Objects

_HERE = Path(__file__).parent


class Died(BaseException):
    """Nobody catches this, as nobody catches a kill; connections and their locks end as they do then."""


def dies_at(step: str) -> Callable[[str, JobRun], None]:
    """What breaks a job off at a step."""

    def told(name: str, _run: JobRun) -> None:
        if name == step:
            raise Died(step)

    return told


# Killed in a process of its own, with a Spark of its own: as it happens, and slow. The rest breaks off in this one.
killed = pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.chaos)])


async def dying(database_url: str, objects: Objects, job: str, step: str, **options: str) -> None:
    """Run a job in another process until a step, at which it is killed."""
    program = [str(_HERE / "pipeline" / "killed.py"), database_url, objects.root, job, step, json.dumps(options)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        env={**os.environ, "PYTHONPATH": str(_HERE)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), 240)
    assert process.returncode == -9, said.decode()
