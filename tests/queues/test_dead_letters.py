"""Dead letters: listed with what became of them, put back for their consumer group only, purged by what they say."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from angelia.errors import Conflict, NotFound
from angelia.queues import store
from angelia.queues.dead_letters import LetterFilter, error_pattern
from angelia.queues.slice import QueuesSlice
from angelia.stores.ledger import Ledger
from queue_storage import someone_waits
from queues.conftest import queue_process
from queues.traffic import consume, pop, push, settle, taken

ALL = LetterFilter()


async def bury(
    queues: QueuesSlice, now: datetime, *payloads: object, group: str = "g", error: str | None = None, **how: object
) -> UUID:
    """Pushes payloads and gives them up. Returns the id of their partition."""
    ids = [f"id {payload}" for payload in payloads]
    (first, *_) = await push(queues, "orders", now, *payloads, ids=ids)
    delivery = await pop(queues, "orders", now, group)
    await settle(queues, delivery, now, "dlq", error)
    return UUID(first.partition_id)


async def letters(queues: QueuesSlice, chosen: LetterFilter = ALL, limit: int = 100, offset: int = 0) -> list[object]:
    """The payloads of dead letters."""
    found, _ = await queues.letters.page(chosen, limit, offset)
    return [msgspec.json.decode(one.data) for one in found]


async def test_letters_are_listed_newest_first_in_pages_with_their_number(queues: QueuesSlice, now: datetime) -> None:
    for number in range(5):
        await bury(queues, now + timedelta(seconds=number), number, error=f"error {number}")
    assert await letters(queues) == [4, 3, 2, 1, 0]
    found, total = await queues.letters.page(ALL, 2, 1)
    assert (total, [one.error_message for one in found]) == (5, ["error 3", "error 2"])
    (newest,) = (await queues.letters.page(ALL, 1, 0))[0]
    assert (newest.queue, newest.partition, newest.consumer_group, newest.retry_count) == ("orders", "Default", "g", 0)
    assert newest.transaction_id == "id 4"


async def test_letters_are_chosen_by_names_times_and_errors(queues: QueuesSlice, now: datetime) -> None:
    await bury(queues, now, 1, group="g", error="timeout after 5 s")
    await bury(queues, now + timedelta(hours=1), 2, group="g", error="100% full_disk")
    for chosen, expected in (
        (LetterFilter(queue="orders"), [2, 1]),
        (LetterFilter(queue="other"), []),
        (LetterFilter(group="g"), [2, 1]),
        (LetterFilter(group="h"), []),
        (LetterFilter(partition="Default", since=now + timedelta(minutes=1)), [2]),
        (LetterFilter(until=now), [1]),
        (LetterFilter(error=error_pattern("timeout*")), [1]),
        (LetterFilter(error=error_pattern("*5 ?")), [1]),
        (LetterFilter(error=error_pattern("timeout")), []),
        (LetterFilter(error=error_pattern("100% full_disk")), [2]),
        (LetterFilter(error=error_pattern("100% full?disk")), [2]),
        (LetterFilter(error=error_pattern("%")), []),
    ):
        assert await letters(queues, chosen) == expected, chosen


async def test_a_letter_is_put_back_at_the_end_for_its_group_alone(queues: QueuesSlice, now: datetime) -> None:
    partition = await bury(queues, now, 1)
    assert await consume(queues, "orders", now, "h") == [1]
    await push(queues, "orders", now, 2)
    assert await queues.letters.retry(partition, "id 1", now) == 1
    assert await letters(queues) == []
    assert await consume(queues, "orders", now, "g") == [2, 1]
    assert await consume(queues, "orders", now, "h") == [2]
    assert await consume(queues, "orders", now, "new group") == [1, 2]
    with pytest.raises(NotFound, match="Message not found"):
        await queues.letters.retry(partition, "id 1", now)


async def test_a_letter_of_each_group_is_put_back_for_each(queues: QueuesSlice, now: datetime) -> None:
    partition = await bury(queues, now, 1)
    await settle(queues, await pop(queues, "orders", now, "h"), now, "dlq")
    assert await queues.letters.retry(partition, "id 1", now) == 2
    assert await consume(queues, "orders", now, "g") == [1]
    assert await consume(queues, "orders", now, "h") == [1]
    assert await taken(queues, "orders", now, "g") == []


async def test_a_letter_that_was_put_back_can_die_and_be_put_back_again(queues: QueuesSlice, now: datetime) -> None:
    partition = await bury(queues, now, 1)
    for _ in range(3):
        await queues.letters.retry(partition, "id 1", now)
        delivery = await pop(queues, "orders", now, "g")
        assert delivery is not None
        assert [one.transaction_id for one in delivery.messages] == ["id 1"]
        await settle(queues, delivery, now, "dlq")
    assert await letters(queues) == [1]


async def test_many_letters_are_put_back_in_the_order_in_which_they_failed(queues: QueuesSlice, now: datetime) -> None:
    numbers = list(range(1_200))
    await push(queues, "orders", now, *numbers)
    for _ in range(12):
        await settle(queues, await pop(queues, "orders", now, "g"), now, "dlq", "timeout")
    await bury(queues, now, "other", error="another")
    chosen = LetterFilter(queue="orders", error=error_pattern("time*"))
    assert await queues.letters.requeue(chosen, now) == 1_200
    assert await letters(queues) == ["other"]
    delivered = [number for _ in range(12) for number in await consume(queues, "orders", now, "g")]
    assert delivered == numbers


async def test_letters_are_purged_by_what_they_say(queues: QueuesSlice, now: datetime) -> None:
    await bury(queues, now, 1, 2, 3, error="timeout")
    await bury(queues, now, 4, error="refused")
    assert await queues.letters.count(LetterFilter(queue="orders", error=error_pattern("time*"))) == 3
    assert await queues.letters.purge(LetterFilter(queue="orders", error=error_pattern("time*")), now) == 3
    assert await letters(queues) == [4]


async def test_while_pushes_are_paused_no_letter_is_put_back_and_none_is_lost(
    queues: QueuesSlice, now: datetime
) -> None:
    partition = await bury(queues, now, 1)
    await queues.maintenance.pause_pushes(now)
    with pytest.raises(Conflict, match="paused"):
        await queues.letters.retry(partition, "id 1", now)
    assert await letters(queues) == [1]


async def test_a_full_queue_takes_no_letter_back(queues: QueuesSlice, now: datetime) -> None:
    partition = await bury(queues, now, 1)
    await push(queues, "orders", now, 2)
    await queues.catalog.configure("orders", now, {"maxSize": 1})
    with pytest.raises(Conflict, match="max capacity"):
        await queues.letters.retry(partition, "id 1", now)
    assert await letters(queues) == [1]


async def test_a_message_that_waits_can_be_given_up(queues: QueuesSlice, now: datetime) -> None:
    first, second = await push(queues, "orders", now, 1, 2)
    await queues.letters.give_up(UUID(first.partition_id), first.transaction_id, now)
    (letter,) = (await queues.letters.page(ALL, 10, 0))[0]
    assert (letter.transaction_id, letter.consumer_group) == (first.transaction_id, "__QUEUE_MODE__")
    assert await consume(queues, "orders", now) == [2]
    with pytest.raises(Conflict, match="not pending"):
        await queues.letters.give_up(UUID(second.partition_id), second.transaction_id, now)
    with pytest.raises(NotFound, match="Message not found"):
        await queues.letters.give_up(UUID(second.partition_id), "unknown", now)


async def test_a_message_is_given_up_for_all_groups_that_have_still_to_consume_it(
    queues: QueuesSlice, now: datetime
) -> None:
    (one,) = await push(queues, "orders", now, 1)
    await consume(queues, "orders", now, "done")
    for group in ("a", "b"):
        await settle(queues, await pop(queues, "orders", now, group), now, "retry")
    await queues.letters.give_up(UUID(one.partition_id), one.transaction_id, now)
    found, _ = await queues.letters.page(ALL, 10, 0)
    assert {letter.consumer_group for letter in found} == {"a", "b"}


async def test_a_message_under_a_lease_is_not_given_up(queues: QueuesSlice, now: datetime) -> None:
    (one,) = await push(queues, "orders", now, 1)
    await pop(queues, "orders", now)
    with pytest.raises(Conflict, match="being processed"):
        await queues.letters.give_up(UUID(one.partition_id), one.transaction_id, now)


async def test_a_message_that_is_popped_while_it_is_given_up_stays_with_its_consumer(
    queues: QueuesSlice, now: datetime, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    (one,) = await push(queues, "orders", now, 1)
    partition_id = UUID(one.partition_id)
    await settle(queues, await pop(queues, "orders", now, "g"), now, "retry")
    partition = (await queues.catalog.by_id([partition_id]))[partition_id]
    group_no = await queues.catalog.group(partition.queue, "g")
    assert group_no is not None
    places = [partition.partition_no], [group_no]
    async with ledger.transaction() as tx:
        rows = await store.pop(tx, now, [1], [1], [False], [uuid4()], ["worker"], [1], *places)
        assert [row["outcome"] for row in rows] == ["messages", "claimed"]
        giving_up = asyncio.create_task(queues.letters.give_up(partition_id, one.transaction_id, now))
        await someone_waits(connection)
    with pytest.raises(Conflict, match="being processed"):
        await giving_up
    assert await letters(queues) == []
    assert await connection.fetchval("SELECT count(*) FROM audit_events") == 0


async def test_letters_whose_key_is_refused_are_null_and_the_others_are_shown(
    queues: QueuesSlice, now: datetime, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    await bury(queues, now, "plain")
    await queues.catalog.configure("orders", now, {"encryptionEnabled": True})
    await bury(queues, now + timedelta(seconds=1), "secret")
    elsewhere = tmp_path / "another master key"
    elsewhere.mkdir()
    async with queue_process(database_url, redis_url, elsewhere) as stranger:
        assert await letters(stranger.slices.queues) == [None, "plain"]


async def test_letters_of_an_encrypted_queue_are_listed_decrypted_and_put_back_encrypted(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await queues.catalog.configure("orders", now, {"encryptionEnabled": True})
    partition = await bury(queues, now, "secret 1")
    assert await letters(queues) == ["secret 1"]
    await queues.letters.retry(partition, "id secret 1", now)
    assert await consume(queues, "orders", now, "g") == ["secret 1"]
    bodies = [bytes(row["body"]) for row in await connection.fetch("SELECT body FROM queue_chunks")]
    assert len(bodies) == 2
    assert not any(b"secret" in body for body in bodies)


async def test_a_plain_letter_of_a_queue_that_is_encrypted_by_now_is_put_back_encrypted(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    partition = await bury(queues, now, "secret 1")
    await queues.catalog.configure("orders", now, {"encryptionEnabled": True})
    await queues.letters.retry(partition, "id secret 1", now)
    newest = await connection.fetchrow("SELECT key_id, body FROM queue_chunks ORDER BY end_position DESC LIMIT 1")
    assert newest["key_id"] is not None
    assert b"secret" not in newest["body"]
    assert await consume(queues, "orders", now, "g") == ["secret 1"]


async def test_marks_of_copies_leave_with_their_messages(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    partition = await bury(queues, now, 1)
    await queues.letters.retry(partition, "id 1", now)
    await queues.letters.prune(now)
    assert await connection.fetchval("SELECT count(*) FROM queue_put_back") == 1
    await queues.groups.clear("orders", None, now)
    await queues.letters.prune(now)
    assert await connection.fetchval("SELECT count(*) FROM queue_put_back") == 0


async def test_what_operators_do_with_letters_is_recorded(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    partition = await bury(queues, now, 1)
    await queues.letters.retry(partition, "id 1", now, by="alice")
    await settle(queues, await pop(queues, "orders", now, "g"), now, "dlq")
    await queues.letters.purge(LetterFilter(queue="orders"), now, by="alice")
    (one,) = await push(queues, "orders", now, 2)
    await settle(queues, await pop(queues, "orders", now, "g"), now, "retry")
    await queues.letters.give_up(partition, one.transaction_id, now, by="alice")
    rows = await connection.fetch("SELECT event_type, actor_nhi FROM audit_events")
    assert {(row["event_type"], row["actor_nhi"]) for row in rows} == {
        ("queue_dead_letters_requeued", "alice"),
        ("queue_dead_letters_purged", "alice"),
        ("queue_message_given_up", "alice"),
    }
