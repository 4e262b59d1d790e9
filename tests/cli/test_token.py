"""Bearer tokens from the command line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.running import Angelia, Ended
from client.recorder import Recorder
from client.test_verbs import TOKEN
from server_process import ServerProcess

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
    assert ended.err.startswith("keep it now: it is not shown again\n")
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


def test_the_first_token_ends_open_mode_and_says_so(server: Recorder, angelia: Angelia) -> None:
    admin, made = {**TOKEN, "label": "admin.token"}, {**TOKEN, "label": "dash"}
    server.tell("POST", "/v1/tokens", MADE, status=201)
    for tokens in ([admin, made], [admin, made, made]):
        server.tell("GET", "/v1/tokens", {"tokens": tokens, "next": None, "total": len(tokens)})
    for first in (True, False):
        ended = angelia("token", "create", "--role", "admin")
        assert ended.code == 0
        assert ("from its next start on the server asks for a token (open mode ends)" in ended.err) is first


def test_a_token_of_the_environment_that_may_too_little_is_named(
    server: Recorder, angelia: Angelia, shell: Path
) -> None:
    denied = {"code": "authorization_denied", "title": "no", "hint": "angelia token create --role admin"}
    server.tell("GET", "/v1/tokens", denied, status=403)
    ended = angelia("token", "list")
    another = "--token-file F names another, such as admin.token of the server's data directory"
    assert (ended.code, ended.err.splitlines()[1]) == (5, f"hint: the role of ANGELIA_TOKEN is too low: {another}")
    (shell / "other.token").write_text("agt_other")
    ended = angelia("token", "list", "--token-file", "other.token")
    assert ended.err.splitlines()[1] == f"hint: the role of the token file is too low: {another}"


def test_a_role_that_is_too_low_is_not_sent_to_make_a_token_which_would_be_refused_too(
    live_server: ServerProcess, angelia: Angelia, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANGELIA_DATA_DIR", str(live_server.data_dir))
    (shell / "low.token").write_text(angelia("token", "create", "--role", "read-only", "-q").out)
    ended = angelia("token", "list", "--token-file", "low.token")
    assert (ended.code, "token create" in ended.err) == (5, False)
    better = re.findall(r"--token-file \S+", ended.err)[0].split()
    assert angelia("token", "list", *better).code == 0
    monkeypatch.setenv("ANGELIA_TOKEN", (shell / "low.token").read_text().strip())
    assert angelia("token", "list").err.splitlines()[1].startswith("hint: unset ANGELIA_TOKEN, ")
    monkeypatch.delenv("ANGELIA_TOKEN")
    assert angelia("token", "list").code == 0


def test_a_running_server_makes_the_token_itself(live_server: ServerProcess, angelia: Angelia) -> None:
    ended = angelia("token", "create", "--role", "read-only", "--offline", "--data-dir", str(live_server.data_dir))
    assert (ended.code, ended.out) == (1, "")
    assert f"a server runs on {live_server.data_dir}" in ended.err
    pasted = shlex.split(re.findall(r"`angelia (.*)`", ended.err)[0])
    assert angelia(*pasted, "-q").out.startswith("agt_")


def test_a_data_directory_is_named_only_for_work_without_a_server(angelia: Angelia) -> None:
    assert angelia("token", "create", "--role", "admin", "--data-dir", "elsewhere").code == 2
