"""Key bundles: published once, chained, fetched by anybody, and never changed behind anybody's back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from angelia.api import Per, Rule
from angelia.envelope import bundles
from angelia.envelope.bundles import Link
from angelia.envelope.ids import KeyType, hot_tag
from angelia.envelope.json_form import to_text
from angelia.envelope.signing import SigningPair
from angelia.envelope.times import unix_ms
from angelia.errors import ClockSkew, InvalidArgument, Unavailable
from angelia.keys import api, service, store
from angelia.keys.model import BundleAnswer, LinkDocument, Reason, bundle_document, parse_links
from angelia.keys.service import Keys
from angelia.keys.store import HotBundles
from angelia.stores.valkey import HotTier
from http_agents import Server
from keyholder import NO_LIMITS, KeyHolder, KeySlice, audited, everything, fetched, now_ms, publication

Start = Callable[..., Awaitable[Server]]
MS = timedelta(milliseconds=1)
SMALL_ORDER = bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a")
NEUTRAL = b"\x01" + bytes(31)


async def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    return answer.json()


# Publishing.


async def test_a_published_bundle_is_fetched_byte_for_byte(server: Server, alice: KeyHolder, bob: KeyHolder) -> None:
    found = fetched(await bob.get(server, "/v1/keys/bundle/alice"))
    assert bundles.anchor_of(found) == alice.last


async def test_publishing_answers_with_the_hash_the_version_and_the_one_time_keys(server: Server) -> None:
    alice = await KeyHolder().claim(server, "alice")
    bundle = alice.bundle()
    answer = await alice.publish(server, bundle, alice.one_time_keys(7))
    assert (answer.status_code, answer.json()) == (
        201,
        {"bundle_id": bundle.hash.hex(), "bundle_version": 1, "prekeys_uploaded": 7},
    )


async def test_the_same_bundle_twice_is_answered_alike_and_done_once(
    server: Server, alice: KeyHolder, connection: asyncpg.Connection
) -> None:
    bundle, one_time = alice.bundle(), alice.one_time_keys(3)
    first = await alice.publish(server, bundle, one_time)
    before = await everything(connection)
    again = await alice.publish(server, bundle, one_time)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert await everything(connection) == before


async def test_a_repeat_gets_its_first_answer_even_a_day_later(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().exist(keys_slice, "alice", now)
    link = Link(alice.bundle(at=unix_ms(now)))
    first = await alice.accepted(keys_slice, link)
    again = await alice.accepted(keys_slice, link, now=now + timedelta(days=1))
    assert (first.new, again.new) == (True, False)
    assert first.bundle_hash == again.bundle_hash


async def test_the_first_bundle_carries_the_registered_key(server: Server) -> None:
    alice = await KeyHolder().claim(server, "alice")
    alice.pair = SigningPair.generate()
    await refused(await alice.publish(server, alice.bundle()), 400, "invalid_argument")
    mixed = SigningPair.from_seeds(SigningPair.generate().seeds[0], alice.pair.seeds[1])
    alice.pair = mixed
    await refused(await alice.publish(server, alice.bundle()), 400, "invalid_argument")


async def test_a_first_bundle_has_version_1_no_past_and_no_grace(server: Server, bob: KeyHolder) -> None:
    alice = await KeyHolder().claim(server, "alice")
    answer = await refused(await alice.publish(server, alice.bundle(after=bob.last)), 409, "version_conflict")
    assert (answer["bundle_version"], answer["bundle_hash"]) == (0, to_text(bytes(32)))
    alice.bundle()
    with_grace = alice.rotation().bundle
    await refused(await alice.publish(server, with_grace), 400, "invalid_argument")


async def test_an_agent_publishes_no_bundle_of_another(server: Server, alice: KeyHolder, bob: KeyHolder) -> None:
    for_bob = alice.bundle(agent_nhi="bob", after=bob.last)
    await refused(await alice.publish(server, for_bob), 400, "invalid_argument")
    # Nor hands on what another one signed.
    await refused(await alice.publish(server, bob.bundle()), 400, "invalid_argument")
    assert fetched(await alice.get(server, "/v1/keys/bundle/bob")).bundle_version == 1


async def test_an_agent_without_a_chosen_handle_publishes_under_its_id(server: Server, alice: KeyHolder) -> None:
    plain = KeyHolder()
    await server.register(plain)
    plain.handle = plain.id
    assert (await plain.publish(server, plain.bundle())).status_code == 201
    assert fetched(await alice.get(server, f"/v1/keys/bundle/{plain.id}")).agent_nhi == plain.id


async def test_an_old_bundle_a_gap_and_a_broken_link_are_conflicts_with_the_present_version(
    server: Server, alice: KeyHolder
) -> None:
    first = alice.last
    assert first is not None
    old = alice.bundle()
    assert (await alice.publish(server, old)).status_code == 201
    assert (await alice.publish(server, alice.bundle())).status_code == 201
    present = alice.last
    assert present is not None
    gap = bundles.TrustAnchor(agent_nhi="alice", signer=first.signer, bundle_version=4, bundle_hash=present.bundle_hash)
    broken = bundles.TrustAnchor(agent_nhi="alice", signer=first.signer, bundle_version=3, bundle_hash=bytes(32))
    for wrong in (
        old,
        alice.bundle(after=None),
        alice.bundle(after=first),
        alice.bundle(after=gap),
        alice.bundle(after=broken),
    ):
        answer = await refused(await alice.publish(server, wrong), 409, "version_conflict")
        assert (answer["bundle_version"], answer["bundle_hash"]) == (3, to_text(present.bundle_hash))


async def test_of_two_different_second_bundles_at_once_one_wins(
    server: Server, alice: KeyHolder, connection: asyncpg.Connection
) -> None:
    forks = [alice.bundle(at=now_ms() + number) for number in range(8)]
    answers = await asyncio.gather(*(alice.post(server, "/v1/keys/bundle", publication(Link(b), [])) for b in forks))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7
    winner = next(bundle for bundle, answer in zip(forks, answers, strict=True) if answer.status_code == 201)
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["bundle_hash"] == to_text(winner.hash)
    assert await connection.fetch("SELECT bundle_hash FROM bundles WHERE bundle_version = 2") == [(winner.hash,)]


async def test_a_forged_bundle_is_refused_before_anything_is_looked_at(
    server: Server, alice: KeyHolder, connection: asyncpg.Connection
) -> None:
    before = await everything(connection)
    bundle = alice.bundle()
    document = msgspec.to_builtins(bundle_document(bundle))
    for name in ("signature_ed25519", "signature_ml_dsa"):
        raw = bytearray(bundle.signatures.ed25519 if name == "signature_ed25519" else bundle.signatures.ml_dsa)
        raw[7] ^= 4
        for text in (to_text(bytes(raw)), ""):
            answer = await alice.post(server, "/v1/keys/bundle", {"bundle": {**document, name: text}})
            await refused(answer, 400, "signature_verification_failed")
    for name, value in (("issued_at", bundle.issued_at + 1), ("suites", 2), ("expires_at", bundle.expires_at + 1)):
        answer = await alice.post(server, "/v1/keys/bundle", {"bundle": {**document, name: value}})
        await refused(answer, 400, "signature_verification_failed")
    assert await everything(connection) == before


async def test_keys_of_small_order_wrong_length_or_two_spellings_are_refused_at_publish(
    server: Server, alice: KeyHolder
) -> None:
    document = msgspec.to_builtins(bundle_document(alice.bundle()))
    signer, kem = document["signer"], document["kem_keys"][0]
    kem_raw = alice.kem[KeyType.XWING].public.raw
    wrong = [
        {**document, "signer": {**signer, "ed25519_public_key": to_text(point)}}
        for point in (SMALL_ORDER, NEUTRAL, bytes(32), b"\xff" * 32, b"\xed" + b"\xff" * 30 + b"\x7f", b"", bytes(33))
    ]
    wrong += [
        {**document, "kem_keys": [{**kem, "public_key": to_text(raw)}]}
        for raw in (kem_raw[:1184] + bytes(32), kem_raw[:-1], kem_raw + b"\0", b"\xff" * 1184 + kem_raw[1184:], b"")
    ]
    wrong += [
        {**document, "signer": {**signer, "ml_dsa_public_key": to_text(bytes(1951))}},
        {**document, "signer": {**signer, "signer_id": str(uuid4())}},
        {**document, "kem_keys": [{**kem, "key_id": str(uuid4())}]},
    ]
    for bundle in wrong:
        await refused(await alice.post(server, "/v1/keys/bundle", {"bundle": bundle}), 400, "invalid_key_format")


@pytest.mark.parametrize(
    "name", ["alice'--", "a'; DROP TABLE bundles; --", "*", "{alice}", "alice:1", "alice\n", "' OR '1'='1"]
)
async def test_the_syntax_of_sql_or_of_the_hot_tier_in_a_name_is_a_name_that_nobody_has(
    server: Server, alice: KeyHolder, name: str
) -> None:
    for path in (f"/v1/keys/bundle/{quote(name, safe='')}", f"/v1/keys/{quote(name, safe='')}/history"):
        await refused(await alice.get(server, path), 404, "not_found")
    assert (await alice.get(server, "/v1/keys/bundle/alice")).status_code == 200


async def test_what_is_not_the_json_of_a_publication_is_refused(server: Server, alice: KeyHolder) -> None:
    body = publication(Link(alice.bundle()), [])
    text = msgspec.json.encode(body).decode()
    wrong = [
        "",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        text + " trailing",
        text.replace('"suites":10', '"suites":NaN'),
        text.replace('"suites":10', '"suites":10.5'),
        text.replace('"suites":10', '"suites":-10'),
        text.replace('"suites":10', f'"suites":{10**400}'),
        text.replace('"suites":10', '"suites":10,"more":1'),
        text.replace('"suites":10', '"suites":10,"suites":10'),
        text.replace('"suites":10', '"suites":10,"suite\\u0073":8'),
        text.replace('{"bundle":', '{"more":1,"bundle":'),
        text.replace('"agent_nhi":"alice"', '"agent_nhi":"alice\\u0000"'),
        text.replace('"agent_nhi":"alice"', '"agent_nhi":"\\ud800"'),
        text.replace('"agent_nhi":"alice"', '"agent_nhi":"АLICE"'),
    ]
    for content in wrong:
        assert content != text
        answer = await server.send_signed(alice, "POST", "/v1/keys/bundle", content.encode())
        assert answer.status_code == 400, (content[:50], answer.text)
        assert answer.json()["code"] in ("invalid_argument", "invalid_key_format", "signature_verification_failed")


async def test_times_that_no_calendar_has_are_the_callers_error(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    beyond, at = (1 << 53) - 1, unix_ms(now)
    entry = alice.bundle(at=at).kem_keys[0]
    far = [
        alice.bundle(at=at, life=timedelta(milliseconds=beyond - at)),
        alice.bundle(at=beyond - 1, life=MS),
        alice.bundle(
            at=at, kem_keys=(bundles.KemEntry(key=entry.key, status=entry.status, created_at=at, expires_at=beyond),)
        ),
    ]
    for bundle in far:
        with pytest.raises(InvalidArgument):
            await alice.accepted(keys_slice, Link(bundle), now=now)
    with pytest.raises(InvalidArgument):
        await keys_slice.keys.add_one_time_keys(await alice.record(keys_slice), alice.one_time_keys(1, beyond), now)


async def test_a_clock_may_be_300_seconds_ahead_and_not_a_millisecond_more(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    ahead = now + timedelta(seconds=300)
    with pytest.raises(ClockSkew, match="300 s ahead"):
        await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(ahead + MS))), now=now)
    assert (await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(ahead))), now=now)).new


async def test_a_chain_that_was_signed_long_ago_is_taken_and_its_times_never_go_back(
    keys_slice: KeySlice, now: datetime
) -> None:
    alice = await KeyHolder().exist(keys_slice, "alice", now)
    signed = now - timedelta(days=20)
    assert (await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(signed))), now=now)).new
    with pytest.raises(InvalidArgument, match="issued before"):
        await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(signed - MS))), now=now)
    assert (await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(signed))), now=now)).new


async def test_the_clock_of_a_statement_counts_too(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    old = alice.pair
    link = alice.rotation(at=unix_ms(now), signer=True)
    early = bundles.sign_rotation(old, alice.pair, "alice", unix_ms(now + timedelta(seconds=300) + MS))
    with pytest.raises(ClockSkew):
        await alice.accepted(keys_slice, Link(link.bundle, early), now=now, reason=Reason.ON_DEMAND)


async def test_a_bundle_that_has_expired_is_refused(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    with pytest.raises(InvalidArgument, match="expired"):
        await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now), life=MS)), now=now + MS)


async def test_a_wrong_clock_is_400_over_http(server: Server, alice: KeyHolder) -> None:
    await refused(await alice.publish(server, alice.bundle(at=now_ms() + 400_000)), 400, "clock_skew")


async def test_renewing_a_bundle_needs_no_rotation_and_may_add_a_key(
    server: Server, alice: KeyHolder, connection: asyncpg.Connection
) -> None:
    assert (await alice.publish(server, alice.bundle())).status_code == 201
    alice.kem[KeyType.ML_KEM_768] = KeyHolder(KeyType.ML_KEM_768).kem[KeyType.ML_KEM_768]
    assert (await alice.publish(server, alice.bundle())).status_code == 201
    active = await connection.fetch("SELECT key_type FROM key_records WHERE status = 'active' ORDER BY key_type")
    assert [row["key_type"] for row in active] == ["ed25519", "ml_dsa_65", "ml_kem_768", "xwing"]
    assert await audited(connection) == [("key_published", "alice", "alice")] * 3


async def test_only_the_agents_own_signature_publishes(server: Server, alice: KeyHolder) -> None:
    token = (await server.post("/v1/tokens", json={"role": "admin", "agent": "alice"}, headers=server.admin)).json()
    body = publication(Link(alice.bundle()), [])
    headers = {"authorization": f"Bearer {token['token']}", "content-type": "application/json"}
    for path in ("bundle", "rotate", "prekeys"):
        answer = await server.post(f"/v1/keys/{path}", content=msgspec.json.encode(body), headers=headers)
        await refused(answer, 403, "authorization_denied")
        bare = await server.post(
            f"/v1/keys/{path}", content=msgspec.json.encode(body), headers={"content-type": "application/json"}
        )
        await refused(bare, 401, "unauthenticated")


# Handles.


async def test_no_handle_is_claimed_after_the_first_bundle(server: Server) -> None:
    plain = KeyHolder()
    await server.register(plain)
    plain.handle = plain.id
    assert (await plain.publish(server, plain.bundle())).status_code == 201
    await refused(await plain.put(server, "/v1/agents/me/handle", {"handle": "late"}), 409, "conflict")


async def test_claiming_and_publishing_at_once_never_leaves_a_bundle_under_a_lost_handle(
    server: Server, connection: asyncpg.Connection
) -> None:
    seen = set()
    for number in range(12):
        racer = KeyHolder()
        await server.register(racer)
        racer.handle = racer.id
        claim = racer.put(server, "/v1/agents/me/handle", {"handle": f"racer-{number}"})
        calls = [claim, racer.publish(server, racer.bundle())]
        answers = await asyncio.gather(*(calls if number % 2 else reversed(calls)))
        seen.add(tuple(sorted(answer.status_code for answer in answers)))
    assert seen <= {(200, 400), (201, 409)}
    lost = "SELECT count(*) FROM bundles WHERE agent_nhi NOT IN (SELECT handle FROM agents)"
    assert await connection.fetchval(lost) == 0


# Fetching.


async def test_a_bundle_is_found_by_handle_and_by_id(server: Server, alice: KeyHolder, bob: KeyHolder) -> None:
    by_handle = await bob.get(server, "/v1/keys/bundle/alice")
    by_id = await bob.get(server, f"/v1/keys/bundle/{alice.id}")
    assert by_handle.content == by_id.content
    assert fetched(by_id).agent_nhi == "alice"


async def test_unknown_agents_and_agents_without_a_bundle_are_told_apart(server: Server, bob: KeyHolder) -> None:
    bare = await server.register()
    for query in ("", "?one_time=true", "?since=0"):
        await refused(await bob.get(server, f"/v1/keys/bundle/{bare.id}{query}"), 404, "key_not_found")
        for name in ("nobody", str(uuid4()), "BOB", "bob%00", "b..b", "%F0%9F%90%9D", "bob%0a", "x" * 300):
            await refused(await bob.get(server, f"/v1/keys/bundle/{name}{query}"), 404, "not_found")
    await refused(await bob.get(server, "/v1/keys/bundle/%ff"), 400, "invalid_argument")
    for query in ("?since=-1", "?since=x", f"?since={1 << 53}", "?one_time=maybe"):
        await refused(await bob.get(server, f"/v1/keys/bundle/bob{query}"), 400, "invalid_argument")


async def test_a_plain_fetch_consumes_nothing(server: Server, alice: KeyHolder, bob: KeyHolder) -> None:
    assert (await alice.publish(server, alice.bundle(), alice.one_time_keys(2))).status_code == 201
    for _ in range(3):
        answer = (await bob.get(server, "/v1/keys/bundle/alice?one_time=false")).json()
        assert not {"one_time", "one_time_key"} & answer.keys()
    assert (await alice.get(server, "/v1/keys/prekeys/count")).json() == {"count": 2}


async def test_the_etag_is_the_hash_of_the_bundle_and_saves_the_answer(
    server: Server, alice: KeyHolder, bob: KeyHolder
) -> None:
    assert alice.last is not None
    etag = f'"{alice.last.bundle_hash.hex()}"'
    answer = await bob.get(server, "/v1/keys/bundle/alice")
    assert (answer.headers["etag"], answer.headers["cache-control"]) == (etag, "private, no-cache")
    for known in (etag, f'"other", {etag}'):
        again = await bob.get(server, "/v1/keys/bundle/alice", **{"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    other = await bob.get(server, "/v1/keys/bundle/alice", **{"if-none-match": '"other"'})
    assert other.status_code == 200
    await alice.publish(server, alice.bundle())
    changed = await bob.get(server, "/v1/keys/bundle/alice", **{"if-none-match": etag})
    assert (changed.status_code, changed.headers["etag"]) == (200, f'"{alice.last.bundle_hash.hex()}"')


async def test_a_revocation_changes_the_etag_and_is_told_with_the_bundle(
    server: Server, alice: KeyHolder, bob: KeyHolder
) -> None:
    before = await bob.get(server, "/v1/keys/bundle/alice")
    assert "revoked" not in before.json()
    key_id = alice.kem_ids[0]
    assert (await alice.post(server, f"/v1/keys/{key_id}/revoke")).status_code == 200
    after = await bob.get(server, "/v1/keys/bundle/alice", **{"if-none-match": before.headers["etag"]})
    assert after.status_code == 200
    assert after.headers["etag"] != before.headers["etag"]
    assert after.json()["revoked"] == [str(key_id)]
    assert (await bob.get(server, "/v1/keys/bundle/alice?since=0")).json()["revoked"] == [str(key_id)]
    again = await bob.get(server, "/v1/keys/bundle/alice", **{"if-none-match": after.headers["etag"]})
    assert again.status_code == 304


async def test_the_chain_comes_in_pages_of_100_and_can_be_followed(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    first = alice.last
    assert first is not None
    for number in range(1, 103):
        await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now) + number)))
    page, more, _ = await keys_slice.keys.links_since("alice", 1, None, now)
    assert ([link.bundle.bundle_version for link in page], more) == ([*range(2, 102)], True)
    rest, more, _ = await keys_slice.keys.links_since("alice", 101, None, now)
    assert ([link.bundle.bundle_version for link in rest], more) == ([102, 103], False)
    assert (await keys_slice.keys.links_since("alice", 103, None, now))[:2] == ([], False)
    assert (await keys_slice.keys.links_since("alice", 3, None, now))[1] is False
    assert bundles.follow(bundles.follow(first, parse_links(page)), parse_links(rest)) == alice.last


async def test_a_chain_with_a_new_signer_is_followed_over_http(
    server: Server, alice: KeyHolder, bob: KeyHolder
) -> None:
    first = alice.last
    assert first is not None
    assert (await alice.rotate(server, alice.rotation(signer=True))).status_code == 201
    assert (await alice.rotate(server, alice.rotation())).status_code == 201
    answer = await bob.get(server, "/v1/keys/bundle/alice?since=1")
    links = parse_links(msgspec.convert(answer.json()["bundles"], list[LinkDocument]))
    assert bundles.follow(first, links) == alice.last
    newest = msgspec.json.decode((await bob.get(server, "/v1/keys/bundle/alice")).content, type=BundleAnswer)
    assert newest.rotation_statement is None


# The copy in the hot tier.


async def test_the_second_reader_is_served_from_the_hot_tier(keys_slice: KeySlice, now: datetime) -> None:
    await KeyHolder().enter(keys_slice, "alice", now)
    answer = await keys_slice.read("alice")
    assert await keys_slice.hot.get("alice") == answer
    await keys_slice.hot.put("alice", 1_000, b'{"planted": 1}')
    assert await keys_slice.read("alice") == b'{"planted": 1}'


async def test_a_key_of_the_hot_tier_tells_only_the_hash_of_a_handle_and_lives_an_hour(
    keys_slice: KeySlice, now: datetime, hot: HotTier
) -> None:
    await KeyHolder().enter(keys_slice, "a-very-private-name", now)
    await keys_slice.read("a-very-private-name")
    names = [key for key in await hot._redis.keys("*") if key != b"ang:birth"]
    assert names == [f"ang:pk:{{{hot_tag('a-very-private-name')}}}".encode()]
    assert 3500 < await hot._redis.ttl(names[0]) <= 3600


async def test_an_empty_hot_tier_is_filled_again_from_the_ledger(
    server: Server, alice: KeyHolder, bob: KeyHolder
) -> None:
    await bob.get(server, "/v1/keys/bundle/alice")
    client = await server.redis()
    await client.delete(f"ang:pk:{{{hot_tag('alice')}}}")
    assert bundles.anchor_of(fetched(await bob.get(server, "/v1/keys/bundle/alice"))) == alice.last
    assert await client.exists(f"ang:pk:{{{hot_tag('alice')}}}")
    await client.aclose()


async def test_bundles_are_served_and_accepted_while_the_hot_tier_is_away(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    away = HotTier("redis://127.0.0.1:1/0")
    keys = Keys(keys_slice.ledger, HotBundles(away), keys_slice.agents, keys_slice.policy, keys_slice.wake)
    found = msgspec.json.decode(await keys.bundle("alice", None, now), type=BundleAnswer)
    assert found.bundle.bundle_version == 1
    bundle = alice.bundle(at=unix_ms(now))
    assert (await keys.accept(await alice.record(keys_slice), Link(bundle), [], now)).new
    assert msgspec.json.decode(await keys.bundle("alice", None, now), type=BundleAnswer).bundle.bundle_version == 2
    await away.close()


async def test_a_change_is_seen_by_the_very_next_reader(server: Server, alice: KeyHolder, bob: KeyHolder) -> None:
    for version in range(2, 6):
        await bob.get(server, "/v1/keys/bundle/alice")
        await alice.publish(server, alice.bundle())
        assert fetched(await bob.get(server, "/v1/keys/bundle/alice")).bundle_version == version


async def test_a_slow_reader_cannot_put_an_old_copy_over_a_new_one(keys_slice: KeySlice, now: datetime) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    async with keys_slice.ledger.transaction() as tx:
        slow = await store.newest(tx, "alice")
    assert slow is not None
    await alice.accepted(keys_slice, Link(alice.bundle(at=unix_ms(now))))
    await keys_slice.hot.put("alice", slow.stamp, b"old")
    assert await keys_slice.hot.get("alice") is None
    assert (await keys_slice.fetched("alice")).bundle.bundle_version == 2
    await keys_slice.hot.put("alice", slow.stamp, b"old")
    assert (await keys_slice.fetched("alice")).bundle.bundle_version == 2
    async with keys_slice.ledger.transaction() as tx:
        slow = await store.newest(tx, "alice")
    assert slow is not None
    await keys_slice.keys.revoke(await alice.record(keys_slice), alice.kem_ids[0], now, None)
    await keys_slice.hot.put("alice", slow.stamp, b"old")
    assert (await keys_slice.fetched("alice")).revoked == alice.kem_ids


class Disturbed(HotBundles):
    """A hot tier that is away when told so, or where somebody reads at the worst moment."""

    def __init__(self, hot: HotTier) -> None:
        super().__init__(hot)
        self.away = False
        self.after_invalidation: Callable[[], Awaitable[object]] | None = None

    async def put(self, agent_nhi: str, stamp: int, answer: bytes) -> None:
        if self.away:
            raise Unavailable("away")
        await super().put(agent_nhi, stamp, answer)
        if not answer and self.after_invalidation is not None:
            await self.after_invalidation()


async def test_a_reader_between_the_invalidation_and_the_commit_keeps_no_old_copy(
    keys_slice: KeySlice, now: datetime, hot: HotTier
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    disturbed = Disturbed(hot)
    seen = []

    async def read() -> None:
        seen.append((await keys_slice.fetched("alice")).bundle.bundle_version)

    disturbed.after_invalidation = read
    writer = Keys(keys_slice.ledger, disturbed, keys_slice.agents, keys_slice.policy, keys_slice.wake)
    await writer.accept(await alice.record(keys_slice), Link(alice.bundle(at=unix_ms(now))), [], now)
    assert seen == [1]
    assert (await keys_slice.fetched("alice")).bundle.bundle_version == 2


async def test_a_change_that_was_rolled_back_after_the_invalidation_changes_nothing(
    keys_slice: KeySlice, now: datetime, hot: HotTier
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    disturbed = Disturbed(hot)

    async def die() -> None:
        raise RuntimeError("killed")

    disturbed.after_invalidation = die
    writer = Keys(keys_slice.ledger, disturbed, keys_slice.agents, keys_slice.policy, keys_slice.wake)
    link = Link(alice.bundle(at=unix_ms(now)))
    with pytest.raises(RuntimeError):
        await writer.accept(await alice.record(keys_slice), link, [], now)
    assert (await keys_slice.fetched("alice")).bundle.bundle_version == 1
    assert (await alice.accepted(keys_slice, link)).new
    assert (await keys_slice.fetched("alice")).bundle.bundle_version == 2


async def test_a_writer_whose_hot_tier_is_away_repairs_it_by_the_tick(
    keys_slice: KeySlice, now: datetime, hot: HotTier
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    disturbed = Disturbed(hot)
    writer = Keys(keys_slice.ledger, disturbed, keys_slice.agents, keys_slice.policy, keys_slice.wake)
    while await writer.repeat_invalidations(now):
        pass
    await keys_slice.fetched("alice")
    disturbed.away = True
    await writer.accept(await alice.record(keys_slice), Link(alice.bundle(at=unix_ms(now))), [], now)
    with pytest.raises(Unavailable):
        await writer.repeat_invalidations(now)
    disturbed.away = False
    assert await writer.repeat_invalidations(now) is False
    assert (await keys_slice.fetched("alice")).bundle.bundle_version == 2


async def test_a_first_bundle_that_was_rolled_back_keeps_nobody_elses_copy_old(
    keys_slice: KeySlice, now: datetime, hot: HotTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    disturbed = Disturbed(hot)
    writer = Keys(keys_slice.ledger, disturbed, keys_slice.agents, keys_slice.policy, keys_slice.wake)
    while await writer.repeat_invalidations(now):
        pass
    await keys_slice.fetched("alice")
    disturbed.away = True
    await writer.accept(await alice.record(keys_slice), Link(alice.bundle(at=unix_ms(now))), [], now)
    writer._to_invalidate.add("a-handle-without-a-bundle")
    disturbed.away = False
    await writer.repeat_invalidations(now)
    assert (await keys_slice.fetched("alice")).bundle.bundle_version == 2
    assert writer._to_invalidate == set()


async def test_what_a_killed_process_left_old_in_the_hot_tier_the_next_one_repairs(
    keys_slice: KeySlice, now: datetime, hot: HotTier
) -> None:
    alice = await KeyHolder().enter(keys_slice, "alice", now)
    await keys_slice.fetched("alice")
    disturbed = Disturbed(hot)
    disturbed.away = True
    killed = Keys(keys_slice.ledger, disturbed, keys_slice.agents, keys_slice.policy, keys_slice.wake)
    await killed.accept(await alice.record(keys_slice), Link(alice.bundle(at=unix_ms(now))), [], now)
    started = Keys(keys_slice.ledger, HotBundles(hot), keys_slice.agents, keys_slice.policy, keys_slice.wake)
    assert await started.repeat_invalidations(now + timedelta(hours=1)) is False
    assert (await keys_slice.fetched("alice")).bundle.bundle_version == 2


async def test_a_starting_process_looks_at_what_changed_in_small_batches(
    keys_slice: KeySlice, now: datetime, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await KeyHolder().enter(keys_slice, "m", now)
    await connection.execute(
        "INSERT INTO bundles SELECT left(md5(n::text), 9), 1, bundle_hash, prev_bundle_hash, issued_at, expires_at,"
        " published_at, suites, bundle, NULL FROM bundles, generate_series(1, 9) AS n"
    )
    monkeypatch.setattr(service, "_TICK_BATCH", 4)
    started = Keys(keys_slice.ledger, keys_slice.hot, keys_slice.agents, keys_slice.policy, keys_slice.wake)
    rounds = [await started.repeat_invalidations(now) for _ in range(3)]
    assert rounds == [True, True, False]


# Limits and the document.


async def test_keys_may_be_published_so_often_and_no_more(start: Start) -> None:
    server = await start(limits={**NO_LIMITS, "keys": "3/1m", "bundles": "2/1m"})
    alice = await KeyHolder().join(server, "alice")
    assert (await alice.publish(server, alice.bundle())).status_code == 201
    assert (await alice.rotate(server, alice.rotation())).status_code == 201
    limited = await alice.publish(server, alice.bundle())
    await refused(limited, 429, "rate_limited")
    assert int(limited.headers["retry-after"]) > 0
    assert limited.headers["x-ratelimit-limit"] == "3"
    statuses = [(await alice.get(server, "/v1/keys/bundle/alice")).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_the_usual_limits_are_60_changes_and_600_reads_a_minute() -> None:
    assert (Rule("keys", 60, 60_000, Per.AGENT), Rule("bundles", 600, 60_000, Per.AGENT)) == (
        api.WRITE_RULE,
        api.READ_RULE,
    )


async def test_a_body_may_have_a_mebibyte_and_a_hundred_one_time_keys_fit(server: Server) -> None:
    alice = await KeyHolder().claim(server, "alice")
    body = msgspec.json.encode(publication(Link(alice.bundle()), alice.one_time_keys(100)))
    assert 600_000 < len(body) < 800_000
    for path in ("bundle", "rotate", "emergency-rotate", "prekeys", f"{uuid4()}/revoke"):
        padded = b" " * ((1 << 20) + 1 - len(body)) + body
        await refused(await server.send_signed(alice, "POST", f"/v1/keys/{path}", padded), 413, "too_large")
        just = await server.send_signed(alice, "POST", f"/v1/keys/{path}", padded[1:])
        assert just.status_code != 413
        if path == "bundle":
            assert just.status_code == 201, just.text


async def test_the_openapi_document_lists_every_route_of_the_slice(start: Start) -> None:
    server = await start()
    paths = (await server.get("/openapi.json")).json()["paths"]
    listed = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert {
        ("POST", "/v1/keys/bundle"),
        ("GET", "/v1/keys/bundle/{agent}"),
        ("POST", "/v1/keys/prekeys"),
        ("GET", "/v1/keys/prekeys/count"),
        ("POST", "/v1/keys/rotate"),
        ("POST", "/v1/keys/emergency-rotate"),
        ("POST", "/v1/keys/{key_id}/revoke"),
        ("GET", "/v1/keys/{agent}/history"),
        ("GET", "/v1/schedules"),
        ("PUT", "/v1/schedules/{peer}"),
        ("DELETE", "/v1/schedules/{peer}"),
        ("POST", "/v1/schedules/{peer}/rotated"),
        ("GET", "/v1/node"),
    } <= listed


async def test_the_ledger_holds_no_private_key(
    server: Server, alice: KeyHolder, bob: KeyHolder, connection: asyncpg.Connection
) -> None:
    await alice.publish(server, alice.bundle(), alice.one_time_keys(3))
    await alice.rotate(server, alice.rotation(signer=True))
    secrets = [
        *alice.pair.seeds,
        *(key.seed for key in alice.kem.values()),
        *bob.pair.seeds,
        bob.kem[KeyType.XWING].seed,
    ]
    stored = json.dumps(await everything(connection))
    for secret in secrets:
        for text in (secret.hex(), to_text(secret), secret[:32].hex(), to_text(secret[:30])):
            assert text not in stored
    assert alice.pair.public.ed25519.hex() in stored


async def test_a_bundle_that_is_signed_now_lives_a_month_at_most(server: Server, alice: KeyHolder) -> None:
    month = timedelta(days=30)
    refused = await alice.publish(server, alice.bundle(life=month + timedelta(milliseconds=1)))
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")
    assert (await alice.publish(server, alice.bundle(life=month))).status_code == 201
    # One of an earlier release, handed over as a file then, finds its way here later, also when it has ended.
    bob = await KeyHolder().claim(server, "bob")
    long_ago = now_ms() - 40 * 86_400_000
    assert (await bob.publish(server, bob.bundle(at=long_ago - 5, life=timedelta(days=365)))).status_code == 201
    assert (await bob.publish(server, bob.bundle(at=long_ago))).status_code == 201
