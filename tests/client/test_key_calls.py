"""The verbs of keys: each says the request that the API wants, and reads the answer that it gives. No network."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from angelia.client import key_calls
from angelia.client.exchange import MOST_PAGES, BadAnswer, Credential, Exchange, Response
from angelia.client.key_verbs import KeyVerbs
from angelia.envelope.bundles import Link
from angelia.envelope.ids import KeyType
from angelia.keys.model import Reason, RotationPolicy, bundle_document, link_document
from client.test_verbs import held, unrun
from keyholder import KeyHolder

KEY = "470464ba-e91c-849e-83a7-7c19d05949df"
PUBLISHED = {"bundle_id": "ab" * 32, "bundle_version": 2, "prekeys_uploaded": 7}
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
SCHEDULE = {
    "session_id": "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10",
    "peer": "bob",
    "policy": "hourly",
    "current_key_id": KEY,
    "current_key_version": 3,
    "last_rotated_at": "2026-11-15T12:00:00Z",
    "next_rotation_at": None,
    "due_since": "2026-11-15T13:00:00Z",
    "grace_period_keys": [{"key_id": KEY, "expires_at": "2026-11-22T12:00:00Z"}],
}
REVOKED = {
    "key_id": KEY,
    "key_type": "xwing",
    "status": "revoked",
    "created_at": "2026-11-15T12:00:00Z",
    "expires_at": None,
    "rotated_at": None,
    "revoked_at": "2026-11-15T12:00:00Z",
    "compromised_since": None,
}
keys = unrun(KeyVerbs)


@pytest.mark.parametrize(
    ("call", "answer", "asked", "body"),
    [
        (key_calls.bundles_since("bob", 3), {"bundles": [], "has_more": False, "revoked": [KEY]},
         "GET /v1/keys/bundle/bob?since=3", None),
        (keys.count_one_time_keys(), {"count": 20}, "GET /v1/keys/prekeys/count", None),
        (keys.revoke(KEY, compromised_since=NOON), REVOKED,
         f"POST /v1/keys/{KEY}/revoke", {"compromised_since": "2026-11-15T12:00:00Z"}),
        (keys.history("bob", cursor="c", limit=2), {"rotations": [], "next": None},
         "GET /v1/keys/bob/history?cursor=c&limit=2", None),
        (key_calls.schedules(), {"schedules": [SCHEDULE], "next": None}, "GET /v1/schedules", None),
        (key_calls.put_schedule("bob", RotationPolicy.WEEKLY), SCHEDULE, "PUT /v1/schedules/bob", {"policy": "weekly"}),
        (key_calls.remove_schedule("bob"), None, "DELETE /v1/schedules/bob", None),
        (keys.report_rotation("bob", UUID(KEY), 4), SCHEDULE,
         "POST /v1/schedules/bob/rotated", {"key_id": KEY, "version": 4}),
    ],
)  # fmt: skip
def test_a_verb_asks_what_the_api_wants(call: Exchange[Any], answer: object, asked: str, body: object) -> None:
    request, _ = held(call, answer)
    query = f"?{request.query}" if request.query else ""
    assert f"{request.method} {request.path}{query}" == asked
    assert (json.loads(request.body) if request.body else None) == body
    assert request.credential is Credential.AGENT


def test_a_publication_carries_the_bundle_its_statement_and_its_one_time_keys() -> None:
    holder = KeyHolder(KeyType.XWING)
    holder.handle = "alice"
    first = Link(holder.bundle())
    request, done = held(key_calls.publish_bundle(first, holder.one_time_keys(2)), PUBLISHED)
    said = json.loads(request.body)
    assert (request.path, len(said["one_time_keys"])) == ("/v1/keys/bundle", 2)
    assert said["bundle"] == _plain(bundle_document(first.bundle))
    assert "rotation_statement" not in said
    assert (done.bundle_version, done.prekeys_uploaded) == (2, 7)

    rotation = holder.rotation(signer=True)
    said = json.loads(held(key_calls.rotate_bundle(rotation, reason=Reason.SCHEDULED), PUBLISHED)[0].body)
    assert said["reason"] == "scheduled"
    assert said["rotation_statement"] == _plain(link_document(rotation))["rotation_statement"]
    request, _ = held(key_calls.emergency_bundle(rotation, why="stolen", compromised_since=NOON), PUBLISHED)
    said = json.loads(request.body)
    assert request.path == "/v1/keys/emergency-rotate"
    assert (said["agent_nhi"], said["reason"]) == ("alice", "stolen")
    assert said["compromised_since"] == "2026-11-15T12:00:00Z"


def test_a_one_time_key_is_never_asked_for_twice_by_accident() -> None:
    assert next(key_calls.bundle("bob")).idempotent
    taking = next(key_calls.bundle("bob", one_time=True))
    assert (taking.query, taking.idempotent) == ("one_time=true", False)


def test_schedules_come_page_by_page_and_end_even_if_the_server_does_not() -> None:
    def page(*peers: str, following: str | None) -> bytes:
        listed = [{**SCHEDULE, "peer": peer} for peer in peers]
        return json.dumps({"schedules": listed, "next": following}).encode()

    call = key_calls.schedules()
    next(call)
    second = call.send(Response("GET", "/v1/schedules", 200, {}, page("a", "b", following="b")))
    assert second.query == "cursor=b"
    with pytest.raises(StopIteration) as end:
        call.send(Response("GET", "/v1/schedules", 200, {}, page("c", following="b")))
    assert [one.peer for one in end.value.value] == ["a", "b", "c"]


def test_schedules_end_though_every_page_has_another_cursor() -> None:
    def page(number: int) -> Response:
        return Response("GET", "/v1/schedules", 200, {}, json.dumps({"schedules": [], "next": f"c{number}"}).encode())

    call = key_calls.schedules()
    next(call)
    for number in range(1, MOST_PAGES):
        call.send(page(number))
    with pytest.raises(BadAnswer, match="did not end"):
        call.send(page(MOST_PAGES))


@pytest.mark.parametrize("evil", ["../../agents/me", "a/b", "a?one_time=true", "a#b", "%2e%2e"])
def test_a_name_can_never_leave_its_place_in_the_path(evil: str) -> None:
    for call in (key_calls.bundle(evil), key_calls.bundles_since(evil, 1)):
        request = next(call)
        assert request.path.startswith("/v1/keys/bundle/")
        assert request.path.count("/") == 4
        assert not set(request.path) & set("?#")


def _plain(document: object) -> Any:
    return msgspec.to_builtins(document)
