"""The audit: every act has its event, the sealer chains them, and verification names what was tampered with."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.audit import service, store
from angelia.audit.model import ERASED, Event, EventQuery, SignedEntry, StoredEvent, Verdict, Verifier
from angelia.audit.service import SEAL_BATCH, Audit
from angelia.errors import NotFound
from angelia.keys.node_key import NodeKey, load_or_make
from angelia.stores.ledger import Ledger
from http_agents import Server

NOW = datetime(2026, 11, 15, 20, 0, tzinfo=UTC)


@pytest.fixture
def node(tmp_path: Path) -> NodeKey:
    return load_or_make(tmp_path / "node.key")


async def record(ledger: Ledger, count: int = 1, at: datetime = NOW) -> list[Event]:
    events = [service.event("tested", at, actor=f"ann-{n}", object="bob", detail={"n": n}) for n in range(count)]
    async with ledger.transaction() as tx:
        await service.record(tx, events)
    return events


async def seal_all(audit: Audit, node: NodeKey, now: datetime = NOW) -> int:
    sealed = await audit.seal(node, now)
    while sealed.entries:
        sealed = await audit.seal(node, now)
    return sealed.position


async def verify(audit: Audit, node: NodeKey, page: int = 7) -> Verdict:
    """What `angelia audit verify` does, page by page."""
    verifier = Verifier(node.key_id, node.public_key, node.signed())
    verifier.expect(await audit.checkpoints(0, 1000))
    found = await audit.chain(0, page)
    while found.entries:
        verifier.feed(found.entries, found.floor)
        found = await audit.chain(verifier.position, page)
    verifier.feed([], found.floor)
    outside = [await audit.unsealed(1000, since, until) for since, until in verifier.days()]
    return verifier.finish(found.sealed_to, [stray for strays, _ in outside for stray in strays], outside[-1][1])


def faults(verdict: Verdict) -> list[tuple[int | None, str]]:
    return [(fault.position, fault.what) for fault in verdict.broken]


async def test_a_sealed_chain_verifies_and_lists_its_open_tail(ledger: Ledger, node: NodeKey) -> None:
    audit = Audit(ledger)
    await record(ledger, 20)
    assert await seal_all(audit, node) == 20
    tail = await record(ledger, 2)
    verdict = await verify(audit, node)
    assert (verdict.sealed, verdict.broken, verdict.checkpoints) == (20, [], 1)
    assert {e.event_id for e in verdict.unsealed} == {e.event_id for e in tail}


async def test_an_empty_chain_is_sound(ledger: Ledger, node: NodeKey) -> None:
    verdict = await verify(Audit(ledger), node)
    assert (verdict.sealed, verdict.broken, verdict.unsealed) == (0, [], [])


async def test_positions_are_dense_and_follow_the_order_of_commits(ledger: Ledger, node: NodeKey) -> None:
    audit = Audit(ledger)
    for _ in range(5):
        await asyncio.gather(*(record(ledger, 3) for _ in range(10)))
        await audit.seal(node, NOW)
    total = await seal_all(audit, node)
    entries = (await audit.chain(0, 1000)).entries
    assert [e.position for e in entries] == list(range(1, total + 1)) == list(range(1, 151))


async def test_an_open_transaction_holds_the_sealer_back_and_nothing_is_skipped(ledger: Ledger, node: NodeKey) -> None:
    audit = Audit(ledger)
    async with ledger.transaction() as slow:
        await service.record(slow, [service.event("slow", NOW)])
        later = await record(ledger)
        assert (await audit.seal(node, NOW)).entries == 0
        progress = await audit.progress(node.signed())
        assert (progress.waiting, progress.oldest) == (1, NOW)
    assert (await audit.seal(node, NOW)).entries == 2
    entries = (await audit.chain(0, 10)).entries
    assert [e.event.event_type for e in entries if e.event] == ["slow", later[0].event_type]


async def test_a_transaction_larger_than_a_batch_is_sealed_in_order(ledger: Ledger, node: NodeKey) -> None:
    audit = Audit(ledger)
    await record(ledger, SEAL_BATCH - 1)
    await record(ledger, 5)
    await record(ledger, SEAL_BATCH + 3)
    assert [(await audit.seal(node, NOW)).entries for _ in range(4)] == [SEAL_BATCH, SEAL_BATCH, 7, 0]
    assert (await verify(audit, node, 1000)).broken == []


async def test_two_sealers_at_once_make_one_chain(ledger: Ledger, node: NodeKey) -> None:
    audit = Audit(ledger)
    await record(ledger, 50)
    await asyncio.gather(*(audit.seal(node, NOW) for _ in range(5)))
    assert (await verify(audit, node)).broken == []


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE audit_events SET event_type = 'tested!' WHERE event_id = $1", "does not match its hash"),
        ("UPDATE audit_events SET actor_nhi = 'mallory' WHERE event_id = $1", "does not match its hash"),
        ("UPDATE audit_events SET actor_nhi = NULL WHERE event_id = $1", "does not match its hash"),
        ("UPDATE audit_events SET object_nhi = 'mallory' WHERE event_id = $1", "does not match its hash"),
        ("UPDATE audit_events SET message_id = event_id WHERE event_id = $1", "does not match its hash"),
        ("UPDATE audit_events SET replay_key = event_hash WHERE event_id = $1", "does not match its hash"),
        ("UPDATE audit_events SET detail = '{\"n\": 99}' WHERE event_id = $1", "does not match its hash"),
        ("UPDATE audit_events SET detail = '[]' WHERE event_id = $1", "does not match its hash"),
        ("UPDATE audit_events SET detail = '{\"n\": 1.5}' WHERE event_id = $1", "does not match its hash"),
        ('UPDATE audit_events SET detail = \'{"n": {"m": [null]}}\' WHERE event_id = $1', "does not match its hash"),
        ("UPDATE audit_events SET event_hash = sha256('x') WHERE event_id = $1", "does not match its hash"),
        (
            "UPDATE audit_events SET occurred_at = occurred_at + interval '1 us' WHERE event_id = $1",
            "has lost its event",
        ),
        ("DELETE FROM audit_events WHERE event_id = $1", "has lost its event"),
        ("DELETE FROM audit_chain WHERE event_id = $1", "is missing from the chain"),
        (
            "UPDATE audit_chain SET entry_hash = sha256('x') WHERE event_id = $1",
            "does not follow from the entry before it",
        ),
        ("UPDATE audit_chain SET event_id = gen_random_uuid() WHERE event_id = $1", "has lost its event"),
        ("UPDATE audit_events SET redacted_at = now() WHERE event_id = $1", "is redacted and still carries content"),
    ],
)
async def test_a_changed_or_removed_row_is_found_and_named(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection, statement: str, what: str
) -> None:
    audit = Audit(ledger)
    await record(ledger, 30)
    await seal_all(audit, node)
    victim = await connection.fetchval("SELECT event_id FROM audit_chain WHERE position = 17")
    await connection.execute(statement, victim)
    verdict = await verify(audit, node)
    assert (verdict.broken[0].position, verdict.broken[0].what) == (17, what)
    assert {fault.position for fault in verdict.broken} <= {17, 18, None}


async def test_a_row_inserted_among_the_sealed_ones_is_found(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await record(ledger, 10)
    await seal_all(audit, node)
    forged = uuid4()
    await connection.execute(
        """INSERT INTO audit_events (event_id, occurred_at, xid, event_type, actor_nhi, object_nhi, event_hash)
           SELECT $1, occurred_at, xid, event_type, actor_nhi, object_nhi, event_hash FROM audit_events LIMIT 1""",
        forged,
    )
    (fault,) = (await verify(audit, node)).broken
    assert (fault.event_id, fault.what) == (forged, "was inserted among the sealed events")


async def test_strays_are_found_before_within_and_after_the_time_of_the_chain(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    for day in range(4):
        await record(ledger, 1, NOW + timedelta(days=day))
    await seal_all(audit, node, NOW)
    for offset in ("-400 days", "1 day 1 second", "3 days 1 second", "4000 days"):
        await connection.execute(
            """INSERT INTO audit_events (event_id, occurred_at, xid, event_type, event_hash)
               SELECT gen_random_uuid(), $1::timestamptz + $2::text::interval, '3', 'forged', sha256('x')""",
            NOW,
            offset,
        )
    verdict = await verify(audit, node)
    assert [fault.what for fault in verdict.broken] == ["was inserted among the sealed events"] * 4


async def test_a_back_dated_row_is_found_even_when_it_is_sealed_properly(ledger: Ledger, node: NodeKey) -> None:
    audit = Audit(ledger)
    await record(ledger, 3)
    await seal_all(audit, node, NOW + timedelta(hours=2))
    (forged,) = await record(ledger, 1, NOW - timedelta(hours=1))
    await seal_all(audit, node, NOW + timedelta(hours=4))
    (fault,) = (await verify(audit, node)).broken
    assert (fault.position, fault.event_id) == (4, forged.event_id)
    assert fault.what == "claims a time that was already sealed"


async def test_a_chain_cut_at_its_end_is_found_by_sealer_checkpoint_and_node(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await record(ledger, 10)
    await seal_all(audit, node)
    await connection.execute(
        "DELETE FROM audit_events e USING audit_chain c WHERE e.event_id = c.event_id AND position > 7"
    )
    await connection.execute("DELETE FROM audit_chain WHERE position > 7")
    assert faults(await verify(audit, node))[0] == (8, "is missing from the chain, with the 2 after it")
    await connection.execute(
        "UPDATE audit_sealer s SET position = 7, entry_hash = c.entry_hash FROM audit_chain c WHERE c.position = 7"
    )
    signed = "is signed by a checkpoint, but the chain ends before it"
    remembered = "was signed by this node, but the chain ends before it"
    assert faults(await verify(audit, node)) == [(10, remembered), (10, signed)]
    await connection.execute("DELETE FROM audit_checkpoints")
    assert (10, remembered) in faults(await verify(audit, node))


async def test_the_node_signs_no_chain_that_was_built_anew(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    """Whoever owns the database can compute every hash anew, but the node remembers what it signed."""
    audit = Audit(ledger)
    await record(ledger, 10)
    await seal_all(audit, node)
    await connection.execute(
        "DELETE FROM audit_events WHERE event_id = (SELECT event_id FROM audit_chain WHERE position = 5)"
    )
    await connection.execute("TRUNCATE audit_chain, audit_checkpoints")
    await connection.execute("UPDATE audit_sealer SET position = 0, next_xid = '0', entry_hash = $1", bytes(32))
    rebuilt = await audit.seal(node, NOW)
    assert (rebuilt.position, rebuilt.refused) == (9, "entry 10, which this node signed, is gone")
    await record(ledger, 5)
    later = await audit.seal(node, NOW + timedelta(hours=1))
    assert later.refused == "entry 10 is not the one this node signed"
    verdict = await verify(audit, node)
    assert (10, "is not what this node remembers to have signed") in faults(verdict)
    assert (14, "and all before it are covered by no signed checkpoint") in faults(verdict)


async def test_a_copied_row_does_not_stop_the_sealer(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    (event,) = await record(ledger)
    await seal_all(audit, node)
    await connection.execute(
        """INSERT INTO audit_events (event_id, occurred_at, event_type, event_hash)
           SELECT event_id, occurred_at + interval '1 s', event_type, event_hash FROM audit_events"""
    )
    await record(ledger, 3)
    assert await seal_all(audit, node) == 4
    (fault,) = (await verify(audit, node)).broken
    assert (fault.event_id, fault.what) == (event.event_id, "was inserted among the sealed events")


async def test_a_gap_of_any_size_is_one_fault(ledger: Ledger, node: NodeKey, connection: asyncpg.Connection) -> None:
    audit = Audit(ledger)
    await record(ledger, 3)
    await seal_all(audit, node)
    await connection.execute("UPDATE audit_chain SET position = 2000000000 WHERE position = 3")
    first = faults(await verify(audit, node))[0]
    assert first == (3, "is missing from the chain, with the 1,999,999,996 after it")


async def test_every_round_that_seals_something_is_signed(ledger: Ledger, node: NodeKey) -> None:
    audit = Audit(ledger)
    for round_ in range(1, 4):
        await record(ledger, 5)
        await audit.seal(node, NOW + timedelta(seconds=round_))
        (*_, newest) = await audit.checkpoints(0, 10)
        assert newest.position == 5 * round_
        assert node.signed() == SignedEntry(newest.position, newest.entry_hash)
    assert (await audit.seal(node, NOW + timedelta(minutes=5))).entries == 0
    assert (await audit.checkpoints(0, 10))[-1].position == 15


async def test_of_older_checkpoints_one_a_minute_or_a_thousand_entries_is_kept(ledger: Ledger, node: NodeKey) -> None:
    audit = Audit(ledger)
    for second in range(0, 150, 10):
        await record(ledger, 2)
        await audit.seal(node, NOW + timedelta(seconds=second))
    assert [c.position for c in await audit.checkpoints(0, 100)] == [2, 14, 26, 30]
    await record(ledger, 2000)
    await seal_all(audit, node, NOW + timedelta(seconds=151))
    assert [c.position for c in await audit.checkpoints(0, 100)] == [2, 14, 26, 1030, 2030]
    assert (await verify(audit, node)).broken == []
    assert (await audit.checkpoint(14)).position == 14
    with pytest.raises(NotFound):
        await audit.checkpoint(11)


async def test_entries_sealed_a_second_ago_cannot_be_removed_unseen(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await record(ledger, 10)
    await audit.seal(node, NOW)
    (crime,) = await record(ledger, 1)
    await audit.seal(node, NOW + timedelta(seconds=1))
    await connection.execute("DELETE FROM audit_events WHERE event_id = $1", crime.event_id)
    await connection.execute("DELETE FROM audit_chain WHERE position = 11")
    await connection.execute("DELETE FROM audit_checkpoints WHERE position > 10")
    await connection.execute(
        "UPDATE audit_sealer s SET position = 10, entry_hash = c.entry_hash FROM audit_chain c WHERE c.position = 10"
    )
    assert faults(await verify(audit, node)) == [(11, "was signed by this node, but the chain ends before it")]
    await record(ledger, 1)  # in its place
    told = await audit.seal(node, NOW + timedelta(seconds=2))
    assert told.refused == "entry 11 is not the one this node signed"
    assert faults(await verify(audit, node)) == [(11, "is not what this node remembers to have signed")]


async def test_the_node_signs_nothing_that_does_not_follow_from_what_it_signed(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    """Entries that SQL sets behind the last signed one, with an end of the chain to match."""
    audit = Audit(ledger)
    await record(ledger, 3)
    await audit.seal(node, NOW)
    await connection.execute(
        """WITH forged AS (INSERT INTO audit_events (event_id, occurred_at, event_type, event_hash)
             VALUES (gen_random_uuid(), $1, 'forged', sha256('x')) RETURNING event_id, occurred_at)
           INSERT INTO audit_chain SELECT 4, event_id, occurred_at, sha256('y') FROM forged""",
        NOW,
    )
    await connection.execute("UPDATE audit_sealer SET position = 4, entry_hash = sha256('y')")
    await record(ledger, 1)
    told = await audit.seal(node, NOW + timedelta(seconds=1))
    assert told.refused == "entry 4 does not follow from what this node signed"
    assert (4, "does not follow from the entry before it") in faults(await verify(audit, node))
    assert (await audit.progress(node.signed())).is_refused(NOW + timedelta(minutes=2))


async def test_a_floor_beyond_what_the_node_signed_gets_no_signature(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    """With the floor and the end on an entry of a chain that SQL made, the node would begin from that one."""
    audit = Audit(ledger)
    await record(ledger, 20)
    await seal_all(audit, node)
    before = node.signed()
    await connection.execute("UPDATE audit_sealer SET position = 21, entry_hash = sha256('forged')")
    await connection.execute("UPDATE audit_floor SET position = 21, entry_hash = sha256('forged')")
    told = await audit.seal(node, NOW + timedelta(seconds=1))
    assert told.refused == "the ledger begins behind entry 21, beyond entry 20, the last that this node signed"
    assert node.signed() == before
    assert [one.position for one in await audit.checkpoints(0, 10)] == [20]
    await record(ledger, 1)
    await audit.seal(node, NOW + timedelta(seconds=2))
    assert (await audit.progress(node.signed())).is_refused(NOW + timedelta(minutes=2))


async def test_a_sealer_that_sql_sent_ahead_is_told_and_goes_on_when_it_is_set_back(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    """Events of before that transaction would be skipped, and could be removed unseen."""
    audit = Audit(ledger)
    await record(ledger, 5)
    await seal_all(audit, node)
    before = await connection.fetchval("SELECT next_xid::text FROM audit_sealer")
    await connection.execute("UPDATE audit_sealer SET next_xid = '1000000000000'")
    await record(ledger, 3)
    told = await audit.seal(node, NOW + timedelta(seconds=1))
    assert told.entries == 0
    assert told.refused == "the sealer is to go on from transaction 1,000,000,000,000, which has not begun yet"
    progress = await audit.progress(node.signed())
    assert (progress.waiting, progress.oldest) == (3, NOW)
    assert progress.is_refused(NOW)
    await connection.execute("UPDATE audit_sealer SET next_xid = $1::text::xid8", before)
    assert await seal_all(audit, node, NOW + timedelta(seconds=2)) == 8
    assert not (await audit.progress(node.signed())).is_refused(NOW + timedelta(hours=1))
    assert (await verify(audit, node)).broken == []


async def test_events_that_the_sealer_was_led_past_are_counted(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await record(ledger, 5)
    await seal_all(audit, node)
    await record(ledger, 3)
    await connection.execute("UPDATE audit_sealer SET next_xid = pg_snapshot_xmax(pg_current_snapshot())")
    await seal_all(audit, node, NOW + timedelta(seconds=1))
    assert (await audit.progress(node.signed())).waiting == 3
    assert [fault.what for fault in (await verify(audit, node)).broken] == ["was inserted among the sealed events"] * 3


async def add_checkpoint(connection: asyncpg.Connection, position: int, node_key_id: UUID) -> None:
    """By SQL: of a position that the chain does not have, with a signature that is none."""
    await connection.execute(
        """INSERT INTO audit_checkpoints (position, entry_hash, node_key_id, signed_at, signature)
           VALUES ($1, $2, $3, $4, $5)""",
        position,
        bytes(32),
        node_key_id,
        NOW,
        bytes(64),
    )


async def test_no_checkpoint_that_sql_writes_keeps_the_node_from_signing(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await record(ledger, 3)
    await audit.seal(node, NOW)
    before = node.signed()
    assert before is not None
    await add_checkpoint(connection, 2**50, uuid4())
    await record(ledger, 2)
    await audit.seal(node, NOW + timedelta(seconds=1))
    signed = node.signed()
    assert signed is not None
    assert signed.position == 5

    await connection.execute("DELETE FROM audit_checkpoints WHERE position > 3")
    await connection.execute(
        "DELETE FROM audit_events e USING audit_chain c WHERE e.event_id = c.event_id AND position > 3"
    )
    await connection.execute("DELETE FROM audit_chain WHERE position > 3")
    await connection.execute("UPDATE audit_sealer SET position = 3, entry_hash = $1", bytes.fromhex(before.entry_hash))
    assert (5, "was signed by this node, but the chain ends before it") in faults(await verify(audit, node))
    assert (await audit.seal(node, NOW + timedelta(seconds=2))).refused == "entry 5, which this node signed, is gone"


async def test_a_checkpoint_that_stands_in_the_way_is_kept_and_named(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await add_checkpoint(connection, 3, uuid4())
    await record(ledger, 3)
    assert (await audit.seal(node, NOW)).refused is None
    assert (3, "is not what its checkpoint signed") in faults(await verify(audit, node))
    await record(ledger, 3)
    await audit.seal(node, NOW)
    assert (await audit.checkpoints(3, 10))[-1].node_key_id == node.key_id


async def test_two_nodes_that_share_a_ledger_both_sign_on(ledger: Ledger, node: NodeKey, tmp_path: Path) -> None:
    audit = Audit(ledger)
    (tmp_path / "other").mkdir()
    other = load_or_make(tmp_path / "other" / "node.key")
    for turn in range(3):
        await record(ledger, 2)
        assert (await audit.seal(node, NOW)).refused is None
        assert (await audit.seal(other, NOW)).refused is None
        await record(ledger, 2)
        assert (await audit.seal(other, NOW)).refused is None
        assert other.signed() != node.signed()
        assert (await audit.seal(node, NOW)).refused is None
        assert other.signed() == node.signed()
        assert not (await audit.progress(other.signed())).is_refused(NOW + timedelta(hours=turn))
    assert (await verify(audit, node)).broken == (await verify(audit, other)).broken == []


async def test_an_end_that_was_set_back_is_not_signed(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await record(ledger, 3)
    await audit.seal(node, NOW)
    await connection.execute("UPDATE audit_sealer SET position = 2")
    told = await audit.seal(node, NOW + timedelta(seconds=1))
    assert told.refused == "the chain's end was set back to entry 2, before what this node signed"


async def test_an_end_of_the_chain_that_was_moved_is_not_signed(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await record(ledger, 3)
    await audit.seal(node, NOW)
    await connection.execute("UPDATE audit_sealer SET entry_hash = sha256('y')")
    await record(ledger, 1)
    told = await audit.seal(node, NOW + timedelta(seconds=1))
    assert told.refused == "the chain does not end with entry 3 as it was sealed"


async def test_a_node_signs_on_when_its_memory_is_a_round_behind(ledger: Ledger, node: NodeKey) -> None:
    """A crash right after the commit, or a round of another node that shares the ledger."""
    audit = Audit(ledger)
    await record(ledger, 3)
    await audit.seal(node, NOW)
    before = node.checkpoint()
    await record(ledger, 3)
    await audit.seal(node, NOW)
    assert before is not None
    node.remember(before)
    await record(ledger, 3)
    assert (await audit.seal(node, NOW)).refused is None
    assert (await verify(audit, node)).broken == []


@pytest.mark.parametrize("xid", [2**64 - 1, 2**40])
async def test_a_forged_event_of_a_transaction_to_come_is_named(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection, xid: int
) -> None:
    audit = Audit(ledger)
    await record(ledger, 3)
    await seal_all(audit, node)
    forged = service.event("tested", NOW, actor="ann")
    await connection.execute(
        """INSERT INTO audit_events (event_id, occurred_at, event_type, actor_nhi, event_hash, xid)
           VALUES ($1, $2, 'tested', 'ann', $3, $4::text::xid8)""",
        forged.event_id,
        NOW,
        forged.hash(),
        str(xid),
    )
    (fault,) = (await verify(audit, node)).broken
    assert (fault.event_id, fault.what) == (forged.event_id, "claims a transaction beyond its neighbours'")


async def test_a_forged_event_that_copies_the_id_of_a_sealed_one_is_named(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    (sealed,) = await record(ledger, 1)
    await seal_all(audit, node)
    await connection.execute(
        """INSERT INTO audit_events (event_id, occurred_at, event_type, actor_nhi, event_hash, xid)
           VALUES ($1, $2, 'agent_erased', 'alice', sha256('x'), $3::text::xid8)""",
        sealed.event_id,
        NOW + timedelta(seconds=1),
        str(2**60),
    )
    await seal_all(audit, node, NOW + timedelta(seconds=2))
    (fault,) = (await verify(audit, node)).broken
    assert (fault.event_id, fault.what) == (sealed.event_id, "claims a transaction beyond its neighbours'")
    assert [(e.event_type, e.position) for e in await audit.events(EventQuery())] == [
        ("agent_erased", None),
        ("tested", 1),
    ]
    assert (await audit.progress(node.signed())).waiting == 1


async def test_a_forged_event_is_named_even_when_its_transaction_has_come(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await record(ledger, 3)
    forged = service.event("tested", NOW, actor="ann")
    await connection.execute(
        """INSERT INTO audit_events (event_id, occurred_at, event_type, actor_nhi, event_hash, xid)
           VALUES ($1, $2, 'tested', 'ann', $3, (pg_current_xact_id()::text::bigint + 2)::text::xid8)""",
        forged.event_id,
        NOW,
        forged.hash(),
    )
    for _ in range(5):
        await record(ledger, 1)
    assert await seal_all(audit, node) == 9
    (fault,) = (await verify(audit, node)).broken
    assert (fault.event_id, fault.what) == (forged.event_id, "claims a transaction beyond its neighbours'")


@pytest.mark.parametrize(
    ("written", "next_xid", "full"), [(7, 8, 7), (2**32 - 1, 2**32 + 5, 2**32 - 1), (3, 2**32 + 5, 2**32 + 3)]
)
def test_the_writer_of_a_row_is_known_across_the_32_bits_that_postgresql_keeps(
    written: int, next_xid: int, full: int
) -> None:
    assert store._written_by(written, next_xid) == full


_REDACT = """
UPDATE audit_events SET actor_nhi = NULL, object_nhi = NULL, detail = '{}', redacted_at = $1
WHERE event_id = (SELECT event_id FROM audit_chain WHERE position = 4)
"""


async def test_redacted_rows_are_accepted_and_listed(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await record(ledger, 10)
    await seal_all(audit, node)
    await connection.execute(_REDACT, NOW)
    async with ledger.transaction() as tx:
        await service.record(tx, [service.event(ERASED, NOW)])
    verdict = await verify(audit, node)
    assert (verdict.redacted, verdict.broken) == ([4], [])
    await seal_all(audit, node)
    assert (await verify(audit, node)).broken == []


async def test_a_redaction_that_no_erasure_explains_is_found(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    await record(ledger, 10)
    await seal_all(audit, node)
    await connection.execute(_REDACT, NOW + timedelta(seconds=1))
    async with ledger.transaction() as tx:
        await service.record(tx, [service.event(ERASED, NOW)])
    verdict = await verify(audit, node)
    assert faults(verdict) == [(4, "is redacted, and no erasure of that time is on record")]


async def test_an_event_and_its_act_exist_together_or_not_at_all(
    ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async def fail() -> None:
        async with ledger.transaction() as tx:
            await service.record(tx, [service.event("tested", NOW)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await connection.fetchval("SELECT count(*) FROM audit_events") == 0


async def test_partitions_are_made_from_yesterday_to_a_week_ahead(
    ledger: Ledger, connection: asyncpg.Connection
) -> None:
    audit = Audit(ledger)
    assert await audit.make_partitions(NOW) == 0
    assert await audit.make_partitions(NOW + timedelta(days=1)) == 0
    names = await connection.fetch(
        "SELECT inhrelid::regclass::text AS n FROM pg_inherits WHERE inhparent = 'audit_events'::regclass"
    )
    days = sorted(row["n"] for row in names if not row["n"].endswith("default"))
    wanted = {f"audit_events_202611{day}" for day in range(14, 24)}
    assert wanted <= set(days)  # the template of the test databases brings those of today, too
    await record(ledger, 1, NOW + timedelta(days=30))
    assert await audit.make_partitions(NOW) == 1


async def test_rows_that_missed_their_partition_move_into_it_when_it_is_made(ledger: Ledger, node: NodeKey) -> None:
    audit, late = Audit(ledger), NOW + timedelta(days=30)
    await record(ledger, 3, late)
    await seal_all(audit, node, late)
    assert await audit.make_partitions(NOW) == 3
    await asyncio.gather(*(audit.make_partitions(late) for _ in range(4)))
    assert await audit.make_partitions(late) == 0
    verdict = await verify(audit, node)
    assert (verdict.sealed, verdict.broken) == (3, [])


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@given(
    st.builds(
        Event,
        event_id=st.uuids(),
        occurred_at=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
        event_type=texts,
        actor=st.none() | texts,
        object=st.none() | texts,
        message_id=st.none() | st.uuids(),
        replay_key=st.none() | st.binary(min_size=32, max_size=32),
        detail=st.dictionaries(texts, st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts, max_size=4),
    ),
    st.sampled_from(["event_type", "actor", "object"]),
)
def test_two_different_events_never_share_their_bytes(event: Event, field: str) -> None:
    value = getattr(event, field)
    for other in (value + "x" if value else "x", None if field != "event_type" and value is not None else "y" * 21):
        changed = msgspec.structs.replace(event, **{field: other})
        assert (changed.hash() == event.hash()) == (changed == event)


async def test_every_event_survives_the_ledger_with_its_hash(ledger: Ledger, node: NodeKey) -> None:
    odd = {"text": 'é\u2028 \\ " <>&\x7f', "int": 2**53, "negative": -1, "yes": True, "nothing": None, "": "empty"}
    event = Event(
        event_id=uuid4(),
        occurred_at=NOW + timedelta(microseconds=1),
        event_type="tested",
        actor="a" * 255,
        message_id=uuid4(),
        replay_key=bytes(range(32)),
        detail=odd,
    )
    async with ledger.transaction() as tx:
        await service.record(tx, [event])
    (stored,) = await Audit(ledger).events(EventQuery())
    assert isinstance(stored, StoredEvent)
    assert stored.fault() is None
    assert stored.detail == odd


async def test_what_operators_and_agents_do_is_audited(start) -> None:
    server: Server = await start()
    agent = await server.register()
    await server.send_signed(agent, "PUT", "/v1/agents/me/handle", b'{"handle": "ann"}')
    made = (await server.post("/v1/tokens", json={"role": "read-only"}, headers=server.admin)).json()
    await server.request("DELETE", f"/v1/tokens/{made['id']}", headers=server.admin)
    await server.post("/v1/guard/blocks", json={"address": "192.0.2.1"}, headers=server.admin)
    await server.request("DELETE", "/v1/guard/blocks/192.0.2.1", headers=server.admin)
    events = (await server.get("/v1/audit/events", headers=server.admin)).json()["events"]
    token = f"token {UUID(server.admin_token.split('_')[1])}"
    told = [(e["event_type"], e["actor"], e["object"]) for e in reversed(events)]
    # What happens at the start has one time, and so no order: the first token and the starter rules.
    assert sorted(told[:5]) == [("policy_changed", "angelia", None)] * 4 + [("token_created", "angelia", None)]
    assert told[5:] == [
        ("agent_registered", agent.id, agent.id),
        ("handle_claimed", "ann", "ann"),
        ("token_created", token, None),
        ("token_revoked", token, None),
        ("address_blocked", token, "192.0.2.1"),
        ("address_unblocked", token, "192.0.2.1"),
    ]


async def test_the_event_list_filters_and_pages(start) -> None:
    server: Server = await start(limits={"register": "off"})
    agents = [await server.register() for _ in range(5)]

    async def events(query: str) -> dict[str, object]:
        return (await server.get(f"/v1/audit/events?{query}", headers=server.admin)).json()

    first = await events("type=agent_registered&limit=3")
    rest = await events(f"type=agent_registered&limit=3&cursor={first['next']}")
    assert [e["actor"] for e in first["events"] + rest["events"]] == [a.id for a in reversed(agents)]
    assert rest["next"] is None
    assert len((await events(f"actor={agents[0].id}"))["events"]) == 1
    assert (await events("from=2100-01-01T00:00:00Z"))["events"] == []
    assert (await server.get("/v1/audit/checkpoints/x", headers=server.admin)).status_code == 400
    assert (await server.get("/v1/audit/checkpoints/99", headers=server.admin)).status_code == 404
