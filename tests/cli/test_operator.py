"""Operators' verbs: tokens, blocked addresses, settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Angelia, Ended
from client.recorder import Recorder
from client.test_calls import BLOCK, TOKEN

MADE = {**TOKEN, "token": "agt_secret", "expires_at": "2026-12-15T20:14:02Z", "agent": "alice", "role": "read-write"}


def test_a_token_is_shown_once_with_what_it_is_for(server: Recorder, angelia: Angelia) -> None:
    server.tell("POST", "/v1/tokens", MADE, status=201)
    ended = angelia(
        "token", "create", "--role", "read-write", "--agent", "alice", "--expires", "30d", "--label", "dash"
    )
    assert ended.out.splitlines() == [
        "token    agt_secret",
        f"id       {TOKEN['id']}",
        "role     read-write",
        "agent    alice",
        "label    dash",
        "expires  2026-12-15 20:14:02Z",
    ]
    assert ended.err == "keep it now: it is not shown again\n"
    asked = server.seen[0]
    assert asked.json() == {"role": "read-write", "agent": "alice", "label": "dash", "expires_in": 2_592_000}
    assert asked.headers["authorization"] == "Bearer agt_operator"


def test_quiet_prints_only_the_token(server: Recorder, angelia: Angelia) -> None:
    server.tell("POST", "/v1/tokens", MADE, status=201)
    assert angelia("token", "create", "--role", "admin", "-q") == Ended(0, "agt_secret\n", "")
    assert json.loads(angelia("token", "create", "--role", "admin", "--json").out) == MADE


def test_the_list_of_tokens_is_a_table(server: Recorder, angelia: Angelia) -> None:
    tokens = [TOKEN, {**TOKEN, "agent": "alice", "label": "\u202eevil", "role": "admin"}]
    server.tell("GET", "/v1/tokens", {"tokens": tokens, "next": None, "total": 2})
    head, first, second = angelia("token", "list").out.splitlines()
    assert head.split() == ["ID", "LABEL", "ROLE", "AGENT", "CREATED", "USED", "EXPIRES"]
    assert first.split()[:4] == ["32a040ba-429", "dash", "read-only", "-"]
    assert second.split()[:4] == ["32a040ba-429", "\\u202eevil", "admin", "alice"]


def test_on_a_terminal_heads_are_bold_and_long_names_are_cut(server: Recorder, terminal: Callable[..., Ended]) -> None:
    tokens = [{**TOKEN, "label": "x" * 200}]
    server.tell("GET", "/v1/tokens", {"tokens": tokens, "next": None, "total": 1})
    head, row = terminal("token", "list").out.splitlines()
    assert head.startswith("\x1b[1mID ")
    assert "…" in row
    assert len(row) <= 80
    plain = terminal("token", "list", "--color", "never").out
    assert "\x1b" not in plain


def test_a_token_that_does_not_exist_is_not_found(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/tokens", {"tokens": [TOKEN], "next": None, "total": 1})
    assert angelia("token", "revoke", "ffffffff", "--yes").code == 8
    assert angelia("token", "revoke", "32a0", "--yes").code == 2


def test_addresses_are_blocked_listed_and_let_in_again(server: Recorder, angelia: Angelia) -> None:
    server.tell("POST", "/v1/guard/blocks", BLOCK, status=201)
    server.tell("GET", "/v1/guard/blocks", {"blocks": [BLOCK], "total": 1})
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


def test_settings_say_where_they_came_from_and_hide_secrets(
    angelia: Angelia, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANGELIA_JWT_SECRET", "hunter2")
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:hunter2@h/d")
    (shell / "angelia.toml").write_text("port = 9000\n")
    ended = angelia("config", "show", "-v")
    rows = {line.split()[0]: line.split() for line in ended.out.splitlines()}
    assert rows["port"][1:3] == ["9000", "angelia.toml"]
    assert rows["jwt_secret"][1:3] == ["***", "ANGELIA_JWT_SECRET"]
    assert rows["database_url"][1] == "postgresql://u:***@h/d"
    assert "hunter2" not in ended.out
    assert json.loads(angelia("config", "show", "--json").out.splitlines()[0]).keys() == {
        "name",
        "value",
        "origin",
        "about",
    }


def test_the_servers_settings_are_asked_for(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/settings", {"settings": [{"name": "port", "value": "1", "origin": "--port", "about": "x"}]})
    assert angelia("config", "show", "--server").out == "NAME  VALUE  FROM\nport  1      --port\n"


@pytest.mark.parametrize(
    ("shell_name", "sign"), [("bash", "complete -o"), ("zsh", "#compdef angelia"), ("fish", "complete --no-files")]
)
def test_completion_is_printed_for_each_shell(angelia: Angelia, shell_name: str, sign: str) -> None:
    ended = angelia("config", "completion", shell_name)
    assert ended.code == 0
    assert sign in ended.out
    assert "_ANGELIA_COMPLETE" in ended.out
