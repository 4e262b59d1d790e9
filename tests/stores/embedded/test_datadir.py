"""A data directory is private, has one server at a time, and is never somebody else's by mistake."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from angelia.errors import StartFailed
from angelia.runtime_file import read_runtime
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.private_files import write_private

HOLDER = """
import sys, time
from pathlib import Path
from angelia.runtime_file import Runtime
from angelia.stores.embedded.datadir import DataDir
data_dir = DataDir(Path(sys.argv[1]))
data_dir.prepare()
data_dir.lock()
data_dir.write_runtime(Runtime(pid=0, url="http://localhost:1", database_url="d", redis_url="r", sockets="s"))
print("locked", flush=True)
time.sleep(600)
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def prepared(path: Path) -> DataDir:
    data_dir = DataDir(path)
    data_dir.prepare()
    return data_dir


def test_a_second_server_is_refused_and_told_the_first_ones_pid(place: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, place / "data"], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        data_dir = DataDir(place / "data")
        with pytest.raises(
            StartFailed, match=rf"another server \(pid {holder.pid}\) uses this data directory"
        ) as refused:
            data_dir.lock()
        assert "--data-dir" in refused.value.hint
    finally:
        holder.kill()
        holder.communicate()
    data_dir.prepare()
    data_dir.lock()
    data_dir.release()
    data_dir.remove_runtime()


@needs_root
def test_root_takes_nothing_away_from_a_server_that_runs_as_another_user(place: Path) -> None:
    path = place / "data"
    path.mkdir(mode=0o700)
    files = [path / name for name in ("lock", "node.key", "node.signed", "admin.token")]
    for file in files:
        write_private(file, b"x")
    for theirs in (path, *files):
        os.chown(theirs, 65534, 65534)
    before = {one: (one.stat().st_uid, one.stat().st_mode) for one in (path, *files)}
    with (path / "lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StartFailed, match="another server"):
            DataDir(path).prepare()
    assert {one: (one.stat().st_uid, one.stat().st_mode) for one in (path, *files)} == before


def test_runtime_json_counts_only_while_its_server_lives(place: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, place / "data"], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    found = read_runtime(place / "data")
    assert found is not None
    assert found.url == "http://localhost:1"

    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert (place / "data/runtime.json").exists()
    assert read_runtime(place / "data") is None

    data_dir = prepared(place / "data")
    data_dir.lock()
    assert data_dir.left_by_a_crash
    assert not data_dir.runtime_file.exists()
    data_dir.release()
    data_dir.remove_runtime()


def test_looking_for_a_server_leaves_no_trace(place: Path) -> None:
    assert read_runtime(place / "data") is None
    assert list(place.iterdir()) == []


def test_a_directory_that_holds_something_else_is_left_as_it_is(place: Path) -> None:
    (place / "letters").mkdir()
    before = place.stat()
    with pytest.raises(StartFailed, match="no data directory of Angelia: it holds letters"):
        DataDir(place).prepare()
    assert (place.stat().st_mode, place.stat().st_uid) == (before.st_mode, before.st_uid)


def test_the_agents_home_may_have_been_there_first(place: Path) -> None:
    (place / "data/agents").mkdir(parents=True)
    data_dir = prepared(place / "data")
    assert stat.S_IMODE((place / "data").stat().st_mode) == (0o700 if data_dir.owner.is_us else 0o710)
    data_dir.remove_runtime()


@needs_root
def test_a_directory_out_of_reach_of_the_stores_user_is_refused_with_advice(place: Path) -> None:
    (place / "closed").mkdir(mode=0o700)
    with pytest.raises(StartFailed, match="run as nobody, who cannot reach") as refused:
        DataDir(place / "closed/data").prepare()
    assert "--data-dir" in refused.value.hint


@pytest.mark.parametrize("trap", ["link", "file", "foreign"])
def test_a_trap_in_place_of_the_runtime_directory_is_refused(trap: str, place: Path) -> None:
    data_dir = DataDir(place / "data")
    data_dir.prepare()
    data_dir.remove_runtime()
    runtime = data_dir.runtime
    if trap == "link":
        runtime.symlink_to(place)
    elif trap == "file":
        runtime.write_text("")
    elif os.geteuid() == 0:
        runtime.mkdir()
        os.chown(runtime, 1, 1)
    else:
        pytest.skip("only root can make it somebody else's")
    try:
        with pytest.raises(StartFailed, match=str(runtime)):
            data_dir.prepare()
    finally:
        runtime.rmdir() if trap == "foreign" else runtime.unlink()


def test_a_private_file_is_whole_and_closed_to_others(place: Path) -> None:
    path = place / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(place.iterdir()) == [path]


def test_a_private_file_replaces_a_link_instead_of_following_it(place: Path) -> None:
    (place / "target").write_text("untouched")
    (place / "secret").symlink_to(place / "target")
    write_private(place / "secret", b"new")
    assert (place / "target").read_text() == "untouched"
    assert not (place / "secret").is_symlink()


@needs_root
def test_what_root_writes_belongs_to_the_directorys_owner_but_never_to_nobody(place: Path) -> None:
    for uid, expected in ((1, 1), (65534, 0)):
        os.chown(place, uid, uid)
        write_private(place / f"secret-{uid}", b"x")
        assert (place / f"secret-{uid}").stat().st_uid == expected
