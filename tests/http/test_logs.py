"""The log of a server: whole records, no secrets of a failing handler, and nothing that acts on a terminal."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

# In a process of its own: configuring the log is for good.
PROGRAM = r"""
import logging, sys
import structlog
from angelia.http import logs
from angelia.settings import Settings

logs.configure(Settings(log_format=sys.argv[1]))
log = structlog.get_logger("test")

def handler(secret):
    headers = {"authorization": f"Bearer {secret}"}
    raise RuntimeError("said by somebody: \x1b[2J\x9b\x07")

try:
    handler("hunter" + "2")
except RuntimeError:
    log.exception("failed", path="/a\x1b[2J\nforged")
    logging.getLogger("uvicorn.error").exception("broken %s", "\x1b[31m\nforged")
logging.getLogger("other").warning("plain\r\nforged")
log.debug("too quiet to be written")
"""


@functools.cache
def written(form: str) -> str:
    command = [sys.executable, "-c", PROGRAM, form]
    ended = subprocess.run(command, capture_output=True, check=True, text=True, timeout=30)
    assert ended.stdout == ""
    return ended.stderr


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_failing_handler_does_not_spill_its_variables(form: str) -> None:
    assert "RuntimeError: said by somebody" in written(form)
    assert "hunter2" not in written(form)


@pytest.mark.parametrize("form", ["json", "text"])
def test_nothing_in_the_log_acts_on_a_terminal(form: str) -> None:
    assert {c for c in written(form) if not c.isprintable()} <= {"\n", "\t"}
    assert not any(line.startswith("forged") for line in written(form).splitlines())


def test_each_record_is_one_line_of_json_with_level_and_time() -> None:
    records = [json.loads(line) for line in written("json").splitlines()]
    assert [record["level"] for record in records] == ["error", "error", "warning"]
    assert all(record["time"].endswith("Z") for record in records)
    assert [("exception" in record) for record in records] == [True, True, False]


@pytest.mark.parametrize("form", ["json", "text"])
def test_what_is_below_the_level_is_not_written(form: str) -> None:
    assert "too quiet" not in written(form)
