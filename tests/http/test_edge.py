"""The edge: which error wins, what every answer carries, and what becomes of requests that are not well formed."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import IPv4Address
from itertools import repeat

import httpx
import pytest
import structlog
from prometheus_client import REGISTRY

from angelia.api import Access, Answer, Call, Caller, Role, Route, Surface
from angelia.http import answers, request
from angelia.http.route_table import RouteTable
from angelia.stores.disk import Disk
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from edge_setup import route
from http_agents import HOST, Agent
from probe_edge import ADDRESS, SECRET_OF_THE_HANDLER, Doorway

SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "x-xss-protection": "1; mode=block",
    "referrer-policy": "strict-origin-when-cross-origin",
    "strict-transport-security": "max-age=31536000; includeSubDomains",
    "content-security-policy": "default-src 'none'",
}
JSON = {"content-type": "application/json"}
KIB, MIB = 1 << 10, 1 << 20
LIMITS = [
    ("/probe", 32 * KIB),
    ("/nothing", 32 * KIB),
    ("/v1/probe", 64 * KIB),
    ("/v1/nothing", 64 * KIB),
    ("/api/v1/anyone", 32 * MIB),
    ("/streams/v1/anyone", 32 * MIB),
    ("/narrow", 10),
]


async def blocked(doorway: Doorway) -> None:
    caller = Caller(IPv4Address("10.0.0.1"), Role.ADMIN, name="test")
    await doorway.blocks.block(caller, ADDRESS, "test", None, datetime.now(UTC))


# Which error wins: 413, 415, block, limit, 404 and 405, 401, handler.


async def test_a_body_that_is_too_large_wins_over_one_of_the_wrong_type(make) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.post("/probe", content=b"x" * (32 * KIB + 1), headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()) == (413, {"error": "request body too large"})


async def test_a_wrong_type_wins_over_a_block(make, ledger: Ledger) -> None:
    doorway: Doorway = await make(ledger=ledger)
    await blocked(doorway)
    answer = await doorway.client.post("/probe", content=b"x", headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()) == (415, {"error": "content-type must be application/json"})


async def test_a_block_wins_over_a_limit(make, ledger: Ledger) -> None:
    doorway: Doorway = await make(ledger=ledger)
    assert (await doorway.client.get("/once")).status_code == 200
    await blocked(doorway)
    answer = await doorway.client.get("/once")
    assert (answer.status_code, answer.json()) == (403, {"error": "temporarily blocked"})


@pytest.mark.parametrize(("method", "path"), [("GET", "/nothing"), ("PUT", "/probe"), ("GET", "/signed")])
async def test_a_block_wins_over_404_405_and_401(make, ledger: Ledger, method: str, path: str) -> None:
    doorway: Doorway = await make(ledger=ledger)
    await blocked(doorway)
    assert (await doorway.client.request(method, path)).status_code == 403


async def test_an_address_limit_wins_over_a_missing_credential(make) -> None:
    doorway: Doorway = await make()
    assert (await doorway.client.get("/once")).status_code == 200
    answer = await doorway.client.get("/once/signed")
    assert (answer.status_code, answer.json()) == (429, {"error": "rate limit exceeded"})


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/signed/", 404), ("POST", "/signed", 405)])
async def test_404_and_405_win_over_a_missing_credential(make, method: str, path: str, status: int) -> None:
    doorway: Doorway = await make()
    assert (await doorway.client.request(method, path)).status_code == status


async def test_a_handler_runs_only_for_a_known_caller(make) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.get("/signed")
    assert (answer.status_code, answer.json(), doorway.executed) == (401, {"error": "missing auth headers"}, [])


# What every answer carries.


async def _answers(doorway: Doorway) -> dict[str, object]:
    client = doorway.client
    return {
        "200": await client.get("/probe"),
        "200 of /v1": await client.get("/v1/probe"),
        "400": await client.get("/probe/%ff"),
        "401": await client.get("/signed"),
        "404": await client.get("/nothing"),
        "405": await client.put("/v1/probe"),
        "409": await client.get("/conflict"),
        "413": await client.post("/probe", headers=JSON | {"content-length": "99999999"}),
        "415": await client.post("/probe", content=b"x"),
        "429": (await client.get("/once"), await client.get("/once"))[1],
        "500": await client.get("/broken"),
        "preflight": await client.options("/probe"),
        "preflight of the queues": await client.options("/api/v1/probe"),
    }


async def test_every_answer_carries_the_security_headers(make) -> None:
    doorway: Doorway = await make()
    for name, answer in (await _answers(doorway)).items():
        assert {h: answer.headers.get(h) for h in SECURITY} == SECURITY, name


async def test_every_answer_has_a_request_id_of_its_own(make) -> None:
    doorway: Doorway = await make()
    answers = await _answers(doorway)
    ids = [answer.headers["x-request-id"] for answer in answers.values()]
    assert len(set(ids)) == len(answers)


async def test_a_caller_cannot_choose_the_request_id(make) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.get("/probe", headers={"x-request-id": "chosen"})
    assert answer.headers["x-request-id"] != "chosen"


async def test_answers_from_the_cors_step_on_vary_by_origin_and_earlier_ones_do_not(make) -> None:
    doorway: Doorway = await make()
    varying = {name for name, answer in (await _answers(doorway)).items() if answer.headers.get("vary") == "Origin"}
    assert set(await _answers(doorway)) - varying == {"413", "415", "429"}


async def test_a_problem_document_names_its_request(make) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.get("/v1/signed")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


async def test_an_answer_says_how_long_it_is(make) -> None:
    doorway: Doorway = await make()
    for name, answer in (await _answers(doorway)).items():
        assert int(answer.headers.get("content-length", "0")) == len(answer.content), name


# Body limits.


@pytest.mark.parametrize(("path", "limit"), LIMITS)
async def test_a_declared_length_above_the_limit_is_refused_unread(make, path: str, limit: int) -> None:
    doorway: Doorway = await make()
    headers = [("host", HOST), ("content-type", "application/json"), ("content-length", str(limit + 1))]
    answer = await doorway.send("POST", path, headers, end=False)
    assert answer.status == 413


@pytest.mark.parametrize(("path", "limit"), [pair for pair in LIMITS if "nothing" not in pair[0]])
async def test_an_undeclared_length_is_counted_while_the_body_arrives(make, path: str, limit: int) -> None:
    doorway: Doorway = await make()
    headers = [("host", HOST), ("content-type", "application/json"), ("transfer-encoding", "chunked")]
    part = b"x" * max(1, limit // 32)
    answer = await doorway.send("POST", path, headers, repeat(part, limit // len(part) + 1), end=False)
    assert (answer.status, doorway.executed) == (413, [])


@pytest.mark.parametrize(("path", "limit"), [pair for pair in LIMITS if "nothing" not in pair[0]])
async def test_a_body_of_exactly_the_limit_passes(make, path: str, limit: int) -> None:
    doorway: Doorway = await make()
    headers = [("host", HOST), ("content-type", "application/json"), ("content-length", str(limit))]
    answer = await doorway.send("POST", path, headers, [b"x" * limit])
    assert (answer.status, json.loads(answer.body)) == (200, {"bytes": limit})


async def test_a_length_that_lies_is_no_way_around_the_limit(make) -> None:
    doorway: Doorway = await make()
    headers = [("host", HOST), ("content-type", "application/json"), ("content-length", "5")]
    answer = await doorway.send("POST", "/narrow", headers, [b"x" * 11])
    assert (answer.status, doorway.executed) == (413, [])


async def test_too_large_is_a_problem_document_under_v1(make) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.post("/v1/probe", content=b"x" * (64 * KIB + 1), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


# Shapes of 404 and 405.


@pytest.mark.parametrize("path", ["/nothing", "/api/v1/nothing", "/streams/v1/nothing", "/v2/probe", "/", "//probe"])
async def test_an_unknown_path_outside_v1_is_an_error_text(make, path: str) -> None:
    doorway: Doorway = await make()
    answer = await doorway.send("GET", path)
    assert (answer.status, answer.headers["content-type"]) == (404, "application/json")
    assert json.loads(answer.body) == {"error": "404 page not found"}


async def test_an_unknown_path_of_v1_is_a_problem_document(make) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.get("/v1/nothing")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (404, "not_found")
    assert problem["title"]
    assert problem["hint"]


@pytest.mark.parametrize(
    ("path", "allowed", "media"),
    [
        ("/probe", "GET, POST", "application/json"),
        ("/api/v1/probe", "POST", "application/json"),
        ("/v1/probe", "GET, POST", "application/problem+json"),
        ("/v1/probe/x", "GET", "application/problem+json"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(make, path: str, allowed: str, media: str) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.delete(path)
    assert (answer.status_code, answer.headers["allow"], answer.headers["content-type"]) == (405, allowed, media)
    assert answer.json().get("code", answer.json().get("error")) in ("method_not_allowed", "method not allowed")


@pytest.mark.parametrize(
    "path", ["/probe/", "/v1/probe/", "/probe/a/", "/probe/a/b", "/PROBE", "/pro%62e", "/probe%20"]
)
async def test_a_path_is_matched_exactly(make, path: str) -> None:
    doorway: Doorway = await make()
    assert (await doorway.client.get(path)).status_code == 404


async def test_head_is_a_method_that_no_path_takes_and_its_answer_has_no_body(make) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.head("/probe")
    assert (answer.status_code, answer.headers["allow"], answer.content) == (405, "GET, POST", b"")


async def test_an_invented_method_is_refused_like_any_other(make) -> None:
    doorway: Doorway = await make()
    assert (await doorway.client.request("BREW", "/probe")).status_code == 405


def _routes(*declared: tuple[str, str]) -> list[Route]:
    async def handler(call: Call) -> Answer:
        return Answer()

    return [route(method, path, handler, Access.ANYONE) for method, path in declared]


def test_an_exact_path_wins_over_a_pattern_whatever_their_order() -> None:
    declared = [("GET", "/a/{name}"), ("GET", "/a/me"), ("PUT", "/a/{name}")]
    for order in (declared, declared[::-1]):
        table = RouteTable(_routes(*order))
        assert table.match("/a/me")[0]["GET"].operation.path == "/a/me"
        assert (set(table.match("/a/you")[0]), table.match("/a/you")[1:]) == ({"GET", "PUT"}, (("you",), ("name",)))


@pytest.mark.parametrize("second", [("GET", "/a"), ("GET", "/a/{name}"), ("PUT", "/a/{other}")])
def test_a_path_is_declared_once(second: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="declared"):
        RouteTable(_routes(("GET", "/a"), ("GET", "/a/{name}"), second))


def test_what_a_pattern_spells_out_is_no_regular_expression() -> None:
    table = RouteTable(_routes(("GET", "/a.b+/{name}")))
    assert table.match("/a.b+/x")[0]
    assert not table.match("/axbb/x")[0]


def test_what_is_spelt_out_wins_in_each_segment_but_does_not_hide_a_parameter() -> None:
    paths = ["/a/{x}/c", "/a/b/{y}", "/a/b/d/{z}", "/{w}/b/d/e", "/"]
    table = RouteTable(_routes(*(("GET", path) for path in paths)))
    assert {route.operation.path for route in table} == set(paths)
    for path, declared, values in (
        ("/a/b/c", "/a/b/{y}", ("c",)),
        ("/a/x/c", "/a/{x}/c", ("x",)),
        ("/a/b/d/e", "/a/b/d/{z}", ("e",)),
        ("/q/b/d/e", "/{w}/b/d/e", ("q",)),
        ("/", "/", ()),
    ):
        methods, found, _ = table.match(path)
        assert (methods["GET"].operation.path, found) == (declared, values)
    for path in ("", "//", "/a/", "/a/b/", "/a//c", "/a/x/d", "/a/b/d/", "/a/b/d/e/f", "a/b/c"):
        assert table.match(path)[0] == {}, path


def test_a_spanning_parameter_may_contain_slashes_and_what_is_spelt_out_behind_it_wins() -> None:
    async def handler(call: Call) -> Answer:
        return Answer()

    def spanning(method: str, path: str, *names: str) -> Route:
        return route(method, path, handler, Access.ANYONE, spanning=names)

    table = RouteTable(
        [
            spanning("GET", "/m/{p}/{t}", "t"),
            spanning("POST", "/m/{p}/{t}/retry", "t"),
            spanning("POST", "/g/{group}/queues/{queue}/seek", "group", "queue"),
            spanning("GET", "/g/lagging"),
        ]
    )
    for path, declared, values in (
        ("/m/1/t", "/m/{p}/{t}", ("1", "t")),
        ("/m/1/t/2", "/m/{p}/{t}", ("1", "t/2")),
        ("/m/1/t%2F2/", "/m/{p}/{t}", ("1", "t%2F2/")),
        ("/m/1//t", "/m/{p}/{t}", ("1", "/t")),
        ("/m/1/t/2/retry", "/m/{p}/{t}/retry", ("1", "t/2")),
        ("/m/1/retry/retry", "/m/{p}/{t}/retry", ("1", "retry")),
        ("/m/1/retry", "/m/{p}/{t}", ("1", "retry")),
        ("/g/a/b/queues/c/d/seek", "/g/{group}/queues/{queue}/seek", ("a/b", "c/d")),
        ("/g/lagging", "/g/lagging", ()),
    ):
        methods, found, _ = table.match(path)
        assert ({one.operation.path for one in methods.values()}, found) == ({declared}, values)
    for path in ("/m/1/", "/m/1", "/m//t", "/g/a/queues/seek", "/m/1" + "/t" * 100):
        assert table.match(path)[0] == {}, path
    with pytest.raises(ValueError, match="spanning"):
        spanning("GET", "/a/{b}", "c")


def test_a_parameter_is_a_whole_segment() -> None:
    with pytest.raises(ValueError, match="whole segment"):
        RouteTable(_routes(("GET", "/a/{name}.json")))


# The wire of the root surface.


@pytest.mark.parametrize("path", ["/probe", "/signed", "/nothing", "/conflict", "/broken"])
async def test_json_of_the_root_surface_ends_with_one_newline(make, path: str) -> None:
    doorway: Doorway = await make()
    body = (await doorway.client.get(path)).content
    assert re.fullmatch(rb"\{[^\n]*\}\n", body)


async def test_the_body_of_a_429_ends_without_a_newline(make) -> None:
    doorway: Doorway = await make()
    await doorway.client.get("/once")
    answer = await doorway.client.get("/once")
    assert (answer.status_code, answer.content) == (429, b'{"error":"rate limit exceeded"}')
    assert int(answer.headers["retry-after"]) >= 1
    assert {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"} <= answer.headers.keys()


@pytest.mark.parametrize(
    ("sent", "read"),
    [("a%2Fb", "a/b"), ("%252F", "%2F"), ("%C3%A9", "é"), ("a+b", "a+b"), ("a%20b", "a b"), ("Ã©", "é"), ("%", "%")],
)
async def test_a_path_parameter_is_decoded_once(make, sent: str, read: str) -> None:
    doorway: Doorway = await make()
    answer = await doorway.send("GET", f"/probe/{sent}")
    assert (answer.status, json.loads(answer.body)) == (200, {"name": read})


# Requests that are not well formed.


@pytest.mark.parametrize("path", ["/probe/%ff", "/v1/probe/%c3", "/probe/\xff", "/v1/probe/%ed%a0%80"])
async def test_a_path_that_is_not_utf8_is_the_callers_error(make, path: str) -> None:
    doorway: Doorway = await make()
    assert (await doorway.send("GET", path)).status == 400


BAD_JSON = {
    "nothing": b"",
    "a wrong type": b'{"text": 5}',
    "no object": b"[]",
    "an open end": b'{"text": "a"',
    "something after it": b'{"text": "a"} {}',
    "not UTF-8": b'{"text": "\xff"}',
    "half a surrogate pair": b'{"text": "\\ud800"}',
    "a byte order mark": b'\xef\xbb\xbf{"text": "a"}',
    "endless depth": b'{"other": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "UTF-16": '{"text": "a"}'.encode("utf-16"),
}


@pytest.mark.parametrize("body", BAD_JSON.values(), ids=BAD_JSON)
async def test_a_body_that_does_not_parse_is_the_callers_error(make, body: bytes) -> None:
    doorway: Doorway = await make()
    old = await doorway.client.post("/json", content=body, headers=JSON)
    assert (old.status_code, old.json()) == (400, {"error": "invalid JSON body"})
    new = await doorway.client.post("/v1/json", content=body, headers=JSON)
    assert (new.status_code, new.json()["code"]) == (400, "invalid_argument")


async def test_unknown_fields_of_a_body_are_ignored(make) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.post("/json", json={"text": "é", "TEXT": "x", "more": [1]})
    assert (answer.status_code, answer.json()) == (200, {"text": "é"})


@pytest.mark.parametrize("query", ["limit=x", "limit=0", "limit=1001", "limit=", "since=yesterday", "since=2026-01-01"])
async def test_a_query_that_does_not_fit_is_the_callers_error(make, query: str) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.get(f"/v1/query?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("word=a+b%2B", "a b+"),
        ("word=%C3%A9", "é"),
        ("word=%ff", "\ufffd"),
        ("word=1&word=2", "2"),
        ("other=1", ""),
        ("&&=", ""),
    ],
)
async def test_a_query_is_form_encoded(make, query: str, word: str) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.get(f"/v1/query?{query}")
    assert (answer.status_code, answer.json()["word"]) == (200, word)


@pytest.mark.parametrize("length", ["abc", "-1", "+1", "1e3", "0x10", "", " ", "5, 5", "1.0", "²"])
async def test_a_content_length_that_is_no_number_is_the_callers_error(make, length: str) -> None:
    doorway: Doorway = await make()
    headers = [("host", HOST), ("content-type", "application/json"), ("content-length", length)]
    assert (await doorway.send("POST", "/probe", headers)).status == 400


@pytest.mark.parametrize("length", ["9" * 25, "9" * 5000])
async def test_an_endless_content_length_is_too_large(make, length: str) -> None:
    doorway: Doorway = await make()
    headers = [("host", HOST), ("content-type", "application/json"), ("content-length", length)]
    assert (await doorway.send("POST", "/probe", headers)).status == 413


async def test_a_body_that_stops_arriving_is_given_up(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "READ_SECONDS", 0.05)
    doorway: Doorway = await make()
    headers = [("host", HOST), ("content-type", "application/json"), ("content-length", "20")]
    answer = await doorway.send("POST", "/probe", headers, [b"{"], end=False)
    assert (answer.status, json.loads(answer.body)) == (400, {"error": "failed to read request body"})
    assert doorway.executed == []


async def test_two_credentials_at_once_are_none(make, ledger: Ledger) -> None:
    doorway: Doorway = await make(ledger=ledger)
    caller = Caller(IPv4Address("10.0.0.1"), Role.ADMIN, name="test")
    _, text = await doorway.tokens.make(caller, datetime.now(UTC), role="admin", agent=None, label="", life=None)
    good = ("authorization", f"Bearer {text}")
    assert (await doorway.send("GET", "/v1/admin", [("host", HOST), good])).status == 200
    for pair in ([good, ("authorization", "Bearer other")], [("authorization", "Bearer other"), good]):
        assert (await doorway.send("GET", "/v1/admin", [("host", HOST), *pair])).status == 401


@pytest.mark.parametrize("open_mode", [True, False])
async def test_two_hosts_are_the_callers_error(make, open_mode: bool) -> None:
    doorway: Doorway = await make(open_mode=open_mode)
    for hosts in (["localhost", "evil.example"], ["evil.example", "localhost"], ["localhost", "localhost"]):
        answer = await doorway.send("GET", "/probe", [("host", host) for host in hosts])
        assert (answer.status, doorway.executed) == (400, []), hosts


NO_REQUESTS = {
    "negative length": (b"POST /probe HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", {400}),
    "two lengths": (
        b"POST /probe HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        {400},
    ),
    "length and chunks": (
        b"POST /probe HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        {400},
    ),
    "bad chunk": (b"POST /probe HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", {400}),
    "space in a name": (b"GET /probe HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n", {400}),
    "NUL in a value": (b"GET /probe HTTP/1.1\r\nHost: localhost\r\nX-A: a\x00b\r\n\r\n", {400}),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
    "path not UTF-8": (b"GET /pro\xffbe HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
    "query not UTF-8": (b"GET /probe?q=\xff%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", {200, 400}),
    "huge header": (
        b"GET /probe HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 60_000 + b"\r\n\r\n",
        {431},
    ),
    "very many headers": (
        b"GET /probe HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: a\r\n" * 20_000 + b"\r\n",
        {431},
    ),
}


async def test_bytes_that_are_no_request_are_refused_and_the_server_lives_on(make) -> None:
    doorway: Doorway = await make()
    async with doorway.listening() as port:
        for name, (request, statuses) in NO_REQUESTS.items():
            assert await _status_of(port, request) in statuses, name
        assert await _status_of(port, b"GET /probe HTTP/1.1\r\nHost: localhost\r\n\r\n") == 200


async def _status_of(port: int, request: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        line = await asyncio.wait_for(reader.readline(), 5)
    finally:
        writer.close()
    return int(line.split()[1])


async def test_an_unread_body_is_never_taken_for_a_request(make) -> None:
    doorway: Doorway = await make()
    inner = b"GET /v1/probe HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
    async with doorway.listening() as port:
        for path, kind in ((b"narrow", b"application/json"), (b"nothing", b"application/json"), (b"probe", b"a/b")):
            request = head % (path, kind, len(inner)) + inner
            assert await _status_of(port, request) in (404, 413, 415)
    assert doorway.executed == []


async def test_a_body_that_is_too_large_is_not_asked_for(make) -> None:
    doorway: Doorway = await make()
    head = b"POST /narrow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 11\r\n"
    async with doorway.listening() as port:
        assert await _status_of(port, head + b"Expect: 100-continue\r\n\r\n") == 413


async def test_nobody_is_given_a_websocket(make) -> None:
    doorway: Doorway = await make()
    request = (
        b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with doorway.listening() as port:
        assert await _status_of(port, request) == 404


async def test_a_client_that_leaves_in_mid_body_executes_nothing(make) -> None:
    doorway: Doorway = await make()
    async with doorway.listening() as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /probe HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        # A second connection is served after the first one's end was noticed.
        assert await _status_of(port, b"GET /v1/probe HTTP/1.1\r\nHost: localhost\r\n\r\n") == 200
    assert [call.raw_path for call in doorway.executed] == [()]
    assert doorway.executed[0].body == b""


# Faults of the server.


@pytest.mark.parametrize(
    ("path", "media"), [("/broken", "application/json"), ("/v1/broken", "application/problem+json")]
)
async def test_a_handler_that_fails_tells_nothing_about_itself(make, path: str, media: str) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (500, media)
    shown = answer.text + str(answer.headers)
    for inside in (SECRET_OF_THE_HANDLER, "RuntimeError", "Traceback", "doorway"):
        assert inside not in shown


async def test_an_answer_that_cannot_be_encoded_is_a_failure_like_any_other(make) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.get("/unspeakable")
    assert (answer.status_code, answer.json()) == (500, {"error": "something went wrong on the server"})
    assert SECURITY.items() <= answer.headers.items()


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "a\0", "\u20ac"])
async def test_a_header_that_cannot_be_written_is_a_failure_like_any_other(make, value: str) -> None:
    async def handler(call: Call) -> Answer:
        return Answer(body={}, headers={"x-said": value})

    doorway: Doorway = await make(more=[route("GET", "/said", handler, Access.ANYONE)])
    async with doorway.listening() as port:
        answer = await doorway.client.get("/said")
        assert (answer.status_code, "x-said" in answer.headers, "set-cookie" in answer.headers) == (500, False, False)
        assert await _status_of(port, b"GET /said HTTP/1.1\r\nHost: localhost\r\n\r\n") == 500


async def test_an_answer_is_the_same_over_a_socket_as_by_asgi(make) -> None:
    """Over our own protocol an answer is written as a whole, elsewhere as ASGI has it."""
    doorway: Doorway = await make()
    changing = {"date", "server", "x-request-id"}
    async with doorway.listening() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as socket:
        for method, path in (("GET", "/probe"), ("GET", "/v1/nothing"), ("HEAD", "/probe"), ("OPTIONS", "/probe"),
                             ("GET", "/page"), ("GET", "/broken"), ("PUT", "/v1/probe")):  # fmt: skip
            by_asgi = await doorway.client.request(method, path)
            over_socket = await socket.request(method, path, headers={"host": HOST})
            assert over_socket.status_code == by_asgi.status_code, path
            assert {k: v for k, v in over_socket.headers.items() if k not in changing} == {
                k: v for k, v in by_asgi.headers.items() if k not in changing
            }
            if path.startswith("/v1/"):
                assert over_socket.json().keys() == by_asgi.json().keys()
            else:
                assert over_socket.content == by_asgi.content


@pytest.mark.parametrize("surface", ["/v1/admin", "/api/v1/pop"])
async def test_a_ledger_that_is_away_is_503_with_retry_after(make, dead_ledger: Ledger, surface: str) -> None:
    doorway: Doorway = await make(ledger=dead_ledger)
    token = f"agt_{secrets.token_hex(16)}_{secrets.token_urlsafe(32)}"
    answer = await doorway.client.get(surface, headers={"authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.headers["retry-after"], doorway.executed) == (503, "1", [])
    expected = "unavailable" if surface.startswith("/v1/") else "the ledger is not reachable at the moment"
    assert answer.json().get("code", answer.json().get("error")) == expected
    assert "nonexistent" not in answer.text


@pytest.mark.parametrize(("surface", "status"), [(Surface.V1, 507), (Surface.ROOT, 503), (Surface.QUEUES, 503)])
def test_a_full_disk_is_507_where_clients_know_it_and_503_where_they_do_not(surface: Surface, status: int) -> None:
    answer = answers.of_error(Disk().refusal(), surface, "id")
    assert (answer.status, answer.headers["retry-after"]) == (status, "5")


async def test_without_the_hot_tier_a_signed_request_is_503_and_not_executed(
    make, ledger: Ledger, dead_hot_tier: HotTier
) -> None:
    doorway: Doorway = await make(ledger=ledger, hot=dead_hot_tier)
    agent = Agent()
    await doorway.agents.register(agent.public_text, "", "", datetime.now(UTC))
    answer = await doorway.client.get("/v1/signed", headers=agent.signed("GET", "/v1/signed"))
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "1")
    assert doorway.executed == []


async def test_without_the_hot_tier_a_limited_route_is_limited_in_process(make, dead_hot_tier: HotTier) -> None:
    doorway: Doorway = await make(hot=dead_hot_tier)
    assert [(await doorway.client.get("/once")).status_code for _ in range(2)] == [200, 429]


# Metrics and logs.


def _count(method: str, path: str, status: str) -> float | None:
    return REGISTRY.get_sample_value("aicq_http_requests_total", {"method": method, "path": path, "status": status})


def _labels() -> Iterator[str]:
    for family in REGISTRY.collect():
        if family.name.startswith("aicq_http"):
            for sample in family.samples:
                yield from sample.labels.values()


async def test_requests_are_counted_under_the_template_of_their_route(make) -> None:
    doorway: Doorway = await make()
    before = _count("GET", "/probe/:name", "200") or 0
    secret = secrets.token_hex(8)
    await doorway.client.get(f"/probe/{secret}?x={secret}")
    assert _count("GET", "/probe/:name", "200") == before + 1
    assert not any(secret in label for label in _labels())


async def test_unknown_paths_and_methods_are_counted_as_other(make) -> None:
    doorway: Doorway = await make()
    secret = secrets.token_hex(8)
    before = (_count("other", "other", "404") or 0, _count("other", "other", "405") or 0)
    await doorway.client.get(f"/{secret}")
    await doorway.client.request(secret.upper(), "/probe")
    assert (_count("other", "other", "404"), _count("other", "other", "405")) == (before[0] + 1, before[1] + 1)
    assert not any(secret in label.lower() for label in _labels())


async def test_the_log_has_a_line_for_each_request_and_no_secret_in_it(make, ledger: Ledger) -> None:
    doorway: Doorway = await make(ledger=ledger)
    agent = Agent()
    agent.id = "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10"
    bearer, room_key, in_query, in_body = (secrets.token_urlsafe(32) for _ in range(4))
    signed, old = agent.signed("GET", "/v1/signed"), agent.aicq()
    with structlog.testing.capture_logs() as lines:
        for path in ("/probe", "/v1/admin", "/broken", "/signed"):
            await doorway.client.get(f"{path}?key={in_query}", headers={"authorization": f"Bearer {bearer}"})
        await doorway.client.get("/v1/signed", headers=signed)
        await doorway.client.get("/signed", headers=old | {"x-aicq-room-key": room_key})
        await doorway.client.post("/probe", json={"secret": in_body})
    assert [line["status"] for line in lines if line["event"] == "request"] == [200, 401, 500, 401, 401, 401, 200]
    assert all(re.fullmatch("[0-9a-f]{32}", line["request_id"]) for line in lines)
    written = repr(lines)
    for secret in (bearer, room_key, in_query, in_body, signed["signature"], old["x-aicq-signature"]):
        assert secret not in written
