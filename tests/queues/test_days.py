"""The daily tables of chunks: made ahead, copied when little of them is needed, and dropped when nothing is."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from angelia.errors import Unavailable
from angelia.queues import days_store
from angelia.queues.slice import QueuesSlice
from angelia.stores.ledger import Ledger
from queue_storage import DAY, HOUR, MINUTE, NOON, QueueStorage, raise_floor, someone_waits

ON = {"retentionEnabled": True}


@pytest.fixture
async def storage(queues: QueuesSlice, ledger: Ledger) -> QueueStorage:
    storage = QueueStorage(queues, ledger)
    await storage.drop_days()
    await storage.days().make_partitions(NOON)
    return storage


async def pass_days(storage: QueueStorage, until: int) -> None:
    """The days from noon of the first one on are made, as a running server does."""
    for day in range(1, until + 1):
        await storage.days().make_partitions(NOON + day * DAY)


# Days that are made.


async def test_days_are_made_ahead_and_their_columns_are_not_compressed_or_counted(storage: QueueStorage) -> None:
    assert await storage.days().run(NOON) is False
    assert await storage.tables() == ["1114", "1115", "1116", "1117", "1118", "1119", "1120", "1121", "1122"]
    storages = await storage.rows(
        "SELECT attname, attstorage::text FROM pg_attribute WHERE attrelid = 'queue_chunks_20261115'::regclass"
        " AND attname IN ('body', 'transaction_ids', 'ends') ORDER BY 1"
    )
    assert storages == [("body", "e"), ("ends", "e"), ("transaction_ids", "e")]
    uncounted = await storage.rows(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'queue_chunks_20261115'::regclass AND attstattarget = 0"
        " ORDER BY 1"
    )
    assert [name for (name,) in uncounted] == ["body", "ends", "trace_ids", "transaction_ids"]
    await storage.push("q", "a", NOON, payload=b'"' + b"x" * 100_000 + b'"')
    size = "SELECT pg_column_size(body) = octet_length(body) FROM queue_chunks_20261115"
    assert await storage.value(size) is True


# Days that are dropped.


async def test_a_day_is_dropped_when_all_floors_have_passed_it(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=3600)
    await storage.push("q", "ab", NOON)
    await storage.push("q", "cd", NOON + DAY)
    await storage.retain(NOON + DAY)
    await storage.keep_days(NOON + DAY)
    assert "1115" in await storage.tables(), "pushes of yesterday may still be on their way"
    await storage.keep_days(NOON + 2 * DAY)
    assert (await storage.tables())[0] == "1116"
    assert await storage.consume("q", NOON + 2 * DAY) == "cd"
    await storage.push("q", "e", NOON + 2 * DAY)
    assert await storage.consume("q", NOON + 2 * DAY) == "e"


async def test_a_day_that_a_partition_needs_stays(storage: QueueStorage) -> None:
    await storage.push("q", "ab", NOON)
    await storage.keep_days(NOON + 5 * DAY)
    tables = await storage.tables()
    assert "1115" in tables
    assert "1114" not in tables, "nothing was pushed then"
    assert "1116" not in tables
    assert await storage.consume("q", NOON + 5 * DAY) == "ab"


async def test_a_day_of_deleted_partitions_is_dropped(storage: QueueStorage) -> None:
    await storage.push("q", "ab", NOON)
    await storage.execute("DELETE FROM queue_partitions")
    await storage.keep_days(NOON + 2 * DAY)
    assert "1115" not in await storage.tables()


async def test_messages_that_wait_for_the_archive_hold_their_day(storage: QueueStorage) -> None:
    await storage.configure("q", **ON, retentionSeconds=60, archiveEnabled=True)
    await storage.push("q", "ab", NOON)
    await storage.retain(NOON + HOUR)
    await storage.keep_days(NOON + 2 * DAY)
    assert "1115" in await storage.tables()
    await storage.execute("UPDATE queue_partitions SET purge_floor = NULL")  # as the archive does
    await storage.keep_days(NOON + 3 * DAY)
    assert "1115" not in await storage.tables()


async def test_a_day_in_use_is_dropped_later(storage: QueueStorage, connection: asyncpg.Connection) -> None:
    await storage.push("q", "ab", NOON)
    await raise_floor(storage, "q", 2, NOON)
    now = NOON + 2 * DAY
    await storage.days().make_partitions(now)
    async with connection.transaction():
        await connection.fetch("SELECT FROM queue_chunks LIMIT 1")  # a reader that takes its time
        await storage.keep_days(now)
        assert "1115" in await storage.tables()
    assert await storage.days().run(now) is False, "not at once again"
    await storage.keep_days(now + MINUTE)
    assert "1115" not in await storage.tables()


async def test_a_chunk_that_comes_while_a_day_is_about_to_be_dropped_keeps_it(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    await storage.push("q", "ab", NOON)
    await raise_floor(storage, "q", 2, NOON)
    number = await storage.partition_no("q")
    now = NOON + 2 * DAY
    await storage.days().make_partitions(now)
    async with connection.transaction():
        await connection.execute(
            "INSERT INTO queue_chunks (partition_no, end_position, count, stored_at, created_at, first_id,"
            " transaction_ids, ends, body) VALUES ($1, 3, 1, $2, $2, $3, '{a}', '{0}', '')",
            number,
            NOON + HOUR,
            uuid4(),
        )
        await storage.keep_days(now)
    await storage.keep_days(now + MINUTE)
    assert await storage.chunks() == {"1115": [2, 3]}


async def test_what_missed_its_day_is_removed_when_nothing_needs_it(storage: QueueStorage) -> None:
    old = NOON - 30 * DAY
    await storage.push("q", "a", old)
    await storage.push("q", "b", old + HOUR)
    await storage.push("kept", "c", old)
    await raise_floor(storage, "q", 1, old)
    await storage.keep_days(NOON)
    assert await storage.value("SELECT count(*) FROM queue_chunks_default") == 2
    assert await storage.consume("q", NOON) == "b"
    assert await storage.consume("kept", NOON) == "c"


# Days whose survivors are copied.


async def fill(storage: QueueStorage, day: datetime, kept: str, gone: int = 40) -> None:
    """A day of a large queue that retention has removed, and of a small one of which all is needed."""
    for number in range(gone):
        await storage.push("large", [f"{day:%d}-{number}"], day, payload=b'"' + b"x" * 3000 + b'"')
    for at, name in enumerate(kept):
        await storage.push("small", name, day + at * MINUTE)


async def test_what_little_is_needed_of_an_old_day_is_copied_to_the_next_one(storage: QueueStorage) -> None:
    await fill(storage, NOON, "abc")
    await fill(storage, NOON + DAY, "de")
    await raise_floor(storage, "large", 40, NOON)
    await pass_days(storage, 2)
    await storage.keep_days(NOON + 2 * DAY)
    assert (await storage.tables())[0] == "1115", "nothing is copied into yesterday"
    await storage.keep_days(NOON + 3 * DAY)
    assert (await storage.tables())[0] == "1116"
    rows = await storage.rows(
        "SELECT end_position, stored_at, created_at FROM queue_chunks WHERE partition_no = $1 ORDER BY 1",
        await storage.partition_no("small"),
    )
    midnight = (NOON + DAY).replace(hour=0)
    assert rows == [
        *((n + 1, midnight, NOON + n * MINUTE) for n in range(3)),
        *((n + 4, NOON + DAY + n * MINUTE, NOON + DAY + n * MINUTE) for n in range(2)),
    ]
    assert await storage.consume("small", NOON + 3 * DAY) == "abcde"
    assert await storage.value("SELECT pg_column_size(body) = octet_length(body) FROM queue_chunks_20261116 LIMIT 1")


async def test_nothing_is_copied_into_yesterday_or_today(storage: QueueStorage) -> None:
    await fill(storage, NOON, "abc")
    await raise_floor(storage, "large", 40, NOON)
    await pass_days(storage, 3)
    await storage.execute("DROP TABLE queue_chunks_20261116")
    await storage.keep_days(NOON + 3 * DAY)
    assert list(await storage.chunks()) == ["1115"]
    await storage.keep_days(NOON + 4 * DAY)
    assert list(await storage.chunks()) == ["1117"], "the next day that there is"


async def test_a_day_of_which_much_is_needed_is_not_copied(storage: QueueStorage) -> None:
    await fill(storage, NOON, "abcdefghijklmnop")
    await fill(storage, NOON + DAY, "")
    await raise_floor(storage, "large", 40, NOON)
    await pass_days(storage, 3)
    await storage.keep_days(NOON + 3 * DAY)
    assert "1115" in await storage.chunks()


async def test_a_day_of_which_few_large_chunks_are_needed_is_not_copied_for_long(storage: QueueStorage) -> None:
    await fill(storage, NOON, "")
    for name in "abcdef":
        await storage.push("small", name, NOON, payload=b'"' + b"y" * 100_000 + b'"')
    await storage.push("small", "z", NOON + DAY)
    await raise_floor(storage, "large", 40, NOON)
    await pass_days(storage, 3)
    await storage.keep_days(NOON + 3 * DAY, copied_chunks=1)
    found = await storage.chunks()
    assert len(found["1115"]) > 40
    assert 2 <= len(found["1116"]) < 5, "as soon as a fifth of the bytes are copied"
    assert await storage.consume("small", NOON + 3 * DAY) == "abcdefz"


@pytest.mark.parametrize("copied", range(7))
async def test_pops_between_two_batches_of_copying_pass_nothing_over(storage: QueueStorage, copied: int) -> None:
    await fill(storage, NOON, "abcdef", gone=60)
    await storage.push("small", "g", NOON + DAY)
    await raise_floor(storage, "large", 60, NOON)
    await pass_days(storage, 3)
    days = storage.days(copied_chunks=1)
    while len((await storage.chunks()).get("1116", [])) < 1 + copied:
        await days.run(NOON + 3 * DAY)
    # Each pop notes when the next message was stored, and the next one reads from there.
    assert [await storage.consume("small", NOON + 3 * DAY, 1) for _ in range(7)] == list("abcdefg")


async def test_pops_and_copies_at_the_same_time_deliver_each_message_once(storage: QueueStorage) -> None:
    names = [f"{number:03}" for number in range(120)]
    for at in range(20):
        await storage.push("large", [f"x{at}"], NOON, payload=b'"' + b"x" * 400_000 + b'"')
    for at, name in enumerate(names):
        await storage.push("small", [name], NOON + at * timedelta(seconds=1), partition=f"p{at % 4}")
    for at in range(600):  # so that the others are a small part
        await storage.push("large", [f"y{at}"], NOON)
    await raise_floor(storage, "large", 620, NOON)
    await pass_days(storage, 3)
    found: list[str] = []

    async def consume() -> None:
        while len(found) < len(names):
            popped = await storage.pop("small", NOON + 3 * DAY, 3)
            await popped.ack(NOON + 3 * DAY)
            found.extend(popped.names)

    async with asyncio.timeout(60):
        await asyncio.gather(consume(), storage.keep_days(NOON + 3 * DAY, copied_chunks=2))
    assert sorted(found) == names
    for part in range(4):
        mine = [name for name in found if int(name) % 4 == part]
        assert mine == sorted(mine), "in order"
    assert "1115" not in await storage.tables()


async def test_a_connection_that_dies_while_copying_leaves_every_chunk_once(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    await fill(storage, NOON, "abcdef", gone=60)
    await storage.push("small", "g", NOON + DAY)
    await raise_floor(storage, "large", 60, NOON)
    await pass_days(storage, 3)
    days = storage.days(copied_chunks=2)
    number = await storage.partition_no("small")
    ends = "SELECT array_agg(end_position ORDER BY end_position) FROM queue_chunks WHERE partition_no = $1"
    while not await storage.value("SELECT copying FROM queue_days WHERE day = '2026-11-15'"):
        await days.run(NOON + 3 * DAY)
    for second in (5, 3, 1):
        # The second chunk of a batch waits for a row of the same key; the first one is deleted and stored by then.
        blocking = connection.transaction()
        await blocking.start()
        await connection.execute(
            "INSERT INTO queue_chunks_20261116 SELECT partition_no, end_position, count, $3, created_at, first_id,"
            " only_group, key_id, producer, transaction_ids, trace_ids, ends, body"
            " FROM queue_chunks_20261115 WHERE partition_no = $1 AND end_position = $2",
            number,
            second,
            (NOON + DAY).replace(hour=0),
        )
        copying = asyncio.create_task(days.run(NOON + 3 * DAY))
        await connection.execute("SELECT pg_terminate_backend($1)", await someone_waits(connection))
        with pytest.raises(Unavailable):
            await copying
        await blocking.rollback()
        assert await storage.value(ends, number) == [1, 2, 3, 4, 5, 6, 7]
        assert second in (await storage.chunks())["1115"]
        await days.run(NOON + 3 * DAY)
        assert await storage.value(ends, number) == [1, 2, 3, 4, 5, 6, 7]
    await storage.keep_days(NOON + 3 * DAY)
    assert list(await storage.chunks()) == ["1116"]
    assert await storage.consume("small", NOON + 3 * DAY) == "abcdefg"


async def test_a_round_looks_at_so_many_partitions_of_a_day(storage: QueueStorage) -> None:
    for number in range(10):
        await storage.push("q", "a", NOON, partition=f"p{number}")
    await storage.execute("UPDATE queue_partitions SET floor = 1")
    await pass_days(storage, 2)
    await storage.keep_days(NOON + DAY)
    days = storage.days(batch=4)
    walked = []
    while await days.run(NOON + 2 * DAY):
        walked.append(await storage.value("SELECT max(partition_no) FROM queue_days WHERE day = '2026-11-15'"))
    first = await storage.partition_no("q", "p0")
    assert [one - first + 1 if one else one for one in walked] == [4, 8, None]


async def test_old_days_are_worked_on_within_the_hours_of_retention(storage: QueueStorage) -> None:
    await storage.keep_days(NOON + 2 * DAY, window=(1, 5))
    assert (await storage.tables())[0] == "1114"
    await storage.keep_days((NOON + 3 * DAY).replace(hour=2), window=(1, 5))
    assert (await storage.tables())[0] == "1117"


# Plans.

ASKED: dict[str, list[object]] = {
    "look": [0, 1000, 100],
    "is_needed": [0, 1000],
    "copy": [0, 20, 500, 1 << 20, NOON + DAY],
}
FILL = """
INSERT INTO queue_partitions (partition_id, queue_no, name, created_at)
SELECT gen_random_uuid(), 1, 'p' || n, $1 FROM generate_series(1, 20000) AS n;
INSERT INTO queue_chunks (partition_no, end_position, count, stored_at, created_at, first_id, transaction_ids, ends,
  body)
SELECT partition_no, n, 1, at, at, gen_random_uuid(), '{a}', '{0}', ''
FROM queue_partitions, generate_series(1, 3) AS n, LATERAL (SELECT $1::timestamptz + n * interval '1 minute') AS t (at)
"""


async def test_statements_about_a_day_go_from_partition_to_partition(
    storage: QueueStorage, connection: asyncpg.Connection
) -> None:
    for statement in FILL.split(";"):
        await connection.execute(statement, NOON)
    await connection.execute("ANALYZE")
    names = {"table": "queue_chunks_20261115", "later": "queue_chunks_20261116"}
    for name, values in ASKED.items():
        rows = await connection.fetch(f"EXPLAIN (COSTS OFF) {days_store.SQL[name].format(**names)}", *values)
        plan = "\n".join(row[0] for row in rows)
        assert "Seq Scan" not in plan, f"{name}:\n{plan}"
