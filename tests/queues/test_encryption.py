"""Encrypted queues, the whole way: what is in the ledger, what a consumer gets, and what happens without the key."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from angelia.errors import InvalidArgument
from angelia.keys import master_key
from angelia.keys.field_encryption import ACTIVE_FOR
from angelia.keys.model import DataKeyPurpose
from angelia.queues.model import PopRequest, PushItem
from angelia.queues.slice import QueuesSlice
from assembled_slices import Assembled
from queues.conftest import queue_process

MARK = "a plaintext marker"
PAYLOAD = msgspec.json.encode({"text": MARK})
OWN = "5ec2e7" * 10 + "beef"
Begin = Callable[..., Awaitable[Assembled]]


@pytest.fixture
async def begin(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Begin]:
    """`await begin(queue_encryption_key=…)` starts a process; `directory` has its master key."""
    async with AsyncExitStack() as stack:

        async def process(directory: Path = tmp_path, **values: Any) -> Assembled:
            return await stack.enter_async_context(queue_process(database_url, redis_url, directory, **values))

        yield process


@pytest.fixture
async def queues(begin: Begin, now: datetime) -> QueuesSlice:
    """A process, and in it the encrypted queue `vault`."""
    found = (await begin()).slices.queues
    await encrypt(found, now, enabled=True)
    return found


async def encrypt(queues: QueuesSlice, now: datetime, *, enabled: bool) -> None:
    await queues.catalog.configure("vault", now, {"encryptionEnabled": enabled})


async def push(queues: QueuesSlice, now: datetime, *names: str) -> list[str]:
    """Pushes a message for each name to the queue `vault`. Returns what became of each."""
    items = [PushItem("vault", payload=msgspec.Raw(PAYLOAD), transaction_id=name) for name in names]
    return [one.status for one in await queues.pushes.push(items, None, now)]


async def pop(queues: QueuesSlice, now: datetime, **how: Any) -> dict[str, bytes]:
    """The payloads that a consumer gets of the queue `vault`, by transaction id."""
    found = await queues.claims.pop(PopRequest(queue="vault", batch=100, **how), now)
    return {} if found is None else {one.transaction_id: bytes(one.data) for one in found.messages}


async def stored(connection: asyncpg.Connection) -> str:
    """Every row of every table, as text."""
    text = ""
    for table in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        rows = await connection.fetch(f"SELECT t::text AS line FROM {table['tablename']} t")  # noqa: S608
        text += "\n".join(row["line"] for row in rows)
    return text


def is_in(content: str, stored: str) -> bool:
    forms = (content, content.encode().hex(), base64.b64encode(content.encode()).decode().rstrip("=")[:-2])
    return any(form in stored for form in forms)


async def test_the_ledger_has_ciphertext_and_the_consumer_gets_plaintext(
    queues: QueuesSlice, begin: Begin, now: datetime, connection: asyncpg.Connection
) -> None:
    assert await push(queues, now, "a", "b") == ["queued", "queued"]
    assert not is_in(MARK, await stored(connection))
    assert await pop(queues, now, group="here") == {"a": PAYLOAD, "b": PAYLOAD}
    assert await pop((await begin()).slices.queues, now, group="there") == {"a": PAYLOAD, "b": PAYLOAD}


async def test_a_queue_that_is_not_encrypted_shows_its_payloads(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await encrypt(queues, now, enabled=False)
    await push(queues, now, "a")
    assert is_in(MARK, await stored(connection))


async def test_with_encryption_switched_off_new_messages_are_plain_and_old_ones_still_open(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await push(queues, now, "old")
    await encrypt(queues, now, enabled=False)
    await push(queues, now, "new")
    kinds = await connection.fetch("SELECT transaction_ids[1] AS id, key_id IS NULL AS plain FROM queue_chunks")
    assert {row["id"]: row["plain"] for row in kinds} == {"old": False, "new": True}
    assert await pop(queues, now) == {"old": PAYLOAD, "new": PAYLOAD}


async def test_a_process_that_does_not_know_yet_that_a_queue_is_encrypted_stores_no_plaintext(
    queues: QueuesSlice, begin: Begin, now: datetime, connection: asyncpg.Connection
) -> None:
    await encrypt(queues, now, enabled=False)
    other = (await begin()).slices.queues
    await push(other, now, "before")
    await connection.execute("DELETE FROM queue_chunks")
    await encrypt(queues, now, enabled=True)
    assert await push(other, now, "after") == ["queued"]
    assert not is_in(MARK, await stored(connection))


async def test_a_payload_that_looks_encrypted_is_delivered_as_it_was_pushed(queues: QueuesSlice, now: datetime) -> None:
    await encrypt(queues, now, enabled=False)
    looks = msgspec.json.encode({"encrypted": "AAAA", "iv": "AAAA", "authTag": "AAAA"})
    await queues.pushes.push([PushItem("vault", payload=msgspec.Raw(looks), transaction_id="a")], None, now)
    assert await pop(queues, now) == {"a": looks}


async def test_messages_under_old_and_new_keys_are_delivered_together(
    begin: Begin, now: datetime, connection: asyncpg.Connection
) -> None:
    process = await begin()
    queues, keys = process.slices.queues, process.slices.keys
    await encrypt(queues, now, enabled=True)
    await push(queues, now, "a")
    await keys.data_keys.rotate(DataKeyPurpose.QUEUE, now, "ann")
    await push(queues, now + ACTIVE_FOR, "b")
    own = (await begin(queue_encryption_key=OWN)).slices.queues
    await push(own, now + ACTIVE_FOR, "c")
    assert await connection.fetchval("SELECT count(DISTINCT key_id) FROM queue_chunks") == 3
    assert await pop(own, now + ACTIVE_FOR) == {"a": PAYLOAD, "b": PAYLOAD, "c": PAYLOAD}


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_a_message_whose_key_is_gone_becomes_a_dead_letter_that_names_the_key(
    begin: Begin, now: datetime, connection: asyncpg.Connection, auto_ack: bool
) -> None:
    own = (await begin(queue_encryption_key=OWN)).slices.queues
    await encrypt(own, now, enabled=True)
    await push(own, now, "a")
    without = (await begin()).slices.queues
    await push(without, now, "b")
    assert await pop(without, now, auto_ack=auto_ack) == {"b": PAYLOAD}
    (dead,) = await connection.fetch("SELECT * FROM queue_dead_letters")
    assert (dead["transaction_id"], dead["key_id"]) == ("a", own.payloads.key_id)
    assert str(own.payloads.key_id) in dead["error"]
    # With the key set again, the dead letter can be read.
    opener = await own.payloads.opener(dead["key_id"])
    (place,) = (await own.catalog.by_no([dead["partition_no"]])).values()
    assert opener.open(place, str(dead["message_id"]), dead["body"]) == PAYLOAD


async def test_payloads_that_were_swapped_in_the_ledger_are_not_delivered(
    queues: QueuesSlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await push(queues, now, "a")
    await push(queues, now, "b")
    await connection.execute(
        "UPDATE queue_chunks SET body = (SELECT o.body FROM queue_chunks o WHERE o.transaction_ids = '{a}')"
        " WHERE transaction_ids = '{b}'"
    )
    assert await pop(queues, now) == {"a": PAYLOAD}
    assert await connection.fetchval("SELECT transaction_id FROM queue_dead_letters") == "b"


async def test_without_a_key_nothing_is_configured_and_nothing_is_stored(
    queues: QueuesSlice, begin: Begin, now: datetime, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    await push(queues, now, "a")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    master_key.make(elsewhere / "master.key")
    stranger = (await begin(elsewhere)).slices.queues
    with pytest.raises(InvalidArgument, match="another master key"):
        await stranger.catalog.configure("safe", now, {"encryptionEnabled": True})
    assert await connection.fetchval("SELECT count(*) FROM queues WHERE name = 'safe'") == 0
    items = [
        PushItem("vault", payload=msgspec.Raw(PAYLOAD), transaction_id="b"),
        PushItem("open", payload=msgspec.Raw(b"1"), transaction_id="c"),
    ]
    refused, taken = await stranger.pushes.push(items, None, now)
    assert (refused.status, taken.status) == ("failed", "queued")
    assert "another master key" in (refused.error or "")
    assert not is_in(MARK, await stored(connection))
    assert await pop(queues, now) == {"a": PAYLOAD}
