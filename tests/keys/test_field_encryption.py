"""Field encryption: a ciphertext opens in its own place only, keys are made once, and a rotation survives any death."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import logging
import stat
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.cli.main import run
from angelia.errors import StartFailed, Unavailable
from angelia.keys import master_key
from angelia.keys.field_encryption import ACTIVE_FOR, FieldPlace, Fields, settle_master_key
from angelia.keys.master_key import CorruptRecord, FileKeyProvider, next_of
from angelia.stores.ledger import Ledger, Tx

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
PLACE = FieldPlace("messages", b"row 1", "payload")
SECRET = b"a plaintext marker"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "master.key"


@pytest.fixture
def held(path: Path) -> FileKeyProvider:
    return master_key.make(path)


@pytest.fixture
def fields(held: FileKeyProvider) -> Fields:
    return Fields(held)


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[Ledger]:
    """The ledger as another process sees it."""
    ledger = await Ledger.open(database_url)
    yield ledger
    await ledger.close()


def key_in(path: Path) -> bytes:
    return path.read_bytes()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def lose(path: Path) -> None:
    path.unlink()


async def encrypt(
    ledger: Ledger, fields: Fields, plaintext: bytes = SECRET, purpose: str = "queue", now: datetime = NOW
) -> bytes:
    async with ledger.transaction() as tx:
        return await fields.encrypt(tx, purpose, PLACE, plaintext, now)


async def decrypt(ledger: Ledger, fields: Fields, sealed: bytes, place: FieldPlace = PLACE) -> bytes:
    async with ledger.transaction() as tx:
        return await fields.decrypt(tx, place, sealed)


async def rotate(ledger: Ledger, fields: Fields, purpose: str = "queue", now: datetime = NOW) -> uuid.UUID:
    async with ledger.transaction() as tx:
        return await fields.rotate_data_key(tx, purpose, now)


async def rows(connection: asyncpg.Connection) -> list[Any]:
    return list(await connection.fetch("SELECT * FROM data_keys ORDER BY created_at, key_id"))


class Gone(Exception):
    """A transaction that is given up."""


async def given_up(ledger: Ledger, work: Any) -> Any:
    """Do something in a transaction that is rolled back; what it gave."""
    with contextlib.suppress(Gone):
        async with ledger.transaction() as tx:
            found = await work(tx)
            raise Gone
    return found


# One ciphertext.


@pytest.mark.parametrize("plaintext", [b"", b"x", SECRET, b"x" * 100_000], ids=["none", "one", "some", "many"])
async def test_what_is_encrypted_is_decrypted(ledger: Ledger, fields: Fields, plaintext: bytes) -> None:
    sealed = await encrypt(ledger, fields, plaintext)
    assert await decrypt(ledger, fields, sealed) == plaintext
    assert len(sealed) == 16 + 12 + len(plaintext) + 16


async def test_a_ciphertext_starts_with_the_id_of_its_data_key(
    ledger: Ledger, fields: Fields, connection: asyncpg.Connection
) -> None:
    sealed = await encrypt(ledger, fields)
    (row,) = await rows(connection)
    assert sealed[:16] == row["key_id"].bytes
    assert (row["purpose"], row["active"], row["created_at"]) == ("queue", True, NOW)


async def test_another_process_decrypts_it(ledger: Ledger, fields: Fields, second: Ledger, path: Path) -> None:
    sealed = await encrypt(ledger, fields)
    assert await decrypt(second, Fields(master_key.load(path)), sealed) == SECRET


async def test_the_same_plaintext_never_looks_alike(ledger: Ledger, fields: Fields) -> None:
    nonces = {(await encrypt(ledger, fields))[16:28] for _ in range(50)}
    assert len(nonces) == 50


@pytest.mark.parametrize(
    "place",
    [
        FieldPlace("messages", b"row 2", "payload"),
        FieldPlace("messages", b"row 1", "headers"),
        FieldPlace("dead_letters", b"row 1", "payload"),
        FieldPlace("messagesr", b"ow 1", "payload"),
        FieldPlace("messages", b"row 1p", "ayload"),
        FieldPlace("", b"", ""),
    ],
    ids=str,
)
async def test_a_ciphertext_that_was_moved_elsewhere_opens_nowhere(
    ledger: Ledger, fields: Fields, place: FieldPlace
) -> None:
    sealed = await encrypt(ledger, fields)
    with pytest.raises(CorruptRecord):
        await decrypt(ledger, fields, sealed, place)


@given(a=st.tuples(st.text(), st.binary(), st.text()), b=st.tuples(st.text(), st.binary(), st.text()))
def test_two_places_are_never_bound_alike(a: tuple[str, bytes, str], b: tuple[str, bytes, str]) -> None:
    assert (FieldPlace(*a).bound() == FieldPlace(*b).bound()) == (a == b)


def test_a_place_is_bound_by_its_parts_each_with_its_length() -> None:
    assert FieldPlace("ab", b"\x01", "c").bound() == b"\0\x02ab\0\x01\x01\0\x01c"


async def test_one_flipped_bit_or_lost_byte_is_one_error_that_says_nothing_more(ledger: Ledger, fields: Fields) -> None:
    sealed = await encrypt(ledger, fields)
    damaged = [sealed[:n] + bytes([sealed[n] ^ 1]) + sealed[n + 1 :] for n in range(len(sealed))]
    damaged += [sealed[:n] for n in range(len(sealed))] + [sealed + b"\0"]
    damaged.append(uuid.uuid4().bytes + sealed[16:])  # a data key that nobody knows
    said = set()
    async with ledger.transaction() as tx:
        for each in damaged:
            with pytest.raises(CorruptRecord) as caught:
                await fields.decrypt(tx, PLACE, each)
            error = caught.value
            said.add((error.code, error.message, error.hint, error.__cause__, error.__suppress_context__))
    assert {line[:4] for line in said} == {("corrupt_record", "A stored record is damaged", "", None)}


# Data keys.


async def test_each_purpose_has_one_active_key_of_its_own(
    ledger: Ledger, fields: Fields, connection: asyncpg.Connection
) -> None:
    for purpose in ("queue", "grace", "queue", "grace"):
        await encrypt(ledger, fields, purpose=purpose)
    assert sorted((row["purpose"], row["active"]) for row in await rows(connection)) == [
        ("grace", True),
        ("queue", True),
    ]


async def test_of_processes_that_race_for_the_first_use_one_makes_the_key_and_all_use_it(
    database_url: str, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    ledgers = [await Ledger.open(database_url, 2) for _ in range(8)]
    processes = [Fields(held) for _ in ledgers]
    sealed = await asyncio.gather(*(encrypt(*each) for each in zip(ledgers, processes, strict=True)))
    (row,) = await rows(connection)
    assert {each[:16] for each in sealed} == {row["key_id"].bytes}
    for ledger, process in zip(ledgers, processes, strict=True):
        assert [await decrypt(ledger, process, each) for each in sealed] == [SECRET] * len(sealed)
        await ledger.close()


async def test_whoever_comes_second_waits_for_the_first_and_makes_the_key_if_that_one_gives_up(
    ledger: Ledger, second: Ledger, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    first, waiting = Fields(held), Fields(held)

    async def race(tx: Tx) -> tuple[bytes, asyncio.Task[bytes]]:
        sealed = await first.encrypt(tx, "queue", PLACE, SECRET, NOW)
        task = asyncio.create_task(encrypt(second, waiting))
        blocked = "SELECT count(*) FROM pg_locks WHERE relation = 'data_keys'::regclass AND NOT granted"
        async with asyncio.timeout(10):
            while not await connection.fetchval(blocked):
                assert not task.done()
        return sealed, task

    lost, task = await given_up(ledger, race)
    sealed = await task
    (row,) = await rows(connection)
    assert sealed[:16] == row["key_id"].bytes != lost[:16]


async def test_a_key_that_was_rolled_back_is_never_used_again(
    ledger: Ledger, fields: Fields, second: Ledger, held: FileKeyProvider
) -> None:
    async def twice(tx: Tx) -> bytes:
        await fields.encrypt(tx, "queue", PLACE, SECRET, NOW)
        return await fields.encrypt(tx, "queue", PLACE, SECRET, NOW)

    lost = await given_up(ledger, twice)
    kept = await encrypt(ledger, fields)
    assert kept[:16] != lost[:16]
    assert await decrypt(second, Fields(held), kept) == SECRET
    with pytest.raises(CorruptRecord):
        await decrypt(second, Fields(held), lost)


async def test_a_rotation_that_was_rolled_back_leaves_the_old_key_in_use(
    ledger: Ledger, fields: Fields, second: Ledger, held: FileKeyProvider
) -> None:
    before = await encrypt(ledger, fields)

    async def rotate_and_use(tx: Tx) -> bytes:
        await fields.rotate_data_key(tx, "queue", NOW)
        return await fields.encrypt(tx, "queue", PLACE, SECRET, NOW)

    lost = await given_up(ledger, rotate_and_use)
    after = await encrypt(ledger, fields)
    assert before[:16] == after[:16] != lost[:16]
    assert await decrypt(second, Fields(held), after) == SECRET


async def test_a_new_data_key_serves_new_writes_and_the_old_one_stays_readable(
    ledger: Ledger, fields: Fields, connection: asyncpg.Connection, held: FileKeyProvider
) -> None:
    await encrypt(ledger, fields)
    old = await encrypt(ledger, fields)  # by now the process remembers its active key
    other = await encrypt(ledger, fields, purpose="grace")
    key_id = await rotate(ledger, fields, now=NOW + timedelta(seconds=1))
    new = await encrypt(ledger, fields)
    assert (new[:16], old[:16] == new[:16]) == (key_id.bytes, False)
    assert (await encrypt(ledger, fields, purpose="grace"))[:16] == other[:16]
    assert {row["key_id"].bytes: row["active"] for row in await rows(connection)} == {
        old[:16]: False,
        other[:16]: True,
        new[:16]: True,
    }
    for reader in (fields, Fields(held)):
        assert [await decrypt(ledger, reader, each) for each in (old, other, new)] == [SECRET] * 3


async def test_a_purpose_without_a_key_can_be_rotated(
    ledger: Ledger, fields: Fields, connection: asyncpg.Connection
) -> None:
    key_id = await rotate(ledger, fields)
    assert (await encrypt(ledger, fields))[:16] == key_id.bytes
    assert len(await rows(connection)) == 1


async def test_of_two_rotations_at_once_each_makes_a_key_and_one_is_active(
    ledger: Ledger, second: Ledger, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    await asyncio.gather(rotate(ledger, Fields(held)), rotate(second, Fields(held)))
    assert sorted(row["active"] for row in await rows(connection)) == [False, True]


async def test_another_process_takes_up_the_new_data_key_within_a_minute(
    ledger: Ledger, second: Ledger, held: FileKeyProvider
) -> None:
    slow = Fields(held)
    old = await encrypt(second, slow)
    old_again = await encrypt(second, slow)
    key_id = await rotate(ledger, Fields(held))
    late = await encrypt(second, slow, now=NOW + ACTIVE_FOR - timedelta(seconds=1))
    new = await encrypt(second, slow, now=NOW + ACTIVE_FOR)
    assert old[:16] == old_again[:16] == late[:16] != new[:16] == key_id.bytes
    assert timedelta(minutes=1) == ACTIVE_FOR


class NoTransaction:
    """Fails whoever asks the ledger anything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("the ledger was asked")


async def test_known_keys_ask_the_ledger_nothing(ledger: Ledger, fields: Fields) -> None:
    await encrypt(ledger, fields)
    await encrypt(ledger, fields)  # the first use only makes the key; a later one finds it committed
    nobody: Any = NoTransaction()
    sealed = await fields.encrypt(nobody, "queue", PLACE, SECRET, NOW)
    assert await fields.decrypt(nobody, PLACE, sealed) == SECRET


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE data_keys SET purpose = 'grace' WHERE purpose = 'queue'",
        "UPDATE data_keys SET wrapped_key = set_byte(wrapped_key, 20, get_byte(wrapped_key, 20) # 1)",
        "UPDATE data_keys SET wrapped_key = ''",
        "UPDATE data_keys SET wrapped_key = (SELECT o.wrapped_key FROM data_keys o WHERE o.purpose = 'other')",
    ],
)
async def test_a_wrapped_key_is_bound_to_its_purpose_and_id(
    ledger: Ledger, fields: Fields, held: FileKeyProvider, connection: asyncpg.Connection, change: str
) -> None:
    sealed = await encrypt(ledger, fields)
    await encrypt(ledger, fields, purpose="other")
    await connection.execute(change)
    with pytest.raises(CorruptRecord):
        await decrypt(ledger, Fields(held), sealed)


async def test_an_old_data_key_cannot_be_slipped_under_a_new_id(
    ledger: Ledger, fields: Fields, held: FileKeyProvider, connection: asyncpg.Connection
) -> None:
    await encrypt(ledger, fields)
    await rotate(ledger, fields)
    await connection.execute(
        "UPDATE data_keys n SET wrapped_key = o.wrapped_key FROM data_keys o WHERE n.active AND NOT o.active"
    )
    with pytest.raises(CorruptRecord):
        await encrypt(ledger, Fields(held))


async def test_no_key_is_in_the_ledger(
    ledger: Ledger, held: FileKeyProvider, path: Path, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key_in(path)]

    def spy(self: FileKeyProvider, data_key: bytes, context: bytes, wrap: Any = FileKeyProvider.wrap) -> bytes:
        keys.append(data_key)
        wrapped: bytes = wrap(self, data_key, context)
        return wrapped

    monkeypatch.setattr(FileKeyProvider, "wrap", spy)
    fields = Fields(held)
    await encrypt(ledger, fields)
    await rotate(ledger, fields)
    await settle_master_key(ledger, path, NOW, rotate=True)
    keys.append(key_in(path))
    assert len(set(keys)) == 4  # two data keys, each wrapped twice, and two master keys
    stored = ""
    for table in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        found = await connection.fetch(f"SELECT t::text AS line FROM {table['tablename']} t")  # noqa: S608
        stored += "\n".join(row["line"] for row in found)
    assert (await rows(connection))[0]["wrapped_key"].hex() in stored
    for key in keys:
        for shown in (key.hex(), base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode().rstrip("=")):
            assert shown not in stored


# Servers that do not have the same master key.


async def test_a_process_with_another_master_key_says_so_and_adds_nothing(
    ledger: Ledger, fields: Fields, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    sealed = await encrypt(ledger, fields)
    stranger = Fields(master_key.make(tmp_path / "another"))
    for work in (
        decrypt(ledger, stranger, sealed),
        encrypt(ledger, stranger),
        encrypt(ledger, stranger, purpose="new"),
        rotate(ledger, stranger),
    ):
        with pytest.raises(Unavailable, match="another master key") as caught:
            await work
        assert "same master key file" in caught.value.hint
    assert len(await rows(connection)) == 1


async def test_a_start_whose_master_key_is_not_the_rows_is_refused_and_changes_nothing(
    ledger: Ledger, fields: Fields, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    await encrypt(ledger, fields)
    before = await rows(connection)
    master_key.make(tmp_path / "another")
    for rotating in (False, True):
        with pytest.raises(StartFailed, match="is not the master key") as caught:
            await settle_master_key(ledger, tmp_path / "another", NOW, rotate=rotating)
        assert "back-up" in caught.value.hint
    assert await rows(connection) == before
    assert not (tmp_path / "another.next").exists()


async def test_a_start_that_lost_its_master_key_is_refused_and_makes_none(
    ledger: Ledger, fields: Fields, path: Path
) -> None:
    await encrypt(ledger, fields)
    lose(path)
    with pytest.raises(StartFailed, match="missing"):
        await settle_master_key(ledger, path, NOW, rotate=False)
    assert master_key.find(path) is None


async def test_the_first_start_makes_the_master_key_and_the_second_keeps_it(ledger: Ledger, path: Path) -> None:
    await settle_master_key(ledger, path, NOW, rotate=False)
    made = key_in(path)
    await settle_master_key(ledger, path, NOW, rotate=False)
    assert (key_in(path), mode_of(path)) == (made, 0o600)


# The rotation of the master key.


async def test_a_rotation_wraps_all_data_keys_anew_and_encrypts_no_field_again(
    ledger: Ledger, fields: Fields, path: Path, connection: asyncpg.Connection
) -> None:
    sealed = [await encrypt(ledger, fields), await encrypt(ledger, fields, purpose="grace")]
    await rotate(ledger, fields)
    before, old_key = await rows(connection), key_in(path)
    await settle_master_key(ledger, path, NOW, rotate=True)
    after, held = await rows(connection), master_key.load(path)
    assert key_in(path) != old_key
    assert mode_of(path) == 0o600
    assert not next_of(path).exists()
    assert {row["master_key_id"] for row in after} == {held.master_key_id()}
    for was, now in zip(before, after, strict=True):
        kept = ("purpose", "key_id", "active", "created_at")
        assert [was[name] for name in kept] == [now[name] for name in kept]
        assert was["wrapped_key"] != now["wrapped_key"]
    assert [await decrypt(ledger, Fields(held), each) for each in sealed] == [SECRET] * 2


async def test_the_old_master_key_opens_nothing_afterwards(ledger: Ledger, fields: Fields, path: Path) -> None:
    sealed = await encrypt(ledger, fields)
    old = master_key.load(path)
    await settle_master_key(ledger, path, NOW, rotate=True)
    with pytest.raises(Unavailable):
        await decrypt(ledger, Fields(old), sealed)


async def test_a_running_process_goes_on_with_the_keys_that_it_knows(
    ledger: Ledger, fields: Fields, path: Path
) -> None:
    await encrypt(ledger, fields)
    sealed = await encrypt(ledger, fields)
    await settle_master_key(ledger, path, NOW, rotate=True)
    assert await decrypt(ledger, fields, sealed) == SECRET
    assert await decrypt(ledger, Fields(master_key.load(path)), await encrypt(ledger, fields)) == SECRET


async def test_a_rotation_is_audited_in_its_own_transaction(
    ledger: Ledger, fields: Fields, path: Path, connection: asyncpg.Connection
) -> None:
    await encrypt(ledger, fields)
    old = master_key.load(path).master_key_id()
    await settle_master_key(ledger, path, NOW, rotate=True)
    (found,) = await connection.fetch(
        "SELECT e.actor_nhi, e.detail::text, e.occurred_at, e.xid = d.xmin::text::xid8 AS together"
        " FROM audit_events e, data_keys d WHERE event_type = 'master_key_rotated'"
    )
    new = master_key.load(path).master_key_id()
    assert (found["actor_nhi"], found["occurred_at"], found["together"]) == ("angelia", NOW, True)
    assert found["detail"] == f'{{"to": "{new}", "from": "{old}", "data_keys": 1}}'


async def test_a_master_key_that_wraps_nothing_yet_can_be_rotated(ledger: Ledger, path: Path) -> None:
    await settle_master_key(ledger, path, NOW, rotate=True)
    before = key_in(path)
    await settle_master_key(ledger, path, NOW, rotate=True)
    assert key_in(path) != before
    assert not next_of(path).exists()


class Killed(BaseException):
    """The process ends here, with no chance to tidy up."""


def die(*_: object, **__: object) -> Any:
    raise Killed


@asynccontextmanager
async def dies_before_commit(ledger: Ledger) -> AsyncIterator[Tx]:
    async with Ledger.transaction(ledger) as tx:
        before = await tx.fetchval(ROTATIONS)
        yield tx
        if await tx.fetchval(ROTATIONS) > before:
            raise Killed


ROTATIONS = "SELECT count(*) FROM audit_events WHERE event_type = 'master_key_rotated'"
STEPS = {
    "before the next key": lambda patch, ledger: patch.setattr(master_key, "make", die),
    "after the next key": lambda patch, ledger: patch.setattr(FileKeyProvider, "wrap", die),
    "before the commit": lambda patch, ledger: patch.setattr(ledger, "transaction", lambda: dies_before_commit(ledger)),
    "before the rename": lambda patch, ledger: patch.setattr(master_key, "promote", die),
    "after the rename": lambda patch, ledger: patch.setattr(master_key, "sync_directory", die),
}


async def start_and_die(ledger: Ledger, path: Path, step: str, *, rotating: bool) -> bool:
    """A start that dies at that step, if it comes so far."""
    with pytest.MonkeyPatch.context() as patch:
        STEPS[step](patch, ledger)
        try:
            await settle_master_key(ledger, path, NOW, rotate=rotating)
        except Killed:
            return True
    return False


@pytest.mark.parametrize("step", STEPS)
async def test_a_rotation_killed_at_any_step_is_finished_by_the_next_start_or_was_not_begun(
    ledger: Ledger, fields: Fields, path: Path, connection: asyncpg.Connection, step: str
) -> None:
    sealed, old = await encrypt(ledger, fields), master_key.load(path).master_key_id()
    assert await start_and_die(ledger, path, step, rotating=True)
    following = master_key.find(next_of(path))
    assert (following is None) == (step in ("before the next key", "after the rename"))
    committed = step in ("before the rename", "after the rename")
    assert ((await rows(connection))[0]["master_key_id"] != old) == committed

    await settle_master_key(ledger, path, NOW, rotate=False)
    held = master_key.load(path)
    assert not next_of(path).exists()
    assert (await rows(connection))[0]["master_key_id"] == held.master_key_id()
    assert following is None or held.master_key_id() == following.master_key_id()
    assert (held.master_key_id() == old) == (step == "before the next key")
    assert await connection.fetchval(ROTATIONS) == (0 if step == "before the next key" else 1)
    assert await decrypt(ledger, Fields(held), sealed) == SECRET


@pytest.mark.parametrize(("first", "then"), list(itertools.product(STEPS, STEPS)))
async def test_starts_that_are_killed_one_after_the_other_lose_nothing(
    ledger: Ledger, fields: Fields, path: Path, connection: asyncpg.Connection, first: str, then: str
) -> None:
    sealed = await encrypt(ledger, fields)
    assert await start_and_die(ledger, path, first, rotating=True)
    await start_and_die(ledger, path, then, rotating=True)
    await settle_master_key(ledger, path, NOW, rotate=False)
    held = master_key.load(path)
    assert (await rows(connection))[0]["master_key_id"] == held.master_key_id()
    assert await decrypt(ledger, Fields(held), sealed) == SECRET
    assert not next_of(path).exists()


async def test_servers_that_share_the_file_and_rotate_at_once_end_with_one_key(
    ledger: Ledger, second: Ledger, fields: Fields, path: Path, connection: asyncpg.Connection
) -> None:
    sealed = await encrypt(ledger, fields)
    both = (settle_master_key(each, path, NOW, rotate=True) for each in (ledger, second))
    await asyncio.gather(*both)
    held = master_key.load(path)
    assert (await rows(connection))[0]["master_key_id"] == held.master_key_id()
    assert await decrypt(ledger, Fields(held), sealed) == SECRET
    assert await connection.fetchval(ROTATIONS) == 2


async def test_no_data_key_is_made_under_the_old_master_key_while_it_is_rotated(
    ledger: Ledger, second: Ledger, fields: Fields, path: Path, connection: asyncpg.Connection
) -> None:
    await encrypt(ledger, fields)
    await asyncio.gather(
        settle_master_key(second, path, NOW, rotate=True),
        *(encrypt(ledger, fields, purpose=f"purpose {n}") for n in range(8)),
        return_exceptions=True,
    )
    found = await rows(connection)
    assert {row["master_key_id"] for row in found} == {master_key.load(path).master_key_id()}


async def test_a_damaged_data_key_stops_the_rotation_before_it_begins(
    ledger: Ledger, fields: Fields, path: Path, connection: asyncpg.Connection
) -> None:
    await encrypt(ledger, fields)
    await connection.execute("UPDATE data_keys SET wrapped_key = '\\x00'")
    with pytest.raises(StartFailed, match=r"data key .* \(queue\) is damaged") as caught:
        await settle_master_key(ledger, path, NOW, rotate=True)
    assert "back-up" in caught.value.hint
    assert not next_of(path).exists()
    await settle_master_key(ledger, path, NOW, rotate=False)


# A server's start.


async def test_a_start_makes_the_master_key_for_its_owner_only(start: Any, tmp_path: Path) -> None:
    await start()
    assert mode_of(tmp_path / "master.key") == 0o600


async def test_a_setting_names_another_file(start: Any, tmp_path: Path) -> None:
    named = tmp_path / "elsewhere"
    await start(master_key_file=named)
    assert len(named.read_bytes()) == 32
    assert not (tmp_path / "master.key").exists()


async def test_a_start_that_is_told_to_rotates_the_key_and_then_goes_on(
    start: Any, ledger: Ledger, tmp_path: Path, path: Path
) -> None:
    await settle_master_key(ledger, path, NOW, rotate=False)
    sealed, old = await encrypt(ledger, Fields(master_key.load(path))), key_in(path)
    server = await start(rotate_master_key=True, spool=True)
    assert key_in(path) != old
    assert not next_of(path).exists()
    fields = Fields(master_key.load(path))
    async with ledger.transaction() as tx:
        assert await fields.decrypt(tx, PLACE, sealed) == SECRET
    assert (await server.get("/health")).status_code == 200


async def test_a_start_with_the_wrong_master_key_is_refused(start: Any, ledger: Ledger, path: Path) -> None:
    await settle_master_key(ledger, path, NOW, rotate=False)
    await encrypt(ledger, Fields(master_key.load(path)))
    master_key.make(path)
    with pytest.raises(StartFailed, match="is not the master key"):
        await start()


async def test_a_web_process_never_makes_a_master_key(start: Any, path: Path) -> None:
    server = await start()
    lose(path)
    with pytest.raises(StartFailed, match="missing"):
        async with server.application.running():
            pass
    assert master_key.find(path) is None


async def test_no_key_is_in_the_logs(
    start: Any, path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = []
    with caplog.at_level(logging.DEBUG):
        await start(log_level="debug")
        keys.append(key_in(path))
        await start(log_level="debug", rotate_master_key=True)
        keys.append(key_in(path))
    said = "".join(capfd.readouterr()) + caplog.text
    for key in keys:
        assert not [text for text in (key.hex(), base64.b64encode(key).decode(), repr(key)) if text in said]


# The flag.


def test_serve_takes_the_flag_where_it_starts_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[bool] = []
    monkeypatch.setattr("angelia.server.serve", lambda _, *, rotate_master_key: served.append(rotate_master_key) or 0)
    monkeypatch.setenv("ANGELIA_DATA_DIR", str(tmp_path))
    assert run(["serve", "--rotate-master-key"]) == 0
    assert run(["serve"]) == 0
    assert served == [True, False]
    for other in (["--schema", "2"], ["--dry-run"]):
        assert run(["serve", "--rotate-master-key", *other]) == 2
    assert len(served) == 2
