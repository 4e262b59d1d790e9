"""Rotation: what is replaced, what stays good for how long, what is revoked at once, and what the books say of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from angelia.agents import service as agents_service
from angelia.audit import service as audit
from angelia.envelope import bundles
from angelia.envelope.bundles import KemEntry, KemKeyStatus, Link
from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.kem import KemPrivateKey
from angelia.envelope.signing import SigningPair
from angelia.envelope.times import unix_ms
from angelia.errors import AngeliaError, Conflict, InvalidArgument, NotFound
from angelia.keys import service
from angelia.keys.bundle_succession import Emergency
from angelia.keys.model import DESTROY_AFTER, KeyStatus, Reason, RotationPolicy, parse_links, rotation_document
from http_agents import Server
from keyholder import KeyHolder, KeySlice, audited, everything, fetched, publication

MS, SECOND = timedelta(milliseconds=1), timedelta(seconds=1)
Reach = Callable[[], Awaitable[object]]


async def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    return answer.json()


async def statuses(connection: asyncpg.Connection, handle: str = "alice") -> dict[UUID, str]:
    rows = await connection.fetch("SELECT key_id, status FROM key_records WHERE agent_nhi = $1", handle)
    return {row["key_id"]: row["status"] for row in rows}


def pair_ids(pair: SigningPair) -> set[UUID]:
    return {key_id(KeyType.ED25519, pair.public.ed25519), key_id(KeyType.ML_DSA_65, pair.public.ml_dsa)}


def emergency(now: datetime, *, since: datetime | None = None, operator: str | None = None) -> Emergency:
    return Emergency("stolen", since or now, operator)


# Into grace.


async def test_a_rotation_puts_the_old_keys_into_grace_from_the_time_of_the_bundle(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder(KeyType.XWING, KeyType.ML_KEM_768).enter(keys_slice, "alice", now - SECOND)
    old_kem, old_pair = alice.kem_ids, alice.pair
    link = alice.rotation(at=unix_ms(now), signer=True)
    await alice.accepted(keys_slice, link, now=now + 3 * SECOND, reason=Reason.SCHEDULED)
    rows = await connection.fetch("SELECT key_id, status, rotated_at FROM key_records")
    found = {row["key_id"]: (row["status"], row["rotated_at"]) for row in rows}
    assert found == {
        **dict.fromkeys([*old_kem, *pair_ids(old_pair)], ("grace", now)),
        **dict.fromkeys([*alice.kem_ids, *pair_ids(alice.pair)], ("active", None)),
    }


async def test_a_signer_rotation_replaces_the_request_key_and_the_old_one_signs_300_seconds_more(
    keys_slice: KeySlice, now: datetime
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    old_id = alice.key_id
    await alice.rotated(keys_slice, now, kem=False, signer=True)
    agents = keys_slice.agents
    assert (await alice.record(keys_slice)).public_key == alice.pair.public.ed25519
    last = now + timedelta(seconds=300)
    for at in (now, last):
        found = await agents.by_key_id(old_id, at)
        assert found is not None
        assert found[0].handle == "alice"
    assert await agents.by_key_id(old_id, last + MS) is None
    new = await agents.by_key_id(key_id(KeyType.ED25519, alice.pair.public.ed25519), now + timedelta(days=1))
    assert new is not None


async def test_after_a_signer_rotation_both_keys_sign_requests_and_only_the_new_one_for_long(
    server: Server, alice: KeyHolder
) -> None:
    old_headers = alice.signed("GET", "/v1/keys/prekeys/count")
    answer = await alice.rotate(server, alice.rotation(signer=True), reason="scheduled")
    assert answer.status_code == 201, answer.text
    assert (await server.get("/v1/keys/prekeys/count", headers=old_headers)).status_code == 200
    assert (await alice.get(server, "/v1/keys/prekeys/count")).status_code == 200


async def test_a_rotation_completes_in_much_less_than_100_ms(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    agent, took = await alice.record(keys_slice), []
    for number in range(10):
        started = time.perf_counter()
        link = alice.rotation(at=unix_ms(now) + number)
        await alice.accepted(keys_slice, link, reason=Reason.ON_DEMAND)
        took.append(time.perf_counter() - started)
    print(f"a rotation with new keys takes {sorted(took)[5] * 1000:.1f} ms (median of 10)")
    links = (await keys_slice.keys.links_since("alice", 0, None, now))[0]
    first, *rest = parse_links(links)
    assert bundles.follow(bundles.anchor_of(first.bundle), rest) == alice.last
    assert agent.handle == "alice"


async def test_ten_rotations_list_their_keys_in_grace_and_more_than_sixteen_find_no_room(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    for number in range(17):
        alice.grace = alice.grace[:14]  # with the one that is replaced next, and the active one, sixteen
        await alice.rotated(keys_slice, now + number * MS)
    assert len((await keys_slice.fetched("alice")).bundle.kem_keys) == 16
    assert await connection.fetchval("SELECT count(*) FROM key_records WHERE status = 'grace'") == 17


# What is refused.


async def test_a_new_pair_without_a_statement_that_holds_is_refused(
    server: Server, alice: KeyHolder, connection: asyncpg.Connection
) -> None:
    before, old = await everything(connection), alice.pair
    link = alice.rotation(signer=True)
    at, new = link.bundle.issued_at, alice.pair
    assert link.statement is not None
    wrong = {
        "none": None,
        "by the old pair only": rotation_document(bundles.replace(link.statement, by_new=link.statement.by_old)),
        "by the new pair only": rotation_document(bundles.replace(link.statement, by_old=link.statement.by_new)),
        "for another agent": rotation_document(bundles.sign_rotation(old, new, "bob", at)),
        "to another pair": rotation_document(bundles.sign_rotation(old, SigningPair.generate(), "alice", at)),
        "from another pair": rotation_document(bundles.sign_rotation(SigningPair.generate(), new, "alice", at)),
    }
    for what, statement in wrong.items():
        body = publication(Link(link.bundle), [], **({"rotation_statement": statement} if statement else {}))
        answer = await alice.post(server, "/v1/keys/rotate", body)
        code = "invalid_argument" if what == "none" else "signature_verification_failed"
        await refused(answer, 400, code)
    assert await everything(connection) == before


async def test_a_rotation_that_rotates_nothing_is_refused(server: Server, alice: KeyHolder) -> None:
    await refused(await alice.send(server, "/v1/keys/rotate", Link(alice.bundle())), 400, "invalid_argument")


async def test_there_is_nothing_to_rotate_before_the_first_bundle(server: Server) -> None:
    alice = await KeyHolder().claim(server, "alice")
    for send in (alice.rotate, alice.emergency):
        await refused(await send(server, Link(alice.bundle())), 409, "conflict")


async def test_an_emergency_has_a_path_of_its_own(server: Server, alice: KeyHolder) -> None:
    answer = await alice.rotate(server, alice.rotation(), reason="emergency")
    await refused(answer, 400, "invalid_argument")
    for reason in ("because", "", None):
        await refused(await alice.rotate(server, Link(alice.bundle()), reason=reason), 400, "invalid_argument")


async def test_a_publication_replaces_no_key_and_no_pair(server: Server, alice: KeyHolder) -> None:
    present = alice.kem, alice.pair, alice.grace
    await refused(await alice.publish(server, alice.rotation().bundle), 409, "conflict")
    alice.kem, alice.pair, alice.grace = present
    await refused(await alice.publish(server, alice.rotation(grace=False).bundle), 409, "conflict")
    alice.kem, alice.pair, alice.grace = present
    await refused(await alice.publish(server, alice.rotation(kem=False, signer=True).bundle), 409, "conflict")


async def test_no_key_comes_back_from_grace_retirement_or_revocation(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    old = dict(alice.kem)
    await alice.rotated(keys_slice, now)
    current, grace = alice.kem, alice.grace
    for step in ("grace", "retired", "revoked"):
        if step == "retired":
            await keys_slice.keys.end_grace(now + DESTROY_AFTER)
            alice.grace = grace
            with pytest.raises(InvalidArgument, match="living"):
                await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now))))
        if step == "revoked":
            await keys_slice.keys.revoke(await alice.record(keys_slice), old[KeyType.XWING].public.key_id, now, None)
        replaced = alice._in_grace(current[KeyType.XWING], unix_ms(now))
        alice.kem, alice.grace = old, (replaced,)
        with pytest.raises(Conflict):
            await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now))), reason=Reason.ON_DEMAND)
        alice.kem, alice.grace = current, ()


async def test_no_pair_comes_back_nor_half_of_one(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    first = alice.pair
    await alice.rotated(keys_slice, now, kem=False, signer=True)
    await alice.rotated(keys_slice, now, kem=False, signer=True)
    present, fresh = alice.pair, SigningPair.generate()
    for wrong in (
        first,
        SigningPair.from_seeds(first.seeds[0], fresh.seeds[1]),
        SigningPair.from_seeds(fresh.seeds[0], first.seeds[1]),
        SigningPair.from_seeds(present.seeds[0], fresh.seeds[1]),
        SigningPair.from_seeds(fresh.seeds[0], present.seeds[1]),
    ):
        alice.pair = wrong
        statement = bundles.sign_rotation(present, wrong, "alice", unix_ms(now))
        with pytest.raises(Conflict):
            await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now)), statement), reason=Reason.ON_DEMAND)


async def test_no_agent_takes_over_the_request_key_of_another(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    bob = await KeyHolder().enter(keys_slice, "bob", now)
    present, mixed = alice.pair, SigningPair.from_seeds(bob.pair.seeds[0], SigningPair.generate().seeds[1])
    alice.pair = mixed
    statement = bundles.sign_rotation(present, mixed, "alice", unix_ms(now))
    with pytest.raises(Conflict):
        await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now)), statement), reason=Reason.ON_DEMAND)


async def test_a_bundle_does_not_lie_about_when_a_key_was_rotated(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    link = alice.rotation(at=unix_ms(now))
    honest = alice.grace
    alice.grace = tuple(bundles.replace(entry, rotated_at=entry.rotated_at + 1) for entry in honest)
    with pytest.raises(InvalidArgument, match="rotated_at"):
        await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now))), reason=Reason.ON_DEMAND)
    await alice.accepted(keys_slice, link, reason=Reason.ON_DEMAND)
    with pytest.raises(InvalidArgument, match="rotated_at"):
        await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now))))
    stranger = KemEntry(
        key=KemPrivateKey.generate(KeyType.XWING).public,
        status=KemKeyStatus.GRACE,
        created_at=unix_ms(now),
        rotated_at=unix_ms(now),
    )
    alice.grace = (*honest, stranger)
    with pytest.raises(InvalidArgument, match="living"):
        await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now))))


async def test_of_rotations_at_once_one_wins_and_nothing_is_half_done(
    server: Server, alice: KeyHolder, connection: asyncpg.Connection
) -> None:
    keys, grace, pair, links = alice.kem, alice.grace, alice.pair, []
    for signer in (False, True, False, True):
        alice.kem, alice.grace, alice.pair = keys, grace, pair
        links.append(alice.rotation(signer=signer))
    answers = await asyncio.gather(*(alice.post(server, "/v1/keys/rotate", publication(link, [])) for link in links))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    winner = next(link for link, answer in zip(links, answers, strict=True) if answer.status_code == 201)
    active = {key for key, status in (await statuses(connection)).items() if status == "active"}
    signer_ids = {
        key_id(KeyType.ED25519, winner.bundle.signer.ed25519),
        key_id(KeyType.ML_DSA_65, winner.bundle.signer.ml_dsa),
    }
    assert active == signer_ids | {e.key.key_id for e in winner.bundle.kem_keys if e.status is KemKeyStatus.ACTIVE}
    request_key = await connection.fetchval("SELECT public_key FROM agents WHERE handle = 'alice'")
    assert request_key == winner.bundle.signer.ed25519


# The end of grace.


async def test_grace_ends_at_the_very_moment_and_is_audited_once_though_two_ticks_run(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    start = now - DESTROY_AFTER
    alice = await KeyHolder().exist(keys_slice, "alice", now)
    await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(start))), now=now)
    old = {*alice.kem_ids, *pair_ids(alice.pair)}
    await alice.rotated(keys_slice, start, signer=True)
    seen = len(await audited(connection))
    tick = keys_slice.tick("grace periods")
    await tick.run(now - MS)
    assert {status for key, status in (await statuses(connection)).items() if key in old} == {"grace"}
    assert await asyncio.gather(*(tick.run(now) for _ in range(4))) == [False] * 4
    assert {status for key, status in (await statuses(connection)).items() if key in old} == {"retired"}
    assert await audited(connection, since=seen) == [("key_retired", "angelia", "alice")] * 3


async def test_the_tick_goes_on_while_more_waits(
    keys_slice: KeySlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await KeyHolder(KeyType.XWING, KeyType.ML_KEM_768).enter(keys_slice, "alice", now)
    await alice.rotated(keys_slice, now, signer=True)
    monkeypatch.setattr(service, "_TICK_BATCH", 3)
    later = now + DESTROY_AFTER
    assert [await keys_slice.keys.end_grace(later) for _ in range(3)] == [True, False, False]


# Emergencies.


async def test_an_emergency_revokes_everything_old_at_once(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    bob = await KeyHolder().enter(keys_slice, "bob", now)
    request_keys, pairs = [alice.key_id], [alice.pair]
    old = {*alice.kem_ids, *pair_ids(alice.pair)}
    await alice.rotated(keys_slice, now, signer=True)
    request_keys.append(key_id(KeyType.ED25519, alice.pair.public.ed25519))
    old |= {*alice.kem_ids, *pair_ids(alice.pair)}
    pairs.append(alice.pair)
    await keys_slice.keys.add_one_time_keys(await alice.record(keys_slice), alice.one_time_keys(3, unix_ms(now)), now)
    await keys_slice.keys.bundle_with_one_time_key("alice", await bob.record(keys_slice), now)
    await keys_slice.schedules.put(await alice.record(keys_slice), "bob", RotationPolicy.WEEKLY, now)
    seen = len(await audited(connection))

    link = alice.rotation(at=unix_ms(now), signer=True, grace=False)
    since = now - timedelta(hours=2)
    await alice.accepted(keys_slice, link, reason=Reason.EMERGENCY, emergency=emergency(now, since=since))

    found = await statuses(connection)
    assert {key for key, status in found.items() if status == "revoked"} == old
    told = (await keys_slice.fetched("alice")).revoked
    assert set(told) == {pair.public.signer_id for pair in pairs}
    assert {key for key, status in found.items() if status == "active"} == {*alice.kem_ids, *pair_ids(alice.pair)}
    rows = await connection.fetch("SELECT revoked_at, compromised_since FROM key_records WHERE status = 'revoked'")
    assert {tuple(row) for row in rows} == {(now, since)}
    for request_key in request_keys:
        assert await keys_slice.agents.by_key_id(request_key, now) is None
    assert await connection.fetchval("SELECT count(*) FROM one_time_keys") == 0
    (schedule,) = await keys_slice.schedules.of_agent(await alice.record(keys_slice), "", 10, now)
    assert schedule.due_since == now
    assert await audited(connection, since=seen) == [("emergency_key_rotation", "alice", "alice")]
    detail = await connection.fetchval("SELECT detail FROM audit_events WHERE event_type = 'emergency_key_rotation'")
    assert msgspec.json.decode(detail)["why"] == "stolen"


async def test_an_emergency_that_keeps_the_pair_still_revokes_pairs_in_grace(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    first = alice.pair
    await alice.rotated(keys_slice, now, kem=False, signer=True)
    link = alice.rotation(at=unix_ms(now), grace=False)
    await alice.accepted(keys_slice, link, reason=Reason.EMERGENCY, emergency=emergency(now))
    found = await statuses(connection)
    assert {found[key] for key in pair_ids(first)} == {"revoked"}
    assert {found[key] for key in pair_ids(alice.pair)} == {"active"}
    replaced = key_id(KeyType.ED25519, first.public.ed25519)
    assert await keys_slice.agents.by_key_id(replaced, now) is None


async def test_after_an_emergency_the_old_request_key_is_refused_at_once(server: Server, alice: KeyHolder) -> None:
    url = "/v1/keys/prekeys/count"
    early, old = alice.signed("GET", url), KeyHolder()
    old.key, old.key_id = alice.key, alice.key_id
    assert (await server.get(url, headers=early)).status_code == 200
    assert (await alice.emergency(server, alice.rotation(signer=True, grace=False))).status_code == 201
    assert (await old.get(server, url)).status_code == 401
    assert (await alice.get(server, url)).status_code == 200
    assert fetched(await alice.get(server, "/v1/keys/bundle/alice")).bundle_version == 2


async def test_an_emergency_is_not_answered_by_a_bundle_that_revoked_nothing(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    rotated = alice.rotation(at=unix_ms(now), signer=True)
    await alice.accepted(keys_slice, rotated, reason=Reason.ON_DEMAND)
    stolen = emergency(now)
    with pytest.raises(Conflict, match="not revoked"):
        await alice.accepted(keys_slice, rotated, reason=Reason.EMERGENCY, emergency=stolen)
    assert "revoked" not in (await statuses(connection)).values()
    link = alice.rotation(at=unix_ms(now), grace=False)
    for new in (True, False):
        done = await alice.accepted(keys_slice, link, reason=Reason.EMERGENCY, emergency=stolen)
        assert done.new is new
    bob = KeyHolder()
    await bob.exist(keys_slice, "bob", now)
    first = Link(bob.bundle(at=unix_ms(now)))
    await bob.accepted(keys_slice, first)
    with pytest.raises(Conflict, match="not revoked"):
        await bob.accepted(keys_slice, first, reason=Reason.EMERGENCY, emergency=stolen)


async def test_an_agent_that_still_lists_a_revoked_key_in_grace_goes_on_rotating(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    (old,) = alice.kem_ids
    await alice.rotated(keys_slice, now)
    await keys_slice.keys.revoke(await alice.record(keys_slice), old, now, None)
    await alice.rotated(keys_slice, now)
    assert old in (await keys_slice.fetched("alice")).revoked
    assert (await statuses(connection))[old] == "revoked"


async def test_after_an_emergency_every_kem_key_is_new(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder(KeyType.XWING, KeyType.ML_KEM_768).enter(keys_slice, "alice", now)
    with_grace = alice.rotation(at=unix_ms(now))
    with pytest.raises(InvalidArgument):
        await alice.accepted(keys_slice, with_grace, reason=Reason.EMERGENCY, emergency=emergency(now))
    alice = await KeyHolder(KeyType.XWING, KeyType.ML_KEM_768).enter(keys_slice, "alice-2", now)
    kept = alice.kem[KeyType.ML_KEM_768]
    alice.rotation(at=unix_ms(now), grace=False)
    alice.kem[KeyType.ML_KEM_768] = kept
    link = Link(alice.bundle(at=unix_ms(now)))
    with pytest.raises(InvalidArgument):
        await alice.accepted(keys_slice, link, reason=Reason.EMERGENCY, emergency=emergency(now))


async def test_only_an_operator_rotates_the_keys_of_others(
    server: Server, alice: KeyHolder, bob: KeyHolder, connection: asyncpg.Connection
) -> None:
    link = alice.rotation(signer=True, grace=False)
    unsigned = Link(link.bundle)  # the old pair is lost, so nobody can vouch for the new one
    await refused(
        await bob.send(server, "/v1/keys/emergency-rotate", link, agent_nhi="alice", reason="x"),
        403,
        "authorization_denied",
    )
    await refused(
        await bob.send(server, "/v1/keys/emergency-rotate", link, agent_nhi="nobody", reason="x"),
        403,
        "authorization_denied",
    )
    await refused(await alice.emergency(server, unsigned), 400, "invalid_argument")
    body = msgspec.json.encode(publication(unsigned, [], agent_nhi="alice", reason="the laptop is gone"))
    headers = {"content-type": "application/json"}
    for role in ("read-only", "read-write"):
        made = await server.post("/v1/tokens", json={"role": role}, headers=server.admin)
        token = {**headers, "authorization": f"Bearer {made.json()['token']}"}
        answer = await server.post("/v1/keys/emergency-rotate", content=body, headers=token)
        await refused(answer, 403, "authorization_denied")
    answer = await server.post("/v1/keys/emergency-rotate", content=body, headers={**headers, **server.admin})
    assert answer.status_code == 201, answer.text
    again = await server.post("/v1/keys/emergency-rotate", content=body, headers={**headers, **server.admin})
    assert (again.status_code, again.json()) == (200, answer.json())
    row = await connection.fetchrow("SELECT * FROM audit_events WHERE event_type = 'emergency_key_rotation'")
    assert (row["object_nhi"], row["actor_nhi"] == "alice") == ("alice", False)
    alice.use_pair()
    assert (await alice.get(server, "/v1/keys/prekeys/count")).status_code == 200


async def test_an_operator_still_cannot_publish_for_another_than_the_one_it_names(
    server: Server, alice: KeyHolder, bob: KeyHolder
) -> None:
    link = alice.rotation(signer=True, grace=False)
    for name, status in (("bob", 400), ("nobody", 404), ("", 404), ("Alice\n", 404)):
        body = msgspec.json.encode(publication(link, [], agent_nhi=name, reason="x"))
        headers = {"content-type": "application/json", **server.admin}
        answer = await server.post("/v1/keys/emergency-rotate", content=body, headers=headers)
        assert answer.status_code == status, answer.text


async def test_an_agent_may_name_itself_by_its_id(server: Server, alice: KeyHolder) -> None:
    answer = await alice.emergency(server, alice.rotation(signer=True, grace=False), agent_nhi=alice.id)
    assert answer.status_code == 201, answer.text


async def test_what_cannot_be_stored_is_the_callers_error(server: Server, alice: KeyHolder) -> None:
    link = alice.rotation(signer=True, grace=False)
    wrong: list[dict[str, object]] = [
        {"reason": ""},
        {"reason": "x" * 201},
        {"reason": "a\0b"},
        {"compromised_since": "0001-01-01T00:00:00+23:59"},
        {"compromised_since": "2026-01-01T00:00:00"},
        {"compromised_since": "yesterday"},
    ]
    for body in wrong:
        await refused(await alice.emergency(server, link, **body), 400, "invalid_argument")
    answer = await alice.emergency(server, link, compromised_since="9999-12-31T23:59:59Z")
    assert answer.status_code == 201, answer.text


async def test_a_compromise_is_never_dated_in_the_future(
    server: Server, alice: KeyHolder, connection: asyncpg.Connection
) -> None:
    link = alice.rotation(signer=True, grace=False)
    assert (await alice.emergency(server, link, compromised_since="9999-12-31T23:59:59Z")).status_code == 201
    revoked = await connection.fetch("SELECT compromised_since = revoked_at FROM key_records WHERE status = 'revoked'")
    assert [row[0] for row in revoked] == [True] * 3


# Revoking one key.


async def test_a_kem_key_is_revoked_at_once_and_told_again_alike(
    server: Server, alice: KeyHolder, connection: asyncpg.Connection
) -> None:
    key = alice.kem_ids[0]
    answer = await alice.post(server, f"/v1/keys/{key}/revoke", {"compromised_since": "2026-01-01T00:00:00Z"})
    assert (answer.status_code, answer.json()["status"]) == (200, "revoked")
    assert answer.json()["compromised_since"] == "2026-01-01T00:00:00Z"
    again = await alice.post(server, f"/v1/keys/{key}/revoke")
    assert again.json() == answer.json()
    assert (await audited(connection))[1:] == [("key_revoked", "alice", "alice")]
    link = alice.rotation(grace=False)
    assert (await alice.publish(server, link.bundle)).status_code == 201, "there is nothing left to rotate"


async def test_the_active_pair_is_never_just_revoked(server: Server, alice: KeyHolder) -> None:
    for key in pair_ids(alice.pair):
        await refused(await alice.post(server, f"/v1/keys/{key}/revoke"), 409, "conflict")


async def test_a_replaced_pair_is_revoked_as_a_pair(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    old = pair_ids(alice.pair)
    await alice.rotated(keys_slice, now, kem=False, signer=True)
    record = await keys_slice.keys.revoke(await alice.record(keys_slice), min(old), now + SECOND, None)
    assert record.status is KeyStatus.REVOKED
    found = await statuses(connection)
    assert {found[key] for key in old} == {"revoked"}
    assert [change.reason for change in await keys_slice.keys.history("alice", None, 2, None, now)] == [
        "revoked",
        "revoked",
    ]


async def test_only_the_owner_revokes_a_key(server: Server, alice: KeyHolder, bob: KeyHolder) -> None:
    for key in (alice.kem_ids[0], uuid4()):
        await refused(await bob.post(server, f"/v1/keys/{key}/revoke"), 404, "not_found")
    for spelling in (str(alice.kem_ids[0]).upper(), "x", str(alice.kem_ids[0]).replace("-", "")):
        await refused(await alice.post(server, f"/v1/keys/{spelling}/revoke"), 400, "invalid_argument")


async def test_who_follows_revocations_sees_them_in_order(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder(KeyType.XWING, KeyType.ML_KEM_768).enter(keys_slice, "alice", now)
    agent = await alice.record(keys_slice)
    for number, key in enumerate(alice.kem_ids):
        await keys_slice.keys.revoke(agent, key, now + number * SECOND, None)
    assert [one.key_id for one in await keys_slice.keys.revoked_since(now, None, 10)] == alice.kem_ids
    assert [one.key_id for one in await keys_slice.keys.revoked_since(now + MS, None, 10)] == alice.kem_ids[1:]


# The books.


async def test_the_history_tells_both_keys_newest_first_in_pages(
    server: Server, alice: KeyHolder, bob: KeyHolder
) -> None:
    changes = []
    for _ in range(3):
        old = alice.kem_ids[0]
        await alice.rotate(server, alice.rotation(), reason="scheduled")
        changes.append((str(old), str(alice.kem_ids[0])))
    await alice.post(server, f"/v1/keys/{alice.kem_ids[0]}/revoke")
    seen, url = [], "/v1/keys/alice/history?limit=2"
    while True:
        page = (await bob.get(server, url)).json()
        assert len(page["rotations"]) <= 2
        seen += page["rotations"]
        if page["next"] is None:
            break
        url = f"/v1/keys/{alice.id}/history?limit=2&cursor={page['next']}"
    assert [(one["old_key_id"], one["new_key_id"]) for one in seen] == [(changes[-1][1], None), *reversed(changes)]
    assert [one["reason"] for one in seen] == ["revoked", "scheduled", "scheduled", "scheduled"]
    assert (await bob.get(server, "/v1/keys/bob/history")).json() == {"rotations": [], "next": None}
    await refused(await bob.get(server, "/v1/keys/nobody/history"), 404, "not_found")
    for query in (
        "limit=0",
        "limit=1001",
        "limit=x",
        "cursor=x",
        "cursor=MDAwMS0wMS0wMVQwMDowMDowMCsyMzo1OSAwMDAwMDAwMC0wMDAwLTAwMDAtMDAwMC0wMDAwMDAwMDAwMDA=",
    ):
        await refused(await bob.get(server, f"/v1/keys/alice/history?{query}"), 400, "invalid_argument")


async def test_a_rotation_of_everything_is_one_event_with_one_entry_for_each_key(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder(KeyType.XWING, KeyType.ML_KEM_768).enter(keys_slice, "alice", now)
    await alice.rotated(keys_slice, now, signer=True)
    history = await keys_slice.keys.history("alice", None, 100, None, now)
    assert sorted(one.key_type for one in history) == ["ed25519", "ml_dsa_65", "ml_kem_768", "xwing"]
    assert {one.rotated_at for one in history} == {now}
    assert {one.new_key_id for one in history} == {*alice.kem_ids, *pair_ids(alice.pair)}
    assert await audited(connection) == [("key_published", "alice", "alice"), ("key_rotated", "alice", "alice")]


# A crash is a rollback.


@pytest.mark.parametrize(
    "act", ["first", "publish", "rotate", "emergency", "revoke", "end of grace", "schedule", "last key"]
)
async def test_a_crash_before_the_commit_leaves_no_trace(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    bob = await KeyHolder().enter(keys_slice, "bob", now)
    carol = await KeyHolder().exist(keys_slice, "carol", now)
    one_time = alice.one_time_keys(1, unix_ms(now))
    await keys_slice.keys.add_one_time_keys(await alice.record(keys_slice), one_time, now)
    await alice.rotated(keys_slice, now)
    agent, other = await alice.record(keys_slice), await bob.record(keys_slice)
    new = alice.one_time_keys(1, unix_ms(now))
    if act in ("rotate", "emergency"):
        link = alice.rotation(at=unix_ms(now), signer=True, grace=act == "rotate")
        new = alice.one_time_keys(1, unix_ms(now))
    else:
        link = Link(alice.bundle(at=unix_ms(now)))
    acts: dict[str, Reach] = {
        "first": lambda: carol.accepted(keys_slice, Link(carol.bundle(at=unix_ms(now)))),
        "publish": lambda: alice.accepted(keys_slice, link, new),
        "rotate": lambda: alice.accepted(keys_slice, link, new, reason=Reason.ON_DEMAND),
        "emergency": lambda: alice.accepted(keys_slice, link, new, reason=Reason.EMERGENCY, emergency=emergency(now)),
        "revoke": lambda: keys_slice.keys.revoke(agent, alice.kem_ids[0], now, None),
        "end of grace": lambda: keys_slice.keys.end_grace(now + DESTROY_AFTER),
        "schedule": lambda: keys_slice.schedules.put(agent, "bob", RotationPolicy.DAILY, now),
        "last key": lambda: keys_slice.keys.bundle_with_one_time_key("alice", other, now),
    }
    before = await everything(connection)

    async def killed(*_: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(audit, "record", killed)
    with pytest.raises(RuntimeError):
        await acts[act]()
    assert await everything(connection) == before
    monkeypatch.undo()
    await acts[act]()
    after = await everything(connection)
    assert len(after["audit_events"]) == len(before["audit_events"]) + 1


async def test_a_request_key_that_cannot_be_replaced_leaves_no_trace(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    link, before = alice.rotation(at=unix_ms(now), signer=True), await everything(connection)

    async def taken(*_: object, **__: object) -> None:
        raise Conflict("somebody was faster")

    monkeypatch.setattr(agents_service, "replace_key", taken)
    with pytest.raises(Conflict):
        await alice.accepted(keys_slice, link, reason=Reason.ON_DEMAND)
    assert await everything(connection) == before


async def test_an_agent_that_is_not_there_rotates_nothing(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    ghost = bundles.replace(await alice.record(keys_slice), id=uuid4())
    with pytest.raises(NotFound):
        await keys_slice.keys.accept(ghost, Link(alice.bundle(at=unix_ms(now))), [], now)
    with pytest.raises(AngeliaError):
        await keys_slice.keys.revoke(ghost, alice.kem_ids[0], now, None)
