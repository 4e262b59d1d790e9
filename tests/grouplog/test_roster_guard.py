"""The guard of a spool node: a nonce works once, and a caller is a member at the moment when it is answered."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from uuid import UUID

import httpx
import pytest

from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.json_form import to_text
from angelia.errors import ReplayRejected, Stale, Unavailable
from angelia.grouplog import roster_guard
from angelia.grouplog.model.documents import EntryDocument, NewRoster
from angelia.grouplog.model.frames import MEDIA, Backfill, Hello, Status
from angelia.grouplog.model.ids import base58
from angelia.grouplog.roster_guard import NONCE_LIFE_MS, Nonces
from grouplog.open_logs import GROUP, Key, Log
from http_agents import HOST, Agent
from log_clients import NODE, LogClient, agent_of, edge_of_log, new_group, roster_of, served

KEY, OTHER = (key_id(KeyType.ED25519, Key(seed).public) for seed in (b"one", b"other"))
BEGAN = 1_000_000  # ms
LATER = BEGAN + 10_000
OLDEST_MS = 150_000  # how old a signature may be at most, by the settings
BODY_MS = 15_000  # how long its body may come


# Nonces.


def is_spent(nonces: Nonces, key: UUID, nonce: str, now_ms: int) -> bool:
    try:
        nonces.spend(key, nonce, now_ms, now_ms)
    except ReplayRejected:
        return True
    return False


def test_a_nonce_works_once() -> None:
    nonces = Nonces(BEGAN)
    nonces.spend(KEY, "nonce", LATER, LATER)
    with pytest.raises(ReplayRejected):
        nonces.spend(KEY, "nonce", LATER, LATER)


def test_a_nonce_is_of_its_key_alone() -> None:
    nonces = Nonces(BEGAN)
    nonces.spend(KEY, "nonce", LATER, LATER)
    nonces.spend(OTHER, "nonce", LATER, LATER)
    nonces.spend(KEY, "another", LATER, LATER)


def test_a_nonce_is_remembered_as_long_as_its_signature_could_be_accepted() -> None:
    nonces = Nonces(BEGAN)
    nonces.spend(KEY, "nonce", LATER, LATER)
    for now in range(LATER, LATER + OLDEST_MS + BODY_MS + 1, 5_000):
        with pytest.raises(ReplayRejected):
            nonces.spend(KEY, "nonce", LATER, now)


def test_a_replay_does_not_lengthen_the_life_of_a_nonce() -> None:
    nonces = Nonces(BEGAN)
    nonces.spend(KEY, "nonce", LATER, LATER)
    assert is_spent(nonces, KEY, "nonce", LATER + NONCE_LIFE_MS - 1)
    assert not is_spent(nonces, KEY, "nonce", LATER + NONCE_LIFE_MS)


def test_each_nonce_ends_at_its_own_time() -> None:
    nonces = Nonces(BEGAN)
    for number in range(5):
        nonces.spend(KEY, str(number), LATER, LATER + 1_000 * number)
    now = LATER + NONCE_LIFE_MS + 2_000
    assert [is_spent(nonces, KEY, str(number), now) for number in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize(("signed", "accepted"), [(BEGAN - 1, False), (BEGAN, True), (BEGAN + 1, True)])
def test_what_was_signed_before_the_memory_began_is_refused(signed: int, accepted: bool) -> None:
    nonces = Nonces(BEGAN)
    if accepted:
        nonces.spend(KEY, "nonce", signed, LATER)
    else:
        with pytest.raises(Stale):
            nonces.spend(KEY, "nonce", signed, LATER)


def test_a_nonce_that_was_refused_as_stale_may_be_signed_again() -> None:
    nonces = Nonces(BEGAN)
    with pytest.raises(Stale):
        nonces.spend(KEY, "nonce", BEGAN - 1, LATER)
    nonces.spend(KEY, "nonce", LATER, LATER)


def test_a_full_memory_takes_no_more_until_nonces_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_guard, "_MOST_NONCES", 3)
    nonces = Nonces(BEGAN)
    for number in range(3):
        nonces.spend(KEY, str(number), LATER, LATER + number)
    with pytest.raises(Unavailable) as caught:
        nonces.spend(KEY, "one more", LATER, LATER + 3)
    assert caught.value.retry_after
    nonces.spend(KEY, "one more", LATER, LATER + NONCE_LIFE_MS)  # the first of the three has ended
    with pytest.raises(Unavailable):
        nonces.spend(KEY, "yet one more", LATER, LATER + NONCE_LIFE_MS)


def test_a_full_memory_forgets_no_nonce_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_guard, "_MOST_NONCES", 3)
    nonces = Nonces(BEGAN)
    for number in range(3):
        nonces.spend(KEY, str(number), LATER, LATER)
    with pytest.raises(Unavailable):
        nonces.spend(KEY, "one more", LATER, LATER)
    assert all(is_spent(nonces, KEY, str(number), LATER + NONCE_LIFE_MS - 1) for number in range(3))


# Over HTTP.


@pytest.fixture
async def client(log: Log) -> AsyncIterator[httpx.AsyncClient]:
    async with served(log) as client:
        yield client


@pytest.fixture
def alice(client: httpx.AsyncClient) -> LogClient:
    """The first member, an admin."""
    return LogClient(client, agent_of(0), GROUP, 1)


@pytest.fixture
def bob(client: httpx.AsyncClient) -> LogClient:
    return LogClient(client, agent_of(1), GROUP, 2)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def replace_roster(log: Log, keys: Sequence[tuple[int, bytes]]) -> None:
    """Sets the members, as (number from 0, public key); the first one is an admin."""
    entries = [EntryDocument(binding=number + 1, public_key=to_text(key), admin=number == 0) for number, key in keys]
    document = NewRoster(epoch=log.group.row.roster.epoch, roster=entries)
    await log.service.replace_roster(log.group, log.members[0], document)


async def send_slowly(
    member: LogClient, path: str, body: bytes, meanwhile: Callable[[], Awaitable[object]]
) -> httpx.Response:
    """Sends a signed request in two halves of its body; something happens after the first."""

    async def halves() -> AsyncIterator[bytes]:
        yield body[: len(body) // 2]
        await meanwhile()
        yield body[len(body) // 2 :]

    url = member.path + path
    headers = {**member.agent.signed("POST", url, body), "content-type": MEDIA}
    return await member.client.request("POST", url, content=halves(), headers=headers)


WHOLE_LOG = Backfill(Hello({}, {})).encode()


async def test_a_request_whose_body_comes_slowly_is_answered(log: Log, bob: LogClient) -> None:
    async def nothing() -> None:
        return None

    assert (await send_slowly(bob, "/backfill", WHOLE_LOG, nothing)).status_code == 200


async def test_a_member_that_is_removed_while_its_body_comes_reads_nothing(log: Log, bob: LogClient) -> None:
    await log.put(log.senders[0], 1)

    async def remove() -> None:
        await replace_roster(log, [(0, log.keys[0].public)])

    assert code(await send_slowly(bob, "/backfill", WHOLE_LOG, remove)) == (403, "not_member")


async def test_a_member_that_is_removed_while_its_body_comes_writes_nothing(log: Log, bob: LogClient) -> None:
    async def remove() -> None:
        await replace_roster(log, [(0, log.keys[0].public)])

    body = bob.message(1).encode()
    assert code(await send_slowly(bob, "/messages", body, remove)) == (403, "not_member")
    assert log.rows() == {}


async def test_a_key_that_is_replaced_while_a_body_comes_signs_nothing_any_more(log: Log, bob: LogClient) -> None:
    async def rotate() -> None:
        await replace_roster(log, [(0, log.keys[0].public), (1, Key(b"new").public)])

    body = bob.message(1).encode()
    assert code(await send_slowly(bob, "/messages", body, rotate)) == (403, "not_member")
    assert log.rows() == {}


async def test_a_group_that_is_dropped_while_a_body_comes_is_gone(log: Log, bob: LogClient) -> None:
    async def drop() -> None:
        await log.service.drop(log.group, log.members[0])

    assert code(await send_slowly(bob, "/backfill", WHOLE_LOG, drop)) == (410, "group_dropped")


async def test_a_member_signs_with_its_new_key_and_keeps_its_sender_id(log: Log, bob: LogClient) -> None:
    renewed = LogClient(bob.client, Agent(), GROUP, 2)
    renewed.sender = bob.sender
    await replace_roster(log, [(0, log.keys[0].public), (1, renewed.agent.public_key)])
    assert await renewed.statuses(renewed.message(1)) == [Status.STORED]
    assert code(await bob.append(bob.message(2))) == (403, "not_member")


async def test_a_nonce_works_once_for_a_member_and_again_for_another(alice: LogClient, bob: LogClient) -> None:
    nonce = secrets.token_urlsafe(18)
    assert (await alice.call("GET", "/vector", nonce=nonce)).status_code == 200
    assert code(await alice.call("GET", "/storage", nonce=nonce)) == (401, "replay_rejected")
    assert (await bob.call("GET", "/vector", nonce=nonce)).status_code == 200


async def test_a_nonce_works_once_even_when_raced(alice: LogClient) -> None:
    headers = alice.agent.signed("GET", f"{alice.path}/vector")
    answers = await asyncio.gather(*(alice.client.get(f"{alice.path}/vector", headers=headers) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 401, 401, 401, 401]


async def test_a_replay_whose_body_comes_slowly_is_refused_at_its_end(alice: LogClient) -> None:
    body, has_begun, may_end = alice.message(1).encode(), asyncio.Event(), asyncio.Event()
    headers = {**alice.agent.signed("POST", f"{alice.path}/messages", body), "content-type": MEDIA}

    async def slowly() -> AsyncIterator[bytes]:
        yield body[:5]
        has_begun.set()
        await may_end.wait()
        yield body[5:]

    slow = asyncio.create_task(alice.client.post(f"{alice.path}/messages", content=slowly(), headers=headers))
    await has_begun.wait()
    assert (await alice.client.post(f"{alice.path}/messages", content=body, headers=headers)).status_code == 200
    may_end.set()
    assert code(await slow) == (401, "replay_rejected")


async def test_a_stranger_is_refused_before_its_body_is_read(client: httpx.AsyncClient) -> None:
    eve, was_read = LogClient(client, Agent(), GROUP), []

    async def body() -> AsyncIterator[bytes]:
        was_read.append(True)
        yield WHOLE_LOG

    url = f"{eve.path}/backfill"
    headers = {**eve.agent.signed("POST", url, WHOLE_LOG), "content-type": MEDIA}
    assert code(await client.post(url, content=body(), headers=headers)) == (403, "not_member")
    assert was_read == []


async def test_a_forged_request_spends_no_nonce(client: httpx.AsyncClient, alice: LogClient) -> None:
    nonce = secrets.token_urlsafe(18)
    forger = LogClient(client, Agent(), GROUP)
    assert code(await forger.call("GET", "/vector", keyid=alice.agent.key_id, nonce=nonce)) == (401, "unauthenticated")
    assert (await alice.call("GET", "/vector", nonce=nonce)).status_code == 200


async def test_a_body_that_was_exchanged_spends_no_nonce(alice: LogClient) -> None:
    url, body = f"{alice.path}/messages", alice.message(1).encode()
    headers = {**alice.agent.signed("POST", url, body), "content-type": MEDIA}
    other = alice.message(1, b"DATA").encode()
    assert code(await alice.client.post(url, content=other, headers=headers)) == (401, "unauthenticated")
    assert (await alice.client.post(url, content=body, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/storage"), ("GET", "/vector?more=1"), ("DELETE", "")],
    ids=["path", "query", "method"],
)
async def test_a_signature_holds_for_its_own_request_only(alice: LogClient, method: str, path: str) -> None:
    headers = alice.agent.signed("GET", f"{alice.path}/vector")
    answer = await alice.client.request(method, alice.path + path, headers=headers)
    assert code(answer) == (401, "unauthenticated")


async def test_a_request_that_is_signed_ahead_waits_for_its_time(alice: LogClient) -> None:
    created = int(time.time()) + 1
    assert (await alice.call("GET", "/vector", created=created)).status_code == 200
    assert time.time() >= created


async def test_a_request_that_was_signed_ahead_is_not_taken_again_after_a_restart(log: Log, alice: LogClient) -> None:
    url = f"{alice.path}/vector"
    headers = alice.agent.signed("GET", url, created=int(time.time()) + 1)
    assert (await alice.client.get(url, headers=headers)).status_code == 200
    restarted = httpx.ASGITransport(edge_of_log(log))  # with an empty memory
    async with httpx.AsyncClient(transport=restarted, base_url=f"http://{HOST}") as client:
        assert code(await client.get(url, headers=headers)) == (401, "stale")


@pytest.mark.parametrize(("seconds", "expected"), [(-61, "stale"), (3600, "from_future")])
async def test_a_request_that_is_signed_too_early_or_too_late_is_refused(
    alice: LogClient, seconds: int, expected: str
) -> None:
    assert code(await alice.call("GET", "/vector", created=int(time.time()) + seconds)) == (401, expected)


# Who creates groups.


async def test_on_a_node_with_a_token_a_group_is_created_with_it_and_used_without(log: Log) -> None:
    async with served(log, token="the node's token") as client:
        member = LogClient(client, Agent(), new_group())
        assert code(await member.create()) == (401, "unauthenticated")
        for wrong in (
            "Bearer wrong",
            "Bearer ",
            "Basic the node's token",
            "the node's token",
            "Bearer the node's toke",
        ):
            assert code(await member.create(headers={"authorization": wrong})) == (401, "unauthenticated"), wrong
        assert code(await member.call("GET", "")) == (404, "no_group")
        assert (await member.create(headers={"authorization": "Bearer the node's token"})).status_code == 201
        assert await member.statuses(member.message(1)) == [Status.STORED]


async def test_the_token_of_a_node_takes_the_place_of_no_signature(log: Log) -> None:
    async with served(log, token="the node's token") as client:
        headers = {"authorization": "Bearer the node's token"}
        founder = LogClient(client, Agent(), new_group())
        body = {
            "group": base58(founder.group),
            "roster": roster_of(founder.agent),
            "nodes": [{"id": NODE, "url": "http://node.example"}],
            "config": {"min_copies": 1},
        }
        answer = await client.post("/v1/groups", json=body, headers=headers)
        assert code(answer) == (401, "unauthenticated")
        assert code(await client.get(f"/v1/groups/{base58(GROUP)}/vector", headers=headers)) == (401, "unauthenticated")
        assert code(await founder.call("GET", "")) == (404, "no_group")
