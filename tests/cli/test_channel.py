"""Channels from the command line: what a person sees, and the exit code that a script sees."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from angelia.channels.model import ChannelPolicy, ChannelView
from angelia.client import Client, Unreachable
from angelia.client.channel_membership import update_channel
from angelia.client.channel_reading import Tail
from angelia.client.channel_verbs import ChannelVerbs
from angelia.client.exchange import Exchange
from angelia.client.namespaces import Verb
from angelia.errors import VersionConflict
from angelia.mailbox import identity
from channel_agents import without_roster
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


def replace_verb(monkeypatch: pytest.MonkeyPatch, name: str, exchange: Callable[..., Exchange[Any]]) -> None:
    verb = Verb(exchange)
    verb.__set_name__(ChannelVerbs, name)
    monkeypatch.setattr(ChannelVerbs, name, verb)


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


def test_show_says_who_signed_the_roster_and_where_the_server_admits_readers(alice: Member, bob: Member) -> None:
    alice.does("create", "news", "--allow", bob.name)
    listed = f"roster       version 1, signed by {alice.name}: 1 member ({bob.name})\n"
    assert listed in alice.does("show", "news")
    assert "readers" not in alice.does("show", "news")
    bob.does("subscribe", f"{alice.name}/news")
    alice.does("deny", "news", bob.name)
    assert f"version 2, signed by {alice.name}: 0 members\n" in alice.does("show", "news")
    opened = alice.does("update", "news", "--policy", "open")
    admitted = "readers      whom this server admits: under this policy the roster keeps nobody out\n"
    assert admitted in opened
    assert admitted in bob.does("show", f"{alice.name}/news")
    assert json.loads(bob.does("show", f"{alice.name}/news", "--json"))["roster_version"] == 3


def test_a_channel_without_a_roster_is_looked_at_and_signed(alice: Member, bob: Member, live: str, shell: Path) -> None:
    owner = identity.load(shell / f"home-{alice.name}", alice.name, lambda: "")
    with Client(live, identity=owner) as client:
        client.run(without_roster(ChannelPolicy.ALLOWLIST, bob.name))  # as the build before did
    assert "roster       none that" in alice.does("show", "news")
    refused = alice("publish", "news", "hello")
    assert refused.code == 1
    assert f"error: {alice.name} has not signed yet who is in {alice.name}/news (conflict)" in refused.err
    assert "hint: look at its list and sign it: angelia channel sign news" in refused.err
    assert "has signed no list yet" in alice("allow", "news").err
    asked = alice("sign", "news")
    assert (asked.code, f"{bob.name}  yes     no" in asked.out) == (2, True)
    assert "this list and the policy are the server's word" in asked.err
    assert "look first with `angelia channel sign news --dry-run`, then add --yes" in asked.err
    signed = alice.does("sign", "news", "--yes")
    assert f"signed {alice.name}/news as allowlist with 1 member: version 1 of its roster\n" in signed
    assert json.loads(alice.does("sign", "news", "--yes", "--json"))["done"] == "signed"
    assert alice.does("publish", "news", "hello", "-q") == "1\n"
    assert bob("sign", f"{alice.name}/news", "--yes").code == 5


def test_another_policy_drops_whom_it_does_not_allow(alice: Member, bob: Member) -> None:
    alice.does("create", "news", "--policy", "open")
    bob.does("subscribe", f"{alice.name}/news")
    changed = alice("update", "news", "--policy", "private")
    assert changed.code == 0
    assert "dropped 1 subscriber; the next message has another key" in changed.err
    assert alice("update", "news").code == 2
    assert "kept for     1h" in alice.does("update", "news", "--retention", "1h")


def test_what_cannot_be_opened_is_told_and_committed_past_only_when_that_is_said(
    alice: Member, bob: Member, members: Callable[[str], Member]
) -> None:
    carol, news = members("carol"), f"{alice.name}/news"
    alice.does("create", "news", "--allow", carol.name)
    carol.does("subscribe", news)
    alice.does("publish", "news", "of the first epoch")
    alice.does("allow", "news", bob.name)
    alice.does("deny", "news", carol.name)
    bob.does("subscribe", news)
    alice.does("publish", "news", "of the second")
    for said in (["tail", news, "--after", "0", "-n", "1", "--commit"], ["tail", news, "--after", "0", "--commit"]):
        read = bob(*said)
        assert read.code == 8
        assert "warning: offset 1: the key of this message's epoch is not here (key_not_found)" in read.err
    assert read.out.endswith("of the second\n")
    assert "active, after offset 1\n" in bob.does("show", news)  # where it began
    assert bob("tail", news, "--after", "0", "--commit", "--skip").code == 8
    assert "active, after offset 2\n" in bob.does("show", news)
    alone = bob("tail", news, "--skip")
    assert (alone.code, "--commit --skip" in alone.err) == (2, True)


def test_nothing_behind_a_message_that_cannot_be_opened_is_committed_unless_that_is_said(
    alice: Member, bob: Member, members: Callable[[str], Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    carol, news = members("carol"), f"{alice.name}/news"
    alice.does("create", "news", "--allow", carol.name)
    carol.does("subscribe", news)
    alice.does("publish", "news", "closed to bob")
    alice.does("allow", "news", bob.name)
    alice.does("deny", "news", carol.name)
    bob.does("subscribe", news)
    for number in range(2):
        alice.does("publish", "news", f"open {number}")
    replace_verb(monkeypatch, "follow", lambda tail, **how: Tail.next(tail, **{**how, "max_messages": 1}))
    began = re.sub(r"\d+s old", "", bob.does("show", news))
    assert bob("tail", news, "--after", "0", "--commit").code == 8
    assert re.sub(r"\d+s old", "", bob.does("show", news)) == began
    assert bob("tail", news, "--after", "0", "--commit", "--skip").code == 8
    assert "active, after offset 3\n" in bob.does("show", news)


def test_a_key_that_cannot_be_given_out_stops_no_reading(
    alice: Member, bob: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.does("create", "news", "--allow", bob.name)
    alice.does("subscribe", "news")
    alice.does("publish", "news", "hello")
    bob.does("subscribe", f"{alice.name}/news")

    def refused(*_: object) -> None:
        raise VersionConflict("the channel is at epoch 9")

    monkeypatch.setattr(ChannelVerbs, "share_key", refused)
    read = alice("tail", "news")
    assert (read.code, read.out.endswith("hello\n")) == (0, True)
    assert "warning: the key was not given out: the channel is at epoch 9 (version_conflict)" in read.err


def test_an_id_of_ones_own_is_published_once(alice: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    alice.does("create", "news", "--policy", "private")

    def lost(*_: object, **__: object) -> None:
        raise Unreachable("the server does not answer", hint="is it up?")

    with monkeypatch.context() as patch:
        patch.setattr(ChannelVerbs, "publish", lost)
        ended = alice("publish", "news", "once")
    assert ended.code == 7
    hint = r"^hint: say it again with --id ([0-9a-f-]{36}), and it is published once; is it up\?$"
    found = re.search(hint, ended.err, re.MULTILINE)
    assert found is not None
    assert alice.does("publish", "news", "once", "--id", found[1], "-q") == "1\n"
    again = alice("publish", "news", "once", "--id", found[1])
    assert again.code == 1
    assert "(message_id_conflict)\nhint: if that was the same message, it is published" in again.err
    assert "messages     1, offsets 1 to 1 are kept" in alice.does("show", "news")


def test_a_channel_without_messages_is_empty(alice: Member) -> None:
    assert "messages     none, it is empty\n" in alice.does("create", "news", "--policy", "open")


def test_those_who_came_meanwhile_were_not_dropped(alice: Member, bob: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    alice.does("create", "news", "--policy", "open")

    def later(*args: Any, **values: Any) -> Exchange[ChannelView]:
        bob.does("subscribe", f"{alice.name}/news")
        return update_channel(*args, **values)

    replace_verb(monkeypatch, "update", later)
    assert "dropped" not in alice("update", "news", "--policy", "open").err


def test_a_message_lives_no_longer_than_this_home_allows(alice: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANGELIA_MAX_TTL_SECONDS", "3600")
    alice.does("create", "news", "--policy", "private")
    alice.does("subscribe", "news")
    published = json.loads(alice.does("publish", "news", "short", "--json"))
    span = datetime.fromisoformat(published["expires_at"]) - datetime.fromisoformat(published["accepted_at"])
    assert span <= timedelta(hours=1, seconds=1)
    assert "a message lives for 1h at most" in alice("publish", "news", "x", "--ttl", "2h").err


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


def test_a_list_that_decides_nothing_says_so(alice: Member, bob: Member) -> None:
    nothing = f"the list decides nothing while the policy of {alice.name}/news is open\n"
    assert alice("create", "news", "--policy", "open", "--allow", bob.name).err == nothing
    assert alice("deny", "news", bob.name).err == nothing
    assert alice("allow", "news", bob.name).err == nothing
    assert alice("create", "other", "--allow", bob.name).err == ""
    assert alice("deny", "other", bob.name).err == ""


def test_one_message_that_is_no_text_goes_into_a_file_as_it_is(
    alice: Member, into: Callable[..., tuple[bytes, str]]
) -> None:
    alice.does("create", "news", "--policy", "private")
    alice.does("subscribe", "news")
    alice.does("publish", "news", stdin=b"\x00\xff\n")
    assert into(alice.run, "channel", "tail", "news", "-q") == (b"\x00\xff\n", "")
    alice.does("publish", "news", "text")
    line = r"\d\d:\d\d:\d\dZ  1  \S+  \(3 bytes that are no text; --json shows them in base64url\)"
    assert re.fullmatch(line, alice.does("tail", "news").splitlines()[0])
    assert into(alice.run, "channel", "tail", "news", "-n", "1", "-f", "-q")[0] == b"\x00\xff\n"


def test_a_correlation_is_a_uuid_and_the_error_says_where_it_stands(alice: Member) -> None:
    ended = alice("publish", "news", "x", "--correlation", "5b0f3c9a71e2")
    assert ended.code == 2
    assert "--correlation: '5b0f3c9a71e2' is no UUID (message_id, as --json shows it;" in ended.err
