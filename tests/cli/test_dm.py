"""Direct messages from the command line."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.client import Client
from angelia.client.operation_requests import ask
from angelia.mailbox import identity
from angelia.rooms import api
from cli.running import Angelia
from cli.talkers import Talker, fresh, register
from cli.test_room import AUTHOR, LIMITED, TIME, WHO, message_of
from client.recorder import recording


@pytest.fixture
def talkers(live: str, shell: Path, person: Callable[[str], Angelia]) -> Callable[[str], Talker]:
    def make(name: str) -> Talker:
        handle = fresh(name)
        register(live, shell / f"home-{handle}", handle)
        return Talker(handle, person(handle), "dm")

    return make


@pytest.fixture
def alice(talkers: Callable[[str], Talker]) -> Talker:
    return talkers("alice")


@pytest.fixture
def bob(talkers: Callable[[str], Talker]) -> Talker:
    return talkers("bob")


def test_a_message_is_sent_read_and_deleted(alice: Talker, bob: Talker) -> None:
    sent = alice("send", bob.name, "are you there?")
    assert (sent.code, sent.err) == (0, "")
    said, id_ = sent.out.splitlines()
    assert said == f"sent to {bob.name}, sealed (aicq-dm-v1), 14 bytes of text"
    shown = bob.does("read")
    assert re.fullmatch(rf"{TIME}  {id_}  {alice.name}  are you there\?\n", shown)
    assert bob.does("read") == shown
    refused = bob("delete", id_)
    assert (refused.code, "(confirmation_required)" in refused.err) == (2, True)
    deleted = bob.does("delete", id_.lower(), "--yes")
    assert re.fullmatch(rf"deleted the direct message {id_}[0-9A-Z]{{14}}\n", deleted)
    empty = bob("read")
    assert (empty.code, empty.out, empty.err) == (0, "", "no direct messages\n")
    assert bob("read", "--require").code == 8
    for gone in (id_, deleted.split()[-1], "nonsense"):
        assert bob("delete", gone, "--yes").code == 8


def test_an_agent_with_published_keys_could_get_mail(alice: Talker, bob: Talker) -> None:
    assert bob.run("key", "publish").code == 0
    hint = f"{bob.name} has published keys: `angelia mail send {bob.name}` also proves who sent it\n"
    assert alice("send", bob.name, "are you there?").err == hint
    assert alice("send", bob.name, "are you there?", "-q").err == ""


def test_json_quiet_and_pages(alice: Talker, bob: Talker) -> None:
    whole = alice.does("send", bob.name, "-q", stdin=b"one\n").strip()
    assert re.fullmatch(r"[0-9A-Z]{26}", whole)
    sent = json.loads(alice.does("send", bob.name, "two", "--json"))
    assert set(sent) == {"id", "ts", "recipient"}
    read = [json.loads(line) for line in bob.does("read", "--json").splitlines()]
    assert [(one["id"], one["author"], one["text"]) for one in read] == [
        (whole, alice.name, "one"),
        (sent["id"], alice.name, "two"),
    ]
    cut = bob("read", "-n", "1")
    assert cut.out.endswith("  two\n")
    found = re.fullmatch(r"1 shown; --all or --cursor (\d+)\n", cut.err)
    assert found is not None
    assert bob.does("read", "-n", "1", "--cursor", found[1]).endswith("  one\n")
    assert bob("read", "-n", "1", "--cursor", found[1]).err == ""
    assert len(bob.does("read", "--all").splitlines()) == 2
    assert bob("read", "--cursor", "x").code == 2


def test_reading_all_waits_for_the_rate_limit(bob: Talker) -> None:
    with recording() as lies:
        lies.tell("GET", "/dm", *LIMITED)
        lies.tell("GET", "/dm", {"messages": [message_of(AUTHOR)]})
        read = bob("read", "--all", "--url", lies.url)
    assert (read.code, read.out.endswith("  (cannot be opened) x\n")) == (0, True)


def test_the_texts_of_all_senders_begin_in_one_column(bob: Talker) -> None:
    authors = [AUTHOR[:-1] + str(number) for number in range(2)]
    with recording() as lies:
        lies.tell("GET", "/dm", {"messages": [message_of(one) for one in authors]})
        for author, handle in zip(authors, ("a-long-handle", "al"), strict=True):
            lies.tell("GET", f"/who/{author}", WHO | {"id": author, "handle": handle})
        shown = bob.does("read", "--url", lies.url).splitlines()
    assert len({line.index("(cannot") for line in shown}) == 1


def test_a_full_inbox_names_another_way(alice: Talker) -> None:
    with recording() as lies:
        key = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        lies.tell("GET", f"/who/{AUTHOR}", WHO | {"public_key": base64.b64encode(key).decode()})
        lies.tell("POST", f"/dm/{AUTHOR}", {"error": "the recipient's inbox is full"}, 429)
        refused = alice("send", AUTHOR, "hello", "--url", lies.url)
    assert f"if it has published keys: angelia mail send {AUTHOR} --url {lies.url}\n" in refused.err


def test_a_blocked_agent_sends_none_until_it_is_unblocked(alice: Talker, bob: Talker) -> None:
    blocked = bob.run("mail", "block", alice.name)
    assert blocked.out == f"blocked {alice.name}: its mail and direct messages are refused\n"
    assert alice("send", bob.name, "hello").code == 5
    assert re.fullmatch(rf"NAME +SINCE\n{alice.name} +\ds\n", bob.run("mail", "block").out)
    assert bob.run("mail", "unblock", alice.name).out == f"unblocked {alice.name}\n"
    alice.does("send", bob.name, "hello")
    again = bob.run("mail", "unblock", alice.name)
    assert (again.code, again.err) == (
        8,
        f"error: {alice.name} is not blocked (not_found)\nhint: angelia mail block\n",
    )
    empty = bob.run("mail", "block")
    assert (empty.code, empty.err) == (0, "no agent is blocked\nhint: angelia mail block NAME\n")
    assert bob.run("mail", "block", f"nobody-{secrets.token_hex(4)}").code == 8


def test_what_cannot_be_sent_says_why(alice: Talker, bob: Talker) -> None:
    long = alice("send", bob.name, stdin=b"x" * 6085)
    assert long.code == 1
    assert "error: a direct message has 1 to 6,084 bytes, and this one has 6,085 (invalid_argument)" in long.err
    assert f"angelia mail send {bob.name}" in long.err
    assert alice("send", bob.name, "").code == 1
    unknown = alice("send", f"nobody-{secrets.token_hex(4)}", "hello")
    assert (unknown.code, "there is no agent nobody-" in unknown.err) == (8, True)
    binary = alice("send", bob.name, stdin=b"\xff\xfe")
    assert binary.err == (
        "error: the message is not UTF-8 text (usage)\nhint: sealed mail takes bytes: angelia mail send NAME\n"
    )
    assert bob.does("read") == ""


def test_a_message_that_cannot_be_opened_is_shown_as_it_is_and_harmless(
    alice: Talker, bob: Talker, live: str, shell: Path
) -> None:
    sender = identity.load(shell / f"home-{alice.name}", alice.name, lambda: "")
    recipient = identity.load(shell / f"home-{bob.name}", bob.name, lambda: "")
    with Client(live, identity=sender) as client:
        client.run(ask(api.SEND_DM, recipient.id, body=api.DmBody("\x1b[2Jplain\nwords")))
    assert bob.does("read").endswith(r"  (cannot be opened) \x1b[2Jplain\nwords" + "\n")
    assert "decryption_error" in json.loads(bob.does("read", "--json"))
