"""The group log over HTTP, through a web process and its spool: routes, guard, errors."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from angelia.grouplog.model import vectors
from angelia.grouplog.model.documents import CompletionDocument
from angelia.grouplog.model.frames import MEDIA, CaughtUp, Failure, Hello, LogMessage, Status, Type
from angelia.grouplog.model.ids import base58
from angelia.grouplog.model.pieces import Completion
from angelia.grouplog.model.records import Record
from http_agents import HOST, Agent, Server
from log_clients import NODE, LogClient, new_group, roster_of
from probe_edge import listening
from spool_process import SpoolProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpoolProcess]:
    """A node for all tests: each has a group of its own."""
    node = SpoolProcess(tmp_path_factory.mktemp("spool") / "data")
    node.start()
    yield node
    assert node.stop() == 0


@pytest.fixture
async def client(node: SpoolProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=node.url, timeout=20) as client:
        yield client


@pytest.fixture
async def alice(client: httpx.AsyncClient) -> LogClient:
    """The admin of a group of one."""
    alice = LogClient(client, Agent(), new_group())
    assert (await alice.create()).status_code == 201
    return alice


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_a_message_that_is_appended_is_read_again(alice: LogClient) -> None:
    assert await alice.statuses(alice.message(1, b"one"), alice.message(2, b"two")) == [Status.STORED] * 2
    messages, end = await alice.backfill()
    assert [
        (message.seq, Record(0, data).encode()) for message, data in zip(messages, (b"one", b"two"), strict=True)
    ] == [(message.seq, message.record) for message in messages]
    assert not end.has_more
    answer = await alice.call("GET", f"/messages/{alice.sender.hex()}/2")
    assert answer.headers["content-type"] == MEDIA
    assert answer.content == alice.message(2, b"two").encode()
    held = (await alice.call("GET", "/vector")).json()
    assert held == {"highest": {alice.sender.hex(): 2}, "floors": []}


async def test_a_group_is_created_once_and_the_same_call_again_is_no_error(
    alice: LogClient, client: httpx.AsyncClient
) -> None:
    assert (await alice.create()).status_code == 200
    assert code(await alice.create(roster=roster_of(alice.agent, Agent()))) == (409, "already_exists")
    shown = (await alice.call("GET", "")).json()
    assert (shown["group"], shown["roster_epoch"], shown["node_epoch"]) == (base58(alice.group), 1, 1)
    assert [member["sender"] for member in shown["roster"]] == [alice.sender.hex()]


async def test_a_group_is_created_by_an_admin_of_its_own_roster(client: httpx.AsyncClient) -> None:
    founder, friend = Agent(), Agent()
    stranger = LogClient(client, Agent(), new_group())
    assert code(await stranger.create(roster=roster_of(founder))) == (403, "authorization_denied")
    plain = LogClient(client, friend, new_group(), 2)
    assert code(await plain.create(roster=roster_of(founder, friend))) == (403, "authorization_denied")
    # Neither call made a group.
    for member in (stranger, plain):
        assert code(await member.call("GET", "")) == (404, "no_group")


async def test_outside_open_mode_a_group_needs_a_token_besides(start: Any) -> None:
    server: Server = await start(spool=True, jwt_secret="a secret makes the server leave open mode")
    async with server.client_from("127.0.0.1") as client:
        member = LogClient(client, Agent(), new_group())
        assert code(await member.create()) == (401, "unauthenticated")
        assert code(await member.create(headers={"authorization": "Bearer agt_wrong"})) == (401, "unauthenticated")
        readers = await server.post("/v1/tokens", json={"role": "read-only"}, headers=server.admin)
        read_only = {"authorization": f"Bearer {readers.json()['token']}"}
        assert code(await member.create(headers=read_only)) == (403, "authorization_denied")
        assert code(await member.call("GET", "")) == (404, "no_group")
        assert (await member.create(headers=server.admin)).status_code == 201
        assert await member.statuses(member.message(1)) == [Status.STORED]  # a member needs none


async def test_no_read_creates_a_group(client: httpx.AsyncClient) -> None:
    member = LogClient(client, Agent(), new_group())
    for path in ("", "/vector", "/storage", f"/messages/{'00' * 8}/1", f"/shards/{'00' * 8}/1"):
        assert code(await member.call("GET", path)) == (404, "no_group"), path
    assert (await member.create()).status_code == 201  # so there was none


async def test_a_stranger_is_refused_whatever_it_asks(alice: LogClient, client: httpx.AsyncClient) -> None:
    eve = LogClient(client, Agent(), alice.group)
    for method, path, body, media in (
        ("GET", "", None, ""),
        ("GET", "/vector", None, ""),
        ("GET", "/storage", None, ""),
        ("POST", "/messages", eve.message(1).encode(), MEDIA),
        ("POST", "/backfill", Hello({}, {}).encode(), MEDIA),
        ("POST", "/subscribe", Hello({}, {}).encode(), MEDIA),
        ("PUT", "/roster", json.dumps({"epoch": 1, "roster": roster_of(eve.agent)}).encode(), "application/json"),
        ("DELETE", "", None, ""),
    ):
        assert code(await eve.call(method, path, body, media)) == (403, "not_member"), (method, path)
    assert await alice.held() == set()


async def test_a_request_without_a_good_signature_is_refused(alice: LogClient, client: httpx.AsyncClient) -> None:
    assert code(await client.get(f"{alice.path}/vector")) == (401, "unauthenticated")
    forger = LogClient(client, Agent(), alice.group)
    answer = await forger.call("GET", "/vector", keyid=alice.agent.key_id)
    assert code(answer) == (401, "unauthenticated")
    url, body = f"{alice.path}/messages", alice.message(1).encode()
    headers = alice.agent.signed("POST", url, body, authority=client.base_url.netloc.decode()) | {"content-type": MEDIA}
    other = alice.message(1, b"else").encode()
    assert code(await client.post(url, content=other, headers=headers)) == (401, "unauthenticated")
    assert await alice.held() == set()


async def test_a_request_is_taken_once_and_none_from_before_the_start(alice: LogClient, node: SpoolProcess) -> None:
    nonce = secrets.token_urlsafe(18)
    assert (await alice.call("GET", "/vector", nonce=nonce)).status_code == 200
    assert code(await alice.call("GET", "/vector", nonce=nonce)) == (401, "replay_rejected")
    # A request signed before the node started may have been taken by its predecessor.
    assert code(await alice.call("GET", "/vector", created=int(node.started_at) - 1)) == (401, "stale")


async def test_a_member_appends_its_own_messages_only(alice: LogClient, client: httpx.AsyncClient) -> None:
    bob = LogClient(client, Agent(), alice.group, 2)
    body = {"epoch": 1, "roster": roster_of(alice.agent, bob.agent)}
    assert (await alice.call("PUT", "/roster", json.dumps(body).encode())).status_code == 200
    answer = await bob.append(bob.message(1), alice.message(1))
    assert code(answer) == (403, "sender_mismatch")
    assert answer.json()["at"] == 1
    assert await alice.held() == set()  # all or none


async def test_a_removed_member_reads_and_writes_nothing_any_more(alice: LogClient, client: httpx.AsyncClient) -> None:
    bob = LogClient(client, Agent(), alice.group, 2)
    both = {"epoch": 1, "roster": roster_of(alice.agent, bob.agent)}
    await alice.call("PUT", "/roster", json.dumps(both).encode())
    async with bob.subscribed() as stream:
        assert (await anext(stream))[0] == Type.CAUGHT_UP
        alone = {"epoch": 2, "roster": roster_of(alice.agent)}
        assert (await alice.call("PUT", "/roster", json.dumps(alone).encode())).status_code == 200
        await alice.statuses(alice.message(1, b"not for bob"))
        rest = [frame async for frame in stream]
    assert [type_ for type_, _ in rest] == [Type.ERROR]
    assert Failure.decode(rest[0][1]).code == "not_member"
    assert code(await bob.call("GET", "/vector")) == (403, "not_member")
    assert code(await bob.append(bob.message(1))) == (403, "not_member")


async def test_roster_and_nodes_change_by_compare_and_set_and_by_admins(
    alice: LogClient, client: httpx.AsyncClient
) -> None:
    bob = LogClient(client, Agent(), alice.group, 2)
    both = {"epoch": 1, "roster": roster_of(alice.agent, bob.agent)}
    changed = await alice.call("PUT", "/roster", json.dumps(both).encode())
    assert (changed.status_code, changed.json()["roster_epoch"]) == (200, 2)
    late = await alice.call("PUT", "/roster", json.dumps(both).encode())
    assert (*code(late), late.json()["epoch"]) == (409, "epoch_conflict", 2)
    nodes = {"epoch": 1, "nodes": [{"id": NODE, "url": "http://other.example"}]}
    assert code(await bob.call("PUT", "/nodes", json.dumps(nodes).encode())) == (403, "authorization_denied")
    changed = await alice.call("PUT", "/nodes", json.dumps(nodes).encode())
    assert (changed.json()["node_epoch"], changed.json()["nodes"]) == (2, nodes["nodes"])
    assert code(await alice.call("PUT", "/nodes", json.dumps(nodes).encode())) == (409, "epoch_conflict")


async def test_a_dropped_group_is_gone_for_good(alice: LogClient, client: httpx.AsyncClient) -> None:
    await alice.statuses(alice.message(1))
    assert (await alice.call("DELETE", "")).status_code == 204
    assert code(await alice.call("GET", "/vector")) == (410, "group_dropped")
    assert code(await alice.create()) == (410, "group_dropped")


async def test_a_subscription_sends_what_is_there_then_what_comes(alice: LogClient) -> None:
    await alice.statuses(alice.message(1), alice.message(2))
    async with alice.subscribed(Hello({alice.sender: 1}, {})) as stream:
        (first, stored), (second, caught_up) = await anext(stream), await anext(stream)
        assert (first, LogMessage.decode(stored).seq, second) == (Type.MESSAGE, 2, Type.CAUGHT_UP)
        assert len(CaughtUp.decode(caught_up).boot) == 16
        await alice.statuses(alice.message(5))
        await alice.statuses(alice.message(4), alice.message(5))  # the second is a duplicate
        came = [LogMessage.decode((await anext(stream))[1]).seq for _ in range(2)]
        assert came == [5, 4]  # by arrival, not by seq
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.3)


async def test_a_member_has_eight_subscriptions_of_a_group(alice: LogClient) -> None:
    async with asyncio.TaskGroup() as tasks:
        entered, leave = [asyncio.Event() for _ in range(8)], asyncio.Event()

        async def hold(event: asyncio.Event) -> None:
            async with alice.subscribed() as stream:
                await anext(stream)
                event.set()
                await leave.wait()

        for event in entered:
            tasks.create_task(hold(event))
        for event in entered:
            await event.wait()
        answer = await alice.call("POST", "/subscribe", Hello({}, {}).encode(), MEDIA)
        leave.set()
    assert code(answer) == (429, "rate_limited")
    assert answer.headers["retry-after"]
    await asyncio.sleep(0.5)
    async with alice.subscribed() as stream:  # those that left made room
        assert (await anext(stream))[0] == Type.CAUGHT_UP


@pytest.mark.parametrize(
    ("path", "body", "media", "expected"),
    [
        ("/messages", b"", MEDIA, (400, "invalid_argument")),
        ("/messages", b"\0\0\0\5\1abc", MEDIA, (400, "invalid_argument")),
        ("/messages", b"{}", "application/json", (415, "unsupported_media_type")),
        ("/backfill", b"\0\0\0\1\3", MEDIA, (400, "invalid_argument")),
        ("/subscribe", b"\0\0\0\1\6", MEDIA, (400, "invalid_argument")),
        ("/deletions", b"{}", "application/json", (400, "invalid_argument")),
        ("/import?source=short&before=0", b"\0\0\0\1\1", MEDIA, (400, "invalid_argument")),
    ],
)
async def test_a_body_that_does_not_fit_is_refused(
    alice: LogClient, path: str, body: bytes, media: str, expected: tuple[int, str]
) -> None:
    assert code(await alice.call("POST", path, body, media)) == expected


async def test_ids_have_one_form_only(alice: LogClient, client: httpx.AsyncClient) -> None:
    for text in ("1" * 31, "1" * 33, "0OIl", base58(alice.group)[:-1], base58(alice.group) + "1"):
        url = f"/v1/groups/{text}/vector"
        assert (await alice.call("GET", url)).status_code in (400, 404), text
        headers = alice.agent.signed("GET", url, authority=client.base_url.netloc.decode())
        assert code(await client.get(url, headers=headers))[1] in ("invalid_argument", "no_group"), text
    sender = alice.sender.hex()
    for path in (f"/messages/{sender.upper()}/1", f"/messages/{sender[:-1]}/1", f"/messages/{sender}/0"):
        expected = (400, "invalid_argument") if path != f"/messages/{sender}/1" else (404, "no_message")
        assert code(await alice.call("GET", path)) == expected, path
    assert code(await alice.call("GET", f"/messages/{sender}/1")) == (404, "no_message")


async def test_levels_and_sizes_have_limits(alice: LogClient) -> None:
    too_high = LogMessage(alice.sender, 1, Record(0, b"x").encode()[:2] + b"\x10" + Record(0, b"x").encode()[3:])
    assert code(await alice.append(too_high)) == (422, "bad_level")
    assert code(await alice.append(alice.message(1, bytes((1 << 20) + 1)))) == (413, "too_large")
    assert await alice.statuses(alice.message(1, bytes(1 << 20))) == [Status.STORED]
    body = b"".join(alice.message(seq).encode() for seq in range(2, 259))
    assert code(await alice.call("POST", "/messages", body, MEDIA)) == (400, "invalid_argument")
    assert code(await alice.call("POST", "/messages", bytes((16 << 20) + 1), MEDIA)) == (413, "too_large")


async def test_other_bytes_under_the_same_id_are_a_conflict_with_both_digests(alice: LogClient) -> None:
    await alice.statuses(alice.message(1, b"first"))
    answer = await alice.append(alice.message(2), alice.message(1, b"second"))
    assert code(answer) == (409, "conflict")
    told = answer.json()
    assert told["at"] == 1
    assert len({told["stored_digest"], told["sent_digest"]}) == 2
    assert await alice.held() == {(alice.sender, 1)}
    assert await alice.statuses(alice.message(1, b"first")) == [Status.DUPLICATE]


async def test_a_deletion_without_node_receipts_deletes_nothing(alice: LogClient) -> None:
    await alice.statuses(alice.message(1), alice.message(2), alice.message(3, b"snapshot", level=1))
    watermark = {alice.sender: 2}
    completion = Completion(
        group=alice.group,
        level=1,
        sender=alice.sender,
        seq=3,
        digest=bytes(32),
        watermark_digest=vectors.digest(watermark),
        receipts=[],
        signer=alice.sender,
    ).signed(alice.agent.key.sign)
    body = msgspec.json.encode(CompletionDocument.of(completion, watermark, b""))
    assert code(await alice.call("POST", "/deletions", body)) == (412, "not_durable")
    assert len(await alice.held()) == 3


async def test_a_member_that_appends_too_fast_is_told_to_wait(start: Any) -> None:
    server: Server = await start(spool=True, log_append_rate=1, log_append_burst=256)
    async with server.client_from("127.0.0.1") as client:
        member = LogClient(client, Agent(), new_group())
        await member.create()
        assert len(await member.statuses(*(member.message(seq) for seq in range(1, 257)))) == 256
        answer = await member.append(*(member.message(seq) for seq in range(257, 267)))
    assert code(answer) == (429, "rate_limited")
    assert int(answer.headers["retry-after"]) >= 9
    assert answer.headers["x-request-id"] == answer.json()["request_id"]


async def test_an_old_log_is_imported_a_thousand_rows_at_a_time_by_an_admin(alice: LogClient) -> None:
    rows = [LogMessage(bytes([9]) * 8, seq, Record(0, b"old %d" % seq).encode()) for seq in range(1, 1501)]
    source = "ab" * 32

    async def send(first: int, last: int) -> httpx.Response:
        body = b"".join(row.encode() for row in rows[first:last])
        return await alice.call("POST", f"/import?source={source}&before={first}", body, MEDIA)

    assert (await send(0, 1000)).json() == {"source": source, "rows": 1000}
    again = await send(0, 1000)
    assert (*code(again), again.json()["rows"]) == (409, "conflict", 1000)
    assert (await send(1000, 1500)).json() == {"source": source, "rows": 1500}
    assert len(await alice.held()) == 1500


async def test_storage_names_what_a_group_takes(alice: LogClient) -> None:
    await alice.statuses(alice.message(1, bytes(100)), alice.message(2, bytes(200), level=1))
    told = (await alice.call("GET", "/storage")).json()
    assert told["bytes"]["msg"] == (24 + 20 + 100) + (24 + 20 + 200)
    assert (told["snapshots"], told["floors"], told["corrupt"]) == (1, 0, [])


async def test_a_web_process_passes_requests_and_streams_on_and_its_log_names_no_group(
    start: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    server: Server = await start(spool=True)
    async with (
        listening(server.application) as port,
        httpx.AsyncClient(base_url=f"http://localhost:{port}", headers={"host": HOST}, timeout=20) as client,
    ):
        alice = LogClient(client, Agent(), new_group())
        assert (await alice.create()).status_code == 201
        big = [alice.message(seq, bytes(1 << 20)) for seq in range(1, 5)]
        assert await alice.statuses(*big) == [Status.STORED] * 4
        assert [message.record for message in (await alice.backfill(max_bytes=16 << 20))[0]] == [m.record for m in big]
        async with alice.subscribed(Hello({alice.sender: 4}, {})) as stream:
            assert (await anext(stream))[0] == Type.CAUGHT_UP
            await alice.statuses(alice.message(5))
            assert LogMessage.decode((await anext(stream))[1]).seq == 5
            server.application.stop_waiting()  # as when the server stops
            assert [frame async for frame in stream] == []
        assert code(await alice.call("POST", "/messages", bytes((16 << 20) + 1), MEDIA)) == (413, "too_large")
    said = "".join(capfd.readouterr())
    assert "/v1/groups/{gid}/messages" in said
    assert base58(alice.group) not in said
    assert alice.sender.hex()[:5] not in said
