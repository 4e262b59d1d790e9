"""The same jobs run on a cluster as on a laptop: by its master's URL, and through a Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import s3_servers
import spark_cluster as clusters
from angelia.stores.objects import Objects
from receipt_rows import OLD, fill, held
from s3_servers import KEYS, ObjectStore
from spark_cluster import Cluster

# Both ways read the ledger, write and commit; what analytics reads besides does not depend on the way.
JOBS = {"remote": ["archive receipts", "analytics"], "master": ["archive receipts"]}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with s3_servers.moto(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture(scope="module")
def spark_cluster(directory: Path) -> Iterator[Cluster]:
    with clusters.cluster(directory / "cluster") as running:
        yield running


def run(url: str, lake: str, how: str, running: Cluster, *jobs: str) -> dict[str, Any]:
    """Jobs in a process of their own: one that talks to a Connect server can have no other Spark."""
    address = running.remote if how == "remote" else running.master
    program = [sys.executable, str(Path(__file__).with_name("clustered.py"))]
    ended = subprocess.run(
        [*program, url, lake, how, address, str(running.python), *jobs],
        env={**os.environ, **KEYS, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in ended.stdout + ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["remote", "master"])
async def test_jobs_run_unchanged_and_each_row_is_archived_once(
    how: str, spark_cluster: Cluster, store: ObjectStore, database_url: str
) -> None:
    await fill(database_url, OLD, 400)
    lake = store.url(how)
    objects = Objects.at(lake, KEYS)
    before = (await held(database_url, objects)).ledger
    told = run(database_url, lake, how, spark_cluster, *JOBS[how])
    after = await held(database_url, objects)
    done = [(job, "done", 400) for job in JOBS[how]]
    assert [(one["job"], one["state"], one["rows"]) for one in told["reports"]] == done
    assert (after.ledger, sorted(after.archive)) == ([], sorted(before))
    assert told["rows"] == 400
    assert "angelia.zip" in told["place"]  # the executors have our code from us, and not from where it is installed
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in told["plan"]
    logs = spark_cluster.logs()
    assert "SparkListenerApplicationStart" in logs
    assert [secret for secret in (KEYS["AWS_SECRET_ACCESS_KEY"], database_url) if secret in logs] == []
