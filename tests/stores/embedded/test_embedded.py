"""Our own stores keep what they were given, through stops, kills and crashes of their parent."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis

from angelia.errors import StartFailed
from angelia.settings import Settings
from angelia.stores.embedded import ledger_alone
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.process import exists
from store_probes import PARENT, answers, ask, hot, remembers, spawn_parent, until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def test_a_first_start_makes_stores_that_a_second_finds_again(place: Path, start: Any) -> None:
    first = start(place / "data")
    ask(first.database_url, "CREATE TABLE kept AS SELECT 42 AS answer")
    hot(first.redis_url).set("kept", "42")
    first.stop()

    second = start(place / "data")
    assert ask(second.database_url, "SELECT answer FROM kept") == 42
    assert hot(second.redis_url).get("kept") == "42"
    assert second.database_url == first.database_url


def test_the_stores_are_durable_private_and_utf8(data_path: Path, start: Any) -> None:
    started = start(data_path)
    for name, wanted in {
        "fsync": "on",
        "synchronous_commit": "on",
        "listen_addresses": "",
        "server_encoding": "UTF8",
        "data_checksums": "on",
        "password_encryption": "scram-sha-256",
    }.items():
        assert ask(started.database_url, f"SHOW {name}") == wanted
    assert ask(started.database_url, "SELECT upper('é') = 'É' AND 'Z' < 'a' AND 'z' < 'é'")
    config = hot(started.redis_url).config_get("*")
    assert (config["appendonly"], config["appendfsync"], config["maxmemory-policy"], config["port"]) == (
        "yes",
        "everysec",
        "noeviction",
        "0",
    )
    with pytest.raises(asyncpg.InvalidPasswordError):
        ask(f"postgresql://angelia:wrong@/angelia?host={started.data_dir.sockets}", "SELECT 1")
    with pytest.raises(redis.AuthenticationError):
        hot(f"unix://{started.data_dir.sockets}/valkey.sock").ping()


def test_nobody_else_can_read_anything_in_the_data_directory(data_path: Path, start: Any) -> None:
    started = start(data_path)
    hot(started.redis_url).set("a", "b")
    paths = [*data_path.rglob("*"), started.data_dir.sockets, *started.data_dir.sockets.iterdir()]
    open_to_others = [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert not open_to_others
    assert stat.S_IMODE(data_path.stat().st_mode) in (0o700, 0o710)
    assert stat.S_IMODE(started.data_dir.runtime.stat().st_mode) in (0o700, 0o711)


@pytest.mark.parametrize("name", ["postgres", "valkey"])
def test_a_killed_store_comes_back_with_what_it_had(name: str, data_path: Path, start: Any) -> None:
    started = start(data_path)
    ask(started.database_url, "CREATE TABLE kept AS SELECT 42 AS answer")
    client = hot(started.redis_url)
    client.set("kept", "42")
    client.execute_command("WAITAOF", 1, 0, 5000)
    killed = started.stores.pids[name]
    os.kill(killed, signal.SIGKILL)

    events: list[str] = []

    def is_back() -> bool:
        before = time.monotonic()
        events.extend(started.stores.tend(before))
        assert time.monotonic() - before < 0.5, "tending must not hold up the main loop"
        return started.stores.pids.get(name, killed) != killed and answers(started.database_url)

    until(is_back)
    assert ask(started.database_url, "SELECT answer FROM kept") == 42
    until(lambda: remembers(client, "kept"))
    assert "ended with signal 9" in events[0]
    assert "started again" in events[-1]


def test_a_busy_backend_of_a_killed_postmaster_only_delays_the_next(data_path: Path, start: Any) -> None:
    started = start(data_path)

    def keep_a_backend_busy() -> None:
        with contextlib.suppress(OSError, asyncpg.PostgresError):
            ask(started.database_url, "SELECT count(*) FROM generate_series(1, 10000000)")

    busy = threading.Thread(target=keep_a_backend_busy)
    busy.start()
    until(lambda: "generate_series" in str(ask(started.database_url, "SELECT array_agg(query) FROM pg_stat_activity")))
    killed = started.stores.pids["postgres"]
    os.kill(killed, signal.SIGKILL)

    events: list[str] = []
    until(lambda: events.extend(started.stores.tend(time.monotonic())) or answers(started.database_url))
    busy.join()
    assert "PostgreSQL was started again" in events
    log = (data_path / "log/postgres.log").read_text()
    assert "pre-existing shared memory block" in log


@pytest.mark.parametrize("notice", ["KERNEL", "WATCHDOG"])
def test_the_stores_die_with_a_killed_parent(notice: str, data_path: Path, start: Any) -> None:
    if notice == "KERNEL" and sys.platform != "linux":
        pytest.skip("a Linux call")
    parent, report = spawn_parent(data_path, notice)
    parent.kill()
    parent.communicate()
    until(lambda: not any(exists(pid) for pid in report["pids"].values()))

    assert answers(start(data_path).database_url)


def test_stores_left_behind_by_a_killed_parent_are_stopped_by_the_next(data_path: Path, start: Any) -> None:
    parent, report = spawn_parent(data_path, "UNNOTICED")
    ask(report["urls"][0], "CREATE TABLE kept AS SELECT 42 AS answer")
    parent.kill()
    parent.communicate()
    left = report["pids"].values()
    assert all(exists(pid) for pid in left)

    started = start(data_path)
    assert not any(exists(pid) for pid in left)
    assert ask(started.database_url, "SELECT answer FROM kept") == 42


def test_a_process_that_only_has_the_pid_of_an_old_store_is_left_alone(data_path: Path, start: Any) -> None:
    started = start(data_path)
    owner = started.data_dir.owner
    for pid in started.stores.pids.values():
        os.kill(pid, signal.SIGKILL)
    started.stop()
    switch = {} if owner.is_us else {"user": owner.uid, "group": owner.gid, "extra_groups": []}
    innocent = subprocess.Popen(["sleep", "60"], cwd="/", **switch)
    try:
        for pid_file in (data_path / "postgres/postmaster.pid", data_path / "valkey/valkey.pid"):
            rest = pid_file.read_text().partition("\n")[2]
            pid_file.write_text(f"{innocent.pid}\n{rest}")

        assert answers(start(data_path).database_url)
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_an_initdb_cut_short_is_no_obstacle(place: Path, start: Any) -> None:
    path = place / "data"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, path, "UNNOTICED"], stdout=subprocess.PIPE)
    until(lambda: any(path.glob("postgres.new-*/base")))
    parent.kill()
    parent.communicate()
    assert not (path / "postgres").exists()

    assert answers(start(path).database_url)
    assert not list(path.glob("postgres.new-*"))


@needs_root
def test_root_lends_the_stores_to_nobody_or_to_the_owner_of_the_directory(data_path: Path, start: Any) -> None:
    started = start(data_path)
    nobody = pwd.getpwnam("nobody").pw_uid
    assert Path(f"/proc/{started.stores.pids['postgres']}").stat().st_uid == nobody
    assert (data_path.stat().st_uid, (data_path / "postgres").stat().st_uid) == (0, nobody)
    assert started.data_dir.postgres_password.stat().st_uid == 0
    started.stop()

    daemon = pwd.getpwnam("daemon")
    subprocess.run(["chown", "-R", f"{daemon.pw_uid}:{daemon.pw_gid}", data_path], check=True)
    again = start(data_path)
    assert Path(f"/proc/{again.stores.pids['valkey']}").stat().st_uid == daemon.pw_uid


@needs_root
def test_an_ordinary_user_runs_its_own_stores(template: Path, place: Path, start: Any) -> None:
    # Forked after the imports: the interpreter itself may lie where that user cannot read.
    nobody = pwd.getpwnam("nobody")
    os.chown(place, nobody.pw_uid, nobody.pw_gid)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            started = start(place / "data")
            assert answers(started.database_url)
            assert hot(started.redis_url).ping()
            assert started.data_dir.owner.is_us
            started.stop()
            code = 0
        finally:
            traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert (place / "data/postgres.password").stat().st_uid == nobody.pw_uid


def test_a_cluster_of_another_major_version_is_refused(data_path: Path, start: Any) -> None:
    (data_path / "postgres/PG_VERSION").write_text("16\n")
    with pytest.raises(StartFailed, match="made by PostgreSQL 16") as refused:
        start(data_path)
    assert "ANGELIA_POSTGRES_BIN" in refused.value.hint


def test_a_store_that_cannot_start_says_why(data_path: Path, start: Any) -> None:
    with (data_path / "postgres/postgresql.conf").open("a") as file:
        file.write("no_such_setting = on\n")
    with pytest.raises(StartFailed, match="PostgreSQL does not start") as refused:
        start(data_path)
    assert "no_such_setting" in refused.value.hint


def test_a_given_url_needs_no_store_of_ours(place: Path, start: Any) -> None:
    flags = {"database_url": "postgresql://ledger.example/a", "redis_url": "redis://hot.example"}
    started = start(place / "data", flags=flags)
    assert (started.database_url, started.redis_url) == tuple(flags.values())
    assert started.stores.pids == {}
    assert started.stores.names == []
    assert not (place / "data/postgres").exists()


def test_the_ledger_alone_holds_the_lock_and_starts_no_hot_tier(data_path: Path) -> None:
    with ledger_alone(Settings(data_dir=data_path)) as url:
        assert answers(url)
        assert not (data_path / "valkey/valkey.pid").exists()
        with pytest.raises(StartFailed, match="another server"):
            DataDir(data_path).lock()
    assert not answers(url)


@needs_root
def test_root_at_work_beside_the_server_does_not_take_the_directory_from_its_user(data_path: Path) -> None:
    subprocess.run(["chown", "-R", "nobody", data_path], check=True)
    data_path.chmod(0o700)
    before = {path: (path.lstat().st_uid, path.lstat().st_mode) for path in (data_path, *data_path.iterdir())}
    command = [str(Path(sys.executable).parent / "angelia"), "token", "create", "--role", "admin", "--offline"]
    environ = {**os.environ, "ANGELIA_DATA_DIR": str(data_path)}
    refused = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"the data directory {data_path} belongs to nobody" in refused.stderr
    (hint,) = re.findall(r"^hint: .*`(.*)`$", refused.stderr, re.MULTILINE)
    *before_us, angelia = shlex.split(hint)[:6]
    assert before_us == ["sudo", "-u", "nobody", "env", f"ANGELIA_DATA_DIR={data_path}"]
    assert Path(angelia).samefile(command[0])
    assert shlex.split(hint)[6:] == command[1:]
    assert {path: (path.lstat().st_uid, path.lstat().st_mode) for path in before} == before


def test_a_long_path_still_has_short_sockets(place: Path, start: Any, template: Path) -> None:
    deep = place / ("d" * 120) / ("e" * 120)
    deep.parent.mkdir()
    subprocess.run(["cp", "-a", template, deep], check=True)
    started = start(deep)
    assert answers(started.database_url)
    assert max(len(str(path)) for path in started.data_dir.sockets.iterdir()) < 105
