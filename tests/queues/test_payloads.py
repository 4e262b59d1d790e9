"""Payloads of encrypted queues: each opens in its own place only, by the key that is stored beside it, and no key means
no encryption, never plaintext."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from angelia.errors import Unavailable
from angelia.keys import data_key_rotation, master_key
from angelia.keys.data_key_rotation import DataKeys
from angelia.keys.field_encryption import ACTIVE_FOR, Fields, settle_master_key
from angelia.keys.master_key import CorruptRecord, FileKeyProvider
from angelia.keys.model import DataKeyPurpose
from angelia.queues.model import ChunkIds, Options, Partition, Queue
from angelia.queues.payloads import EncryptionUnavailable, Payloads
from angelia.stores.ledger import Ledger

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
OWN = bytes(range(32))
TEXTS = [b"", b"null", b'{"a":1}', b"x" * 100_000]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "master.key"


@pytest.fixture
def held(path: Path) -> FileKeyProvider:
    return master_key.make(path)


@pytest.fixture
def payloads(ledger: Ledger, held: FileKeyProvider) -> Payloads:
    return Payloads(ledger, Fields(held), None)


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[Ledger]:
    """The ledger as another process sees it."""
    ledger = await Ledger.open(database_url)
    yield ledger
    await ledger.close()


def a_partition(queue: str = "orders", name: str = "eu") -> Partition:
    options = Options(encryption_enabled=True)
    of = Queue(
        queue_no=1,
        queue_id=uuid.UUID(int=1),
        name=queue,
        namespace="",
        task="",
        created_at=NOW,
        options=options,
        options_version=1,
    )
    return Partition(partition_no=1, partition_id=uuid.UUID(int=2), name=name, options=options, queue=of)


PLACE = a_partition()
IDS = ChunkIds.made(1_800_000_000_000, bytes(range(10)))


async def seal(
    payloads: Payloads, texts: list[bytes], now: datetime = NOW, place: Partition = PLACE
) -> tuple[uuid.UUID, list[bytes]]:
    await payloads.ready(now)
    return payloads.sealed(place, IDS, texts)


async def open_(
    payloads: Payloads, key_id: uuid.UUID, sealed: bytes, number: int = 0, place: Partition = PLACE
) -> bytes:
    return (await payloads.opener(key_id)).open(place, IDS.text(number), sealed)


def errors(operation: str) -> float:
    return REGISTRY.get_sample_value("angelia_queue_encryption_errors_total", {"operation": operation}) or 0.0


# One payload.


async def test_what_is_sealed_opens_in_this_process_and_in_another(
    payloads: Payloads, second: Ledger, held: FileKeyProvider
) -> None:
    key_id, sealed = await seal(payloads, TEXTS)
    assert [len(one) for one in sealed] == [12 + len(text) + 16 for text in TEXTS]
    for reader in (payloads, Payloads(second, Fields(held), None)):
        assert [await open_(reader, key_id, one, number) for number, one in enumerate(sealed)] == TEXTS


@pytest.mark.parametrize(
    ("place", "number"),
    [
        (PLACE, 1),
        (a_partition(name="us"), 0),
        (a_partition("invoices"), 0),
        (a_partition("orderse", "u"), 0),
        (a_partition("order", "seu"), 0),
        (a_partition("", "orderseu"), 0),
    ],
    ids=["message", "partition", "queue", "shifted", "shifted back", "one name"],
)
async def test_a_payload_that_was_moved_elsewhere_does_not_open(
    payloads: Payloads, place: Partition, number: int
) -> None:
    key_id, (sealed,) = await seal(payloads, [b"text"])
    before = errors("decrypt")
    with pytest.raises(CorruptRecord):
        await open_(payloads, key_id, sealed, number, place)
    assert errors("decrypt") == before + 1


async def test_a_damaged_payload_does_not_open(payloads: Payloads) -> None:
    key_id, (sealed,) = await seal(payloads, [b"text"])
    damaged = [sealed[:n] + bytes([sealed[n] ^ 1]) + sealed[n + 1 :] for n in range(len(sealed))]
    for one in [*damaged, *(sealed[:n] for n in range(len(sealed))), sealed + b"\0", b"null", b'{"a":1}']:
        with pytest.raises(CorruptRecord):
            await open_(payloads, key_id, one)


@given(queue=st.text(max_size=255), name=st.text(max_size=255), noise=st.binary(min_size=10, max_size=10))
def test_a_payload_is_bound_to_queue_partition_and_id_each_with_its_length(queue: str, name: str, noise: bytes) -> None:
    ledger: Any = None
    ids = ChunkIds.made(1_800_000_000_000, noise)
    _, sealed = Payloads(ledger, ledger, OWN).sealed(a_partition(queue, name), ids, [b"first", b"second"])
    parts = [queue.encode(), name.encode(), uuid.UUID(ids.text(1)).bytes]
    bound = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    assert AESGCM(OWN).decrypt(sealed[1][:12], sealed[1][12:], bound) == b"second"


async def test_the_time_of_a_chunk_is_measured_once(payloads: Payloads) -> None:
    def chunks() -> float:
        return REGISTRY.get_sample_value("angelia_queue_encryption_seconds_count") or 0.0

    before = chunks()
    await seal(payloads, [b"text"] * 100)
    assert chunks() == before + 1


# Keys.


async def test_known_keys_ask_the_ledger_nothing(payloads: Payloads, ledger: Ledger) -> None:
    key_id, (sealed,) = await seal(payloads, [b"text"])
    await payloads.ready(NOW)
    await payloads.opener(key_id)
    await ledger.close()
    await seal(payloads, [b"text"])
    assert await open_(payloads, key_id, sealed) == b"text"


async def test_a_new_master_key_wraps_the_key_again_and_old_payloads_open(
    payloads: Payloads, ledger: Ledger, path: Path, connection: asyncpg.Connection
) -> None:
    key_id, (sealed,) = await seal(payloads, [b"text"])
    wrapped = await connection.fetchval("SELECT wrapped_key FROM data_keys")
    await settle_master_key(ledger, path, NOW, rotate=True)
    assert await connection.fetchval("SELECT wrapped_key FROM data_keys") != wrapped
    restarted = Payloads(ledger, Fields(master_key.load(path)), None)
    assert await open_(restarted, key_id, sealed) == b"text"
    assert (await seal(restarted, [b"text"]))[0] == key_id


async def test_after_a_rotation_by_hand_old_payloads_open_and_new_ones_have_the_new_key(
    payloads: Payloads, ledger: Ledger, second: Ledger, held: FileKeyProvider
) -> None:
    old_id, (old,) = await seal(payloads, [b"old"])
    await payloads.ready(NOW)
    new_id = await DataKeys(second, Fields(held)).rotate(DataKeyPurpose.QUEUE, NOW, "ann")
    assert (await seal(payloads, [b"text"], NOW + ACTIVE_FOR - timedelta(seconds=1)))[0] == old_id
    assert payloads.key_id == old_id
    found_id, (new,) = await seal(payloads, [b"new"], NOW + ACTIVE_FOR)
    assert payloads.key_id == found_id == new_id != old_id
    for reader in (payloads, Payloads(second, Fields(held), None)):
        assert await open_(reader, old_id, old) == b"old"
        assert await open_(reader, new_id, new) == b"new"


async def test_a_key_is_replaced_before_it_encrypted_too_much(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_key_rotation, "RESERVED_AT_ONCE", 10)
    monkeypatch.setattr(data_key_rotation, "MOST_USES", 50)
    stored = [await seal(payloads, [b"text"] * 5) for _ in range(30)]
    used = [sum(key_id == one for one, _ in stored) * 5 for key_id in {key_id for key_id, _ in stored}]
    assert len(used) == 3
    assert max(used) <= 50
    for key_id, sealed in stored:
        assert await open_(payloads, key_id, sealed[4], 4) == b"text"


async def test_an_unknown_key_is_named(payloads: Payloads) -> None:
    missing = uuid.uuid4()
    with pytest.raises(CorruptRecord, match=str(missing)) as caught:
        await payloads.opener(missing)
    assert "queue_encryption_key" in caught.value.hint


# No key.


async def test_another_master_key_refuses_to_encrypt_and_says_why(
    payloads: Payloads, ledger: Ledger, tmp_path: Path, connection: asyncpg.Connection
) -> None:
    key_id, _ = await seal(payloads, [b"text"])
    stranger = Payloads(ledger, Fields(master_key.make(tmp_path / "another")), None)
    before = errors("encrypt")
    with pytest.raises(EncryptionUnavailable, match="another master key") as caught:
        await stranger.ready(NOW)
    assert "same master key file" in caught.value.hint
    assert errors("encrypt") == before + 1
    assert stranger.key_id is None
    with pytest.raises(Unavailable):
        await stranger.opener(key_id)
    assert await connection.fetchval("SELECT count(*) FROM data_keys") == 1


async def test_a_damaged_data_key_refuses_until_an_operator_rotates_it(
    payloads: Payloads, ledger: Ledger, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    await seal(payloads, [b"text"])
    await connection.execute("UPDATE data_keys SET wrapped_key = '\\x00'")
    restarted = Payloads(ledger, Fields(held), None)
    with pytest.raises(EncryptionUnavailable) as caught:
        await restarted.ready(NOW)
    assert "angelia key rotate-data queue" in caught.value.hint
    await DataKeys(ledger, Fields(held)).rotate(DataKeyPurpose.QUEUE, NOW, "ann")
    key_id, (sealed,) = await seal(restarted, [b"text"])
    assert await open_(restarted, key_id, sealed) == b"text"


async def test_a_ledger_that_is_away_is_no_missing_key(held: FileKeyProvider) -> None:
    away = Payloads(await Ledger.open("postgresql://nobody@127.0.0.1:1/none"), Fields(held), None)
    with pytest.raises(Unavailable) as caught:
        await away.ready(NOW)
    assert caught.value.code == "unavailable"


# An own key of the operator.


async def test_an_own_key_encrypts_in_place_of_the_data_key_and_is_stored_nowhere(
    ledger: Ledger, second: Ledger, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    own = Payloads(ledger, Fields(held), OWN)
    key_id, (sealed,) = await seal(own, [b"text"])
    assert own.key_id == key_id
    assert await connection.fetchval("SELECT count(*) FROM data_keys") == 0
    assert await open_(Payloads(second, Fields(held), OWN), key_id, sealed) == b"text"


async def test_an_own_key_has_the_same_id_everywhere_and_another_key_another_one(
    ledger: Ledger, held: FileKeyProvider
) -> None:
    ids = [Payloads(ledger, Fields(held), key).key_id for key in (OWN, OWN, OWN[::-1])]
    assert str(ids[0]) == "a15dbaed-30d8-f58a-d34c-bc5b2b8dcfc5"
    assert ids[0] == ids[1] != ids[2]


async def test_what_data_keys_encrypted_opens_also_with_an_own_key(
    payloads: Payloads, ledger: Ledger, held: FileKeyProvider
) -> None:
    key_id, (sealed,) = await seal(payloads, [b"text"])
    own = Payloads(ledger, Fields(held), OWN)
    assert await open_(own, key_id, sealed) == b"text"
    assert (await seal(own, [b"text"]))[0] != key_id


async def test_without_its_own_key_a_payload_does_not_open_until_the_key_is_set_again(
    ledger: Ledger, held: FileKeyProvider
) -> None:
    key_id, (sealed,) = await seal(Payloads(ledger, Fields(held), OWN), [b"text"])
    for other in (None, OWN[::-1]):
        with pytest.raises(CorruptRecord, match=str(key_id)):
            await open_(Payloads(ledger, Fields(held), other), key_id, sealed)
    assert await open_(Payloads(ledger, Fields(held), OWN), key_id, sealed) == b"text"


async def test_an_own_key_encrypts_also_where_the_master_key_does_not_serve(
    payloads: Payloads, ledger: Ledger, tmp_path: Path
) -> None:
    await seal(payloads, [b"text"])
    own = Payloads(ledger, Fields(master_key.make(tmp_path / "another")), OWN)
    key_id, (sealed,) = await seal(own, [b"text"])
    assert await open_(own, key_id, sealed) == b"text"
