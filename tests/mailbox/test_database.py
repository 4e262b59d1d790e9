"""The mailbox's database: private from its first byte, hardened, and one writer at a time."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from angelia.errors import DiskFull, Unavailable
from angelia.mailbox import database as databases
from angelia.mailbox import log_replica
from angelia.mailbox.database import (
    SCHEMA,
    SQL,
    BrokenDatabase,
    MailboxDatabase,
    NewerDatabase,
    stamp,
    unstamp,
)
from angelia.mailbox.private_files import UnsafeFile

NAMES = ["replay_state.db", "replay_state.db-shm", "replay_state.db-wal"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "mail"
    path.mkdir(mode=0o700)
    return path


def test_all_its_files_are_private_whatever_the_umask(directory: Path) -> None:
    before = os.umask(0)
    try:
        database = MailboxDatabase(directory)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(NAMES, 0o600)
    database.close()


def test_every_connection_has_the_hardening(directory: Path) -> None:
    database = MailboxDatabase(directory)
    wanted = {
        "journal_mode": "wal",
        "foreign_keys": 1,
        "synchronous": 2,
        "busy_timeout": 5000,
        "trusted_schema": 0,
        "secure_delete": 1,
        "user_version": SCHEMA,
    }
    found: list[dict[str, object]] = []

    def look() -> None:
        with database.transaction() as tx:
            found.append({name: tx.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted})

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [wanted, wanted]
    database.close()


def test_every_statement_is_one_that_sqlite_understands(directory: Path) -> None:
    log = MailboxDatabase(directory, "log.db", log_replica.SCHEMAS)
    log.write("journal_prepare")
    database = MailboxDatabase(directory)
    of_logs = (Path(databases.__file__).parent / "log_statements.sql").read_text()
    with database.transaction() as tx, log.transaction() as log_tx:
        for name, statement in SQL.items():
            numbered = [int(one) for one in re.findall(r"\?(\d)", statement)]
            count = max(numbered, default=statement.count("?"))
            used = log_tx if f"-- name: {name}\n" in of_logs else tx
            used.execute(f"EXPLAIN {statement}", (None,) * count).fetchall()
    database.close()
    log.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loose", [0o604, 0o640, 0o620])
def test_a_file_that_others_can_touch_stops_the_start(directory: Path, name: str, loose: int) -> None:
    path = directory / name
    path.touch()
    path.chmod(loose)
    with pytest.raises(UnsafeFile, match=f"mode {loose:04o}") as refused:
        MailboxDatabase(directory)
    assert refused.value.hint == f"chmod 600 {path}"


@pytest.mark.parametrize("name", NAMES)
def test_a_symlink_in_place_of_a_file_stops_the_start(directory: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").touch(mode=0o600)
    (directory / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFile, match="symlink"):
        MailboxDatabase(directory)


def test_a_hard_link_to_the_database_stops_the_start(directory: Path, tmp_path: Path) -> None:
    MailboxDatabase(directory).close()
    (tmp_path / "elsewhere").hardlink_to(directory / databases.FILE)
    with pytest.raises(UnsafeFile, match="hard link"):
        MailboxDatabase(directory)
    (tmp_path / "elsewhere").unlink()
    MailboxDatabase(directory).close()


def test_a_file_of_another_owner_stops_the_start(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MailboxDatabase(directory).close()
    me = os.geteuid()
    monkeypatch.setattr(databases.private_files.os, "geteuid", lambda: me + 1)
    with pytest.raises(UnsafeFile, match="another user"):
        MailboxDatabase(directory)


@pytest.mark.parametrize("loose", [0o750, 0o701, 0o770])
def test_a_directory_that_others_can_enter_stops_the_start(directory: Path, loose: int) -> None:
    directory.chmod(loose)
    with pytest.raises(UnsafeFile) as refused:
        MailboxDatabase(directory)
    assert refused.value.hint == f"chmod 700 {directory}"


def test_a_symlink_to_a_directory_stops_the_start(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(directory)
    with pytest.raises(UnsafeFile, match="symlink"):
        MailboxDatabase(tmp_path / "link")


def test_a_newer_database_is_not_touched(directory: Path) -> None:
    database = MailboxDatabase(directory)
    with database.transaction() as tx:
        tx.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(NewerDatabase, match="version 9") as refused:
        MailboxDatabase(directory)
    assert refused.value.hint == "update Angelia"


def test_a_damaged_database_is_called_damaged(directory: Path) -> None:
    (directory / NAMES[0]).write_bytes(b"not a database " * 1000)
    (directory / NAMES[0]).chmod(0o600)
    with pytest.raises(BrokenDatabase):
        MailboxDatabase(directory)


def test_a_transaction_that_fails_leaves_nothing(directory: Path) -> None:
    database = MailboxDatabase(directory)

    def fail() -> None:
        with database.transaction() as tx:
            tx.write("write_meta", "a", "1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert database.row("read_meta", "a") is None
    with database.transaction() as tx:
        tx.write("write_meta", "a", "2")
    assert database.row("read_meta", "a") == ("2",)
    database.close()


def test_a_full_disk_is_told_as_such(directory: Path) -> None:
    database = MailboxDatabase(directory)
    with database.transaction() as tx:
        (pages,) = tx.execute("PRAGMA page_count").fetchone()
        tx.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    with pytest.raises(DiskFull), database.transaction() as tx:
        tx.write("write_meta", "much", "x" * 100_000)
    database.close()


def test_a_writer_that_waits_too_long_is_told_so(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_PRAGMAS", ("busy_timeout=10", *databases._PRAGMAS[1:]))
    one, other = MailboxDatabase(directory), MailboxDatabase(directory)
    with one.transaction(), pytest.raises(Unavailable, match="busy"), other.transaction():
        pass
    one.close()
    other.close()


def test_a_writer_that_was_passed_over_asks_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_PRAGMAS", ("busy_timeout=1", *databases._PRAGMAS[1:]))
    one, other = MailboxDatabase(directory), MailboxDatabase(directory)
    taken, passed_over, busy = threading.Event(), threading.Event(), databases._busy

    def hold() -> None:
        with one.transaction():
            taken.set()
            passed_over.wait()

    holder = threading.Thread(target=hold)

    def noticed(error: sqlite3.OperationalError) -> bool:
        passed_over.set()
        holder.join()
        return busy(error)

    monkeypatch.setattr(databases, "_busy", noticed)
    holder.start()
    taken.wait()
    with other.transaction() as tx:
        tx.write("write_meta", "a", "1")
    assert one.row("read_meta", "a") == ("1",)
    one.close()
    other.close()


def test_threads_that_ended_leave_no_connection_behind(directory: Path) -> None:
    database = MailboxDatabase(directory)
    for _ in range(5):
        thread = threading.Thread(target=lambda: database.row("read_meta", "a"))
        thread.start()
        thread.join()
    assert len(database._opened) <= 2
    database.close()


def test_a_child_of_a_fork_does_not_use_its_parents_connection(directory: Path) -> None:
    database = MailboxDatabase(directory)
    with database.transaction() as tx:
        tx.write("write_meta", "a", "1")
    child = os.fork()
    if child == 0:
        with database.transaction() as tx:
            tx.write("write_meta", "a", "2")
        database.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert database.row("read_meta", "a") == ("2",)
    database.close()


def test_every_statement_is_used() -> None:
    code = "".join(path.read_text() for path in Path(databases.__file__).parent.glob("*.py"))
    assert [name for name in SQL if f'"{name}"' not in code] == []


def test_a_log_that_somebody_reads_is_emptied_after_the_next_transaction(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_PRAGMAS", ("busy_timeout=10", *databases._PRAGMAS[1:]))
    database, log = MailboxDatabase(directory), directory / NAMES[2]
    reader = sqlite3.connect(directory / NAMES[0], isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM meta").fetchall()
    with database.transaction() as tx:
        tx.execute(SQL["destroy_grace"])
        tx.write("write_meta", "a", "1")
    assert log.stat().st_size > 0
    reader.execute("COMMIT")
    with database.transaction() as tx:
        tx.write("write_meta", "a", "2")
    assert log.stat().st_size == 0
    with database.transaction() as tx:
        tx.write("write_meta", "a", "3")
    assert log.stat().st_size > 0  # nothing was destroyed, so nothing is paid
    reader.close()
    database.close()


def test_what_is_deleted_is_overwritten(directory: Path) -> None:
    database = MailboxDatabase(directory)
    marker = "a secret that must not stay " * 4
    with database.transaction() as tx:
        tx.write("write_meta", "secret", marker)
    with database.transaction() as tx:
        tx.execute(SQL["drop_meta"], ("secret",))
    database.close()
    (left,) = [path for path in directory.iterdir() if path.name == NAMES[0]]
    assert marker.encode() not in left.read_bytes()
    connection = sqlite3.connect(left)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_times_are_text_of_one_width_that_sorts_as_time_does() -> None:
    times = [
        datetime(2026, 11, 15, 12, tzinfo=UTC),
        datetime(2026, 11, 15, 12, 0, 0, 1, tzinfo=UTC),
        datetime(2026, 11, 15, 14, tzinfo=timezone(timedelta(hours=1))),
        datetime(2027, 1, 1, tzinfo=UTC),
    ]
    texts = [stamp(time) for time in times]
    assert {len(text) for text in texts} == {27}
    assert sorted(texts) == texts
    assert [unstamp(text) for text in texts] == times
    assert texts[0] == "2026-11-15T12:00:00.000000Z"
