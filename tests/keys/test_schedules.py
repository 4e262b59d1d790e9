"""Rotation schedules: an agent's own make it rotate and nobody else, are announced once, and hold nothing secret."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from angelia.api import AgentRow as AgentRecord
from angelia.envelope.ids import KeyType, bucket_of, hot_tag
from angelia.errors import InvalidArgument, KeyNotFound, NotFound, VersionConflict
from angelia.keys import model, schedules
from angelia.keys.master_key import CorruptRecord
from angelia.keys.model import DESTROY_AFTER, RotationPolicy, ScheduleRecord
from angelia.stores.wake import wake_topic
from http_agents import Server
from keyholder import KeyHolder, KeySlice, audited

MS, HOUR = timedelta(milliseconds=1), timedelta(hours=1)


async def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    return answer.json()


async def pair(keys_slice: KeySlice, now: datetime) -> tuple[KeyHolder, KeyHolder, AgentRecord, AgentRecord]:
    alice = await KeyHolder().enter(keys_slice, "agent-alice-01", now)
    bob = await KeyHolder().enter(keys_slice, "agent-bob-02", now)
    return alice, bob, await alice.record(keys_slice), await bob.record(keys_slice)


async def only(keys_slice: KeySlice, agent: AgentRecord, now: datetime) -> ScheduleRecord:
    (found,) = await keys_slice.schedules.of_agent(agent, "", 10, now)
    return found


# Over HTTP.


async def test_an_agent_makes_changes_sees_and_removes_its_own_schedules_alone(
    server: Server, alice: KeyHolder, bob: KeyHolder, connection: asyncpg.Connection
) -> None:
    made = await alice.put(server, "/v1/schedules/bob", {"policy": "hourly"})
    assert made.status_code == 200, made.text
    first = made.json()
    assert (first["peer"], first["policy"], first["current_key_version"]) == ("bob", "hourly", 1)
    assert first["current_key_id"] == str(alice.kem_ids[0])
    assert (await bob.get(server, "/v1/schedules")).json()["schedules"] == []
    other = (await bob.put(server, f"/v1/schedules/{alice.id}", {"policy": "daily"})).json()
    assert (other["peer"], other["policy"], other["current_key_id"]) == ("alice", "daily", str(bob.kem_ids[0]))
    for agent, peer, policy in ((alice, "bob", "hourly"), (bob, "alice", "daily")):
        listed = (await agent.get(server, "/v1/schedules")).json()
        assert [(one["peer"], one["policy"]) for one in listed["schedules"]] == [(peer, policy)]
        assert listed["next"] is None
    changed = (await alice.put(server, "/v1/schedules/bob", {"policy": "weekly"})).json()
    assert (changed["session_id"], changed["policy"]) == (first["session_id"], "weekly")
    assert (await bob.delete(server, "/v1/schedules/alice")).status_code == 204
    assert len((await alice.get(server, "/v1/schedules")).json()["schedules"]) == 1
    await refused(await bob.delete(server, "/v1/schedules/alice"), 404, "not_found")
    assert (await audited(connection))[2:] == [
        ("schedule_changed", "alice", "bob"),
        ("schedule_changed", "bob", "alice"),
        ("schedule_changed", "alice", "bob"),
        ("schedule_changed", "bob", "alice"),
    ]


async def test_a_blocked_strangers_schedule_makes_its_victim_rotate_never(
    server: Server, keys_slice: KeySlice, now: datetime, alice: KeyHolder, bob: KeyHolder
) -> None:
    """Bob is the stranger."""
    assert (await alice.put(server, "/v1/blocks/bob", {})).status_code == 204
    await bob.put(server, "/v1/schedules/alice", {"policy": "hourly"})
    for path in ("/v1/schedules/alice?agent=alice", f"/v1/schedules/bob?agent={alice.id}"):
        await refused(await bob.put(server, path, {"policy": "hourly"}), 403, "authorization_denied")
        await refused(await bob.delete(server, path), 403, "authorization_denied")
    await refused(await bob.get(server, "/v1/schedules?agent=alice"), 403, "authorization_denied")
    wake = keys_slice.wake
    async with (
        wake.listening(wake_topic("events", hot_tag("alice"))) as hers,
        wake.listening(wake_topic("events", hot_tag("bob"))) as his,
    ):
        await keys_slice.schedules.announce_due(now + timedelta(days=1))
        assert await his.wait(10)
        assert (len(his.words()), hers.words()) == (1, [])
    assert (await alice.get(server, "/v1/schedules")).json()["schedules"] == []
    (due,) = (await bob.get(server, "/v1/schedules")).json()["schedules"]
    assert due["due_since"] is not None


async def test_an_operator_sets_the_schedules_of_any_agent_and_the_audit_says_so(
    server: Server, alice: KeyHolder, bob: KeyHolder, connection: asyncpg.Connection
) -> None:
    path = "/v1/schedules/bob?agent=alice"
    made = await server.request("PUT", path, json={"policy": "daily"}, headers=server.admin)
    assert made.status_code == 200, made.text
    listed = (await alice.get(server, "/v1/schedules")).json()["schedules"]
    assert [(one["peer"], one["policy"]) for one in listed] == [("bob", "daily")]
    assert (await server.get("/v1/schedules?agent=alice", headers=server.admin)).json()["schedules"] == listed
    assert (await server.request("DELETE", path, headers=server.admin)).status_code == 204
    events = (await audited(connection))[2:]
    assert [(kind, object_) for kind, _, object_ in events] == [("schedule_changed", "bob")] * 2
    assert all(actor is not None and actor.startswith("token ") for _, actor, _ in events)


async def test_unknown_and_forbidden_peers_are_answered_alike(
    server: Server, keys_slice: KeySlice, alice: KeyHolder, bob: KeyHolder, now: datetime
) -> None:
    for rule in (await keys_slice.policy.rules(None, 100))[0]:
        await keys_slice.policy.remove("operator", rule.rule_id, now)
    answers = []
    for name in ("bob", "nobody", bob.id, str(uuid4())):
        put = await alice.put(server, f"/v1/schedules/{name}", {"policy": "daily"})
        gone = await alice.delete(server, f"/v1/schedules/{name}")
        report = await alice.post(
            server, f"/v1/schedules/{name}/rotated", {"key_id": str(alice.kem_ids[0]), "version": 2}
        )
        block = await alice.put(server, f"/v1/blocks/{name}", {})
        unblock = await alice.delete(server, f"/v1/blocks/{name}")
        answers.append([_told(answer, name) for answer in (put, gone, report, block, unblock)])
    assert all(one == answers[0] for one in answers)
    assert [status for status, _ in answers[0]] == [403, 404, 404, 403, 204]


def _told(answer: Any, name: str) -> tuple[int, str]:
    said = {key: value for key, value in (answer.json() if answer.content else {}).items() if key != "request_id"}
    return answer.status_code, str(said).replace(name, "NAME")


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
    late = {"key_id": str(alice.kem_ids[0]), "version": 4}
    lost = await refused(await alice.post(server, "/v1/schedules/bob/rotated", late), 409, "version_conflict")
    assert (lost["current_key_version"], lost["current_key_id"]) == (2, str(alice.kem_ids[0]))
    theirs = {"key_id": str(bob.kem_ids[0]), "version": 3}
    await refused(await bob.post(server, "/v1/schedules/alice/rotated", theirs), 404, "not_found")
    for body in ({**report, "version": 0}, {**report, "version": 1 << 31}, {**report, "key_id": "x"}, {"version": 2}):
        await refused(await alice.post(server, "/v1/schedules/bob/rotated", body), 400, "invalid_argument")


async def test_many_schedules_come_in_pages_by_peer(
    server: Server, keys_slice: KeySlice, now: datetime, alice: KeyHolder
) -> None:
    peers = ["aaa", "aab", "mmm", "zzy", "zzz"]
    for name in reversed(peers):
        await KeyHolder().enter(keys_slice, name, now)
        await keys_slice.schedules.put(await alice.record(keys_slice), name, RotationPolicy.DAILY, now)
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


async def test_an_agent_has_one_row_for_a_peer_and_the_ledger_sees_to_it(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    await asyncio.gather(
        *(
            keys_slice.schedules.put(*who, RotationPolicy.DAILY, now)
            for who in [(alice, bob.handle), (bob, alice.handle)] * 5
        )
    )
    rows = await connection.fetch("SELECT bucket, agent_a_nhi, agent_b_nhi FROM ratchet_states ORDER BY agent_a_nhi")
    assert [tuple(row) for row in rows] == [
        (93, "agent-alice-01", "agent-bob-02"),
        (69, "agent-bob-02", "agent-alice-01"),
    ]
    for wrong in (
        "SET agent_a_nhi = agent_b_nhi, agent_b_nhi = agent_a_nhi",
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
    await KeyHolder().enter(keys_slice, "zed", now)
    for name in wanted.values():
        peer = await KeyHolder().enter(keys_slice, name, now)
        await keys_slice.schedules.put(await peer.record(keys_slice), "zed", RotationPolicy.DAILY, now)
    rows = await connection.fetch("SELECT tableoid::regclass::text AS part, agent_a_nhi FROM ratchet_states")
    assert {row["part"]: row["agent_a_nhi"] for row in rows} == {
        f"ratchet_states_{part}": name for part, name in wanted.items()
    }


# When a rotation is due.


async def test_a_due_rotation_is_announced_once_though_ticks_run_at_once(
    keys_slice: KeySlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.HOURLY, now)
    counted: list[int] = []
    monkeypatch.setattr(schedules.metrics.ROTATIONS_ANNOUNCED, "inc", counted.append)
    tick = keys_slice.tick("rotations")
    await tick.run(now + HOUR - MS)
    assert (await only(keys_slice, alice, now)).due_since is None
    due = now + HOUR
    assert await asyncio.gather(*(tick.run(due) for _ in range(4))) == [False] * 4
    await tick.run(due + MS)
    assert sum(counted) == 1
    schedule = await only(keys_slice, alice, now)
    assert (schedule.due_since, schedule.next_rotation_at) == (due, due + HOUR)
    assert await keys_slice.schedules.of_agent(bob, "", 10, now) == []


async def test_what_was_missed_is_announced_once_and_counted_from_now(keys_slice: KeySlice, now: datetime) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.HOURLY, now)
    late = now + timedelta(days=3)
    await keys_slice.schedules.announce_due(late)
    await keys_slice.schedules.announce_due(late + HOUR)
    schedule = await only(keys_slice, alice, now)
    assert (schedule.due_since, schedule.next_rotation_at) == (late, late + 2 * HOUR)


async def test_the_tick_goes_on_while_more_waits(
    keys_slice: KeySlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    zed = await KeyHolder().enter(keys_slice, "zed", now)
    for number in range(3):
        await KeyHolder().enter(keys_slice, f"p{number}", now)
        await keys_slice.schedules.put(await zed.record(keys_slice), f"p{number}", RotationPolicy.HOURLY, now)
    monkeypatch.setattr(schedules, "_TICK_BATCH", 2)
    assert [await keys_slice.schedules.announce_due(now + HOUR) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("policy", "interval"), [("hourly", HOUR), ("daily", 24 * HOUR), ("weekly", 168 * HOUR)])
async def test_a_policy_sets_the_time_of_the_next_rotation(
    keys_slice: KeySlice, now: datetime, policy: str, interval: timedelta
) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    shown = await keys_slice.schedules.put(alice, bob.handle, RotationPolicy(policy), now)
    assert shown.next_rotation_at == now + interval


async def test_on_demand_is_never_due(keys_slice: KeySlice, now: datetime) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.HOURLY, now)
    shown = await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.ON_DEMAND, now)
    assert shown.next_rotation_at is None
    await keys_slice.schedules.announce_due(now + timedelta(days=9999))
    assert (await only(keys_slice, alice, now)).due_since is None


async def test_saying_the_same_policy_again_puts_nothing_off(keys_slice: KeySlice, now: datetime) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.HOURLY, now)
    later = now + HOUR - MS
    same = await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.HOURLY, later)
    assert same.next_rotation_at == now + HOUR
    await keys_slice.schedules.announce_due(now + HOUR)
    other = await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.DAILY, now + HOUR)
    assert other.next_rotation_at == now + 25 * HOUR
    assert other.due_since == now + HOUR, "a rotation that is due is due until it is done"


# Reporting a new key.


async def test_a_report_moves_the_schedule_and_keeps_the_old_key_in_grace(keys_slice: KeySlice, now: datetime) -> None:
    holder, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.HOURLY, now)
    await keys_slice.schedules.announce_due(now + HOUR)
    old, at = holder.kem_ids[0], now + HOUR + MS
    await holder.rotated(keys_slice, at)
    shown = await keys_slice.schedules.rotated(alice, bob.handle, holder.kem_ids[0], 2, at)
    schedule = shown
    assert (schedule.current_key_id, schedule.current_key_version) == (holder.kem_ids[0], 2)
    assert (schedule.last_rotated_at, schedule.next_rotation_at, schedule.due_since) == (at, at + HOUR, None)
    assert [(one.key_id, one.expires_at) for one in shown.grace_period_keys] == [(old, at + DESTROY_AFTER)]
    assert (await only(keys_slice, alice, at)).grace_period_keys == shown.grace_period_keys


async def test_of_twenty_reports_at_once_one_key_wins_and_the_others_learn_the_version(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder(KeyType.XWING, KeyType.ML_KEM_768).enter(keys_slice, "alice", now)
    await KeyHolder().enter(keys_slice, "bob", now)
    record = await alice.record(keys_slice)
    await keys_slice.schedules.put(record, "bob", RotationPolicy.DAILY, now)
    await alice.rotated(keys_slice, now)
    calls = [alice.kem_ids[number % 2] for number in range(20)]
    done = await asyncio.gather(
        *(keys_slice.schedules.rotated(record, "bob", key, 2, now) for key in calls), return_exceptions=True
    )
    won = {key for key, one in zip(calls, done, strict=True) if isinstance(one, ScheduleRecord)}
    assert len(won) == 1
    lost = [one for one in done if not isinstance(one, ScheduleRecord)]
    assert len(lost) == 10
    for error in lost:
        assert isinstance(error, VersionConflict)
        assert error.members == {"current_key_version": 2, "current_key_id": str(*won)}
    assert [kind for kind, *_ in await audited(connection)].count("session_key_rotated") == 1


async def test_a_report_names_an_active_kem_key_of_the_one_who_reports(keys_slice: KeySlice, now: datetime) -> None:
    holder, other, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.DAILY, now)
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
        await keys_slice.schedules.rotated(alice, bob.handle, old, 3, now)
    with pytest.raises(NotFound):
        await keys_slice.schedules.rotated(bob, alice.handle, other.kem_ids[0], 3, now)


async def test_grace_keys_are_ciphertext_in_the_ledger_and_bound_to_their_row(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    holder, _, alice, bob = await pair(keys_slice, now)
    carol = await KeyHolder().enter(keys_slice, "carol", now)
    for peer in (bob, await carol.record(keys_slice)):
        await keys_slice.schedules.put(alice, peer.handle, RotationPolicy.DAILY, now)
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
        await keys_slice.schedules.of_agent(alice, "", 10, now)


async def test_grace_keys_fall_out_when_their_time_is_over(keys_slice: KeySlice, now: datetime) -> None:
    holder, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.DAILY, now)
    kept = holder.kem_ids[0]
    await holder.rotated(keys_slice, now)
    await keys_slice.schedules.rotated(alice, bob.handle, holder.kem_ids[0], 2, now)
    over = now + DESTROY_AFTER
    assert [one.key_id for one in (await only(keys_slice, alice, over - MS)).grace_period_keys] == [kept]
    assert (await only(keys_slice, alice, over)).grace_period_keys == []


async def test_an_agent_that_reports_again_and_again_does_not_fill_the_ledger(
    keys_slice: KeySlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, _, alice, bob = await pair(keys_slice, now)
    await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.DAILY, now)
    replaced = []
    for version in range(2, 6):
        replaced.append(holder.kem_ids[0])
        await holder.rotated(keys_slice, now)
        shown = await keys_slice.schedules.rotated(alice, bob.handle, holder.kem_ids[0], version, now)
    assert [one.key_id for one in shown.grace_period_keys] == replaced
    assert model.MOST_GRACE_KEYS >= 7 * 24 + 2
    monkeypatch.setattr(schedules, "MOST_GRACE_KEYS", 1)
    await holder.rotated(keys_slice, now)
    last = await keys_slice.schedules.rotated(alice, bob.handle, holder.kem_ids[0], 6, now)
    assert len(last.grace_period_keys) == 1


async def test_a_peer_without_a_bundle_has_no_schedule(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    bare = await KeyHolder().exist(keys_slice, "bare", now)
    for who, peer in ((alice, "bare"), (bare, "alice")):
        record = await who.record(keys_slice)
        with pytest.raises(KeyNotFound):
            await keys_slice.schedules.put(record, peer, RotationPolicy.DAILY, now)


async def test_a_schedule_of_an_earlier_release_goes_on_for_both_agents_and_each_can_remove_its_own(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    _, _, alice, bob = await pair(keys_slice, now)
    scripts = Path(schedules.__file__).parent.parent / "stores" / "migrations"
    await keys_slice.schedules.put(alice, bob.handle, RotationPolicy.HOURLY, now)
    await connection.execute((scripts / "0017_keys_freshness.down.sql").read_text())
    await connection.execute((scripts / "0017_keys_freshness.up.sql").read_text())
    await keys_slice.schedules.announce_due(now + HOUR)
    for agent, peer in ((alice, bob), (bob, alice)):
        shown = await only(keys_slice, agent, now + HOUR)
        assert (shown.peer, shown.due_since) == (peer.handle, now + HOUR)
    await keys_slice.schedules.remove(bob, alice.handle, now + HOUR)
    assert await keys_slice.schedules.of_agent(bob, "", 10, now) == []
    assert (await only(keys_slice, alice, now)).policy is RotationPolicy.HOURLY
