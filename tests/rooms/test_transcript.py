"""What AICQ's clients see: every endpoint, status and error text, in the order in which they are checked."""

from __future__ import annotations

import json
import re
import secrets
from uuid import UUID

import pytest

from http_agents import HOST, Server
from rooms_clients import GLOBAL, KEY, RoomClient

ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
NO_ROOM, NO_MESSAGE = "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10", "01ARZ3NDEKTSV4RRFFQ69G5FAV"


UNLIMITED = {"room_create": "off", "room_read": "off"}
MODES = {"open": {}, "tokens": {"host": "192.0.2.1", "public_url": f"http://{HOST}", "jwt_secret": "s" * 32}}
EXPOSED = {"Link", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After"}


@pytest.fixture(params=MODES)
async def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def server(start, mode: str) -> Server:
    """On loopback, where all is open; and bound to another address, where tokens are needed for what is not AICQ's."""
    return await start(limits=UNLIMITED, **MODES[mode])


def error(text: str) -> str:
    return json.dumps({"error": text}, separators=(",", ":")) + "\n"


async def test_the_list_of_rooms_has_the_global_one_and_its_total(server: Server) -> None:
    answer = await server.get("/channels")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert list(document) == ["channels", "total"]
    assert document["total"] == 1
    (room,) = document["channels"]
    assert list(room) == ["id", "name", "message_count", "last_active"]
    assert (room["id"], room["name"], room["message_count"]) == (GLOBAL, "global", 0)
    assert SECONDS.fullmatch(room["last_active"])
    assert answer.text.endswith("}\n")


NO_NUMBERS = ["limit=0", "limit=-1", "limit=x", "limit=", "offset=-1", "offset=x", "limit=1e3", "limit=٣"]


async def test_numbers_that_are_none_fall_back_to_the_default(server: Server) -> None:
    for query in NO_NUMBERS:
        assert len((await server.get(f"/channels?{query}")).json()["channels"]) == 1, query
        assert (await server.get(f"/room/{GLOBAL}?{query}")).status_code == 200, query


async def test_rooms_are_listed_by_activity_and_private_ones_are_not(ann: RoomClient, server: Server) -> None:
    first, second = await ann.create("first"), await ann.create("second")
    await ann.create("hidden", KEY)
    await ann.post(first, "hello")
    document = (await server.get("/channels?limit=100")).json()
    assert document["total"] == 3
    assert {one["id"] for one in document["channels"]} == {GLOBAL, first, second}
    assert (await server.get("/channels?limit=1&offset=1")).json()["total"] == 3
    assert (await server.get("/channels?offset=3")).json()["channels"] == []


async def test_making_a_room(ann: RoomClient) -> None:
    answer = await ann.ask("POST", "/room", {"name": " lounge ", "is_private": False})
    assert answer.status_code == 201
    document = answer.json()
    assert list(document) == ["id", "name", "is_private"]
    assert (document["name"], document["is_private"]) == ("lounge", False)
    assert (await ann.ask("POST", "/room", {"name": "lounge"})).status_code == 201, "names are not unique"
    assert (await ann.ask("POST", "/room", {"name": "den", "is_private": True, "key": "x" * 256})).status_code == 201


NO_ROOMS = [
    (b"", 400, "invalid JSON body"),
    (b"[]", 400, "invalid JSON body"),
    (b'{"name": 1}', 400, "invalid JSON body"),
    (b"{}", 400, "name is required"),
    (b'{"name": "  "}', 400, "name is required"),
    (b'{"name": "two words"}', 400, "name must be 1-50 characters, alphanumeric with hyphens and underscores only"),
    (
        b'{"name": "%s"}' % (b"a" * 51),
        400,
        "name must be 1-50 characters, alphanumeric with hyphens and underscores only",
    ),
    (b'{"name": "den", "is_private": true}', 400, "private rooms require key (min 16 chars)"),
    (
        b'{"name": "den", "is_private": true, "key": "%s"}' % (b"x" * 15),
        400,
        "private rooms require key (min 16 chars)",
    ),
    (b'{"name": "den", "is_private": true, "key": "%s"}' % (b"x" * 257), 400, "a room key has at most 256 bytes"),
    (b'{"name": "global"}', 409, "room name is reserved"),
    (b'{"name": "Global"}', 409, "room name is reserved"),
]


async def test_rooms_that_cannot_be_made(ann: RoomClient) -> None:
    for document, status, text in NO_ROOMS:
        answer = await ann.ask("POST", "/room", raw=document)
        assert (answer.status_code, answer.text) == (status, error(text)), document


async def test_posting_and_reading(ann: RoomClient, bob: RoomClient, server: Server) -> None:
    room = await ann.create()
    empty = (await server.get(f"/room/{room}")).json()
    assert empty == {"room": {"id": room, "name": "lounge"}, "messages": [], "has_more": False}
    first = await ann.post(room, "hello")
    assert list(first) == ["id", "ts"]
    assert ULID.fullmatch(first["id"])
    second = await bob.post(room, "hi ann", first["id"])
    page = await ann.read(room)
    assert [list(one) for one in page["messages"]] == [
        ["id", "from", "body", "pid", "ts", "proof"],
        ["id", "from", "body", "ts", "proof"],
    ]
    newest, oldest = page["messages"]
    assert (newest["id"], newest["from"], newest["body"], newest["pid"]) == (
        second["id"],
        bob.id,
        "hi ann",
        first["id"],
    )
    assert (oldest["id"], oldest["ts"], oldest["from"]) == (first["id"], first["ts"], ann.id)
    assert await ann.read(room, f"?before={second['ts']}&limit=1") == {**page, "messages": [oldest]}
    assert (await ann.read(room, "?limit=1"))["has_more"] is True


NO_POSTS = [
    ("/room/global", {"body": "x"}, 400, "invalid room ID format"),
    (f"/room/{GLOBAL.upper().replace('-', '')}", {"body": "x"}, 400, "invalid room ID format"),
    (f"/room/{NO_ROOM}", {"body": "x"}, 404, "room not found"),
    (f"/room/{NO_ROOM}", None, 404, "room not found"),
    (f"/room/{GLOBAL}", None, 400, "invalid JSON body"),
    (f"/room/{GLOBAL}", {"body": 7}, 400, "invalid JSON body"),
    (f"/room/{GLOBAL}", {}, 400, "body is required"),
    (f"/room/{GLOBAL}", {"body": "é" * 2049}, 422, "body too long (max 4096 bytes)"),
    (f"/room/{GLOBAL}", {"body": "x", "pid": "nonsense"}, 422, "parent message not found in this room"),
    (f"/room/{GLOBAL}", {"body": "x", "pid": NO_MESSAGE}, 422, "parent message not found in this room"),
]


async def test_messages_that_cannot_be_posted(ann: RoomClient) -> None:
    for path, document, status, text in NO_POSTS:
        answer = await ann.ask("POST", path, document)
        assert (answer.status_code, answer.text) == (status, error(text)), (path, document)


async def test_a_body_of_4096_bytes_is_taken_however_json_escapes_it(ann: RoomClient) -> None:
    body = "\u2028" * 1365 + "x"
    await ann.post(GLOBAL, body)
    assert (await ann.read(GLOBAL))["messages"][0]["body"] == body


async def test_the_byte_limit_wins_over_the_parent_and_gives_back_what_was_not_posted(ann: RoomClient) -> None:
    for _ in range(8):
        missing = await ann.ask("POST", f"/room/{GLOBAL}", {"body": "x" * 4096, "pid": NO_MESSAGE})
        assert missing.status_code == 422
    for _ in range(8):
        await ann.post(GLOBAL, "x" * 4096)
    for document in ({"body": "x"}, {"body": "x", "pid": NO_MESSAGE}):
        answer = await ann.ask("POST", f"/room/{GLOBAL}", document)
        assert (answer.status_code, answer.text) == (429, '{"error":"message byte rate limit exceeded (32KB/min)"}')
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert (await ann.ask("POST", f"/room/{GLOBAL}", {"body": ""})).text == error("body is required")


NO_READS = [("/room/x", 400, "invalid room ID format"), (f"/room/{NO_ROOM}", 404, "room not found")]


async def test_rooms_that_cannot_be_read(server: Server) -> None:
    for path, status, text in NO_READS:
        answer = await server.get(path)
        assert (answer.status_code, answer.text) == (status, error(text)), path


async def test_a_private_room_needs_its_key_for_reading_and_posting(
    ann: RoomClient, bob: RoomClient, server: Server
) -> None:
    room = await ann.create("den", KEY)
    for sent, text in (
        ({}, "room key required for private rooms"),
        ({"x_aicq_room_key": "x" * 16}, "invalid room key"),
    ):
        named = {name.replace("_", "-"): value for name, value in sent.items()}
        read = await server.get(f"/room/{room}", headers=named)
        posted = await bob.ask("POST", f"/room/{room}", {"body": ""}, **sent)
        assert (read.status_code, read.text) == (posted.status_code, posted.text) == (403, error(text))
    await bob.post(room, "secret", x_aicq_room_key=KEY)
    assert (await ann.read(room, x_aicq_room_key=KEY))["messages"][0]["body"] == "secret"
    assert (await server.get(f"/room/{GLOBAL}", headers={"x-aicq-room-key": "any"})).status_code == 200


async def test_wrong_keys_are_limited_by_address_and_room(ann: RoomClient, server: Server) -> None:
    room, other = await ann.create("den", KEY), await ann.create("attic", KEY)
    wrong = {"x-aicq-room-key": "not the key at all"}
    statuses = [(await server.get(f"/room/{room}", headers=wrong)).status_code for _ in range(12)]
    assert statuses == [403] * 10 + [429] * 2
    assert (await server.get(f"/room/{other}", headers=wrong)).status_code == 403
    elsewhere = server.client_from("192.0.2.7")
    assert (await elsewhere.get(f"/room/{room}", headers={"x-aicq-room-key": KEY})).status_code == 200


async def test_deleting_a_message(ann: RoomClient, bob: RoomClient) -> None:
    room = await ann.create("den", KEY)
    posted = await ann.post(room, "to be forgotten", x_aicq_room_key=KEY)
    reply = await bob.post(room, "what?", posted["id"], x_aicq_room_key=KEY)
    path = f"/room/{room}/{posted['id']}"
    refused = await bob.ask("DELETE", path, {})
    assert (refused.status_code, refused.text) == (403, error("can only delete your own messages"))
    gone = await ann.ask("DELETE", path, {})
    assert (gone.status_code, gone.content) == (204, b"")
    again = await ann.ask("DELETE", path, {})
    assert (again.status_code, again.text) == (404, error("message not found"))
    (left,) = (await ann.read(room, x_aicq_room_key=KEY))["messages"]
    assert (left["id"], left["pid"]) == (reply["id"], posted["id"])


NO_DELETIONS = [
    (f"/room/x/{NO_MESSAGE}", 400, "invalid room ID format"),
    (f"/room/{NO_ROOM}/{NO_MESSAGE}", 404, "room not found"),
    (f"/room/{GLOBAL}/{NO_MESSAGE}", 404, "message not found"),
    (f"/room/{GLOBAL}/nonsense", 404, "message not found"),
]


async def test_messages_that_cannot_be_deleted(ann: RoomClient) -> None:
    for path, status, text in NO_DELETIONS:
        answer = await ann.ask("DELETE", path, {})
        assert (answer.status_code, answer.text) == (status, error(text)), path


async def test_the_moderator_deletes_any_message_and_it_is_audited(start) -> None:
    server = await start()
    moderator = await RoomClient.registered(server)
    moderated = await start(admin_agent_id=UUID(moderator.id))
    ann = await RoomClient.registered(moderated)
    moderator.server = moderated
    posted = await ann.post(GLOBAL, "spam")
    assert (await moderator.ask("DELETE", f"/room/{GLOBAL}/{posted['id']}")).status_code == 204
    audit = (await server.get("/v1/audit/events", headers=server.admin)).json()["events"]
    (event,) = [one for one in audit if one["event_type"] == "room_message_deleted"]
    assert (event["actor"], event["object"]) == (moderator.id, GLOBAL)
    assert event["detail"] == {"message": posted["id"], "author": ann.id}


async def test_direct_messages(ann: RoomClient, bob: RoomClient) -> None:
    sent = await ann.ask("POST", f"/dm/{bob.id}", {"body": "b3BhcXVl"})
    assert sent.status_code == 201
    assert list(sent.json()) == ["id", "ts"]
    own = await ann.ask("POST", f"/dm/{ann.id}", {"body": "x" * 8192})
    assert own.status_code == 201
    answer = await bob.ask("GET", "/dm?limit=5")
    assert answer.status_code == 200
    (message,) = answer.json()["messages"]
    assert list(message) == ["id", "from", "body", "ts", "proof"]
    assert (message["id"], message["from"], message["body"]) == (sent.json()["id"], ann.id, "b3BhcXVl")
    with_body = await bob.ask("GET", "/dm", raw=b"{}")
    assert with_body.json() == answer.json(), "the Go client sends a body"
    for n in range(3):
        await ann.ask("POST", f"/dm/{bob.id}", {"body": str(n)})
    newest = (await bob.ask("GET", "/dm?limit=2")).json()["messages"]
    assert [one["body"] for one in newest] == ["2", "1"]
    older = (await bob.ask("GET", f"/dm?limit=2&before={newest[-1]['ts']}")).json()["messages"]
    assert [one["body"] for one in older] == ["0", "b3BhcXVl"]


NO_DMS = [
    ("/dm/x", {"body": "x"}, 400, "invalid recipient ID format"),
    (f"/dm/{NO_ROOM}", None, 404, "recipient not found"),
    ("/dm/{own}", None, 400, "invalid JSON body"),
    ("/dm/{own}", {"body": ""}, 400, "body is required"),
    ("/dm/{own}", {"body": "x" * 8193}, 422, "body too long (max 8192 bytes)"),
]


async def test_direct_messages_that_cannot_be_sent(ann: RoomClient) -> None:
    for path, document, status, text in NO_DMS:
        answer = await ann.ask("POST", path.format(own=ann.id), document)
        assert (answer.status_code, answer.text) == (status, error(text)), (path, document)


async def test_the_recipient_removes_a_direct_message_once(ann: RoomClient, bob: RoomClient, server: Server) -> None:
    sent = (await ann.ask("POST", f"/dm/{bob.id}", {"body": "x"})).json()
    path = f"/v1/dms/{sent['id']}"
    assert (await server.send_signed(ann.agent, "DELETE", path)).status_code == 404, "it is not in the sender's inbox"
    assert (await server.send_signed(bob.agent, "DELETE", path)).status_code == 204
    assert (await server.send_signed(bob.agent, "DELETE", path)).status_code == 404
    assert (await bob.ask("GET", "/dm")).json() == {"messages": []}


async def test_an_agent_that_is_blocked_sends_no_direct_messages(
    ann: RoomClient, bob: RoomClient, server: Server
) -> None:
    assert (await ann.ask("POST", f"/dm/{bob.id}", {"body": "x"})).status_code == 201
    assert (await server.send_signed(bob.agent, "PUT", f"/v1/blocks/{ann.id}")).status_code == 204
    refused = await ann.ask("POST", f"/dm/{bob.id}", {"body": "x"})
    assert (refused.status_code, refused.text) == (403, error("the recipient takes no direct messages from you"))
    assert (await bob.ask("POST", f"/dm/{ann.id}", {"body": "x"})).status_code == 201
    assert (await server.send_signed(bob.agent, "DELETE", f"/v1/blocks/{ann.id}")).status_code == 204
    assert (await ann.ask("POST", f"/dm/{bob.id}", {"body": "x"})).status_code == 201


async def test_searching(ann: RoomClient, server: Server) -> None:
    first = await ann.post(GLOBAL, "The quick brown fox")
    second = await ann.post(GLOBAL, "A quick brown dog")
    answer = await server.get("/find?q=Quick+brown")
    assert answer.status_code == 200
    document = answer.json()
    assert list(document) == ["query", "results", "total"]
    assert (document["query"], document["total"]) == ("Quick brown", 2)
    assert [one["id"] for one in document["results"]] == [second["id"], first["id"]]
    assert list(document["results"][0]) == ["id", "room_id", "room_name", "from", "body", "ts"]
    assert (document["results"][0]["room_name"], document["results"][0]["from"]) == ("global", ann.id)
    assert (await server.get("/find?q=quick+fox")).json()["total"] == 1
    assert (await server.get("/find?q=quick+cat")).json()["results"] == []
    assert (await server.get("/find?q=the")).json() == {"query": "the", "results": [], "total": 0}
    assert (await server.get(f"/find?q=quick&after={first['ts']}")).json()["total"] == 1
    assert (await server.get("/find?q=quick&limit=1")).json()["total"] == 1
    assert (await server.get(f"/find?q=quick&room={GLOBAL}")).json()["total"] == 2
    assert (await server.get(f"/find?q=quick&room={NO_ROOM}")).json()["total"] == 0
    assert (await server.get("/find?q=wait...")).status_code == 200


NO_SEARCHES = [
    ("", "query parameter 'q' is required"),
    ("q=", "query parameter 'q' is required"),
    (f"q={'x' * 101}", "query too long (max 100 chars)"),
    (f"q={'é' * 51}", "query too long (max 100 chars)"),
    ("q=x&room=global", "invalid room ID format"),
]


async def test_searches_that_cannot_be_made(server: Server) -> None:
    for query, text in NO_SEARCHES:
        answer = await server.get(f"/find?{query}")
        assert (answer.status_code, answer.text) == (400, error(text)), query


async def test_stats(ann: RoomClient, server: Server) -> None:
    room = await ann.create("den", KEY)
    await ann.post(room, "private words", x_aicq_room_key=KEY)
    posted = await ann.post(GLOBAL, "é" * 120)
    answer = await server.get("/stats")
    document = answer.json()
    assert list(document) == [
        "total_agents",
        "total_channels",
        "total_messages",
        "last_activity",
        "top_channels",
        "recent_messages",
    ]
    assert (document["total_agents"], document["total_channels"], document["total_messages"]) == (1, 1, 1)
    assert document["last_activity"] == "just now"
    assert document["top_channels"] == [{"id": GLOBAL, "name": "global", "message_count": 1}]
    assert document["recent_messages"] == [
        {
            "id": posted["id"],
            "agent_id": ann.id,
            "agent_name": "ann",
            "body": "é" * 98 + "...",
            "timestamp": posted["ts"],
        }
    ]


async def test_the_smoke_test_of_aicq_knows_the_server(server: Server) -> None:
    assert (await server.get("/api")).json()["name"] == "AICQ"
    health = (await server.get("/health")).json()
    assert SECONDS.fullmatch(health["timestamp"])
    assert {"status", "version", "checks", "timestamp"} <= set(health)
    assert (await server.get(f"/room/{GLOBAL}/")).status_code == 404
    wrong = await server.request("PUT", f"/room/{GLOBAL}", json={})
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, POST")


async def test_every_signed_route_refuses_callers_without_a_signature(server: Server) -> None:
    for method, path in (
        ("POST", "/room"),
        ("POST", f"/room/{GLOBAL}"),
        ("DELETE", f"/room/{GLOBAL}/{NO_MESSAGE}"),
        ("POST", f"/dm/{GLOBAL}"),
        ("GET", "/dm"),
    ):
        body = {"json": {}} if method == "POST" else {}
        answer = await server.request(method, path, **body)
        assert (answer.status_code, answer.text) == (401, error("missing auth headers")), path


async def test_every_answer_has_the_headers_that_browsers_obey_and_cors_only_with_tokens(
    ann: RoomClient, mode: str, server: Server
) -> None:
    with_tokens = mode == "tokens"
    for answer in (
        await server.get("/channels"),
        await server.get("/room/x"),
        await server.get("/nowhere"),
        await ann.ask("POST", f"/room/{GLOBAL}", {"body": ""}),
        await server.post("/room", json={}),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-xss-protection"] == "1; mode=block"
        assert answer.headers["referrer-policy"] == "strict-origin-when-cross-origin"
        assert answer.headers["strict-transport-security"] == "max-age=31536000; includeSubDomains"
        assert answer.headers["content-security-policy"] == "default-src 'none'"
        assert answer.headers.get("access-control-allow-origin") == ("*" if with_tokens else None)
        exposed = set(answer.headers.get("access-control-expose-headers", "").split(", "))
        assert (exposed >= EXPOSED) is with_tokens
        assert "access-control-allow-credentials" not in answer.headers
    asked = {"origin": "https://page.example", "access-control-request-method": "POST"}
    preflight = await server.request("OPTIONS", f"/room/{GLOBAL}", headers=asked)
    if with_tokens:
        assert (preflight.status_code, preflight.content) == (200, b"")
        assert preflight.headers["access-control-max-age"] == "300"
        allowed = {name.strip().lower() for name in preflight.headers["access-control-allow-headers"].split(",")}
        assert {"x-aicq-agent", "x-aicq-nonce", "x-aicq-timestamp", "x-aicq-signature", "x-aicq-room-key"} <= allowed
        assert {"GET", "POST", "PUT", "DELETE"} <= set(preflight.headers["access-control-allow-methods"].split(", "))
    else:
        assert preflight.status_code == 403, "pages of other sites do nothing in open mode"


async def test_fields_that_are_null_count_as_left_out(ann: RoomClient) -> None:
    posted = await ann.ask("POST", f"/room/{GLOBAL}", {"body": "x", "pid": None})
    assert posted.status_code == 201
    assert (await ann.ask("POST", "/room", {"name": "lounge", "is_private": None, "key": None})).status_code == 201
    for path, document, text in (
        ("/room", {"name": None}, "name is required"),
        (f"/room/{GLOBAL}", {"body": None}, "body is required"),
        (f"/dm/{ann.id}", {"body": None}, "body is required"),
    ):
        answer = await ann.ask("POST", path, document)
        assert (answer.status_code, answer.text) == (400, error(text)), path


async def test_what_a_request_has_beside_its_message_is_not_kept(ann: RoomClient) -> None:
    small = json.dumps({"body": "hello", "padding": "p" * 500}).encode()
    large = json.dumps({"body": "hello", "padding": "p" * 5_000}).encode()
    for raw in (small, large):
        assert (await ann.ask("POST", f"/room/{GLOBAL}", raw=raw)).status_code == 201
        await ann.ask("POST", f"/dm/{ann.id}", raw=raw)
    for path in (f"/room/{GLOBAL}", "/dm"):
        newest_first = (await ann.ask("GET", path)).json()["messages"]
        assert ["proof" in one for one in newest_first] == [False, True], path


async def test_the_first_of_repeated_parameters_counts(ann: RoomClient, server: Server) -> None:
    for text in ("one", "two"):
        await ann.post(GLOBAL, text)
    assert len((await ann.read(GLOBAL, "?limit=1&limit=3"))["messages"]) == 1
    assert (await server.get("/find?q=one&q=two")).json()["query"] == "one"


async def test_nothing_of_a_private_room_is_kept_by_caches(ann: RoomClient, server: Server) -> None:
    room, headers = await ann.create("den", KEY), {"x-aicq-room-key": KEY}
    for path in (f"/room/{room}", f"/v1/rooms/{room}"):
        assert (await server.get(path, headers=headers)).headers["cache-control"] == "no-store"


async def test_threads_are_trees_in_the_order_of_their_replies(ann: RoomClient, server: Server) -> None:
    root = await ann.post(GLOBAL, "root")
    first = await ann.post(GLOBAL, "first", root["id"])
    await ann.post(GLOBAL, "aside")
    second = await ann.post(GLOBAL, "second", root["id"])
    deep = await ann.post(GLOBAL, "deep", first["id"])
    await ann.post(GLOBAL, "deeper", deep["id"])
    thread = (await server.get(f"/v1/rooms/{GLOBAL}/threads/{root['id']}")).json()
    shown = [(one["body"], one.get("depth", 0)) for one in thread["messages"]]
    assert shown == [("root", 0), ("first", 1), ("deep", 2), ("deeper", 3), ("second", 1)]
    assert thread["has_more"] is False
    below = (await server.get(f"/v1/rooms/{GLOBAL}/threads/{deep['id']}")).json()["messages"]
    assert [(one["body"], one.get("depth", 0)) for one in below] == [("deep", 0), ("deeper", 1)]
    await ann.ask("DELETE", f"/room/{GLOBAL}/{second['id']}")
    for text in (second["id"], NO_MESSAGE, "nonsense"):
        answer = await server.get(f"/v1/rooms/{GLOBAL}/threads/{text}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), text


async def test_only_the_creator_changes_a_room(ann: RoomClient, bob: RoomClient, server: Server) -> None:
    room = await ann.create()
    made = (await server.get(f"/v1/rooms/{room}")).json()
    assert (made["created_by"], made["retention_seconds"], made["archive"]) == (ann.id, 86_400, False)

    async def change(client: RoomClient, where: str, document: dict[str, object]) -> int:
        body = json.dumps(document).encode()
        return (await server.send_signed(client.agent, "PATCH", f"/v1/rooms/{where}", body)).status_code

    assert await change(bob, room, {"archive": True}) == 403
    assert await change(ann, GLOBAL, {"archive": True}) == 403
    for bad in (
        {"retention_seconds": 59},
        {"retention_seconds": 31_536_001},
        {"retention_seconds": 1.5},
        {"name": "x"},
    ):
        assert await change(ann, room, bad) == 400, bad
    assert await change(ann, NO_ROOM, {"archive": True}) == 404
    assert await change(ann, room, {"archive": True}) == 200
    assert await change(ann, room, {"retention_seconds": 604_800}) == 200
    now = (await server.get(f"/v1/rooms/{room}")).json()
    assert (now["retention_seconds"], now["archive"]) == (604_800, True)
    audit = (await server.get("/v1/audit/events", headers=server.admin)).json()["events"]
    assert [one["event_type"] for one in audit if one["object"] == room] == [
        "room_changed", "room_changed", "room_created",
    ]  # fmt: skip


async def test_rooms_are_looked_up_by_name_and_paged(ann: RoomClient, server: Server) -> None:
    rooms = [await ann.create(name) for name in ("talk", "other", "talk")]
    found = (await server.get("/v1/rooms?name=talk")).json()
    assert [one["id"] for one in found["rooms"]] == [rooms[0], rooms[2]]
    assert (await server.get("/v1/rooms?name=tal")).json()["rooms"] == []
    first = (await server.get("/v1/rooms?limit=2")).json()
    rest = (await server.get(f"/v1/rooms?limit=2&cursor={first['next']}")).json()
    assert [one["id"] for one in first["rooms"] + rest["rooms"]] == [GLOBAL, *rooms]
    assert rest["next"] is None
    assert (await server.get("/v1/rooms?cursor=zzz")).status_code == 400


async def test_bodies_that_are_too_large_or_of_another_type(ann: RoomClient) -> None:
    large = await ann.ask("POST", f"/room/{GLOBAL}", raw=b"{" + b" " * (32 << 10) + b"}")
    assert (large.status_code, large.text) == (413, error("request body too large"))
    typed = await ann.ask("POST", f"/room/{GLOBAL}", raw=b"body=x", content_type="text/plain")
    assert (typed.status_code, typed.text) == (415, error("content-type must be application/json"))


@pytest.mark.parametrize(
    ("method", "path", "rule", "limit"),
    [
        ("GET", "/channels", "room_list", 60),
        ("POST", "/room", "room_create", 10),
        ("GET", f"/room/{GLOBAL}", "room_read", 120),
        ("POST", f"/room/{GLOBAL}", "room_post", 30),
        ("DELETE", f"/room/{GLOBAL}/{NO_MESSAGE}", "room_delete", 30),
        ("POST", "/dm/{own}", "dm_send", 60),
        ("GET", "/dm", "dm_read", 60),
        ("GET", "/find?q=x", "find", 30),
        ("GET", "/stats", "stats", 60),
    ],
)
async def test_each_route_has_one_limit_of_its_own(start, method: str, path: str, rule: str, limit: int) -> None:
    server = await start()
    ann = await RoomClient.registered(server)
    document = {"name": secrets.token_hex(4), "body": "x"} if method == "POST" else None
    for left in range(limit - 1, limit - 4, -1):
        answer = await ann.ask(method, path.format(own=ann.id), document)
        assert answer.headers["x-ratelimit-limit"] == str(limit)
        assert answer.headers["x-ratelimit-remaining"] == str(left)
