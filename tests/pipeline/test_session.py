"""Spark starts from nothing but our package, and says in one sentence why when it does not."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import angelia
from angelia.errors import InvalidArgument, Unavailable
from angelia.pipeline import session as pipeline_session
from angelia.pipeline.session import SMALL_ROWS, Where, _check_answers_at, java_settings, session
from s3_servers import free_port

QUICK = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start(directory: Path, *conf: str, **environ: str) -> tuple[dict[str, Any], str]:
    """What a process with a bare environment says, and what it writes to stderr."""
    # /bin/sh and the few programs that Spark's scripts call; no java among them.
    programs = directory / "bin"
    programs.mkdir()
    for name in (
        "sh",
        "bash",
        "dirname",
        "basename",
        "env",
        "ps",
        "rm",
        "uname",
        "hostname",
        "ls",
        "cat",
        "sed",
        "nice",
    ):
        found = next((path for path in (Path("/bin", name), Path("/usr/bin", name)) if path.exists()), None)
        if found is not None:
            (programs / name).symlink_to(found)
    bare = {"PATH": str(programs), "HOME": str(directory), "XDG_CACHE_HOME": str(directory / "cache")}
    source = str(Path(angelia.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("starting.py")), *conf],
        env={**bare, "PYTHONPATH": source, **environ},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told, ended.stderr


def test_on_a_machine_without_java_and_with_variables_of_another_spark_a_job_runs(tmp_path: Path) -> None:
    told, said = start(
        tmp_path,
        QUICK,
        "spark.sql.shuffle.partitions=3",
        SPARK_HOME="/opt/other",
        SPARK_CONF_DIR="/opt/other/conf",
        SPARK_REMOTE="sc://other.example",
        SPARK_API_MODE="connect",
        PYSPARK_SUBMIT_ARGS="--master yarn nonsense",
        PYSPARK_PYTHON="/opt/other/python",
    )
    assert told["total"] == 499_500
    assert "TieredStopAtLevel" in told["options"]  # as --conf says
    assert told["conf"]["spark.sql.shuffle.partitions"] == "3"
    assert told["java"].startswith(str(tmp_path / "cache"))  # ours, by way of the script that makes Spark start on it
    assert "it is broken" in told["fault"]
    assert "ERROR" not in said  # what failed is told by us, without Java's stack
    assert len(said.splitlines()) < 5, said


def test_the_java_of_a_small_run_is_set_to_start_quickly_unless_a_setting_says_otherwise(tmp_path: Path) -> None:
    for directory, conf in (("ours", ()), ("given", ("spark.driver.extraJavaOptions=-Dangelia=given",))):
        (tmp_path / directory).mkdir()
        told, _ = start(tmp_path / directory, "rows=1000", *conf)
        assert told["total"] == 499_500
        assert ("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" in told["options"]) is (not conf)
        assert ("-Dangelia=given" in told["options"]) is bool(conf)


@pytest.mark.parametrize(("rows", "small"), [(0, True), (SMALL_ROWS, True), (SMALL_ROWS + 1, False), (None, False)])
def test_a_large_run_and_one_of_unknown_size_leave_java_as_it_is(rows: int | None, small: bool) -> None:
    assert bool(java_settings(rows)) is small


@pytest.mark.parametrize("where", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "conf"])
def test_a_collector_that_is_named_elsewhere_stays_the_only_one(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java does not start with two."""
    conf = {"spark.driver.defaultJavaOptions": "-XX:+UseZGC"} if where == "conf" else {}
    if not conf:
        monkeypatch.setenv(where, "-Xmx1g -XX:+UseG1GC")
    assert list(java_settings(1, conf).values()) == ["-XX:TieredStopAtLevel=1"]
    monkeypatch.undo()
    assert "-XX:+UseSerialGC" in java_settings(1)["spark.driver.extraJavaOptions"]


def test_a_start_that_fails_is_one_sentence_and_no_log(tmp_path: Path) -> None:
    told, said = start(tmp_path, QUICK, "master=local[many]")
    assert (told["code"], told["hint"] != "") == ("start_failed", True)
    assert "Could not parse Master URL" in told["error"]
    assert "\tat " not in said
    assert len(said.splitlines()) < 5, said


@pytest.mark.parametrize("where", ["master=spark", "remote=sc"])
def test_where_nobody_answers_we_do_not_wait(tmp_path: Path, where: str) -> None:
    began = time.monotonic()
    told, _ = start(tmp_path, f"{where}://127.0.0.1:{free_port()}")
    assert told["code"] == "unavailable"
    assert time.monotonic() - began < 30


def test_a_server_that_is_no_connect_server_is_found_out_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_session, "_READY_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        where = Where(remote=f"sc://127.0.0.1:{deaf.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(Unavailable, match="is no Connect server"), session(where, "test"):
            pass
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("master", ["nonsense", "http://127.0.0.1", "local[", "spark:/x"])
def test_what_is_no_master_is_refused_before_anything_starts(master: str) -> None:
    with pytest.raises(InvalidArgument, match="is no master"):
        Where(master=master)


def test_a_token_of_a_connect_server_is_not_shown() -> None:
    assert str(Where(remote="sc://127.0.0.1:15002/;token=very-secret")) == "sc://127.0.0.1:15002/"
    assert "very-secret" not in repr(Where(remote="sc://h/;token=very-secret", conf={"spark.x": "very-secret"}))
    with pytest.raises(InvalidArgument) as refusal:
        Where(remote="http://127.0.0.1/;token=very-secret")
    assert "very-secret" not in refusal.value.message


@pytest.mark.parametrize("remote", ["sc://[::1]:15002", "sc://[::1]", "sc://host:15002/;user_id=me"])
def test_a_connect_server_may_be_at_an_address_of_six(remote: str) -> None:
    assert str(Where(remote=remote)) == remote.partition(";")[0]


def test_at_an_address_of_six_somebody_is_found() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        _check_answers_at(f"sc://[::1]:{server.getsockname()[1]}/;x=y", 15002)
    with pytest.raises(Unavailable):
        _check_answers_at("sc://[::1]:1", 15002)
