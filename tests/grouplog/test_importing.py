"""The import of an old log: each id once, whatever is repeated, and on from where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from angelia.errors import BadLevel, Conflict, Denied, GroupDropped, MessageConflict, Quota
from angelia.grouplog import store
from angelia.grouplog.group_changes import Drop
from angelia.grouplog.importing import MOST_ROWS
from angelia.grouplog.model.frames import LogMessage, Status
from angelia.grouplog.model.groups import GroupConfig
from angelia.grouplog.model.records import Record
from angelia.http.answers import STATUS
from grouplog.open_logs import Id, Log, check_families, full, opened
from grouplog.test_machine import copy_at_rest

OLD, OTHER = hashlib.sha256(b"a file").hexdigest(), hashlib.sha256(b"another file").hexdigest()
STRANGERS = [bytes((number,)) * 8 for number in (7, 8, 9)]  # senders of the old log that no roster names


def old_rows(count: int) -> list[LogMessage]:
    """Rows of an old log, in the order of its file: senders take turns."""
    return [LogMessage(STRANGERS[number % 3], number // 3 + 1, full(number)) for number in range(count)]


def as_stored(rows: Sequence[LogMessage]) -> dict[Id, bytes]:
    return {(row.sender, row.seq): row.record for row in rows}


async def send(log: Log, rows: Sequence[LogMessage], before: int = 0, source: str = OLD, member: int = 0) -> int:
    """Imports rows as a member. Returns how many of the file are imported."""
    imported = await log.service.import_rows(log.group, log.members[member], source, before, rows)
    assert imported.source == source
    return imported.rows


async def done(log: Log, source: str = OLD) -> int:
    """How many rows of a file the node has, as an importer that knows nothing finds out."""
    with pytest.raises(Conflict) as caught:
        await send(log, old_rows(1), before=(1 << 53) - 1, source=source)
    assert STATUS[caught.value.code] == 409
    rows = caught.value.members["rows"]
    assert isinstance(rows, int)
    return rows


# What is stored.


async def test_every_row_is_a_whole_message_of_level_0_with_the_bytes_of_the_file(log: Log) -> None:
    rows = old_rows(30)
    assert await send(log, rows) == 30
    found = check_families(log.rocks, log.group.ordinal)
    assert found == as_stored(rows)
    for row in rows:
        message = await log.service.message(log.group, row.sender, row.seq)
        assert (message.record[1], message.record[2]) == (0, 0)
    assert list(store.snapshots(log.rocks, log.group.ordinal)) == []


@pytest.mark.parametrize("start", [b"\2\0\0\0", b"\2\1\1\0", b"\0", b"\x92\x01", b""], ids=lambda start: start.hex())
async def test_bytes_that_look_like_another_format_are_taken_as_they_are(log: Log, start: bytes) -> None:
    data = start + hashlib.sha256(b"ciphertext").digest()
    await send(log, [LogMessage(STRANGERS[0], 1, full(1, data=data))])
    stored = (await log.service.message(log.group, STRANGERS[0], 1)).record
    assert stored[20:] == data
    assert stored[2] == 0


async def test_imported_rows_are_backfilled_like_any_message(log: Log) -> None:
    rows = old_rows(70)
    await send(log, rows)
    await log.put(log.senders[0], 1)
    assert await log.all_ids() == sorted([*as_stored(rows), (log.senders[0], 1)])


async def test_a_thousand_rows_are_one_batch(log: Log) -> None:
    assert MOST_ROWS == 1_000
    assert await send(log, old_rows(1_000)) == 1_000
    assert len(log.rows()) == 1_000


# Each id once.


async def test_a_file_that_is_imported_twice_stores_each_id_once(log: Log) -> None:
    rows = old_rows(30)
    await send(log, rows)
    before, size = log.rows(), log.group.stored_bytes
    with pytest.raises(Conflict):
        await send(log, rows)
    assert (log.rows(), log.group.stored_bytes) == (before, size)


async def test_the_same_rows_under_another_source_store_each_id_once(log: Log) -> None:
    rows = old_rows(30)
    await send(log, rows)
    size = log.group.stored_bytes
    assert await send(log, list(reversed(rows)), source=OTHER) == 30
    assert log.rows() == as_stored(rows)
    assert log.group.stored_bytes == size == log.true_bytes()


async def test_a_row_that_is_in_a_file_twice_is_stored_once(log: Log) -> None:
    rows = old_rows(6)
    assert await send(log, [*rows, *rows]) == 12
    assert log.rows() == as_stored(rows)


async def test_a_row_that_its_sender_appended_meanwhile_is_stored_once(log: Log) -> None:
    await log.put(log.senders[1], 4)
    rows = [LogMessage(log.senders[1], seq, full(seq)) for seq in range(1, 7)]
    assert await send(log, rows) == 6
    assert log.rows() == as_stored(rows)
    assert await log.put(log.senders[1], 2) is Status.DUPLICATE


async def test_a_row_with_other_bytes_under_a_stored_id_fails_its_batch_and_the_first_stays(log: Log) -> None:
    rows = old_rows(10)
    await send(log, rows[:5])
    wrong = [*rows[5:9], LogMessage(rows[0].sender, rows[0].seq, full(1, data=b"other"))]
    with pytest.raises(MessageConflict) as caught:
        await send(log, wrong, before=5)
    assert caught.value.members["at"] == 4
    assert log.rows() == as_stored(rows[:5])
    assert await done(log) == 5


# Where it goes on.


async def test_an_import_goes_on_behind_the_rows_that_are_stored(log: Log) -> None:
    rows = old_rows(30)
    assert await done(log) == 0
    assert await send(log, rows[:10]) == 10
    assert await done(log) == 10
    assert await send(log, rows[10:30], before=10) == 30
    assert log.rows() == as_stored(rows)


@pytest.mark.parametrize("before", [0, 9, 11, 20])
async def test_rows_that_do_not_follow_those_that_are_stored_are_refused_with_how_many_there_are(
    log: Log, before: int
) -> None:
    rows = old_rows(30)
    await send(log, rows[:10])
    with pytest.raises(Conflict) as caught:
        await send(log, rows[before : before + 5], before=before)
    assert caught.value.members == {"rows": 10}
    assert log.rows() == as_stored(rows[:10])


async def test_an_import_goes_on_after_a_restart(tmp_path: Path) -> None:
    rows = old_rows(30)
    async with opened(tmp_path) as log:
        await send(log, rows[:10])
    async with opened(tmp_path) as log:
        assert await done(log) == 10
        await send(log, rows[10:], before=10)
        assert log.rows() == as_stored(rows)


async def test_after_a_crash_position_and_rows_are_of_the_same_moment(tmp_path: Path) -> None:
    rows, place = old_rows(50), tmp_path / "log-0"
    place.mkdir()
    for number in range(5):
        image = tmp_path / f"log-{number + 1}"
        async with opened(place) as log:
            assert await done(log) == 10 * number
            assert log.rows() == as_stored(rows[: 10 * number])
            await send(log, rows[10 * number : 10 * number + 10], before=10 * number)
            copy_at_rest(place, image)
        (image / "log" / "LOCK").unlink()
        place = image


async def test_another_file_begins_at_its_first_row_and_one_that_comes_back_does_so_too(log: Log) -> None:
    rows = old_rows(20)
    await send(log, rows[:10])
    await send(log, rows[:15], source=OTHER)
    assert await done(log, OTHER) == 15
    assert await send(log, rows, before=await done(log)) == 20
    assert log.rows() == as_stored(rows)


async def test_each_group_has_a_position_of_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path, id=b"a" * 32) as log:
        await send(log, old_rows(10))
    async with opened(tmp_path) as log:
        assert await done(log) == 0
        await send(log, old_rows(5))
        assert log.rows() == as_stored(old_rows(5))


# Floors.


async def test_rows_below_a_floor_are_superseded_and_the_import_goes_on_behind_them(log: Log) -> None:
    sender = log.senders[0]
    await log.delete(1, {sender: 5})
    rows = [LogMessage(sender, seq, full(seq)) for seq in range(1, 11)]
    assert await send(log, rows) == 10
    assert check_families(log.rocks, log.group.ordinal) == as_stored(rows[5:])
    assert await done(log) == 10


async def test_rows_that_a_snapshot_replaced_do_not_come_back_with_a_second_import(log: Log) -> None:
    sender = log.senders[0]
    rows = [LogMessage(sender, seq, full(seq)) for seq in range(1, 11)]
    await send(log, rows)
    await log.delete(1, {sender: 7})
    assert await send(log, rows, source=OTHER) == 10
    assert check_families(log.rocks, log.group.ordinal) == as_stored(rows[7:])


# What is refused.


async def test_only_an_admin_imports(log: Log) -> None:
    with pytest.raises(Denied) as caught:
        await send(log, old_rows(5), member=1)
    assert STATUS[caught.value.code] == 403
    assert log.rows() == {}
    assert await done(log) == 0


@pytest.mark.parametrize("level", [1, 2, 15])
async def test_an_old_log_has_no_snapshots(log: Log, level: int) -> None:
    rows = old_rows(5)
    rows[3] = LogMessage(rows[3].sender, rows[3].seq, full(3, level=level))
    with pytest.raises(BadLevel) as caught:
        await send(log, rows)
    assert (STATUS[caught.value.code], caught.value.members["at"]) == (422, 3)
    assert log.rows() == {}


async def test_an_old_log_has_no_shards(log: Log) -> None:
    shard = Record(1, b"piece", 0, 1, 2, b"manifest").encode()
    with pytest.raises(BadLevel):
        await send(log, [LogMessage(STRANGERS[0], 1, shard)])
    assert log.rows() == {}


async def test_nothing_is_imported_into_a_dropped_group(log: Log) -> None:
    member = log.members[0]
    await log.spool.run(Drop(log.spool.groups, log.group, member.sender, log.spool.subscriptions))
    with pytest.raises(GroupDropped):
        await log.service.import_rows(log.group, member, OLD, 0, old_rows(5))


async def test_an_import_over_the_quota_stores_nothing_of_its_batch_and_keeps_its_position(
    tmp_path: Path,
) -> None:
    sizes = (400_000, 400_000, 400_000)
    async with opened(tmp_path, config=GroupConfig(min_copies=1, quota_bytes=1 << 20)) as log:
        sender = log.senders[0]
        rows = [LogMessage(sender, seq, full(seq, data=bytes(size))) for seq, size in enumerate(sizes, 1)]
        await send(log, rows[:2])
        with pytest.raises(Quota):
            await send(log, rows[2:], before=2)
        assert log.rows() == as_stored(rows[:2])
        assert await done(log) == 2
