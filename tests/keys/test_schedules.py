"""Rotation schedules of agent pairs: one for each pair, announced once, reported once, and nothing secret in them."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from angelia.agents.model import Agent as AgentRecord
from angelia.envelope.ids import KeyType, bucket_of
from angelia.errors import InvalidArgument, KeyNotFound, VersionConflict
from angelia.jobs import rotations
from angelia.keys import model, schedules
from angelia.keys.model import DESTROY_AFTER, Policy
from angelia.keys.provider import CorruptRecord
from keyholder import KeyHolder, KeySlice, audited
from support import Server

MS, HOUR = timedelta(milliseconds=1), timedelta(hours=1)


async def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    return answer.json()


async def pair(keys_slice: KeySlice, now: datetime) -> tuple[KeyHolder, KeyHolder, AgentRecord, AgentRecord]:
    alice = await KeyHolder().enter(keys_slice, "agent-alice-01", now)
    bob = await KeyHolder().enter(keys_slice, "agent-bob-02", now)
    return alice, bob, await alice.record(keys_slice), await bob.record(keys_slice)


async def only(keys_slice: KeySlice, agent: AgentRecord, now: datetime) -> schedules.Shown:
    (found,) = await keys_slice.schedules.of_agent(agent, "", 10, now)
    return found


# Over HTTP.


async def test_either_agent_makes_changes_sees_and_removes_the_schedule(
    server: Server, alice: KeyHolder, bob: KeyHolder, connection: asyncpg.Connection
) -> None:
    made = await alice.put(server, "/v1/schedules/bob", {"policy": "hourly"})
    assert made.status_code == 200, made.text
    first = made.json()
    assert (first["peer"], first["policy"], first["current_key_version"]) == ("bob", "hourly", 1)
    assert first["current_key_id"] == str(alice.kem_ids[0])
    changed = (await bob.put(server, f"/v1/schedules/{alice.id}", {"policy": "daily"})).json()
    assert (changed["peer"], changed["policy"]) == ("alice", "daily")
    assert (changed["session_id"], changed["current_key_id"]) == (first["session_id"], first["current_key_id"])
    for agent, peer in ((alice, "bob"), (bob, "alice")):
        listed = (await agent.get(server, "/v1/schedules")).json()
        assert [(one["peer"], one["policy"]) for one in listed["schedules"]] == [(peer, "daily")]
        assert listed["next"] is None
    assert (await bob.delete(server, "/v1/schedules/alice")).status_code == 204
    assert (await alice.get(server, "/v1/schedules")).json()["schedules"] == []
    await refused(await alice.delete(server, "/v1/schedules/bob"), 404, "not_found")
    assert (await audited(connection))[2:] == [
        ("schedule_changed", "alice", "bob"),
        ("schedule_changed", "bob", "alice"),
        ("schedule_changed", "bob", "alice"),
    ]


async def test_a_schedule_is_between_two_agents_with_bundles(server: Server, alice: KeyHolder) -> None:
    bare = await server.register()
    for name in ("alice", alice.id):
        await refused(await alice.put(server, f"/v1/schedules/{name}", {"policy": "daily"}), 400, "invalid_argument")
    await refused(await alice.put(server, "/v1/schedules/nobody", {"policy": "daily"}), 404, "not_found")
    await refused(await alice.put(server, f"/v1/schedules/{bare.id}", {"policy": "daily"}), 404, "key_not_found")
    for body in ({"policy": "yearly"}, {}, {"policy": "daily", "more": 1}, {"policy": None}, []):
        await refused(await alice.put(server, "/v1/schedules/nobody", body), 400, "invalid_argument")
    await refused(await alice.delete(server, "/v1/schedules/alice"), 404, "not_found")
    report = {"key_id": str(uuid4()), "version": 2}
    await refused(await alice.post(server, "/v1/schedules/alice/rotated", report), 404, "not_found")


async def test_a_schedule_is_its_two_agents_business(server: Server, alice: KeyHolder, bob: KeyHolder) -> None:
    await alice.put(server, "/v1/schedules/bob", {"policy": "daily"})
    carol = await KeyHolder().join(server, "carol")
    assert (await carol.get(server, "/v1/schedules")).json()["schedules"] == []
    for peer in ("alice", "bob"):
        await refused(await carol.delete(server, f"/v1/schedules/{peer}"), 404, "not_found")
        report = {"key_id": str(carol.kem_ids[0]), "version": 2}
        await refused(await carol.post(server, f"/v1/schedules/{peer}/rotated", report), 404, "not_found")
    await refused(await server.get("/v1/schedules", headers=server.admin), 403, "authorization_denied")
    await refused(await server.get("/v1/schedules"), 401, "unauthenticated")


async def test_a_report_over_http_answers_with_the_schedule_or_the_version_that_stands(
    server: Server, alice: KeyHolder, bob: KeyHolder
) -> None:
    await alice.put(server, "/v1/schedules/bob", {"policy": "daily"})
    old = alice.kem_ids[0]
    await alice.rotate(server, alice.rotation())
    report = {"key_id": str(alice.kem_ids[0]), "version": 2}
    done = await alice.post(server, "/v1/schedules/bob/rotated", report)
    assert (done.status_code, done.json()["current_key_version"]) == (200, 2)
    assert [one["key_id"] for one in done.json()["grace_period_keys"]] == [str(old)]
    again = await alice.post(server, "/v1/schedules/bob/rotated", report)
    assert (again.status_code, again.json()) == (200, done.json())
    late = {"key_id": str(bob.kem_ids[0]), "version": 2}
    lost = await refused(await bob.post(server, "/v1/schedules/alice/rotated", late), 409, "version_conflict")
    assert (lost["current_key_version"], lost["current_key_id"]) == (2, str(alice.kem_ids[0]))
    for body in ({**report, "version": 0}, {**report, "version": 1 << 31}, {**report, "key_id": "x"}, {"version": 2}):
        await refused(await alice.post(server, "/v1/schedules/bob/rotated", body), 400, "invalid_argument")


async def test_many_schedules_come_in_pages_by_peer(
    server: Server, keys_slice: KeySlice, now: datetime, alice: KeyHolder
) -> None:
    peers = ["aaa", "aab", "mmm", "zzy", "zzz"]
    for name in reversed(peers):
        other = await KeyHolder().enter(keys_slice, name, now)
        maker, peer = (alice, name) if name < "m" else (other, "alice")
        await keys_slice.schedules.put(await maker.record(keys_slice), peer, Policy.DAILY, now)
    seen, url = [], "/v1/schedules?limit=2"
    while True:
        page = (await alice.get(server, url)).json()
        seen.append([one["peer"] for one in page["schedules"]])
        if page["next"] is None:
            break
        url = f"/v1/schedules?limit=2&cursor={page['next']}"
    assert seen == [peers[:2], peers[2:4], peers[4:]]
    for query in ("limit=0", "limit=1001", "cursor=" + "x" * 256, "cursor=%00"):
        await refused(await alice.get(server, f"/v1/schedules?{query}"), 400, "invalid_argument")


# Where they lie.


async def test_the_bucket_is_the_first_byte_of_the_hash_in_python_and_in_sql(connection: asyncpg.Connection) -> None:
    for handle, bucket in (("agent-alice-01", 93), ("agent-bob-02", 69)):
        in_sql = await connection.fetchval("SELECT get_byte(sha256(convert_to($1, 'UTF8')), 0)", handle)
        assert (bucket_of(handle), in_sql, hashlib.sha256(handle.encode()).digest()[0]) == (bucket, bucket, bucket)


async def test_a_pair_has_one_row_whatever_the_order_and_the_ledger_sees_to_it(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    await asyncio.gather(
        *(keys_slice.schedules.put(*who, Policy.DAILY, now) for who in [(alice, bob.handle), (bob, alice.handle)] * 5)
    )
    row = await connection.fetchrow("SELECT bucket, agent_a_nhi, agent_b_nhi FROM ratchet_states")
    assert tuple(row) == (93, "agent-alice-01", "agent-bob-02")
    assert await connection.fetchval("SELECT count(*) FROM ratchet_states") == 1
    for wrong in (
        "SET agent_a_nhi = agent_b_nhi, agent_b_nhi = agent_a_nhi, bucket = 69",
        "SET bucket = 94",
        "SET agent_b_nhi = agent_a_nhi",
        "SET next_rotation_at = NULL",
        "SET rotation_policy = 'on_demand'",
        "SET current_key_version = 0",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(f"UPDATE ratchet_states {wrong}")


async def test_rows_lie_in_the_four_partitions_of_their_buckets(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    wanted: dict[int, str] = {}
    for number in range(200):
        wanted.setdefault(bucket_of(f"peer-{number}") // 64, f"peer-{number}")
    zed = await KeyHolder().enter(keys_slice, "zed", now)
    for name in wanted.values():
        await KeyHolder().enter(keys_slice, name, now)
        await keys_slice.schedules.put(await zed.record(keys_slice), name, Policy.DAILY, now)
    rows = await connection.fetch("SELECT tableoid::regclass::text AS part, agent_a_nhi FROM ratchet_states")
    assert {row["part"]: row["agent_a_nhi"] for row in rows} == {
        f"ratchet_states_{part}": name for part, name in wanted.items()
    }


# When a rotation is due.


async def test_a_due_rotation_is_announced_once_though_ticks_run_at_once(
    keys_slice: KeySlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, Policy.HOURLY, now)
    counted: list[int] = []
    monkeypatch.setattr(schedules.metrics.ROTATIONS_ANNOUNCED, "inc", counted.append)
    tick = rotations.tick(keys_slice.schedules)
    await tick.run(now + HOUR - MS)
    assert (await only(keys_slice, alice, now)).schedule.due_since is None
    due = now + HOUR
    assert await asyncio.gather(*(tick.run(due) for _ in range(4))) == [False] * 4
    await tick.run(due + MS)
    assert sum(counted) == 1
    for agent in (alice, bob):
        schedule = (await only(keys_slice, agent, now)).schedule
        assert (schedule.due_since, schedule.next_rotation_at) == (due, due + HOUR)


async def test_what_was_missed_is_announced_once_and_counted_from_now(keys_slice: KeySlice, now: datetime) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, Policy.HOURLY, now)
    late = now + timedelta(days=3)
    await keys_slice.schedules.announce_due(late)
    await keys_slice.schedules.announce_due(late + HOUR)
    schedule = (await only(keys_slice, alice, now)).schedule
    assert (schedule.due_since, schedule.next_rotation_at) == (late, late + 2 * HOUR)


async def test_the_tick_goes_on_while_more_waits(
    keys_slice: KeySlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    zed = await KeyHolder().enter(keys_slice, "zed", now)
    for number in range(3):
        await KeyHolder().enter(keys_slice, f"p{number}", now)
        await keys_slice.schedules.put(await zed.record(keys_slice), f"p{number}", Policy.HOURLY, now)
    monkeypatch.setattr(schedules, "_TICK_BATCH", 2)
    assert [await keys_slice.schedules.announce_due(now + HOUR) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("policy", "interval"), [("hourly", HOUR), ("daily", 24 * HOUR), ("weekly", 168 * HOUR)])
async def test_a_policy_sets_the_time_of_the_next_rotation(
    keys_slice: KeySlice, now: datetime, policy: str, interval: timedelta
) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    shown = await keys_slice.schedules.put(alice, bob.handle, Policy(policy), now)
    assert shown.schedule.next_rotation_at == now + interval


async def test_on_demand_is_never_due(keys_slice: KeySlice, now: datetime) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, Policy.HOURLY, now)
    shown = await keys_slice.schedules.put(alice, bob.handle, Policy.ON_DEMAND, now)
    assert shown.schedule.next_rotation_at is None
    await keys_slice.schedules.announce_due(now + timedelta(days=9999))
    assert (await only(keys_slice, alice, now)).schedule.due_since is None


async def test_saying_the_same_policy_again_puts_nothing_off(keys_slice: KeySlice, now: datetime) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, Policy.HOURLY, now)
    later = now + HOUR - MS
    same = await keys_slice.schedules.put(bob, alice.handle, Policy.HOURLY, later)
    assert same.schedule.next_rotation_at == now + HOUR
    await keys_slice.schedules.announce_due(now + HOUR)
    other = await keys_slice.schedules.put(bob, alice.handle, Policy.DAILY, now + HOUR)
    assert other.schedule.next_rotation_at == now + 25 * HOUR
    assert other.schedule.due_since == now + HOUR, "a rotation that is due is due until it is done"


# Reporting a new key.


async def test_a_report_moves_the_schedule_and_keeps_the_old_key_in_grace(keys_slice: KeySlice, now: datetime) -> None:
    holder, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, Policy.HOURLY, now)
    await keys_slice.schedules.announce_due(now + HOUR)
    old, at = holder.kem_ids[0], now + HOUR + MS
    await holder.rotated(keys_slice, at)
    shown = await keys_slice.schedules.rotated(alice, bob.handle, holder.kem_ids[0], 2, at)
    schedule = shown.schedule
    assert (schedule.current_key_id, schedule.current_key_version) == (holder.kem_ids[0], 2)
    assert (schedule.last_rotated_at, schedule.next_rotation_at, schedule.due_since) == (at, at + HOUR, None)
    assert [(one.key_id, one.expires_at) for one in shown.grace_keys] == [(old, at + DESTROY_AFTER)]
    assert (await only(keys_slice, bob, at)).grace_keys == shown.grace_keys


async def test_of_twenty_reports_at_once_one_key_wins_and_the_others_learn_the_version(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder(KeyType.XWING, KeyType.ML_KEM_768).enter(keys_slice, "alice", now)
    bob = await KeyHolder(KeyType.XWING, KeyType.ML_KEM_768).enter(keys_slice, "bob", now)
    records = {"alice": await alice.record(keys_slice), "bob": await bob.record(keys_slice)}
    await keys_slice.schedules.put(records["alice"], "bob", Policy.DAILY, now)
    keys = [("alice", "bob", alice.kem_ids[1]), *(("bob", "alice", key) for key in bob.kem_ids)]
    assert alice.kem_ids[0] == (await only(keys_slice, records["bob"], now)).schedule.current_key_id
    calls = [keys[number % 3] for number in range(20)]
    done = await asyncio.gather(
        *(keys_slice.schedules.rotated(records[who], peer, key, 2, now) for who, peer, key in calls),
        return_exceptions=True,
    )
    won = {key for (_, _, key), one in zip(calls, done, strict=True) if isinstance(one, schedules.Shown)}
    assert len(won) == 1
    lost = [one for one in done if not isinstance(one, schedules.Shown)]
    assert len(lost) >= 13
    for error in lost:
        assert isinstance(error, VersionConflict)
        assert error.members == {"current_key_version": 2, "current_key_id": str(*won)}
    assert [kind for kind, *_ in await audited(connection)].count("session_key_rotated") == 1


async def test_a_report_names_an_active_kem_key_of_the_one_who_reports(keys_slice: KeySlice, now: datetime) -> None:
    holder, other, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, Policy.DAILY, now)
    old = holder.kem_ids[0]
    await holder.rotated(keys_slice, now)
    wrong: list[UUID] = [uuid4(), other.kem_ids[0], holder.key_id, holder.pair.public.signer_id]
    for key in wrong:
        with pytest.raises(InvalidArgument):
            await keys_slice.schedules.rotated(alice, bob.handle, key, 2, now)
    with pytest.raises(InvalidArgument, match="already"):
        await keys_slice.schedules.rotated(alice, bob.handle, old, 2, now)
    for version in (1, 3, 1000):
        with pytest.raises(VersionConflict):
            await keys_slice.schedules.rotated(alice, bob.handle, holder.kem_ids[0], version, now)
    await keys_slice.schedules.rotated(alice, bob.handle, holder.kem_ids[0], 2, now)
    await holder.rotated(keys_slice, now)
    with pytest.raises(InvalidArgument):  # in grace by now
        await keys_slice.schedules.rotated(
            bob, alice.handle, other.kem_ids[0], 3, now
        ) and await keys_slice.schedules.rotated(alice, bob.handle, old, 4, now)


async def test_grace_keys_are_ciphertext_in_the_ledger_and_bound_to_their_row(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    holder, _, alice, bob = await pair(keys_slice, now)
    carol = await KeyHolder().enter(keys_slice, "carol", now)
    for peer in (bob, await carol.record(keys_slice)):
        await keys_slice.schedules.put(alice, peer.handle, Policy.DAILY, now)
    old = holder.kem_ids[0]
    await holder.rotated(keys_slice, now)
    for name in (bob.handle, "carol"):
        await keys_slice.schedules.rotated(alice, name, holder.kem_ids[0], 2, now)
    rows = await connection.fetch("SELECT t::text AS t, grace_period_keys AS sealed FROM ratchet_states AS t")
    for row in rows:
        assert old.bytes not in row["sealed"]
        assert str(old).encode() not in row["sealed"]
        assert old.hex not in row["t"].replace("-", "")
        assert b"expires_at" not in row["sealed"]
    await connection.execute(
        "UPDATE ratchet_states SET grace_period_keys = $1 WHERE agent_b_nhi = 'carol'",
        await connection.fetchval("SELECT grace_period_keys FROM ratchet_states WHERE agent_b_nhi = $1", bob.handle),
    )
    with pytest.raises(CorruptRecord):
        await keys_slice.schedules.of_agent(await carol.record(keys_slice), "", 10, now)


async def test_grace_keys_fall_out_when_their_time_is_over(keys_slice: KeySlice, now: datetime) -> None:
    holder, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, Policy.DAILY, now)
    kept = holder.kem_ids[0]
    await holder.rotated(keys_slice, now)
    await keys_slice.schedules.rotated(alice, bob.handle, holder.kem_ids[0], 2, now)
    over = now + DESTROY_AFTER
    assert [one.key_id for one in (await only(keys_slice, alice, over - MS)).grace_keys] == [kept]
    assert (await only(keys_slice, alice, over)).grace_keys == []


async def test_two_agents_that_report_in_turns_do_not_fill_the_ledger(
    keys_slice: KeySlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, Policy.DAILY, now)
    for version in range(2, 12):
        who, peer, key = (bob, alice, other.kem_ids[0]) if version % 2 == 0 else (alice, bob, holder.kem_ids[0])
        shown = await keys_slice.schedules.rotated(who, peer.handle, key, version, now)
    assert [one.key_id for one in shown.grace_keys] == other.kem_ids
    assert model.MOST_GRACE_KEYS >= 7 * 24 + 2
    monkeypatch.setattr(schedules, "MOST_GRACE_KEYS", 1)
    await holder.rotated(keys_slice, now)
    last = await keys_slice.schedules.rotated(alice, bob.handle, holder.kem_ids[0], 12, now)
    assert len(last.grace_keys) == 1


async def test_a_peer_without_a_bundle_has_no_schedule(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    bare = await KeyHolder().exist(keys_slice, "bare", now)
    for who, peer in ((alice, "bare"), (bare, "alice")):
        record = await who.record(keys_slice)
        with pytest.raises(KeyNotFound):
            await keys_slice.schedules.put(record, peer, Policy.DAILY, now)
