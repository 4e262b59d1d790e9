"""One-time keys: each is handed out at most once, to whom may have it, and never when it is too old."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec
import pytest

from angelia.api import AgentRow as AgentRecord
from angelia.envelope import bundles
from angelia.envelope.bundles import Link, OneTimeKey
from angelia.envelope.ids import KeyType
from angelia.envelope.signing import SigningPair
from angelia.envelope.times import moment, unix_ms
from angelia.errors import AngeliaError, Conflict, InvalidArgument, KeyNotFound
from angelia.keys import service
from angelia.keys.model import ONE_TIME_LIFE, ONE_TIME_USE, BundleAnswer, Reason, one_time_document, parse_one_time_key
from http_agents import Agent, Server
from keyholder import KeyHolder, KeySlice, audited

MS, HOUR = timedelta(milliseconds=1), timedelta(hours=1)


async def publisher(keys_slice: KeySlice, now: datetime, count: int) -> tuple[KeyHolder, list[OneTimeKey]]:
    """Alice, with so many one-time keys."""
    alice = await KeyHolder().exist(keys_slice, "alice", now)
    made = alice.one_time_keys(count, unix_ms(now))
    await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now))), made)
    return alice, made


async def requesters(keys_slice: KeySlice, count: int, now: datetime) -> list[AgentRecord]:
    made = await asyncio.gather(*(keys_slice.agents.register(Agent().public_text, "", "", now) for _ in range(count)))
    return [await keys_slice.agents.by_id(one.id) for one in made]


async def take(keys_slice: KeySlice, requester: AgentRecord, now: datetime) -> UUID | None:
    answer = await keys_slice.keys.bundle_with_one_time_key("alice", requester, now)
    assert answer.bundle.agent_nhi == "alice"
    assert answer.one_time is (answer.one_time_key is not None)
    return answer.one_time_key.key_id if answer.one_time_key else None


async def upload(keys_slice: KeySlice, holder: KeyHolder, keys: list[OneTimeKey], now: datetime) -> tuple[int, int]:
    return await keys_slice.keys.add_one_time_keys(await holder.record(keys_slice), keys, now)


# Handing out.


async def test_a_key_is_handed_out_with_the_bundle_and_verifies(
    server: Server, alice: KeyHolder, bob: KeyHolder
) -> None:
    made = alice.one_time_keys(1)
    assert (await alice.publish(server, alice.bundle(), made)).status_code == 201
    answer = await bob.get(server, "/v1/keys/bundle/alice?one_time=true")
    assert answer.headers["cache-control"] == "no-store"
    assert "etag" not in answer.headers
    found = msgspec.json.decode(answer.content, type=BundleAnswer)
    assert found.one_time is True
    assert found.one_time_key is not None
    one = parse_one_time_key(found.one_time_key)
    assert one == made[0]
    bundles.check_one_time_key(one, alice.pair.public)
    empty = (await bob.get(server, "/v1/keys/bundle/alice?one_time=true")).json()
    assert (empty["one_time"], empty.get("one_time_key"), empty["bundle"]) == (False, None, answer.json()["bundle"])


@pytest.mark.parametrize("count", [30, 60])
async def test_of_fifty_requesters_at_once_each_gets_another_key_or_none(
    keys_slice: KeySlice, now: datetime, count: int
) -> None:
    _, made = await publisher(keys_slice, now, count)
    asking = await requesters(keys_slice, 50, now)
    taken = await asyncio.gather(*(take(keys_slice, requester, now) for requester in asking))
    handed_out = [one for one in taken if one is not None]
    assert len(handed_out) == len(set(handed_out)) == min(50, count)
    assert set(handed_out) <= {one.key.key_id for one in made}


async def test_a_pair_gets_ten_an_hour_exactly_even_when_raced(keys_slice: KeySlice, now: datetime) -> None:
    alice, _ = await publisher(keys_slice, now, 33)
    bob, carol = await requesters(keys_slice, 2, now)
    racing = await asyncio.gather(*(take(keys_slice, bob, now) for _ in range(25)))
    assert len({one for one in racing if one}) == 10
    assert Counter(one is None for one in racing) == {False: 10, True: 15}
    assert await take(keys_slice, carol, now) is not None, "another pair has its own hour"
    assert await take(keys_slice, bob, now + HOUR - MS) is None
    later = [await take(keys_slice, bob, now + HOUR) for _ in range(11)]
    assert [one is None for one in later] == [False] * 10 + [True]
    assert await keys_slice.keys.count_one_time_keys(await alice.record(keys_slice), now + HOUR) == 33 - 21


async def test_a_token_that_only_reads_takes_no_key(server: Server, alice: KeyHolder, bob: KeyHolder) -> None:
    await alice.post(server, "/v1/keys/prekeys", {"one_time_keys": [one_time_document(alice.one_time_keys(1)[0])]})
    counts = []
    for role, status in (("read-only", 403), ("read-write", 200)):
        made = await server.post("/v1/tokens", json={"role": role, "agent": "bob"}, headers=server.admin)
        headers = {"authorization": f"Bearer {made.json()['token']}"}
        assert (await server.get("/v1/keys/bundle/alice", headers=headers)).status_code == 200
        answer = await server.get("/v1/keys/bundle/alice?one_time=true", headers=headers)
        assert answer.status_code == status, answer.text
        counts.append((await alice.get(server, "/v1/keys/prekeys/count")).json()["count"])
    assert counts == [1, 0]


async def test_a_token_needs_an_agent_to_get_a_key(server: Server, alice: KeyHolder) -> None:
    await alice.publish(server, alice.bundle(), alice.one_time_keys(1))
    answer = await server.get("/v1/keys/bundle/alice?one_time=true", headers=server.admin)
    assert (answer.status_code, answer.json()["code"]) == (403, "authorization_denied")
    plain = await server.get("/v1/keys/bundle/alice", headers=server.admin)
    assert plain.status_code == 200
    assert (await server.get("/v1/keys/bundle/alice?one_time=true")).status_code == 401
    assert (await alice.get(server, "/v1/keys/prekeys/count")).json() == {"count": 1}


async def test_the_oldest_key_goes_first_and_one_of_30_days_goes_to_nobody(keys_slice: KeySlice, now: datetime) -> None:
    alice, (old,) = await publisher(keys_slice, now, 1)
    young = alice.one_time_keys(1, unix_ms(now + HOUR))
    assert await upload(keys_slice, alice, young, now + HOUR) == (1, 2)
    (bob,) = await requesters(keys_slice, 1, now)
    record = await alice.record(keys_slice)
    assert await keys_slice.keys.count_one_time_keys(record, now + ONE_TIME_LIFE - MS) == 2
    assert await keys_slice.keys.count_one_time_keys(record, now + ONE_TIME_LIFE) == 1
    assert await take(keys_slice, bob, now + ONE_TIME_LIFE) == young[0].key.key_id
    assert await take(keys_slice, bob, now + ONE_TIME_LIFE) is None
    assert await take(keys_slice, bob, now + ONE_TIME_LIFE - MS) == old.key.key_id


async def test_a_tick_drops_what_is_too_old_to_be_used_by_anybody(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await publisher(keys_slice, now, 3)
    (bob,) = await requesters(keys_slice, 1, now)
    await take(keys_slice, bob, now)
    tick = keys_slice.tick("one-time keys")
    over = now + ONE_TIME_LIFE + ONE_TIME_USE
    assert await tick.run(over) is False
    assert await connection.fetchval("SELECT count(*) FROM one_time_keys") == 3
    assert await tick.run(over + MS) is False
    assert await connection.fetchval("SELECT count(*) FROM one_time_keys") == 0


async def test_the_tick_goes_on_while_more_waits_and_two_at_once_do_no_harm(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publisher(keys_slice, now, 7)
    monkeypatch.setattr(service, "_TICK_BATCH", 3)
    later = now + timedelta(days=40)
    assert await asyncio.gather(*(keys_slice.keys.drop_old_one_time_keys(later) for _ in range(2))) == [True, True]
    assert await keys_slice.keys.drop_old_one_time_keys(later) is False
    assert await connection.fetchval("SELECT count(*) FROM one_time_keys") == 0


async def test_only_keys_of_suites_that_the_agent_takes_are_handed_out(keys_slice: KeySlice, now: datetime) -> None:
    alice, _ = await publisher(keys_slice, now, 0)
    await upload(keys_slice, alice, alice.one_time_keys(2, unix_ms(now), KeyType.ML_KEM_768), now)
    (bob,) = await requesters(keys_slice, 1, now)
    assert await take(keys_slice, bob, now) is None


async def test_the_last_key_handed_out_is_audited_once(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    await publisher(keys_slice, now, 2)
    (bob,) = await requesters(keys_slice, 1, now)
    for _ in range(5):
        await take(keys_slice, bob, now)
    assert await audited(connection) == [("key_published", "alice", "alice"), ("prekey_exhausted", bob.handle, "alice")]


# Uploading.


async def test_a_hundred_are_added_and_counted(server: Server, alice: KeyHolder) -> None:
    body = {"one_time_keys": [one_time_document(one) for one in alice.one_time_keys(100)]}
    answer = await alice.post(server, "/v1/keys/prekeys", body)
    assert (answer.status_code, answer.json()) == (201, {"added": 100, "count": 100})
    assert (await alice.get(server, "/v1/keys/prekeys/count")).json() == {"count": 100}
    body["one_time_keys"].append(body["one_time_keys"][0])
    answer = await alice.post(server, "/v1/keys/prekeys", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    none = await alice.post(server, "/v1/keys/prekeys", {"one_time_keys": []})
    assert (none.status_code, none.json()) == (201, {"added": 0, "count": 100})
    with_them = await alice.post(server, "/v1/keys/bundle", {"bundle": {}, **body})
    assert with_them.status_code == 400


async def test_a_repeated_upload_adds_nothing_and_brings_no_issued_key_back(
    keys_slice: KeySlice, now: datetime
) -> None:
    alice, made = await publisher(keys_slice, now, 3)
    (bob,) = await requesters(keys_slice, 1, now)
    taken = await take(keys_slice, bob, now)
    assert await upload(keys_slice, alice, made, now) == (0, 2)
    again = [bundles.sign_one_time_key(alice.pair, "alice", one.key, unix_ms(now) + 1) for one in made]
    assert await upload(keys_slice, alice, [*again, *again], now) == (0, 2)
    rest = [await take(keys_slice, bob, now) for _ in range(3)]
    assert taken not in rest
    assert rest[2] is None


WRONG_PAIR = SigningPair.generate()


@pytest.mark.parametrize("what", ["owner", "pair", "signature", "no signature", "bundle key", "key of the past"])
async def test_what_is_not_a_fresh_key_of_this_agent_is_refused_as_a_whole(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection, what: str
) -> None:
    alice, _ = await publisher(keys_slice, now, 0)
    good, one = alice.one_time_keys(2, unix_ms(now))
    old_key = alice.kem[KeyType.XWING].public
    if what == "key of the past":
        await alice.rotated(keys_slice, now)
    wrong = {
        "owner": bundles.sign_one_time_key(alice.pair, "bob", one.key, unix_ms(now)),
        "pair": bundles.sign_one_time_key(WRONG_PAIR, "alice", one.key, unix_ms(now)),
        "signature": replace(one, created_at=one.created_at + 1),
        "no signature": replace(one, signatures=bundles.Signatures(b"", one.signatures.ml_dsa)),
        "bundle key": bundles.sign_one_time_key(alice.pair, "alice", old_key, unix_ms(now)),
        "key of the past": bundles.sign_one_time_key(alice.pair, "alice", old_key, unix_ms(now)),
    }[what]
    with pytest.raises(AngeliaError) as refused:
        await upload(keys_slice, alice, [good, wrong], now)
    expected = {"owner": "invalid_argument", "bundle key": "conflict", "key of the past": "conflict"}
    assert refused.value.code == expected.get(what, "signature_verification_failed")
    with pytest.raises(AngeliaError):
        await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now))), [good, wrong])
    assert await connection.fetchval("SELECT count(*) FROM one_time_keys") == 0


async def test_keys_signed_for_another_agent_are_refused_with_a_good_signature_too(
    server: Server, alice: KeyHolder, bob: KeyHolder
) -> None:
    bobs = {"one_time_keys": [one_time_document(one) for one in bob.one_time_keys(1)]}
    answer = await alice.post(server, "/v1/keys/prekeys", bobs)
    assert answer.status_code == 400
    assert (await bob.get(server, "/v1/keys/prekeys/count")).json() == {"count": 0}


async def test_an_agent_without_a_bundle_has_no_one_time_keys(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().exist(keys_slice, "alice", now)
    with pytest.raises(KeyNotFound):
        await upload(keys_slice, alice, alice.one_time_keys(1, unix_ms(now)), now)


async def test_a_key_is_made_when_it_is_uploaded_give_or_take_300_seconds(keys_slice: KeySlice, now: datetime) -> None:
    alice, _ = await publisher(keys_slice, now, 0)
    limit = timedelta(seconds=300)
    for made_at in (now - limit, now + limit):
        assert (await upload(keys_slice, alice, alice.one_time_keys(1, unix_ms(made_at)), now))[0] == 1
    for made_at in (now - limit - MS, now + limit + MS):
        with pytest.raises(InvalidArgument):
            await upload(keys_slice, alice, alice.one_time_keys(1, unix_ms(made_at)), now)


async def test_a_thousand_are_held_and_no_more_and_a_repeat_at_the_limit_is_still_a_repeat(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice, made = await publisher(keys_slice, now, 1)
    await connection.execute(
        "INSERT INTO one_time_keys SELECT agent_nhi, gen_random_uuid(), key_type, public_key, signer_id,"
        " signature_ed25519, signature_ml_dsa, created_at FROM one_time_keys, generate_series(1, 997)"
    )
    last_two = alice.one_time_keys(2, unix_ms(now))
    assert await upload(keys_slice, alice, last_two, now) == (2, 1000)
    assert await upload(keys_slice, alice, [*last_two, *made], now) == (0, 1000)
    with pytest.raises(Conflict, match="1000"):
        await upload(keys_slice, alice, alice.one_time_keys(1, unix_ms(now)), now)
    link = Link(alice.bundle(at=unix_ms(now)))
    with pytest.raises(Conflict, match="1000"):
        await alice.accepted(keys_slice, link, alice.one_time_keys(1, unix_ms(now)))
    assert (await keys_slice.fetched("alice")).bundle.bundle_version == 1


async def test_two_uploads_at_once_do_not_pass_the_limit(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice, _ = await publisher(keys_slice, now, 1)
    await connection.execute(
        "INSERT INTO one_time_keys SELECT agent_nhi, gen_random_uuid(), key_type, public_key, signer_id,"
        " signature_ed25519, signature_ml_dsa, created_at FROM one_time_keys, generate_series(1, 996)"
    )
    batches = [alice.one_time_keys(2, unix_ms(now)) for _ in range(4)]
    done = await asyncio.gather(*(upload(keys_slice, alice, batch, now) for batch in batches), return_exceptions=True)
    assert sorted(type(one) is tuple for one in done) == [False] * 3 + [True]


# What rotations do to them.


async def test_a_new_signing_pair_drops_what_the_old_one_signed_and_nobody_has(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice, _ = await publisher(keys_slice, now, 5)
    (bob,) = await requesters(keys_slice, 1, now)
    issued = await take(keys_slice, bob, now)
    link = alice.rotation(at=unix_ms(now), signer=True)
    fresh = alice.one_time_keys(2, unix_ms(now))
    done = await alice.accepted(keys_slice, link, fresh, reason=Reason.ON_DEMAND)
    assert done.one_time_keys == 2
    kept = {row["key_id"] for row in await connection.fetch("SELECT key_id FROM one_time_keys")}
    assert kept == {issued, *(one.key.key_id for one in fresh)}


async def test_new_kem_keys_alone_leave_one_time_keys_as_they_are(keys_slice: KeySlice, now: datetime) -> None:
    alice, _ = await publisher(keys_slice, now, 5)
    assert (await alice.rotated(keys_slice, now)).one_time_keys == 5


async def test_keys_of_a_replaced_pair_are_not_accepted_afterwards(keys_slice: KeySlice, now: datetime) -> None:
    alice, _ = await publisher(keys_slice, now, 0)
    late = alice.one_time_keys(1, unix_ms(now))
    await alice.rotated(keys_slice, now, signer=True)
    with pytest.raises(AngeliaError) as refused:
        await upload(keys_slice, alice, late, now)
    assert refused.value.code == "signature_verification_failed"


async def test_a_one_time_key_never_becomes_a_key_of_the_bundle(keys_slice: KeySlice, now: datetime) -> None:
    alice, _ = await publisher(keys_slice, now, 0)
    link = alice.rotation(at=unix_ms(now))
    same = bundles.sign_one_time_key(alice.pair, "alice", alice.kem[KeyType.XWING].public, unix_ms(now))
    await upload(keys_slice, alice, [same], now)
    with pytest.raises(Conflict, match="one-time"):
        await alice.accepted(keys_slice, link, reason=Reason.ON_DEMAND)


async def test_times_of_one_time_keys_survive_the_ledger_to_the_millisecond(
    keys_slice: KeySlice, now: datetime
) -> None:
    _, made = await publisher(keys_slice, now, 1)
    (bob,) = await requesters(keys_slice, 1, now)
    answer = await keys_slice.keys.bundle_with_one_time_key("alice", bob, now)
    assert answer.one_time_key is not None
    assert moment(answer.one_time_key.created_at) == moment(made[0].created_at) == now
