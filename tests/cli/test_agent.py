"""Agents from the command line: made, registered, shown; and every half-way stop is safe to go on from."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from angelia.mailbox import agent_names, identity
from cli.running import Angelia, Ended
from client.recorder import Recorder, closed_port
from client.test_verbs import AGENT

ID = AGENT["id"]
UNCLAIMED = {**AGENT, "handle": ID, "name": ""}
PUBLISHED = {"bundle_id": "ab" * 32, "bundle_version": 1, "prekeys_uploaded": 100}
TAKEN = {"title": "the handle alice is taken", "code": "already_exists", "status": 409, "request_id": "r9"}


@pytest.fixture
def accepting(server: Recorder) -> Recorder:
    server.tell("POST", "/register", {"id": ID, "profile_url": f"/who/{ID}"}, status=201)
    server.tell("GET", "/v1/agents/me", UNCLAIMED)
    server.tell("PUT", "/v1/agents/me/handle", {**AGENT, "name": ""})
    server.tell("POST", "/v1/keys/bundle", PUBLISHED, status=201)
    return server


def test_a_new_agent_is_made_registered_and_named(accepting: Recorder, angelia: Angelia, shell: Path) -> None:
    ended = angelia("agent", "new", "alice", "--register")
    fingerprint = identity.load(shell / "home", "alice", lambda: "").pair.public.fingerprint
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "keys         made, 0600, no passphrase (--passphrase asks for one)\n"
        f"registered   {ID}\n"
        "handle       alice (claimed; a handle is for ever)\n"
        "bundle       v1 published, 100 one-time keys\n"
        f"fingerprint  {fingerprint}\n"
    )
    assert stat.S_IMODE((shell / "home" / "alice" / "key").stat().st_mode) == 0o600
    card = identity.public_identity(shell / "home", "alice")
    assert card is not None
    assert (str(card.id), card.handle, card.server) == (ID, "alice", accepting.url)


def test_quiet_prints_only_the_id(accepting: Recorder, angelia: Angelia) -> None:
    assert angelia("agent", "new", "alice", "--register", "-q") == Ended(0, f"{ID}\n", "")


def test_json_prints_the_agent_with_every_key_of_the_answer(accepting: Recorder, angelia: Angelia) -> None:
    ended = angelia("agent", "new", "alice", "--register", "--json")
    assert json.loads(ended.out) == {**AGENT, "name": ""}


def test_the_name_goes_along(accepting: Recorder, angelia: Angelia) -> None:
    accepting.tell("PATCH", "/v1/agents/me", {**UNCLAIMED, "name": "Alice A"})
    angelia("agent", "new", "alice", "--register", "--name", "Alice A")
    assert accepting.asked("POST", "/register")[0].json()["name"] == "Alice A"
    assert accepting.asked("PATCH", "/v1/agents/me")[0].json() == {"name": "Alice A"}


def test_without_a_server_the_keys_are_made_and_the_next_step_named(angelia: Angelia, shell: Path) -> None:
    ended = angelia("agent", "new", "alice")
    assert ended.code == 0
    assert re.fullmatch(
        r"keys         made.*\nkey id       [0-9a-f-]{36}\nfingerprint  [\w-]{43}\n", ended.out, re.ASCII
    )
    assert ended.err == (
        "next: angelia agent register --as alice; without a server: angelia key publish --out FILE --as alice\n"
    )


def test_a_server_that_is_away_does_not_cost_the_keys(angelia: Angelia, shell: Path) -> None:
    with closed_port() as url:
        ended = angelia("agent", "new", "alice", "--register", "--url", url)
        assert angelia("agent", "new", "bob", "--register", "-q", "--url", url).out == ""
    assert ended.code == 7
    assert ended.out.startswith("keys         made")
    assert (
        ended.err.splitlines()[1]
        == f"hint: the keys are safe; go on with `angelia agent register --as alice --url {url}`"
    )
    assert agent_names.names(shell / "home") == ["alice", "bob"]


def test_an_existing_agent_is_not_made_again(angelia: Angelia) -> None:
    angelia("agent", "new", "alice")
    ended = angelia("agent", "new", "alice", "--register")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "error: alice has keys already, and they are never overwritten (already_exists)\n"
        "hint: angelia agent register --as alice\n"
    )


def test_a_taken_handle_leaves_a_registered_agent_and_a_way_on(server: Recorder, angelia: Angelia, shell: Path) -> None:
    server.tell("POST", "/register", {"id": ID, "profile_url": "/who/x"}, status=201)
    server.tell("GET", "/v1/agents/me", UNCLAIMED)
    server.tell("PUT", "/v1/agents/me/handle", TAKEN, status=409)
    server.tell("PUT", "/v1/agents/me/handle", {**AGENT, "handle": "alice-7"})
    angelia("agent", "new", "alice")

    ended = angelia("agent", "register")
    assert ended.code == 1
    assert ended.out == f"registered   {ID}\n"
    assert ended.err == (
        "error: the handle alice is taken (already_exists)\n"
        "hint: `angelia agent handle OTHER --as alice`, then `angelia key publish --as alice`\n"
    )
    again = angelia("agent", "handle", "alice-7", "--as", "alice")
    assert (again.code, again.out) == (0, "handle       alice-7 (claimed; a handle is for ever)\n")
    assert again.err == "next: angelia key publish --as alice\n"
    card = identity.public_identity(shell / "home", "alice")
    assert card is not None
    assert card.handle == "alice-7"


def test_registering_again_is_safe_and_keeps_the_handle_it_has(server: Recorder, angelia: Angelia) -> None:
    server.tell("POST", "/register", {"id": ID, "profile_url": "/who/x"}, status=200)
    server.tell("GET", "/v1/agents/me", {**AGENT, "handle": "alice-7"})
    server.tell("POST", "/v1/keys/bundle", PUBLISHED, status=201)
    angelia("agent", "new", "alice")
    for _ in range(2):
        ended = angelia("agent", "register")
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.startswith(f"registered   {ID}\nhandle       alice-7 (claimed; a handle is for ever)\nbundle ")
    assert not server.asked("PUT", "/v1/agents/me/handle")
    first, again = (seen.json()["bundle"] for seen in server.asked("POST", "/v1/keys/bundle"))
    assert first == again
    assert first["agent_nhi"] == "alice-7"


def test_an_agent_whose_keys_could_not_be_published_is_registered_and_goes_on(
    server: Recorder, angelia: Angelia
) -> None:
    server.tell("POST", "/register", {"id": ID, "profile_url": "/who/x"})
    server.tell("GET", "/v1/agents/me", AGENT)
    refusal = {"title": "too many requests", "code": "rate_limited", "status": 429}
    server.tell("POST", "/v1/keys/bundle", refusal, status=429)
    server.tell("POST", "/v1/keys/bundle", PUBLISHED, status=201)
    ended = angelia("agent", "new", "alice", "--register")
    assert ended.code == 1
    assert ended.out.endswith("handle       alice (claimed; a handle is for ever)\n")
    hint = "hint: the agent is registered; go on with `angelia key publish --as alice`"
    assert ended.err.splitlines() == ["error: too many requests (rate_limited)", hint]
    assert angelia("key", "publish", "--as", "alice").code == 0


def test_a_server_that_is_late_to_know_a_handle_does_not_make_us_forget_it(
    accepting: Recorder, angelia: Angelia, shell: Path
) -> None:
    accepting.told["PUT", "/v1/agents/me/handle"] = []
    accepting.tell("PUT", "/v1/agents/me/handle", {**AGENT, "handle": "alice-7"})
    angelia("agent", "new", "alice")
    angelia("agent", "handle", "alice-7")
    assert angelia("agent", "register").code == 0
    claims = [seen.json()["handle"] for seen in accepting.asked("PUT", "/v1/agents/me/handle")]
    assert claims == ["alice-7", "alice-7"]


def test_registering_again_may_change_name_and_email(server: Recorder, angelia: Angelia) -> None:
    server.tell("POST", "/register", {"id": ID, "profile_url": "/who/x"})
    server.tell("GET", "/v1/agents/me", AGENT)
    server.tell("PATCH", "/v1/agents/me", {**AGENT, "email": "a@b.example"})
    server.tell("POST", "/v1/keys/bundle", PUBLISHED, status=201)
    angelia("agent", "new", "alice")
    assert angelia("agent", "register", "--name", "Alice", "--email", "a@b.example").code == 0
    assert server.asked("PATCH", "/v1/agents/me")[0].json() == {"name": "Alice", "email": "a@b.example"}


def test_show_tells_all_about_a_registered_agent(accepting: Recorder, angelia: Angelia, shell: Path) -> None:
    angelia("agent", "new", "alice", "--register")
    accepting.told["GET", "/v1/agents/me"] = []
    accepting.tell("GET", "/v1/agents/me", {**AGENT, "name": "A\x1b[2J"})
    ended = angelia("agent", "show")
    assert ended.out.splitlines() == [
        "handle       alice",
        f"id           {ID}",
        "name         A\\x1b[2J",
        "e-mail       -",
        f"key id       {AGENT['key_id']}",
        f"public key   {AGENT['public_key']}",
        f"fingerprint  {identity.load(shell / 'home', 'alice', lambda: '').pair.public.fingerprint}",
        "registered   2026-11-15 20:14:02Z",
        "X-AICQ-*     accepted",
    ]
    assert json.loads(angelia("agent", "show", "alice", "--json").out)["name"] == "A\x1b[2J"


def test_show_of_an_agent_that_never_registered_asks_nobody(server: Recorder, angelia: Angelia) -> None:
    angelia("agent", "new", "alice")
    ended = angelia("agent", "show", "alice")
    assert "registered   no\n" in ended.out
    assert ended.err.startswith("next: angelia agent register --as alice;")
    assert server.seen == []


def test_another_agent_is_shown_to_operators_and_its_profile_to_all(
    server: Recorder, angelia: Angelia, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tell("GET", "/v1/agents/bob", {**AGENT, "handle": "bob"})
    server.tell("GET", f"/who/{ID}", {"id": ID, "public_key": AGENT["public_key"], "joined_at": "2026-11-15T20:14:02Z"})
    assert angelia("agent", "show", "bob").out.startswith("handle       bob\n")
    assert server.seen[0].headers["authorization"] == "Bearer agt_operator"
    monkeypatch.delenv("ANGELIA_TOKEN")
    assert angelia("agent", "show", ID).out.startswith(f"id           {ID}\n")
    assert angelia("agent", "show", "bob").code == 5


def test_a_passphrase_is_asked_for_and_never_shown(
    accepting: Recorder, terminal: Callable[..., Ended], shell: Path
) -> None:
    ended = terminal(
        "agent",
        "new",
        "alice",
        "--passphrase",
        "--register",
        typed=[("new passphrase: ", "geheim\n"), ("once more: ", "geheim\n")],
    )
    assert ended.code == 0
    assert "keys         made, 0600, with a passphrase\n" in ended.out
    assert "geheim" not in ended.out

    wrong = terminal("agent", "show", typed=[("passphrase of alice: ", "falsch\n")])
    assert wrong.code == 1
    assert "passphrase of alice: " in wrong.out
    assert "error: the passphrase does not open the key (wrong_passphrase)\n" in wrong.out


def test_two_passphrases_that_differ_make_nothing(terminal: Callable[..., Ended], shell: Path) -> None:
    ended = terminal(
        "agent", "new", "alice", "--passphrase", typed=[("new passphrase: ", "one\n"), ("once more: ", "two\n")]
    )
    assert ended.code == 2
    assert agent_names.names(shell / "home") == []


def test_verbose_shows_requests_and_no_secret(accepting: Recorder, angelia: Angelia) -> None:
    ended = angelia("agent", "new", "alice", "--register", "-v")
    assert re.search(r"^POST /register  201  \d+ ms$", ended.err, re.MULTILINE)
    assert "ignature" not in ended.err


def test_loose_modes_are_refused_with_the_remedy(angelia: Angelia, shell: Path) -> None:
    angelia("agent", "new", "alice")
    (shell / "home" / "alice" / "key").chmod(0o644)
    ended = angelia("agent", "show", "alice")
    assert ended.code == 1
    assert ended.err.splitlines()[1] == f"hint: chmod 600 {shell / 'home' / 'alice' / 'key'}"
