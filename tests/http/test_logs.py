"""The log of a server: whole records, no secrets of a failing handler, and nothing that acts on a terminal."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
from pathlib import Path

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
# The line of a request as it is written directly, between two others, and as structlog writes the same members.
REQUESTS = r"""
import sys
import structlog
from angelia.http import logs
from angelia.settings import Settings

logs.configure(Settings(log_format=sys.argv[1], log_level=sys.argv[2]))
log = structlog.get_logger("angelia.request")
hostile = "/a\x1b[2J\n\x7f\x9b\u2028forged\xe9"
plain = dict(request_id="f" * 32, method="GET", path="/", status=200, address="192.0.2.1")
failed = plain | dict(path=hostile, caller="jwt " + hostile, code="internal", cause=repr(hostile) + hostile, status=500)
log.warning("before")
for members in (plain | dict(caller=None, code=None, cause=None), failed):
    if logs.requests.wanted:
        logs.requests.write(seconds=0.0123456, **members)
        stream, logs.requests._stream = logs.requests._stream, None
        logs.requests.write(seconds=0.0123456, **members)
        logs.requests._stream = stream
log.warning("after")
"""


@functools.cache
def written(form: str, program: str = PROGRAM, level: str = "info") -> str:
    command = [sys.executable, "-c", program, form, level]
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


def test_the_line_of_a_request_has_the_members_and_the_escapes_of_any_other_line() -> None:
    first, direct, structured, failed, failed_structured, last = map(
        json.loads, written("json", REQUESTS).split("\n")[:-1]
    )
    assert (first["event"], last["event"]) == ("before", "after")
    for line, same in ((direct, structured), (failed, failed_structured)):
        assert list(line) == list(same)
        assert {**line, "time": ""} == {**same, "time": ""}
        assert len(line["time"]) == len(same["time"])
    assert list(direct) == ["request_id", "method", "path", "status", "ms", "address", "event", "level", "time"]
    assert failed["path"].startswith("/a\\x1b[2J\\x0a\\x7f\\x9b")


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_request_acts_on_a_terminal(form: str) -> None:
    assert {c for c in written(form, REQUESTS) if not c.isprintable()} <= {"\n", "\t", "\u2028"}
    assert len(written(form, REQUESTS).split("\n")) == 7


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_log_without_requests_has_none(form: str) -> None:
    assert len(written(form, REQUESTS, "warning").splitlines()) == 2


def test_each_line_is_whole_in_the_file_when_the_process_is_killed(tmp_path: Path) -> None:
    program = REQUESTS + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with (tmp_path / "log").open("wb") as log:
        ended = subprocess.run([sys.executable, "-c", program, "json", "info"], stderr=log, check=False, timeout=30)
    assert ended.returncode == -signal.SIGKILL
    assert len([json.loads(line) for line in (tmp_path / "log").read_text().split("\n")[:-1]]) == 6
