"""What a kill or a power cut leaves behind keeps no server from starting."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from angelia.stores.embedded.binaries import valkey_for
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.process import exists
from angelia.stores.embedded.valkey import Valkey
from store_probes import PARENT, answers, hot, remembers, spawn_parent, until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
ELSEWHERE = {"database_url": "postgresql://ledger.example/a"}  # the hot tier alone

# A parent that no orphan's end interests, as the first process of many containers is, and a start below it.
UNREAPED = """
import ctypes, json, os, subprocess, sys
from pathlib import Path
from angelia.settings import Settings
from angelia.stores.embedded import EmbeddedStores
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.process import exists
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
command = [sys.executable, "-c", sys.argv[2], sys.argv[1], "UNNOTICED"]
parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
pids = json.loads(parent.stdout.readline())["pids"]
parent.kill()
parent.wait()
for pid in pids.values():
    os.kill(pid, 9)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        pass
data_dir = DataDir(Path(sys.argv[1]))
data_dir.prepare()
data_dir.lock()
stores = EmbeddedStores(Settings(data_dir=data_dir.path), data_dir)
stores.start()
stores.stop()
data_dir.remove_runtime()
print("started", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a Linux call")
def test_a_dead_postmaster_that_was_not_waited_for_is_no_obstacle(data_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", UNREAPED, data_path, PARENT], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "started\n", ran.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="a Linux call")
def test_a_start_waits_for_a_postgresql_that_is_still_shutting_down_and_says_so(
    data_path: Path, start_for: Any
) -> None:
    parent, report = spawn_parent(data_path, "KERNEL")
    postmaster = psutil.Process(report["pids"]["postgres"])
    (checkpointer,) = [child for child in postmaster.children() if "checkpointer" in " ".join(child.cmdline())]
    checkpointer.suspend()  # its last checkpoint takes as long as this test wants
    parent.kill()
    parent.communicate()
    said: list[str] = []

    def tell(line: str) -> None:
        if "PostgreSQL" in line:
            said.append(line)
            checkpointer.resume()

    started = start_for(data_path, tell=tell)
    try:
        assert answers(started.database_url)
        assert said == [f"waiting for the PostgreSQL of the server before (pid {postmaster.pid}) to stop"]
    finally:
        started.stop()


@needs_root
def test_root_that_may_not_follow_links_of_other_users_still_knows_its_stores(data_path: Path) -> None:
    """In many containers root lacks CAP_SYS_PTRACE, and so cannot see what file another user's process runs."""
    parent, report = spawn_parent(data_path, "UNNOTICED")
    parent.kill()
    parent.communicate()
    left = report["pids"].values()
    confined = subprocess.Popen(
        [sys.executable, "-c", PARENT, data_path, "KERNEL"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_without_ptrace,
    )
    assert confined.stdout is not None
    again = json.loads(confined.stdout.readline())
    try:
        assert answers(again["urls"][0])
        assert not any(exists(pid) for pid in left)
    finally:
        confined.kill()
        confined.communicate()
        until(lambda: not any(exists(pid) for pid in again["pids"].values()))


def _without_ptrace() -> None:
    drop, sys_ptrace = 24, 19  # PR_CAPBSET_DROP; what is not in the bounding set is gone after exec
    assert ctypes.CDLL(None).prctl(drop, sys_ptrace, 0, 0, 0) == 0


def works(url: str) -> bool:
    try:
        return bool(hot(url).set("works", "again"))
    except redis.RedisError:
        return False


def torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def garbled(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(random.Random(7).randbytes(max(size, 64)))


def with_rubbish_at_the_end(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(500) + b"\xff\x00rubbish" * 20)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def removed(path: Path) -> None:
    path.unlink()


def one(pattern: str) -> Callable[[Path], Path]:
    def find(directory: Path) -> Path:
        (found,) = directory.glob(f"appendonlydir/{pattern}")
        return found

    return find


FILES = {
    "manifest": one("*.manifest"),
    "base": one("*.base.rdb"),
    "increment": one("*.incr.aof"),
    "configuration": lambda directory: directory / "valkey.conf",
    "pid": lambda directory: directory / "valkey.pid",
}
DAMAGES = (torn, garbled, with_rubbish_at_the_end, emptied, removed)


@pytest.fixture(scope="module")
def used(session_place: Path, start_for: Any) -> Path:
    """A hot tier that was killed at work, with keys in all its files."""
    path = session_place / "used"
    started = start_for(path, flags=ELSEWHERE)
    client = hot(started.redis_url)
    client.mset({f"base-{n}": "x" * 50 for n in range(200)})
    client.bgrewriteaof()
    until(lambda: not client.info("persistence")["aof_rewrite_in_progress"] and bool(list(path.rglob("*.2.base.rdb"))))
    client.mset({f"increment-{n}": "x" * 50 for n in range(200)})
    client.execute_command("WAITAOF", 1, 0, 5000)
    os.kill(started.stores.pids["valkey"], signal.SIGKILL)
    started.stop()
    return path


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("file", FILES)
def test_a_hot_tier_comes_up_whatever_became_of_its_files(
    file: str, damage: Callable[[Path], None], used: Path, place: Path, start_for: Any
) -> None:
    path = place / "data"
    subprocess.run(["cp", "-a", used, path], check=True)
    target = FILES[file](path / "valkey")
    target.touch()
    damage(target)
    said: list[str] = []
    started = start_for(path, flags=ELSEWHERE, tell=said.append)
    try:
        assert hot(started.redis_url).set("works", "again")
        aside = path / "valkey.unreadable"
        assert len([line for line in said if "cannot read its files" in line]) == aside.exists()
    finally:
        started.stop()


@pytest.mark.parametrize(
    "left", ["temp-123.rdb", "temp-rewriteaof-bg-9.aof", "appendonlydir/temp-appendonly.aof.manifest", "dump.rdb"]
)
def test_what_an_interrupted_rewrite_left_is_no_obstacle(left: str, used: Path, place: Path, start_for: Any) -> None:
    path = place / "data"
    subprocess.run(["cp", "-a", used, path], check=True)
    (path / "valkey" / left).write_bytes(b"\xffrubbish")
    started = start_for(path, flags=ELSEWHERE)
    try:
        assert remembers(hot(started.redis_url), "increment-7")
        assert not list((path / "valkey").glob("temp-*"))
    finally:
        started.stop()


@pytest.mark.parametrize("instead", ["file", "nothing"])
def test_a_directory_that_became_something_else_is_no_obstacle(
    instead: str, used: Path, place: Path, start_for: Any
) -> None:
    path = place / "data"
    subprocess.run(["cp", "-a", used, path], check=True)
    directory = path / "valkey/appendonlydir"
    subprocess.run(["rm", "-r", directory], check=True)
    if instead == "file":
        directory.write_text("rubbish")
    started = start_for(path, flags=ELSEWHERE)
    try:
        assert hot(started.redis_url).set("works", "again")
    finally:
        started.stop()


def test_only_the_newest_unreadable_set_is_kept(used: Path, place: Path, start_for: Any) -> None:
    path = place / "data"
    subprocess.run(["cp", "-a", used, path], check=True)
    for content in (b"first rubbish", b"second rubbish"):
        (manifest,) = (path / "valkey").glob("appendonlydir/*.manifest")
        manifest.write_bytes(content)
        start_for(path, flags=ELSEWHERE).stop()
    kept = sorted(entry.name for entry in path.iterdir() if entry.name.startswith("valkey"))
    assert kept == ["valkey", "valkey.password", "valkey.unreadable"]
    (manifest,) = (path / "valkey.unreadable").glob("appendonlydir/*.manifest")
    assert manifest.read_bytes() == b"second rubbish"


def test_a_hot_tier_killed_at_work_with_garbled_files_comes_back_by_itself(used: Path, place: Path, start: Any) -> None:
    path = place / "data"
    subprocess.run(["cp", "-a", used, path], check=True)
    started = start(path, flags=ELSEWHERE)
    for again in range(2):  # the second time too: what was set aside once does not count against it
        garbled(FILES["configuration"](path / "valkey"))
        (increment, *_) = sorted((path / "valkey").glob("appendonlydir/*.incr.aof"))
        garbled(increment)
        os.kill(started.stores.pids["valkey"], signal.SIGKILL)
        said: list[str] = []

        def is_back(said: list[str] = said) -> bool:
            said.extend(started.stores.tend(time.monotonic()))
            try:
                return any("cannot read" in line for line in said) and bool(
                    hot(started.redis_url).set("works", "again")
                )
            except redis.RedisError:
                return False

        until(is_back)
        assert len([line for line in said if "cannot read its files" in line]) == 1, again


def test_a_hot_tier_killed_while_it_loads_keeps_its_files(used: Path, place: Path, start_for: Any) -> None:
    path = place / "data"
    subprocess.run(["cp", "-a", used, path], check=True)
    data_dir = DataDir(path)
    valkey = Valkey(data_dir, valkey_for(data_dir))
    assert valkey.after_death("Loading RDB", killed=True) is None
    assert not (path / "valkey.unreadable").exists()


@pytest.mark.parametrize(
    "said", ["Error: No space left on device", "Received shutdown signal during loading, scheduling shutdown."]
)
def test_files_are_not_set_aside_for_what_is_not_their_fault(said: str, used: Path, place: Path) -> None:
    path = place / "data"
    subprocess.run(["cp", "-a", used, path], check=True)
    data_dir = DataDir(path)
    valkey = Valkey(data_dir, valkey_for(data_dir))
    assert valkey.after_death(said, killed=False) is None
    assert not (path / "valkey.unreadable").exists()


def test_files_that_cannot_be_moved_stay_and_are_tried_again(used: Path, place: Path) -> None:
    path = place / "data"
    subprocess.run(["cp", "-a", used, path], check=True)
    data_dir = DataDir(path)
    valkey = Valkey(data_dir, valkey_for(data_dir))
    (path / "valkey.unreadable").write_text("a file in its place, which a directory cannot take")
    assert valkey.after_death("Bad file format", killed=False) is None
    assert (path / "valkey").is_dir()


def test_a_fault_that_is_not_the_files_is_told_after_one_set_was_set_aside(used: Path, place: Path) -> None:
    path = place / "data"
    subprocess.run(["cp", "-a", used, path], check=True)
    data_dir = DataDir(path)
    valkey = Valkey(data_dir, valkey_for(data_dir))
    assert valkey.after_death("cannot bind", killed=False) is not None
    kept = json.dumps(sorted(str(one) for one in (path / "valkey.unreadable").rglob("*")))
    (path / "valkey").mkdir()
    assert valkey.after_death("cannot bind", killed=False) is None
    assert json.dumps(sorted(str(one) for one in (path / "valkey.unreadable").rglob("*"))) == kept
