"""Channels from the command line: what a person sees, and the exit code that a script sees."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from cli.running import Angelia, Ended


@dataclass
class Member:
    """An agent on a real server, with a home of its own."""

    name: str
    run: Angelia

    def __call__(self, *argv: str, **how: object) -> Ended:
        return self.run("channel", *argv, **how)

    def does(self, *argv: str, **how: object) -> str:
        ended = self(*argv, **how)
        assert ended.code == 0, f"{argv}: {ended.err}"
        return ended.out


@pytest.fixture
def members(live: str, person: Callable[[str], Angelia]) -> Callable[[str], Member]:
    def make(name: str) -> Member:
        handle = f"{name}-{secrets.token_hex(3)}"
        command = person(handle)
        registered = command("agent", "new", handle, "--register")
        assert registered.code == 0, registered.err
        return Member(handle, command)

    return make


@pytest.fixture
def alice(members: Callable[[str], Member]) -> Member:
    return members("alice")


@pytest.fixture
def bob(members: Callable[[str], Member]) -> Member:
    return members("bob")


def test_a_channel_from_its_making_to_its_end(alice: Member, bob: Member) -> None:
    news = f"{alice.name}/news"
    made = alice.does("create", "news", "--policy", "allowlist", "--allow", bob.name)
    assert f"channel      {news}\n" in made
    assert re.search(r"^epoch        1, key [0-9a-f-]{36}, \d+s old$", made, re.MULTILINE)
    assert bob.does("subscribe", news) == f"subscribed to {news} after offset 0\n"
    published = alice.does("publish", "news", "build 418 is green")
    assert re.fullmatch(
        rf"published in {news} at offset 1, sealed \(epoch 1, Ed25519 \+ ML-DSA-65\), [\d,]+ bytes\n", published
    )
    alice.does("publish", "news", stdin=b"from stdin\n")
    first = bob.does("tail", news)
    assert re.fullmatch(
        rf"\d\d:\d\d:\d\dZ  1  {alice.name}  build 418 is green\n\d\d:\d\d:\d\dZ  2  {alice.name}  from stdin.*\n",
        first,
    )
    assert bob.does("tail", news) == first  # nothing was committed
    assert bob.does("tail", news, "--commit") == first
    again = bob("tail", news)
    assert (again.code, again.out) == (0, "")
    assert "nothing new" in again.err
    assert alice.does("delete", "news", "--yes") == f"deleted {news} with 2 messages and 1 subscriber\n"
    assert bob("tail", news).code == 8


def test_json_has_one_object_a_line(alice: Member) -> None:
    made = json.loads(alice.does("create", "news", "--policy", "private", "--json"))
    assert (made["owner_nhi"], made["channel_name"], made["policy"]) == (alice.name, "news", "private")
    assert json.loads(alice.does("subscribe", "news", "--json"))["status"] == "active"
    published = json.loads(alice.does("publish", "news", "hello", "--json"))
    assert (published["offset"], len(published["replay_key"])) == (1, 64)
    alice.does("publish", "news", "-q", stdin=b"\xff\x00")
    heard = [json.loads(line) for line in alice.does("tail", "news", "--json").splitlines()]
    assert [(one["offset"], one["sender"], one.get("body"), one.get("body_base64")) for one in heard] == [
        (1, alice.name, "hello", None),
        (2, alice.name, None, "_wA"),
    ]
    assert len(heard[0]["fingerprint"]) == 43
    listed = [json.loads(line) for line in alice.does("list", "--owner", alice.name, "--json").splitlines()]
    assert [one["channel_name"] for one in listed] == ["news"]


def test_quiet_says_only_what_a_script_wants(alice: Member) -> None:
    id_ = alice.does("create", "news", "--policy", "open", "-q").strip()
    assert re.fullmatch(r"[0-9a-f-]{36}", id_)
    assert alice.does("publish", id_, "hello", "-q") == "1\n"
    assert alice.does("subscribe", id_, "-q") == ""


def test_a_channel_is_named_by_owner_and_name_by_its_own_name_by_id_and_by_the_beginning_of_it(
    alice: Member, bob: Member
) -> None:
    id_ = alice.does("create", "team/news", "--policy", "open", "-q").strip()
    for name in (f"{alice.name}/team/news", "team/news", id_, id_[:12]):
        assert alice.does("show", name, "-q") == f"{id_}\n"
    assert bob.does("show", f"{alice.name}/team/news", "-q") == f"{id_}\n"
    missing = bob("show", "team/news")
    assert missing.code == 8
    assert missing.err.startswith("error: there is no channel team/news (not_found)\nhint: angelia channel list\n")
    assert bob("show", id_[:4]).code == 8


def test_the_list_of_channels_is_a_table(alice: Member) -> None:
    alice.does("create", "news", "--policy", "open", "--retention", "24h")
    shown = alice.does("list", "--owner", alice.name)
    head, row = shown.splitlines()
    assert head == "ID            NAME" + " " * (len(alice.name) + 1) + "  POLICY  MESSAGES  SUBSCRIBERS  KEEP  AGE"
    assert re.fullmatch(rf"[0-9a-f-]{{12}}  {alice.name}/news  open           0            0    1d   \d+s", row)
    nothing = alice("list", "--subscribed")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no channels yet" in nothing.err


def test_pausing_keeps_the_place(alice: Member, bob: Member) -> None:
    news = f"{alice.name}/news"
    alice.does("create", "news", "--policy", "open")
    bob.does("subscribe", news)
    assert bob.does("pause", news) == f"paused {news} after offset 0\n"
    alice.does("publish", "news", "meanwhile")
    paused = bob("tail", news)
    assert paused.code == 1
    assert "error: the subscription is paused (conflict)" in paused.err
    assert bob.does("resume", news) == f"resumed {news} after offset 0\n"
    assert "meanwhile" in bob.does("tail", news)
    assert bob.does("unsubscribe", news) == f"unsubscribed from {news}\n"
    assert bob("tail", news).code == 5


def test_who_is_denied_reads_no_more(alice: Member, bob: Member) -> None:
    news = f"{alice.name}/news"
    alice.does("create", "news")
    assert bob("subscribe", news).code == 8  # to bob there is no such channel
    assert alice.does("allow", "news", bob.name) == f"{bob.name} may listen in {news}\n"
    bob.does("subscribe", news)
    alice.does("publish", "news", "for both")
    assert "for both" in bob.does("tail", news)
    refused = bob("publish", news, "me too")
    assert refused.code == 5
    assert alice.does("allow", "news", bob.name, "--publish") == f"{bob.name} may listen and publish in {news}\n"
    assert bob.does("publish", news, "me too", "-q") == "2\n"
    assert f"{bob.name}  yes     yes" in alice.does("allow", "news")
    assert alice.does("deny", "news", bob.name) == f"denied {bob.name} in {news}; what it has read it keeps\n"
    assert "closed: whoever publishes next makes a new key" in alice.does("show", "news")
    alice.does("publish", "news", "alone again")
    assert bob("tail", news).code == 8
    assert alice("deny", "news", bob.name).code == 8


def test_another_policy_drops_whom_it_does_not_allow(alice: Member, bob: Member) -> None:
    alice.does("create", "news", "--policy", "open")
    bob.does("subscribe", f"{alice.name}/news")
    changed = alice("update", "news", "--policy", "private")
    assert changed.code == 0
    assert "dropped 1 subscriber; the next message has another key" in changed.err
    assert alice("update", "news").code == 2
    assert "kept for     1h" in alice.does("update", "news", "--retention", "1h")


def test_what_cannot_be_opened_is_told_and_not_committed(
    alice: Member, bob: Member, members: Callable[[str], Member]
) -> None:
    carol, news = members("carol"), f"{alice.name}/news"
    alice.does("create", "news", "--allow", carol.name, "--allow", bob.name)
    carol.does("subscribe", news)
    alice.does("publish", "news", "of the first epoch")
    alice.does("deny", "news", carol.name)
    bob.does("subscribe", news)
    alice.does("publish", "news", "of the second")
    read = bob("tail", news, "--after", "0", "--commit")
    assert read.code == 8
    assert "warning: offset 1: the key of this message's epoch is not here (key_not_found)" in read.err
    assert read.out.endswith("of the second\n")
    assert "active, after offset 1\n" in bob.does("show", news)  # where it began


def test_so_many_and_no_more(alice: Member) -> None:
    alice.does("create", "news", "--policy", "private")
    alice.does("subscribe", "news")
    for number in range(3):
        alice.does("publish", "news", str(number))
    assert [line[-1] for line in alice.does("tail", "news", "-n", "2", "--commit").splitlines()] == ["0", "1"]
    assert [line[-1] for line in alice.does("tail", "news", "-f", "-n", "1").splitlines()] == ["2"]


def test_deleting_needs_a_yes(alice: Member) -> None:
    alice.does("create", "news", "--policy", "open")
    asked = alice("delete", "news")
    assert asked.code == 2
    assert "needs a yes, and there is no terminal to ask (confirmation_required)" in asked.err
    assert alice("delete", "news", "--dry-run").code == 0
    alice.does("show", "news")


def test_control_characters_of_others_are_only_shown(alice: Member, bob: Member) -> None:
    alice.does("create", "news", "--policy", "open")
    bob.does("subscribe", f"{alice.name}/news")
    alice.does("publish", "news", "red \x1b[31m and \u202e back")
    assert "red \\x1b[31m and \\u202e back" in bob.does("tail", f"{alice.name}/news")


@pytest.mark.parametrize(
    "said",
    [
        ["create"],
        ["create", "News", "--policy", "open"],
        ["create", "news", "--policy", "everybody"],
        ["create", "news", "--retention", "1m"],
        ["publish", "news", "x", "--ttl", "30d"],
        ["tail", "news", "--after", "-1"],
    ],
)
def test_what_makes_no_sense_is_refused(alice: Member, said: list[str]) -> None:
    ended = alice(*said)
    assert ended.code in (1, 2)
    assert ended.err.startswith("error: ")
    assert "Traceback" not in ended.err
