"""The import of a Queen: every message once, also after a crash; and consumers go on where they were."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from angelia.errors import AngeliaError, InvalidArgument, Unavailable
from angelia.pipeline.jobs.import_queen import JOB, import_queen
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.queen.messages import ImportedContent, _together
from angelia.pipeline.runs import AtWork, only_one
from angelia.settings import Settings
from angelia.stores.objects import Objects
from killed_jobs import Died, dies_at
from queen_servers import BORN, Queen

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
STEPS = ["planned", "writing queues", "queues", "writing partitions", "partitions", "writing messages", "messages",
         "writing groups", "groups", "writing cursors", "cursors", "writing dead letters", "dead letters", "recording",
         "done"]  # fmt: skip
_LEDGER = {
    "queues": "SELECT queue_id, name, namespace, task, created_at, options FROM queues ORDER BY name",
    "partitions": "SELECT p.partition_id, q.name, p.name FROM queue_partitions AS p JOIN queues AS q USING (queue_no) "
    "ORDER BY 1",
    "messages": "SELECT p.partition_id, c.end_position, c.count, c.created_at, c.producer, c.transaction_ids, "
    "c.trace_ids, c.ends, c.body FROM queue_chunks AS c JOIN queue_partitions AS p USING (partition_no) ORDER BY 1, 2",
    "ids": "SELECT p.partition_id, i.position FROM queue_ids AS i JOIN queue_partitions AS p USING (partition_no) "
    "ORDER BY 1, 2",
    "groups": "SELECT q.name, g.name, g.mode, g.from_at FROM queue_groups AS g JOIN queues AS q USING (queue_no) "
    "ORDER BY 1, 2",
    "cursors": "SELECT p.partition_id, g.name, c.position, c.settled::text, c.attempts, c.consumed FROM queue_cursors "
    "AS c JOIN queue_partitions AS p USING (partition_no) JOIN queue_groups AS g USING (group_no) ORDER BY 1, 2",
    "letters": "SELECT p.partition_id, g.name, d.position, d.transaction_id, d.body, d.error, d.attempts, d.failed_at "
    "FROM queue_dead_letters AS d JOIN queue_partitions AS p USING (partition_no) "
    "JOIN queue_groups AS g USING (group_no) ORDER BY 1, 2, 3",
    "events": "SELECT event_type, object_nhi FROM audit_events WHERE event_type <> 'archive_run' ORDER BY 1, 2",
}

# A process that imports, and kills itself at a step.
_KILLED = """
import os, signal, sys
from contextlib import ExitStack
from datetime import UTC, datetime
from angelia.pipeline.jobs.import_queen import import_queen
from angelia.pipeline.jobs.job_context import JobContext
from angelia.settings import Settings
from angelia.stores.objects import Objects

url, lake, last = sys.argv[1:]
import_queen(JobContext(
    settings=Settings(), database_url=url, objects=Objects.at(lake), now=datetime.now(UTC), stack=ExitStack(),
    step=lambda name, run: os.kill(os.getpid(), signal.SIGKILL) if name == last else None,
))
"""

Importing = Callable[..., JobReport]


@pytest.fixture
async def queen(empty_database: str) -> AsyncIterator[Queen]:
    queen = await Queen.open(empty_database)
    yield queen
    await queen.connection.close()


@pytest.fixture
def importing(database_url: str, tmp_path: Path, queen: Queen, monkeypatch: pytest.MonkeyPatch) -> Iterator[Importing]:
    """`importing()` imports the Queen. It starts no Spark."""
    monkeypatch.setenv("QUEEN_DATABASE_URL", queen.url)
    with ExitStack() as stack:

        def done(*, dry_run: bool = False, step: Any = None, key: bytes | None = None, **options: str) -> JobReport:
            work = JobContext(
                settings=replace(Settings(), queue_encryption_key=None if key is None else key.hex()),
                database_url=database_url,
                objects=Objects.at(str(tmp_path / "lake")),
                now=datetime.now(UTC),
                stack=stack,
                dry_run=dry_run,
                options=options,
            )
            work.step = step or work.step
            return import_queen(work)

        yield done


async def ledger(connection: asyncpg.Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {name: [tuple(row) for row in await connection.fetch(query)] for name, query in _LEDGER.items()}


def counts(report: JobReport, how: str = "imported") -> list[int]:
    return [report.figures[what][how] for what in ("queues", "messages", "cursors", "dead_letters")]


async def furnished(queen: Queen) -> dict[str, list[Any]]:
    """Two queues with messages, groups that are at different places, and a dead letter."""
    await queen.queue("orders", "Default", "eu", namespace="shop", lease_time=17, retry_limit=1, max_queue_size=9)
    await queen.queue("mail")
    await queen.queue("empty")
    orders = await queen.push("orders", *range(5), producer="ann")
    eu = await queen.push("orders", 10, None, {"n": "ünï"}, partition="eu")
    mail = await queen.push("mail", "a", "b", apart=timedelta(milliseconds=1))
    await queen.consume(orders[2])
    await queen.consume(orders[0], "audit", attempts=2)
    await queen.consume(mail[-1])
    await queen.subscribe("orders", "late", "new", BORN + timedelta(seconds=4))
    await queen.bury(orders[1], "audit", "it broke")
    return {"orders": orders, "eu": eu, "mail": mail}


class Consumer:
    """Pops from a server, as Queen's clients do."""

    def __init__(self, server: Any) -> None:
        self.server = server

    async def pop(self, queue: str, partition: str = "Default", group: str | None = None, batch: int = 100) -> Any:
        asked = {"batch": batch, **({"consumerGroup": group} if group else {})}
        answer = await self.server.get(f"/api/v1/pop/queue/{queue}/partition/{partition}", params=asked)
        return answer.json()["messages"] if answer.status_code == 200 else []

    async def data(self, *place: str, **asked: Any) -> list[Any]:
        return [one["data"] for one in await self.pop(*place, **asked)]

    async def push(self, queue: str, payload: Any, id: str | None = None) -> None:
        item = {"queue": queue, "payload": payload} | ({"transactionId": id} if id else {})
        answer = await self.server.post("/api/v1/push", json={"items": [item]})
        assert answer.json()[0]["status"] == "queued", answer.text


# The journey.


async def test_consumers_go_on_where_they_were(
    importing: Importing, queen: Queen, start: Any, connection: asyncpg.Connection
) -> None:
    pushed = await furnished(queen)
    report = await asyncio.to_thread(importing)
    assert counts(report) == [3, 10, 4, 1]
    consumer = Consumer(await start())
    first, *rest = await consumer.pop("orders")
    assert [one["data"] for one in (first, *rest)] == [3, 4]
    assert (first["transactionId"], first["producerSub"], first["traceId"]) == ("t-3", "ann", str(pushed["orders"][3]))
    assert first["partitionId"] == str(queen.places["orders", "Default"])
    assert datetime.fromisoformat(first["createdAt"]) == BORN + timedelta(seconds=4)
    assert await consumer.data("orders", "eu") == [10, None, {"n": "ünï"}]
    assert await consumer.data("orders", group="audit") == [1, 2, 3, 4]
    assert await consumer.data("orders", group="late") == [3, 4]
    assert await consumer.data("orders", "eu", group="late") == [10, None, {"n": "ünï"}]
    assert await consumer.data("orders", group="other") == [0, 1, 2, 3, 4]
    assert await consumer.data("mail") == []
    await consumer.push("orders", "new")
    options, namespace = await connection.fetchrow("SELECT options, namespace FROM queues WHERE name = 'orders'")
    wanted = {"leaseTime": 17, "retryLimit": 1, "maxSize": 9, "archiveEnabled": False}
    assert ({name: json.loads(options)[name] for name in wanted}, namespace) == (wanted, "shop")
    [letter] = (await consumer.server.get("/api/v1/dlq", params={"queue": "orders"})).json()["messages"]
    assert (letter["transactionId"], letter["data"], letter["errorMessage"]) == ("t-1", 1, "it broke")
    at, stored = await connection.fetchrow("SELECT attempts, read_at FROM queue_cursors ORDER BY attempts DESC LIMIT 1")
    assert (at, stored is None) == (2, False)


async def test_messages_stand_behind_what_was_pushed_here_and_before_what_is_pushed_later(
    importing: Importing, queen: Queen, start: Any, connection: asyncpg.Connection
) -> None:
    await queen.queue("orders")
    await queen.push("orders", 1, 2, 3)
    await queen.queue("mine")
    consumer = Consumer(await start())
    await consumer.push("orders", "before")
    await consumer.push("orders", "twice", "t-2")
    report = await asyncio.to_thread(importing)
    assert (counts(report), counts(report, "there")) == ([1, 2, 0, 0], [1, 1, 0, 0])
    await consumer.push("orders", "after")
    [one] = await consumer.pop("orders", batch=1)
    assert one["data"] == "before"
    assert await consumer.data("orders", group="other") == ["before", "twice", 1, 3, "after"]
    rows = await connection.fetch("SELECT created_at, stored_at FROM queue_chunks ORDER BY end_position")
    for name in ("created_at", "stored_at"):
        assert [row[name] for row in rows] == sorted(row[name] for row in rows), name
    assert all(row["stored_at"] >= row["created_at"] for row in rows)


# Once.


async def test_a_second_run_finds_everything_there_and_a_later_one_brings_what_came_since(
    importing: Importing, queen: Queen, connection: asyncpg.Connection
) -> None:
    pushed = await furnished(queen)
    await asyncio.to_thread(importing)
    before = await ledger(connection)
    again = await asyncio.to_thread(importing)
    assert (again.rows, counts(again, "there")) == (0, [3, 0, 5, 1])
    assert await ledger(connection) == before
    await queen.queue("fresh")
    await queen.push("fresh", 1)
    more = await queen.push("orders", 5, 6)
    await queen.consume(more[0])  # beyond what was imported then
    await queen.consume(pushed["eu"][0], "audit")
    await queen.bury(pushed["orders"][3], "audit", "again")
    report = await asyncio.to_thread(importing)
    assert counts(report) == [1, 3, 2, 1]
    positions = {(row[1], row[2]) for row in (await ledger(connection))["cursors"]}
    assert {("__QUEUE_MODE__", 6), ("audit", 1)} <= positions


async def test_what_was_consumed_removed_or_deleted_here_does_not_come_back(
    importing: Importing, queen: Queen, start: Any, connection: asyncpg.Connection
) -> None:
    pushed = await furnished(queen)
    await asyncio.to_thread(importing)
    consumer = Consumer(await start())
    popped = await consumer.pop("orders")
    ack = {"status": "completed", **{name: popped[-1][name] for name in ("transactionId", "partitionId")}}
    await consumer.server.post("/api/v1/ack", json=ack)
    await connection.execute("UPDATE queue_partitions SET floor = 2 WHERE name = 'eu'")
    await connection.execute("DELETE FROM queue_dead_letters")
    assert (await consumer.server.request("DELETE", "/api/v1/resources/queues/mail")).status_code == 200
    await queen.consume(pushed["orders"][3])  # the group here has completed one behind it
    report = await asyncio.to_thread(importing)
    assert counts(report)[1:] == [0, 1, 0]
    assert await connection.fetchval("SELECT count(*) FROM queue_dead_letters") == 0
    place = queen.places["orders", "Default"]
    [cursor] = [row for row in (await ledger(connection))["cursors"] if row[:2] == (place, "__QUEUE_MODE__")]
    assert (cursor[2], cursor[3]) == (4, "{[0,5)}"), "the next pop passes over what is settled"
    await consumer.push("mail", "goes on")
    assert await consumer.data("mail") == ["goes on"]


async def test_a_push_that_was_not_committed_is_not_missed(
    importing: Importing, queen: Queen, connection: asyncpg.Connection
) -> None:
    """A message of a transaction that began earlier than one that is committed already."""
    await queen.queue("orders")
    other = await asyncpg.connect(queen.url)
    slow = other.transaction()
    await slow.start()
    await other.execute("SELECT 1")
    queen.at = datetime.now(UTC) - timedelta(seconds=1)
    await queen.push("orders", "fast")
    began = await queen.connection.fetchval(
        "SELECT xact_start FROM pg_stat_activity WHERE pid = $1", other.get_server_pid()
    )
    report = await asyncio.to_thread(importing)
    assert (counts(report)[1], sum(report.figures["messages"]["skipped"].values())) == (0, 1)
    queen.connection, fast = other, queen.connection
    queen.at = began - timedelta(seconds=1)
    await queen.push("orders", "slow")
    await slow.commit()
    await other.close()
    queen.connection = fast
    assert counts(await asyncio.to_thread(importing))[1] == 2
    bodies = await connection.fetch("SELECT body FROM queue_chunks ORDER BY end_position")
    assert b"".join(row["body"] for row in bodies) == b'"slow""fast"'


async def test_broken_off_at_any_step_the_next_run_ends_where_one_run_would(
    importing: Importing, queen: Queen, connection: asyncpg.Connection
) -> None:
    await furnished(queen)
    for step in STEPS[:-1]:
        with pytest.raises(Died):
            await asyncio.to_thread(importing, step=dies_at(step))
    await asyncio.to_thread(importing)
    found = await ledger(connection)
    assert [row[5] for row in found["messages"] if row[4] == "ann"] == [[f"t-{n}"] for n in range(5)]
    assert [len(found[name]) for name in ("queues", "ids", "cursors", "letters", "events")] == [3, 10, 4, 1, 3]
    before = found
    assert (await asyncio.to_thread(importing)).rows == 0
    assert await ledger(connection) == before


@pytest.mark.chaos
@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_a_step_the_next_run_finishes_the_work(
    importing: Importing, queen: Queen, connection: asyncpg.Connection, database_url: str, tmp_path: Path, step: str
) -> None:
    await furnished(queen)
    program = [sys.executable, "-c", _KILLED, database_url, str(tmp_path / "lake"), step]
    process = await asyncio.create_subprocess_exec(*program, env={**os.environ}, stderr=asyncio.subprocess.PIPE)
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == -signal.SIGKILL, said.decode()
    await asyncio.to_thread(importing)
    found = await ledger(connection)
    assert [len(found[name]) for name in ("queues", "ids", "cursors", "letters", "events")] == [3, 10, 4, 1, 3]


async def test_two_at_once_are_refused_and_a_dry_run_counts_and_writes_nothing(
    importing: Importing, queen: Queen, connection: asyncpg.Connection, database_url: str
) -> None:
    await furnished(queen)
    before = await ledger(connection)
    foreseen = await asyncio.to_thread(importing, dry_run=True)
    assert (foreseen.state, counts(foreseen)) == ("dry run", [3, 10, 0, 1])
    assert await ledger(connection) == before
    with only_one(database_url, JOB), pytest.raises(AtWork):
        await asyncio.to_thread(importing)


# Encryption.


async def test_encrypted_messages_are_encrypted_by_the_own_key_and_never_plain(
    importing: Importing, queen: Queen, start: Any, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queen.queue("vault", encryption_enabled=True)
    await queen.push("vault", "plain by mistake")
    secret = await queen.push("vault", "secret", key=OTHER)
    await queen.push("vault", "old secret", key=OTHER, nonce_bytes=16)
    await queen.push("vault", "lost", key=bytes(32))
    await queen.bury(secret[0], "audit", "it broke")
    with pytest.raises(InvalidArgument, match="no key for them here") as refusal:
        await asyncio.to_thread(importing)
    assert "ANGELIA_QUEUE_ENCRYPTION_KEY" in str(refusal.value.hint)
    monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", OTHER.hex())
    report = await asyncio.to_thread(importing, key=KEY)
    assert counts(report) == [1, 3, 0, 1]
    assert sum(report.figures["messages"]["skipped"].values()) == 1
    stored = await connection.fetch("SELECT body, key_id FROM queue_chunks UNION ALL "
                                    "SELECT body, key_id FROM queue_dead_letters")  # fmt: skip
    assert all(row["key_id"] is not None and b"secret" not in row["body"] for row in stored)
    consumer = Consumer(await start(queue_encryption_key=KEY.hex()))
    assert await consumer.data("vault") == ["plain by mistake", "secret", "old secret"]
    [letter] = (await consumer.server.get("/api/v1/dlq", params={"queue": "vault"})).json()["messages"]
    assert letter["data"] == "secret"


# What is refused.


async def test_what_cannot_be_read_is_refused_before_anything_is_written(
    importing: Importing, queen: Queen, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {
        "file.db": InvalidArgument,
        "mysql://host/queen": InvalidArgument,
        "postgres://user:secret@host/queen": InvalidArgument,
        "postgres://user@127.0.0.1:1/queen": Unavailable,
    }
    for url, kind in asked.items():
        with pytest.raises(kind) as refusal:
            await asyncio.to_thread(importing, database=url)
        assert refusal.value.hint
        assert "secret" not in str(refusal.value)
    await queen.connection.execute("ALTER TABLE queen.messages RENAME TO old_messages")
    with pytest.raises(InvalidArgument, match=r"no tables of Queen 0\.15: messages"):
        await asyncio.to_thread(importing)
    monkeypatch.delenv("QUEEN_DATABASE_URL")
    with pytest.raises(AngeliaError, match="which Queen"):
        await asyncio.to_thread(importing)
    monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", "12")
    with pytest.raises(InvalidArgument, match="64 hexadecimal digits"):
        await asyncio.to_thread(importing, database="postgres://user@host/queen")


def test_a_chunk_has_messages_of_one_producer_and_about_one_time() -> None:
    def one(ms: int, producer: str = "a", size: int = 1) -> ImportedContent:
        return ImportedContent(f"{ms}", None, b"x" * size, producer, BORN + timedelta(milliseconds=ms), False)

    given = [one(0), one(100), one(101), one(102, "b"), one(103, size=1 << 20), one(104), *[one(105)] * 1001]
    assert [len(some) for some in _together(given)] == [2, 1, 1, 1, 1000, 2]
