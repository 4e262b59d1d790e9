"""Not too often: true sliding windows, one counter per rule and subject, and blocked addresses."""

from __future__ import annotations

import asyncio
import ipaddress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from angelia.api import Caller, Per, Rule
from angelia.errors import SettingsError
from angelia.guard import store
from angelia.guard.blocks import AddressBlocks
from angelia.guard.model import SlidingWindows, client_address, parse_networks, with_limits
from angelia.http.request import Clients
from angelia.settings import Settings
from angelia.stores.valkey import HotTier, now_ms
from angelia.stores.wake import Wake
from guarded_routes import Gate

ADDRESS = ipaddress.ip_address("192.0.2.1")
RULE = Rule("rule", 3, 60_000, Per.ADDRESS)
T0 = 1_794_767_869_659


async def spend(hot: HotTier, at: int) -> store.AddressVerdict:
    return await store.spend(hot, str(ADDRESS), RULE, at)


async def test_a_limit_holds_exactly_at_the_window_boundary(hot: HotTier) -> None:
    for at in (T0, T0 + 10_000, T0 + 59_999):
        assert (await spend(hot, at)).decision.allowed
    refused = await spend(hot, T0 + 59_999)
    assert (refused.decision.allowed, refused.decision.remaining, refused.decision.reset_ms) == (False, 0, T0 + 60_000)
    first_free = await spend(hot, T0 + 60_000)
    assert (first_free.decision.allowed, first_free.decision.reset_ms) == (True, T0 + 70_000)
    assert not (await spend(hot, T0 + 69_999)).decision.allowed
    assert (await spend(hot, T0 + 70_000)).decision.allowed


async def test_no_window_of_that_length_ever_holds_more(hot: HotTier) -> None:
    accepted = []
    for at in range(T0, T0 + 200_000, 7_000):
        if (await spend(hot, at)).decision.allowed:
            accepted.append(at)
    for start in accepted:
        assert sum(start <= at < start + 60_000 for at in accepted) <= 3


async def test_refused_requests_use_no_quota(hot: HotTier) -> None:
    for at in (T0, T0 + 1, T0 + 2):
        await spend(hot, at)
    for at in range(T0 + 100, T0 + 59_000, 1_000):
        assert not (await spend(hot, at)).decision.allowed
    assert (await spend(hot, T0 + 60_000)).decision.allowed


async def test_parallel_requests_get_exactly_the_limit(hot: HotTier) -> None:
    verdicts = await asyncio.gather(*(spend(hot, T0) for _ in range(40)))
    assert sum(v.decision.allowed for v in verdicts) == 3
    assert sorted(v.decision.remaining for v in verdicts if v.decision.allowed) == [0, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 40_000), st.booleans()), max_size=30))
def test_the_in_process_limiter_counts_like_a_plain_list(steps: list[tuple[int, bool]]) -> None:
    windows, hits, at = SlidingWindows(), [], T0
    for pause, charge in steps:
        at += pause
        recent = [hit for hit in hits if hit > at - RULE.window_ms]
        spent = windows.spend(RULE, "subject", at, charge=charge)
        assert spent.allowed == (len(recent) < RULE.limit)
        if spent.allowed and charge:
            hits.append(at)


async def test_headers_tell_what_is_left_and_when_to_come_back(gate) -> None:
    it = gate()
    answers = [await it.client.get("/looks") for _ in range(4)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429]
    assert [a.headers["x-ratelimit-remaining"] for a in answers] == ["2", "1", "0", "0"]
    assert {a.headers["x-ratelimit-limit"] for a in answers} == {"3"}
    now = datetime.now(UTC).timestamp()
    assert abs(int(answers[0].headers["x-ratelimit-reset"]) - now) <= 2
    assert abs(int(answers[3].headers["x-ratelimit-reset"]) - now - 60) <= 2
    assert 58 <= int(answers[3].headers["retry-after"]) <= 60
    assert answers[3].text == '{"error":"rate limit exceeded"}'


async def test_each_rule_has_a_counter_of_its_own(gate) -> None:
    it = gate(limits={"looks": "1/1m", "register": "1/1m"})
    assert (await it.client.get("/looks")).status_code == 200
    assert (await it.client.get("/looks")).status_code == 429
    assert (await it.agent()).id


async def test_an_agents_quota_is_spent_only_by_its_own_signature(gate) -> None:
    it = gate()
    victim, mallory = await it.agent(), await it.agent()
    for _ in range(10):
        forged = mallory.signed("GET", "/v1/limited", keyid=victim.key_id)
        assert (await it.client.get("/v1/limited", headers=forged)).status_code == 401
    answers = [await it.send(victim, "GET", "/v1/limited") for _ in range(4)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429]
    assert answers[3].json()["code"] == "rate_limited"
    assert (await it.send(mallory, "GET", "/v1/limited")).status_code == 200


async def test_a_replayed_request_spends_no_quota(gate) -> None:
    it = gate()
    agent = await it.agent()
    headers = agent.signed("GET", "/v1/limited")
    for expected in (200, 401, 401, 401, 401):
        assert (await it.client.get("/v1/limited", headers=headers)).status_code == expected
    assert (await it.send(agent, "GET", "/v1/limited")).headers["x-ratelimit-remaining"] == "1"


async def test_failed_proofs_are_charged_to_the_address(gate) -> None:
    it = gate(limits={"unproven": "5/1m", "register": "off"})
    agent = await it.agent()
    for _ in range(5):
        assert (await it.client.get("/v1/signed")).status_code == 401
    refused = await it.client.get("/v1/signed")
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    elsewhere = it.client_from("192.0.2.7")
    headers = agent.signed("GET", "/v1/signed")
    assert (await elsewhere.get("/v1/signed", headers=headers)).status_code == 200


async def test_whitelisted_addresses_have_no_limit_and_no_headers(gate) -> None:
    it = gate(rate_limit_whitelist=("127.0.0.0/8",))
    for _ in range(6):
        answer = await it.client.get("/looks")
        assert answer.status_code == 200
        assert "x-ratelimit-limit" not in answer.headers


async def test_ten_refusals_block_an_address_when_enabled(gate, redis_url: str) -> None:
    it = gate(auto_block_enabled=True, limits={"looks": "1/1m"})
    noisy = it.client_from("192.0.2.7")
    statuses = [(await noisy.get("/looks")).status_code for _ in range(12)]
    assert statuses == [200] + [429] * 10 + [403]
    assert (await noisy.get("/other")).json() == {"error": "temporarily blocked"}
    assert (await it.client.get("/other")).status_code == 200
    client = redis.asyncio.Redis.from_url(redis_url)
    await client.flushall()
    await client.aclose()
    assert (await noisy.get("/other")).status_code == 403, "a forgetful hot tier unblocks nobody"


async def test_this_machine_itself_is_never_blocked(gate) -> None:
    it = gate(auto_block_enabled=True, limits={"looks": "1/1m"})
    assert [(await it.client.get("/looks")).status_code for _ in range(15)] == [200] + [429] * 14
    assert (await it.client.get("/other")).status_code == 200


async def test_an_ipv6_network_is_one_subject(gate) -> None:
    it = gate()
    statuses = [(await it.client_from(f"2001:db8::{n:x}").get("/looks")).status_code for n in range(1, 6)]
    assert statuses == [200] * 3 + [429] * 2
    assert (await it.client_from("2001:db8:0:1::1").get("/looks")).status_code == 200


async def test_a_nonce_that_comes_again_counts_again(hot: HotTier, redis_url: str) -> None:
    """Windows may be longer than a nonce lives; then the same nonce is a new request, and is counted as one."""
    rule, subject = Rule("long", 3, 3_600_000, Per.AGENT), uuid4()
    await hot.birth()
    client = redis.asyncio.Redis.from_url(redis_url)
    verdicts = []
    for n in range(8):
        at = now_ms() + 10
        verdicts.append(await store.spend_nonce(hot, subject, f"nonce-{n % 2}", at, 1, rule, at))
        async with asyncio.timeout(10):
            while await client.keys("ang:nonce:*"):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    await client.aclose()
    assert [v.decision.allowed for v in verdicts if v.decision] == [True] * 3 + [False] * 5


async def test_a_token_is_limited_like_its_agent_also_without_the_hot_tier(ledger, tmp_path) -> None:
    settings = Settings(limits={"posts": "2/1m", "register": "off"})
    it = Gate(ledger, HotTier(f"unix://{tmp_path}/nobody.sock"), settings, open_mode=False)
    agent = await it.agent()
    _, text = await it.tokens.make(
        Caller(ADDRESS, name="op"), datetime.now(UTC), role="read-only", agent=agent.id, label="", life=None
    )
    headers = {"authorization": f"Bearer {text}"}
    assert [(await it.client.get("/v1/limited", headers=headers)).status_code for _ in range(3)] == [200, 200, 429]
    await it.wake.close()


async def test_an_agents_excess_never_blocks_its_address(gate) -> None:
    it = gate(auto_block_enabled=True)
    agent = await it.agent()
    statuses = [(await it.send(agent, "GET", "/v1/limited")).status_code for _ in range(15)]
    assert statuses == [200] * 3 + [429] * 12
    assert (await it.client.get("/other")).status_code == 200


async def test_without_the_option_nobody_is_blocked(gate) -> None:
    it = gate(limits={"looks": "1/1m"})
    assert [(await it.client.get("/looks")).status_code for _ in range(15)] == [200] + [429] * 14


async def test_without_the_hot_tier_limits_hold_in_process_and_signed_requests_wait(ledger, tmp_path) -> None:
    settings = Settings(limits={"looks": "2/1m", "register": "off"})
    it = Gate(ledger, HotTier(f"unix://{tmp_path}/nobody.sock"), settings, open_mode=False)
    assert [(await it.client.get("/looks")).status_code for _ in range(3)] == [200, 200, 429]
    agent = await it.agent()
    answer = await it.send(agent, "GET", "/v1/signed")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"
    assert it.executed[2:] == []
    await it.wake.close()


async def test_an_operator_blocks_lists_and_unblocks(start) -> None:
    server = await start()
    made = await server.post("/v1/guard/blocks", json={"address": "192.0.2.9", "reason": "noise"}, headers=server.admin)
    assert (made.status_code, made.json()["address"], made.json()["expires_at"]) == (201, "192.0.2.9", None)
    assert (await server.client_from("192.0.2.9").get("/healthz")).status_code == 403
    assert (await server.client_from("192.0.2.10").get("/healthz")).status_code == 200
    listed = (await server.get("/v1/guard/blocks", headers=server.admin)).json()
    assert [(b["address"], b["reason"]) for b in listed["blocks"]] == [("192.0.2.9", "noise")]
    assert (await server.get("/v1/guard/blocks?cursor=garbage", headers=server.admin)).status_code == 400
    gone = await server.request("DELETE", "/v1/guard/blocks/192.0.2.9", headers=server.admin)
    assert gone.status_code == 204
    assert (await server.client_from("192.0.2.9").get("/healthz")).status_code == 200
    again = await server.request("DELETE", "/v1/guard/blocks/192.0.2.9", headers=server.admin)
    assert (again.status_code, again.json()["code"]) == (404, "not_found")
    six = await server.post("/v1/guard/blocks", json={"address": "2001:DB8::1", "expires_in": 60}, headers=server.admin)
    assert six.json()["address"] == "2001:db8::/64"
    assert (await server.client_from("2001:db8::abcd:1").get("/healthz")).status_code == 403
    assert (await server.client_from("2001:db8:0:1::1").get("/healthz")).status_code == 200
    assert (
        await server.request("DELETE", "/v1/guard/blocks/2001%3Adb8%3A%3A1", headers=server.admin)
    ).status_code == 204
    for bad in ("nowhere", "198.51.100.0/24", "192.0.2.1/64", "2001:db8::/32", "127.0.0.1", "::1", "fe80::1%eth0", ""):
        answer = await server.post("/v1/guard/blocks", json={"address": bad}, headers=server.admin)
        assert answer.status_code == 400, bad


async def test_a_block_ends_by_itself(ledger, hot) -> None:
    wake = Wake(hot)
    blocks, now = AddressBlocks(ledger, hot, wake), datetime.now(UTC)
    await blocks.block(Caller(ADDRESS, name="op"), str(ADDRESS), "", timedelta(seconds=60), now)
    for _ in ("as it was told", "as the ledger has it"):
        assert blocks.includes(str(ADDRESS), now + timedelta(seconds=59))
        assert not blocks.includes(str(ADDRESS), now + timedelta(seconds=61))
        assert not await blocks.refresh(now)
    await blocks.refresh(now + timedelta(seconds=61))
    assert not blocks.includes(str(ADDRESS), now)
    await wake.close()


@pytest.mark.parametrize(
    ("peer", "forwarded", "seen"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "203.0.113.5", "192.0.2.1"),
        ("10.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "198.51.100.9, 203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "198.51.100.9, 203.0.113.5, 10.0.0.2", "203.0.113.5"),
        ("10.0.0.1", "nonsense", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.9, nonsense", "10.0.0.1"),
        ("::ffff:192.0.2.1", None, "192.0.2.1"),
    ],
)
def test_forwarded_addresses_are_believed_from_trusted_proxies_only(
    peer: str, forwarded: str | None, seen: str
) -> None:
    proxies = parse_networks("trusted_proxies", ["10.0.0.0/8"])
    assert str(client_address(peer, forwarded, proxies)) == seen


def test_limits_are_read_from_settings() -> None:
    rules = with_limits([RULE], {"rule": "100/10s"})
    assert (rules["rule"].limit, rules["rule"].window_ms) == (100, 10_000)
    assert with_limits([RULE], {"rule": "off"})["rule"].limit == 0
    assert with_limits([RULE], {"rule": "7/h"})["rule"].window_ms == 3_600_000
    for bad in ("0/1m", "5", "5/0s", "-1/1m", "5/1y", ""):
        with pytest.raises(SettingsError):
            with_limits([RULE], {"rule": bad})
    with pytest.raises(SettingsError, match="no rule"):
        with_limits([RULE], {"unknown": "1/1m"})


def test_what_strangers_write_into_a_header_is_not_kept() -> None:
    peer = "192.0.2.1"
    for proxies in ((), parse_networks("trusted_proxies", ["192.0.2.1"])):
        clients = Clients(proxies)
        for number in range(100):
            assert clients.of(peer, f"198.51.100.{number}" + ", x" * 100).text == peer
        assert len(clients._known) <= 1
