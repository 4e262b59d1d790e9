"""Data keys for batches: encrypted in one call, counted before they are used, and replaced by hand or by themselves."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from angelia.errors import Unavailable
from angelia.keys import data_key_rotation, field_encryption, master_key
from angelia.keys.data_key_rotation import CountedKey, DataKeys
from angelia.keys.field_encryption import ACTIVE_FOR, DataKey, Fields
from angelia.keys.master_key import CorruptRecord, FileKeyProvider, KeyRefused
from angelia.keys.model import DataKeyPurpose
from angelia.stores.ledger import Ledger, Tx
from http_agents import Server
from keyholder import KeyHolder, audited

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
STEP = 100


@pytest.fixture
def held(tmp_path: Path) -> FileKeyProvider:
    return master_key.make(tmp_path / "master.key")


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[Ledger]:
    """The ledger as another process sees it."""
    ledger = await Ledger.open(database_url)
    yield ledger
    await ledger.close()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is replaced after ten reservations."""
    monkeypatch.setattr(data_key_rotation, "RESERVED_AT_ONCE", STEP)
    monkeypatch.setattr(data_key_rotation, "MOST_USES", 10 * STEP)


def counted(ledger: Ledger, held: FileKeyProvider) -> CountedKey:
    """The key as a process has it that was just started."""
    return CountedKey(ledger, Fields(held), DataKeyPurpose.QUEUE)


async def encrypt(key: CountedKey, count: int = 1, now: datetime = NOW) -> uuid.UUID:
    """Encrypts so many messages at once. Returns the id of the key."""
    await key.ready(now)
    return key.encrypt_batch([b""] * count, [b"x"] * count)[0]


async def uses(connection: asyncpg.Connection) -> dict[uuid.UUID, int]:
    """How often each key was used, or reserved for use."""
    found = await connection.fetch("SELECT key_id, used FROM data_keys")
    return {row["key_id"]: row["used"] for row in found}


# A batch.


def a_key(text: bytes = b"k" * 32) -> DataKey:
    return DataKey.of(uuid.UUID(int=1), text)


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=200))))
def test_each_message_of_a_batch_opens_by_itself(messages: list[tuple[bytes, bytes]]) -> None:
    key = a_key()
    sealed = key.encrypt_batch([bound for bound, _ in messages], [text for _, text in messages])
    assert [len(one) for one in sealed] == [12 + len(text) + 16 for _, text in messages]
    for one, (bound, text) in zip(sealed, messages, strict=True):
        assert key.decrypt(bound, one) == text


def test_a_batch_is_what_any_implementation_of_aes_gcm_reads() -> None:
    (sealed,) = a_key().encrypt_batch([b"bound"], [b"text"])
    assert AESGCM(b"k" * 32).decrypt(sealed[:12], sealed[12:], b"bound") == b"text"


def test_the_nonces_of_a_batch_are_drawn_at_once_and_all_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def noted(count: int) -> bytes:
        drawn.append(count)
        return os.urandom(count)

    class Noted:
        urandom = staticmethod(noted)

    monkeypatch.setattr(field_encryption, "os", Noted)
    sealed = a_key().encrypt_batch([b""] * 1000, [b"same"] * 1000)
    assert drawn == [12_000]
    assert len({one[:12] for one in sealed}) == 1000


def test_a_batch_needs_a_place_for_each_message() -> None:
    with pytest.raises(ValueError, match="shorter"):
        a_key().encrypt_batch([b""], [b"one", b"two"])


def test_what_is_damaged_or_moved_or_of_another_key_does_not_open() -> None:
    (sealed,) = a_key().encrypt_batch([b"here"], [b"text"])
    damaged = [sealed[:n] + bytes([sealed[n] ^ 1]) + sealed[n + 1 :] for n in range(len(sealed))]
    damaged += [sealed[:n] for n in range(len(sealed))] + [sealed + b"\0"]
    tries = [(a_key(), b"here", one) for one in damaged]
    tries += [(a_key(), b"there", sealed), (a_key(b"l" * 32), b"here", sealed)]
    for key, bound, one in tries:
        with pytest.raises(CorruptRecord):
            key.decrypt(bound, one)


def test_a_data_key_shows_nothing_of_itself() -> None:
    assert repr(a_key()) == f"DataKey(key_id={uuid.UUID(int=1)!r})"


async def test_old_keys_are_found_by_their_id(ledger: Ledger, second: Ledger, held: FileKeyProvider) -> None:
    key = counted(ledger, held)
    await key.ready(NOW)
    key_id, (sealed,) = key.encrypt_batch([b"bound"], [b"text"])
    await DataKeys(ledger, Fields(held)).rotate(DataKeyPurpose.QUEUE, NOW, "ann")
    async with second.reading() as tx:
        assert (await Fields(held).by_id(tx, key_id)).decrypt(b"bound", sealed) == b"text"
        with pytest.raises(CorruptRecord):
            await Fields(held).by_id(tx, uuid.uuid4())


# Counting.


def test_a_key_is_replaced_before_it_encrypted_2_to_the_31_messages() -> None:
    assert data_key_rotation.MOST_USES + 8 * data_key_rotation.RESERVED_AT_ONCE < 1 << 31


@pytest.mark.usefixtures("small_steps")
async def test_encryptions_are_counted_before_they_happen(
    ledger: Ledger, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    key = counted(ledger, held)
    await key.ready(NOW)
    assert list((await uses(connection)).values()) == [STEP]
    for _ in range(STEP // 2):
        await encrypt(key)
    assert list((await uses(connection)).values()) == [STEP]
    await encrypt(key)
    await encrypt(key)
    assert list((await uses(connection)).values()) == [2 * STEP]


@pytest.mark.usefixtures("small_steps")
async def test_what_a_process_reserved_and_did_not_use_counts_as_used(
    ledger: Ledger, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    for started in range(1, 6):
        await encrypt(counted(ledger, held))
        assert list((await uses(connection)).values()) == [started * STEP]


@pytest.mark.usefixtures("small_steps")
async def test_a_batch_larger_than_the_reservation_is_counted_afterwards(
    ledger: Ledger, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    key = counted(ledger, held)
    await encrypt(key, 3 * STEP)
    await key.ready(NOW)
    assert list((await uses(connection)).values()) == [4 * STEP]


@pytest.mark.usefixtures("small_steps")
async def test_a_key_that_is_used_up_is_replaced_by_itself(
    ledger: Ledger, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    key, used_by = counted(ledger, held), dict[uuid.UUID, int]()
    for _ in range(25 * STEP):
        key_id = await encrypt(key)
        used_by[key_id] = used_by.get(key_id, 0) + 1
    assert len(used_by) == 3
    assert all(count <= 10 * STEP for count in used_by.values())
    assert set(used_by) == set(await uses(connection))
    events = await connection.fetch("SELECT * FROM audit_events")
    kinds = {(row["event_type"], row["actor_nhi"], row["object_nhi"]) for row in events}
    assert kinds == {("data_key_rotated", "angelia", "queue")}
    first, then, last = map(str, used_by)
    details = [json.loads(row["detail"]) for row in events]
    assert {(detail["from"], detail["to"]) for detail in details} == {(first, then), (then, last)}


@pytest.mark.usefixtures("small_steps")
async def test_of_processes_that_use_up_a_key_together_one_replaces_it(
    database_url: str, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    ledgers = [await Ledger.open(database_url, 4) for _ in range(6)]
    processes = [counted(ledger, held) for ledger in ledgers]
    used_by: dict[uuid.UUID, int] = {}

    async def work(key: CountedKey) -> None:
        for _ in range(5 * STEP):
            key_id = await encrypt(key)
            used_by[key_id] = used_by.get(key_id, 0) + 1

    await asyncio.gather(*map(work, processes))
    for ledger in ledgers:
        await ledger.close()
    assert all(count <= 10 * STEP for count in used_by.values())
    assert set(used_by) == set(await uses(connection))
    assert 3 <= len(used_by) <= 5  # 3,000 messages, and what each process gave up when the key changed
    assert all(used <= 10 * STEP for used in (await uses(connection)).values())


@pytest.mark.usefixtures("small_steps")
async def test_requests_that_come_at_once_reserve_once(
    ledger: Ledger, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    key = counted(ledger, held)
    assert len(set(await asyncio.gather(*(encrypt(key) for _ in range(STEP // 2))))) == 1
    assert list((await uses(connection)).values()) == [STEP]


@pytest.mark.usefixtures("small_steps")
async def test_a_reservation_that_was_not_committed_is_none(
    ledger: Ledger, held: FileKeyProvider, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = counted(ledger, held)

    @asynccontextmanager
    async def fails_to_commit() -> AsyncIterator[Tx]:
        async with Ledger.transaction(ledger) as tx:
            yield tx
            raise Unavailable

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "transaction", fails_to_commit)
        with pytest.raises(Unavailable):
            await key.ready(NOW)
    assert key.key_id is None
    key_id = await encrypt(key)
    assert await uses(connection) == {key_id: STEP}


async def test_a_known_key_asks_the_ledger_nothing(ledger: Ledger, held: FileKeyProvider) -> None:
    key = counted(ledger, held)
    await key.ready(NOW)
    await key.ready(NOW)  # the first use only makes the key; a later one finds it committed
    await ledger.close()
    await encrypt(key, now=NOW + ACTIVE_FOR - timedelta(seconds=1))


async def test_no_key_is_had_from_another_master_key_or_a_damaged_row(
    ledger: Ledger, held: FileKeyProvider, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    await encrypt(counted(ledger, held))
    with pytest.raises(KeyRefused, match="another master key"):
        await counted(ledger, master_key.make(tmp_path / "another")).ready(NOW)
    await connection.execute("UPDATE data_keys SET wrapped_key = '\\x00'")
    with pytest.raises(CorruptRecord):
        await counted(ledger, held).ready(NOW)


# Rotation by hand.


async def test_a_rotation_reaches_its_own_process_at_once_and_the_others_within_a_minute(
    ledger: Ledger, second: Ledger, held: FileKeyProvider
) -> None:
    fields = Fields(held)
    here, there = CountedKey(ledger, fields, DataKeyPurpose.QUEUE), counted(second, held)
    old = await encrypt(here)
    assert await encrypt(there) == await encrypt(there) == await encrypt(here) == old
    new = await DataKeys(ledger, fields).rotate(DataKeyPurpose.QUEUE, NOW, "ann")
    assert await encrypt(here) == new != old
    assert await encrypt(there, now=NOW + ACTIVE_FOR - timedelta(seconds=1)) == old
    assert await encrypt(there, now=NOW + ACTIVE_FOR) == new


async def test_operators_rotate_a_data_key_and_the_audit_says_so(
    server: Server, connection: asyncpg.Connection
) -> None:
    before = None
    for _ in range(2):
        answer = await server.post("/v1/keys/data/queue/rotate", headers=server.admin)
        assert answer.status_code == 201
        made = answer.json()
        assert made == {"purpose": "queue", "key_id": made["key_id"]}
        (event,) = await connection.fetch(
            "SELECT * FROM audit_events WHERE event_type = 'data_key_rotated' AND detail->>'to' = $1", made["key_id"]
        )
        assert event["actor_nhi"].startswith("token ")
        assert event["object_nhi"] == "queue"
        assert json.loads(event["detail"]) == {"from": before, "to": made["key_id"]}
        before = made["key_id"]
    active = "SELECT key_id::text FROM data_keys WHERE purpose = 'queue' AND active"
    assert await connection.fetchval(active) == before


async def test_only_operators_rotate_a_data_key(
    server: Server, alice: KeyHolder, connection: asyncpg.Connection
) -> None:
    for answer in (
        await server.post("/v1/keys/data/queue/rotate"),
        await alice.post(server, "/v1/keys/data/queue/rotate"),
    ):
        assert answer.status_code in (401, 403)
    assert await uses(connection) == {}
    assert "data_key_rotated" not in [kind for kind, _, _ in await audited(connection)]


async def test_there_are_no_other_data_keys(server: Server, connection: asyncpg.Connection) -> None:
    answer = await server.post("/v1/keys/data/mail/rotate", headers=server.admin)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.json()["hint"] == "there are grace_period_keys, queue"
    assert await uses(connection) == {}
