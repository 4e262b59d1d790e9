"""Rules from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cli.running import Angelia, Ended
from client.recorder import Recorder
from client.test_verbs import RULE

NAMED = "rule 5b0f3c9a-71e (allow send, team-* to bob)"


def told(server: Recorder) -> None:
    server.tell("GET", "/v1/policies", {"policies": [RULE], "next": None, "total": 1})
    server.tell("DELETE", f"/v1/policies/{RULE['rule_id']}", status=204)


def deleted(server: Recorder) -> int:
    return len([seen for seen in server.seen if seen.method == "DELETE"])


def decided(server: Recorder, *, allowed: bool, rule_id: str | None) -> None:
    server.tell("POST", "/v1/authz/check", {"allowed": allowed, "rule_id": rule_id})


def test_a_rule_is_made_and_shown(server: Recorder, angelia: Angelia) -> None:
    server.tell("POST", "/v1/policies", RULE, status=201)
    words = [
        "policy",
        "add",
        "allow",
        "send",
        "--subject",
        "team-*",
        "--object",
        "bob",
        "--priority",
        "5",
        "--expires",
        "2h",
        "--rate",
        "100/1m",
    ]
    ended = angelia(*words)
    assert ended.out.splitlines() == [
        f"id        {RULE['rule_id']}",
        "rule      allow send, team-* to bob",
        "priority  5",
        "rate      100/1m",
        "expires   never",
    ]
    assert server.seen[0].json() == {
        "effect": "allow",
        "action": "send",
        "subject": "team-*",
        "object": "bob",
        "priority": 5,
        "expires_in": 7200,
        "rate": "100/1m",
    }
    assert server.seen[0].headers["authorization"] == "Bearer agt_operator"
    assert angelia(*words, "-q") == Ended(0, f"{RULE['rule_id']}\n", "")
    assert json.loads(angelia(*words, "--json").out) == RULE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("add allow send --subject A* --object bob", "error: subject: 'A*' is no pattern (usage)"),
        ("add allow send --subject a --object bob/x", "error: object: 'bob/x' is no pattern (usage)"),
        ("add deny send --subject a --object b --rate 1/1m", "error: a deny rule has no rate (usage)"),
        ("add allow send --subject a --object b --rate often", "error: the rate 'often' cannot be read (usage)"),
        ("add allow send --subject a", "error: `angelia policy add` needs --object (usage)"),
        ("add maybe send --subject a --object b", "error: allow|deny: 'maybe' is not one of 'allow', 'deny' (usage)"),
        ("check send --subject a* --object b", "error: subject: 'a*' names nobody (usage)"),
    ],
)
def test_what_cannot_be_a_rule_is_a_usage_error_with_a_hint(
    server: Recorder, angelia: Angelia, words: str, said: str
) -> None:
    ended = angelia("policy", *words.split())
    assert (ended.code, ended.out, server.seen) == (2, "", [])
    assert ended.err.splitlines()[0] == said
    assert ended.err.splitlines()[1].startswith("hint: ")


def test_the_list_of_rules_is_a_table(server: Recorder, angelia: Angelia) -> None:
    told(server)
    head, row = angelia("policy", "list").out.splitlines()
    assert head.split() == ["ID", "PRIORITY", "EFFECT", "ACTION", "SUBJECT", "OBJECT", "RATE", "EXPIRES", "MADE", "BY"]
    assert row.split()[:8] == ["5b0f3c9a-71e", "5", "allow", "send", "team-*", "bob", "100/1m", "-"]
    assert json.loads(angelia("policy", "list", "--json").out) == RULE


def test_without_rules_the_list_says_what_that_means(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/policies", {"policies": [], "next": None, "total": 0})
    ended = angelia("policy", "list")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.splitlines() == [
        "no rules, so nothing is allowed",
        "hint: angelia policy add allow send --subject '*' --object '*'",
    ]


def test_a_script_removes_a_rule_only_with_a_yes(server: Recorder, angelia: Angelia) -> None:
    told(server)
    refused = angelia("policy", "remove", "5b0f3c9a")
    assert (refused.code, deleted(server)) == (2, 0)
    assert refused.err.splitlines() == [
        f"error: removing {NAMED} needs a yes, and there is no terminal to ask (confirmation_required)",
        "hint: look first with `angelia policy list`, then add --yes",
    ]
    dry = angelia("policy", "remove", "5b0f3c9a", "--dry-run")
    assert (dry.code, dry.out, deleted(server)) == (0, "", 0)
    assert dry.err.startswith(f"dry run: would remove {NAMED}")
    done = angelia("policy", "remove", "5b0f3c9a", "--yes")
    assert (done, deleted(server)) == (Ended(0, f"removed {NAMED}\n", ""), 1)
    assert angelia("policy", "remove", "ffffffff", "--yes").code == 8


def test_a_person_is_asked_before_a_rule_goes(server: Recorder, terminal: Callable[..., Ended]) -> None:
    told(server)
    ended = terminal("policy", "remove", "5b0f3c9a", typed=[("[y/N] ", "y\n")])
    assert f"Remove {NAMED} at {server.url}, for good? [y/N] " in ended.out.replace("\n", "")
    assert (ended.code, deleted(server)) == (0, 1)


def test_a_check_says_what_and_which_rule_and_its_exit_code_is_the_answer(server: Recorder, angelia: Angelia) -> None:
    decided(server, allowed=True, rule_id=RULE["rule_id"])
    words = ["policy", "check", "send", "--subject", "alice", "--object", "bob"]
    assert angelia(*words) == Ended(0, f"decision  allowed\nby        rule {RULE['rule_id']}\n", "")
    assert server.seen[0].json() == {"subject": "alice", "action": "send", "object": "bob"}
    assert angelia(*words, "-q") == Ended(0, "allowed\n", "")
    assert json.loads(angelia(*words, "--json").out) == {"allowed": True, "rule_id": RULE["rule_id"]}


def test_a_denial_exits_5_and_names_the_next_command(server: Recorder, angelia: Angelia) -> None:
    words = ["policy", "check", "send", "--subject", "alice", "--object", "bob"]
    decided(server, allowed=False, rule_id=None)
    decided(server, allowed=False, rule_id=RULE["rule_id"])
    hint = "hint: angelia policy add allow send --subject alice --object bob\n"
    assert angelia(*words) == Ended(5, "decision  denied\nby        no rule allows it\n", hint)
    by_rule = f"decision  denied\nby        rule {RULE['rule_id']}\n"
    assert angelia(*words) == Ended(5, by_rule, "hint: angelia policy list\n")
    assert angelia(*words, "-q") == Ended(5, "denied\n", "")


def test_the_verbs_are_those_of_a_real_server(live: str, live_server: object, angelia: Angelia) -> None:
    token = live_server.data_dir / "admin.token"  # type: ignore[attr-defined]
    words = ["--token-file", str(token)]
    made = angelia("policy", "add", "deny", "send", "--subject", "mallory", "--object", "*", "-q", *words)
    assert made.code == 0, made.err
    id_ = made.out.strip()
    check = ["policy", "check", "send", "--object", "bob", *words, "--subject"]
    assert angelia(*check, "mallory").code == 5
    assert id_ in angelia(*check, "mallory").out
    assert angelia(*check, "alice").code == 0
    assert id_[:12] in angelia("policy", "list", *words).out
    assert angelia("policy", "remove", id_[:12], "--yes", *words).code == 0
    assert angelia(*check, "mallory").code == 0
