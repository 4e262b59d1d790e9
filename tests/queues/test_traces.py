"""Traces: what consumers note about messages, found by message and by name."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from angelia.errors import NotFound
from angelia.queues.slice import QueuesSlice
from angelia.queues.traces import NewTrace
from queues.conftest import Another, queue_process
from queues.traffic import push


def trace(partition: UUID, id_: str, *names: str, data: object = None, event: str = "info") -> NewTrace:
    return NewTrace(
        partition_id=partition,
        transaction_id=id_,
        group="g",
        names=names,
        event_type=event,
        data=msgspec.Raw(msgspec.json.encode(data)),
        worker="worker 1",
    )


async def pushed(queues: QueuesSlice, now: datetime, *ids: str) -> UUID:
    """Pushes messages whose payloads are their ids. Returns the id of their partition."""
    first, *_ = await push(queues, "orders", now, *ids, ids=ids)
    return UUID(first.partition_id)


async def test_the_traces_of_a_message_are_listed_in_order(queues: QueuesSlice, now: datetime) -> None:
    partition = await pushed(queues, now, "a", "b/c")
    await queues.traces.add(trace(partition, "b/c", data={"step": 1}, event="begin"), now)
    await queues.traces.add(trace(partition, "a", data="other"), now)
    await queues.traces.add(trace(partition, "b/c", "x", "y", "x", data={"step": 2}), now + timedelta(seconds=1))
    first, second = await queues.traces.of_message(partition, "b/c")
    assert (bytes(first.data), first.row.event_type, list(first.row.names)) == (b'{"step":1}', "begin", [])
    assert (bytes(second.data), list(second.row.names)) == (b'{"step":2}', ["x", "y"])
    assert (second.row.group_name, second.row.worker) == ("g", "worker 1")
    assert await queues.traces.of_message(partition, "c") == []


async def test_traces_are_found_by_name_newest_first_with_their_message(queues: QueuesSlice, now: datetime) -> None:
    partition = await pushed(queues, now, "a", "b")
    for number in range(5):
        await queues.traces.add(trace(partition, "ab"[number % 2], "flow", data=number), now)
    found, total = await queues.traces.named("flow", 2, 1)
    assert (total, [bytes(one.data) for one in found]) == (5, [b"3", b"2"])
    assert [bytes(one.message) for one in found] == [b'"b"', b'"a"']
    assert (found[0].partition.queue.name, found[0].partition.name) == ("orders", "Default")
    assert await queues.traces.named("flo", 10, 0) == ([], 0)


async def test_names_are_counted_the_last_used_first(queues: QueuesSlice, now: datetime) -> None:
    partition = await pushed(queues, now, "a", "b")
    for number, (id_, names) in enumerate((("a", ["x", "y"]), ("b", ["x"]), ("a", ["x"]))):
        await queues.traces.add(trace(partition, id_, *names), now + timedelta(seconds=number))
    found, total = await queues.traces.names(10, 0)
    assert [(one.trace_name, one.trace_count, one.message_count) for one in found] == [("x", 3, 2), ("y", 1, 1)]
    assert (total, found[0].last_seen) == (2, now + timedelta(seconds=2))
    assert [one.trace_name for one in (await queues.traces.names(1, 1))[0]] == ["y"]


async def test_only_a_message_that_is_there_can_be_traced(queues: QueuesSlice, now: datetime) -> None:
    partition = await pushed(queues, now, "a")
    for place in ((partition, "b"), (uuid4(), "a")):
        with pytest.raises(NotFound, match="Message not found"):
            await queues.traces.add(trace(*place), now)


async def test_the_traces_of_an_encrypted_queue_are_encrypted_and_shown_decrypted(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await queues.catalog.configure("orders", now, {"encryptionEnabled": True})
    partition = await pushed(queues, now, "secret message")
    await queues.traces.add(trace(partition, "secret message", "flow", data="secret note"), now)
    ((one,), _) = await queues.traces.named("flow", 10, 0)
    assert (bytes(one.data), bytes(one.message)) == (b'"secret note"', b'"secret message"')
    stored = await connection.fetchrow("SELECT key_id, data FROM queue_traces")
    assert stored["key_id"] is not None
    assert b"secret" not in stored["data"]


async def test_a_queue_that_another_process_has_encrypted_meanwhile_gets_no_plain_trace(
    queues: QueuesSlice, another: Another, now: datetime, connection: asyncpg.Connection
) -> None:
    other = await another()
    partition = await pushed(queues, now, "a")
    await queues.traces.add(trace(partition, "a", data="plain"), now)
    await other.catalog.configure("orders", now, {"encryptionEnabled": True})
    await queues.traces.add(trace(partition, "a", data="secret"), now)
    stored = await connection.fetch("SELECT key_id, data FROM queue_traces ORDER BY trace_no")
    assert [row["key_id"] is None for row in stored] == [True, False]
    assert b"secret" not in stored[1]["data"]
    assert [bytes(one.data) for one in await other.traces.of_message(partition, "a")] == [b'"plain"', b'"secret"']


async def test_a_trace_whose_key_is_refused_is_null_and_the_others_are_shown(
    queues: QueuesSlice, now: datetime, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    partition = await pushed(queues, now, "a")
    await queues.traces.add(trace(partition, "a", "flow", data="plain"), now)
    await queues.catalog.configure("orders", now, {"encryptionEnabled": True})
    await queues.traces.add(trace(partition, "a", "flow", data="secret"), now)
    elsewhere = tmp_path / "another master key"
    elsewhere.mkdir()
    async with queue_process(database_url, redis_url, elsewhere) as stranger:
        found, total = await stranger.slices.queues.traces.named("flow", 10, 0)
    assert (total, [bytes(one.data) for one in found]) == (2, [b"null", b'"plain"'])


async def test_the_traces_of_a_deleted_queue_are_not_found(queues: QueuesSlice, now: datetime) -> None:
    partition = await pushed(queues, now, "a")
    await queues.traces.add(trace(partition, "a", "flow"), now)
    await queues.groups.delete_queue("orders", now)
    assert await queues.traces.named("flow", 10, 0) == ([], 0)
    assert await queues.traces.names(10, 0) == ([], 0)
    assert await queues.traces.of_message(partition, "a") == []
