"""Blocked addresses from the command line."""

from __future__ import annotations

import json

from cli.running import Angelia
from client.recorder import Recorder
from client.test_verbs import BLOCK


def test_addresses_are_blocked_listed_and_let_in_again(server: Recorder, angelia: Angelia) -> None:
    server.tell("POST", "/v1/guard/blocks", BLOCK, status=201)
    server.tell("GET", "/v1/guard/blocks", {"blocks": [BLOCK], "next": None, "total": 1})
    server.tell("DELETE", "/v1/guard/blocks/2001%3Adb8%3A%3A1", status=204)
    blocked = angelia("guard", "block", "2001:DB8:0::1", "--reason", "abuse", "--expires", "1h30m")
    assert blocked.out == "blocked 2001:db8::1 until it is unblocked\n"
    assert server.seen[0].json() == {"address": "2001:db8::1", "reason": "abuse", "expires_in": 5400}
    assert angelia("guard", "blocks").out.splitlines()[1].split()[:3] == ["2001:db8::1", "abuse", "alice"]
    assert angelia("guard", "unblock", "2001:db8::1").out == "unblocked 2001:db8::1\n"


def test_a_refusal_keeps_its_request_id(server: Recorder, angelia: Angelia) -> None:
    body = {"title": "this token may not", "code": "authorization_denied", "status": 403, "request_id": "r5"}
    server.tell("GET", "/v1/guard/blocks", body, status=403)
    ended = angelia("guard", "blocks", "--json")
    assert ended.code == 5
    assert json.loads(ended.err)["request_id"] == "r5"
    assert angelia("guard", "blocks", "-v").err.splitlines()[-1] == "request r5"
