"""The Python that Spark starts is ours, with the installed PySpark and all else that PYTHONPATH names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from angelia.pipeline import shims

LIB = "/opt/a b/pyspark/python/lib"
TELL = "import json, os, sys; print(json.dumps([os.environ['PYTHONPATH'], sys.executable, sys.argv]))"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (f"{LIB}/pyspark.zip:{LIB}/py4j-0.10.9.9-src.zip:/jars/core.jar", "/jars/core.jar"),
        (f"/own code:{LIB}/pyspark.zip:/x*y/[z]", "/own code:/x*y/[z]"),
        (f"{LIB}/pyspark.zip", ""),
        ("/home/pyspark.zip", "/home/pyspark.zip"),
        ("", ""),
    ],
)
def test_only_the_zips_of_spark_are_left_out(given: str, kept: str) -> None:
    command = [shims.python(), "-c", TELL, "it's", "", "a b"]
    told = subprocess.run(command, env={**os.environ, "PYTHONPATH": given}, capture_output=True, text=True, check=True)
    assert json.loads(told.stdout) == [kept, sys.executable, ["-c", "it's", "", "a b"]]


def test_it_is_made_once(tmp_path: Path) -> None:
    made = shims.python()
    assert made.is_relative_to(tmp_path / "cache")
    before = made.stat()
    assert shims.python().stat() == before
    assert before.st_mode & 0o777 == 0o700
