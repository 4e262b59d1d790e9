"""Replay keys: claimed once by whoever is first, and forgotten only when nothing could be opened again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope.refusals import Expired, IdConflict, Replayed
from angelia.errors import InvalidArgument
from angelia.mailbox import replay
from angelia.mailbox.database import MailboxDatabase, stamp
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.replay import SeenEnvelope

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
RACING = Path(__file__).with_name("racing.py")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[MailboxDatabase]:
    (tmp_path / "mail").mkdir(mode=0o700)
    made = MailboxDatabase(tmp_path / "mail")
    yield made
    made.close()


def seen(number: int, *, at: datetime = NOW, expires: datetime = NOW + 7 * DAY, msg_id: str = "") -> SeenEnvelope:
    return SeenEnvelope(
        replay_key=f"{number:064x}",
        msg_id=msg_id or f"id-{number}",
        sender="alice",
        sender_fp="alice",
        recipient_fp="bob",
        seen_at=at,
        envelope_timestamp=at,
        expires_at=expires,
    )


def remember(database: MailboxDatabase, *rows: SeenEnvelope) -> None:
    with database.transaction() as tx:
        for row in rows:
            replay.remember(tx, row)


def left(database: MailboxDatabase) -> int:
    with database.transaction() as tx:
        return int(tx.execute("SELECT count(*) FROM replay_state").fetchone()[0])


def race(*arguments: object) -> dict[str, int]:
    ran = subprocess.run([sys.executable, RACING, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    result: dict[str, int] = json.loads(ran.stdout)
    return result


def test_a_key_is_claimed_once(database: MailboxDatabase) -> None:
    remember(database, seen(1))
    with pytest.raises(Replayed):
        remember(database, seen(1))
    assert left(database) == 1


def test_a_senders_message_id_is_claimed_once_and_another_senders_is_another_id(database: MailboxDatabase) -> None:
    remember(database, seen(1, msg_id="same"))
    with pytest.raises(IdConflict):
        remember(database, seen(2, msg_id="same"))
    other = seen(3, msg_id="same")
    remember(
        database,
        SeenEnvelope(
            **{name: getattr(other, name) for name in SeenEnvelope.__slots__}
            | {"sender": "carol", "sender_fp": "carol"}
        ),
    )
    assert left(database) == 2


@pytest.mark.parametrize("bad", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 63 + "\n"])
def test_a_replay_key_has_64_hex_digits_in_lower_case(database: MailboxDatabase, bad: str) -> None:
    import sqlite3

    row = SeenEnvelope(**{name: getattr(seen(1), name) for name in SeenEnvelope.__slots__} | {"replay_key": bad})
    with pytest.raises(sqlite3.IntegrityError):
        remember(database, row)


def test_sixteen_processes_with_the_same_thousand_keys_win_a_thousand_times_in_all(
    database: MailboxDatabase, tmp_path: Path
) -> None:
    outcomes = race("remember", tmp_path / "mail", 1000, 16)
    assert outcomes == {"won": 1000, "Replayed": 15_000}
    assert left(database) == 1000


def test_sixteen_processes_that_open_the_same_envelope_give_it_to_one(
    home: Path, bob: Mailbox, send: Callable[..., bytes], tmp_path: Path
) -> None:
    (tmp_path / "sealed").write_bytes(send())
    assert race("receive", home, "bob", tmp_path / "sealed", 16) == {"opened": 1, "Replayed": 15}
    assert len(bob.inbox.page().messages) == 1
    assert bob.verify() == []


def test_sixteen_processes_with_one_one_time_key_open_one_message(
    home: Path, bob: Mailbox, send: Callable[..., bytes], tmp_path: Path
) -> None:
    (one,) = bob.own_keys.make_one_time_keys(1, NOW)
    (tmp_path / "sealed").write_bytes(send(one_time_key=one))
    assert race("receive", home, "bob", tmp_path / "sealed", 16) == {"opened": 1, "Replayed": 15}


# Pruning.


@given(
    seen_ago=st.integers(0, 40 * 24 * 60).map(lambda minutes: timedelta(minutes=minutes)),
    expired_ago=st.integers(-8 * 24 * 60, 40 * 24 * 60).map(lambda minutes: timedelta(minutes=minutes)),
)
def test_a_row_goes_only_when_it_is_a_day_old_and_its_envelope_has_expired(
    tmp_path_factory: pytest.TempPathFactory, seen_ago: timedelta, expired_ago: timedelta
) -> None:
    directory = tmp_path_factory.getbasetemp() / "pruning"
    directory.mkdir(mode=0o700, exist_ok=True)
    database = MailboxDatabase(directory)
    with database.transaction() as tx:
        tx.execute("DELETE FROM replay_state")
        tx.execute("DELETE FROM meta")
    remember(database, seen(1, at=NOW - seen_ago, expires=NOW - expired_ago))
    may_go = seen_ago > DAY and expired_ago > timedelta(seconds=300)
    assert replay.prune(database, NOW).rows == int(may_go)
    assert left(database) == int(not may_go)
    database.close()


def test_the_borders_of_pruning_are_exact(database: MailboxDatabase) -> None:
    remember(
        database,
        seen(1, at=NOW - DAY, expires=NOW - DAY),
        seen(2, at=NOW - DAY - SECOND, expires=NOW - 300 * SECOND),
        seen(3, at=NOW - DAY - SECOND, expires=NOW - 301 * SECOND),
    )
    assert replay.prune(database, NOW).rows == 1
    assert database.row("seen_at", f"{3:064x}") is None


def test_more_than_one_chunk_goes_in_one_pruning(database: MailboxDatabase) -> None:
    old = NOW - 3 * DAY
    remember(database, *(seen(number, at=old, expires=old) for number in range(12_001)), seen(99_999))
    assert replay.prune(database, NOW).rows == 12_001
    assert left(database) == 1


@pytest.mark.parametrize("hours", [23, 0, -1])
def test_less_than_a_day_is_kept_only_by_force(database: MailboxDatabase, hours: int) -> None:
    remember(database, seen(1, at=NOW - 2 * HOUR, expires=NOW - HOUR), seen(2, at=NOW - 2 * HOUR))
    with pytest.raises(InvalidArgument) as refused:
        replay.prune(database, NOW, hours)
    assert "--force" in refused.value.hint
    if hours == 0:
        assert replay.prune(database, NOW, hours, force=True).rows == 1  # never what could still be opened
        assert left(database) == 1


def test_more_than_a_day_can_be_kept(database: MailboxDatabase) -> None:
    remember(database, seen(1, at=NOW - 3 * DAY, expires=NOW - 3 * DAY))
    assert replay.prune(database, NOW, 96).rows == 0
    assert replay.prune(database, NOW, 48).rows == 1


def test_pruning_is_due_once_a_day(database: MailboxDatabase) -> None:
    assert replay.prune_due(database, NOW)
    replay.prune(database, NOW)
    assert not replay.prune_due(database, NOW + DAY - SECOND)
    assert replay.prune_due(database, NOW + DAY)


def test_a_clock_that_was_set_back_prunes_nothing_and_says_so(database: MailboxDatabase) -> None:
    old = NOW - 3 * DAY
    remember(database, seen(1, at=old, expires=old), seen(2, at=NOW))
    pruned = replay.prune(database, NOW - HOUR)
    assert pruned.rows == 0
    assert pruned.warning is not None
    assert "1h before" in pruned.warning
    assert left(database) == 2
    assert replay.prune(database, NOW).rows == 1


def test_what_was_pruned_too_early_stays_closed_and_what_came_after_does_not(database: MailboxDatabase) -> None:
    remember(database, seen(1, expires=NOW + 7 * DAY))
    assert replay.prune(database, NOW + 30 * DAY).rows == 1
    with pytest.raises(Expired):
        replay.probe(database, f"{1:064x}", "id-1", NOW + 7 * DAY, NOW)
    replay.probe(database, f"{2:064x}", "id-2", NOW + 7 * DAY + SECOND, NOW)


def test_ids_of_a_migration_are_forgotten_after_a_day(database: MailboxDatabase) -> None:
    with database.transaction() as tx:
        tx.execute("INSERT INTO legacy_msg_ids VALUES ('old', ?)", (stamp(NOW),))
    replay.prune(database, NOW + DAY - SECOND)
    assert database.row("legacy_since", "old", "") is not None
    replay.prune(database, NOW + DAY)
    assert database.row("legacy_since", "old", "") is None


def test_a_mailbox_prunes_when_it_is_opened_and_then_once_a_day_by_itself(
    bob: Mailbox, send: Callable[..., bytes]
) -> None:
    bob.receive(send(ttl_seconds=60), now=NOW)
    assert left(bob.database) == 1
    bob.receive(send(now=NOW + DAY - SECOND), now=NOW + DAY - SECOND)
    assert left(bob.database) == 2
    bob.receive(send(now=NOW + DAY + HOUR), now=NOW + DAY + HOUR)
    assert left(bob.database) == 2
