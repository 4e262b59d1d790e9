"""Rooms from the command line: what a person sees, and the exit code that a script sees."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aicq_files import registered
from angelia.cli import main
from cli.running import PROGRAM, Angelia, Ended
from cli.talkers import Talker, fresh, register
from client.recorder import Recorder, recording

KEY = "correct horse battery"
GLOBAL, AUTHOR = "00000000-0000-0000-0000-000000000001", "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10"
LONG_AGO = "2026-11-15T00:00:00Z"
WHO = {"id": AUTHOR, "public_key": "A" * 43 + "=", "joined_at": LONG_AGO}
LIMITED = ({"error": "too many requests", "code": "rate_limited"}, 429, {"retry-after": "1"})
TIME = r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\dZ"


@pytest.fixture
def talkers(live: str, shell: Path, person: Callable[[str], Angelia]) -> Callable[[str], Talker]:
    def make(name: str) -> Talker:
        handle = fresh(name)
        register(live, shell / f"home-{handle}", handle)
        return Talker(handle, person(handle), "room")

    return make


@pytest.fixture
def alice(talkers: Callable[[str], Talker]) -> Talker:
    return talkers("alice")


@pytest.fixture
def bob(talkers: Callable[[str], Talker]) -> Talker:
    return talkers("bob")


@pytest.fixture
def room(alice: Talker) -> str:
    name = fresh("talk")
    alice.does("create", name)
    return name


@pytest.fixture
def key_file(shell: Path) -> str:
    path = shell / "room.key"
    path.write_text(f"{KEY}\n")
    return str(path)


def message_of(author: str, **members: object) -> dict[str, object]:
    return {"id": "01M7GDGPVG7T4K4K4K4K4K4K4K", "from": author, "body": "x", "ts": 1_700_000_000_000, **members}


def tell_of_global(server: Recorder, messages: Sequence[object], **members: object) -> None:
    """Has a server tell of the room `global` and of these messages in it, the newest first."""
    about = {"id": GLOBAL, "name": "global"}
    details = {"is_private": False, "created_by": None, "created_at": LONG_AGO, "retention_seconds": 60,
               "archive": False, "last_active": LONG_AGO, "message_count": 1, "deletions": 0}  # fmt: skip
    server.tell("GET", "/v1/rooms", {"rooms": [about | details | members], "next": None})
    server.tell("GET", f"/v1/rooms/{GLOBAL}", about | details | members)
    server.tell("GET", f"/room/{GLOBAL}", {"room": about, "messages": messages, "has_more": False})


@contextmanager
def tailing(*argv: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [*PROGRAM, "room", "tail", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def test_a_conversation(alice: Talker, bob: Talker, room: str) -> None:
    posted = alice.does("post", room, "build 418 is green").splitlines()
    assert posted[0] == f"posted in {room}"
    (first,) = posted[1:]
    assert re.fullmatch(r"[0-9A-Z]{12}", first)
    whole = bob.does("post", room, "shipping it", "--reply-to", first, "-q").strip()
    assert re.fullmatch(r"[0-9A-Z]{26}", whole)
    shown = alice.does("read", room)
    wide = max(len(alice.name), len(bob.name))
    assert re.fullmatch(
        rf"{TIME}  {first}  {alice.name:<{wide}}  build 418 is green\n"
        rf"{TIME}  {whole[:12]}  {bob.name:<{wide}}  > {first}  shipping it\n",
        shown,
    )
    tree = bob.does("thread", room, whole[:10].lower())
    assert re.fullmatch(rf"{TIME}  {whole[:12]}  {bob.name}  shipping it\n", tree)
    under = bob.does("thread", room, first).splitlines()
    assert re.fullmatch(rf"{TIME}  {whole[:12]}  {bob.name:<{wide}}    shipping it", under[1])
    refused = bob("delete", room, first)
    assert (refused.code, refused.out) == (2, "")
    assert "needs a yes, and there is no terminal to ask (confirmation_required)" in refused.err
    dry = alice("delete", room, first, "--dry-run")
    assert (dry.code, dry.out) == (0, "")
    assert bob("delete", room, first, "--yes").code == 5
    assert re.fullmatch(
        rf"deleted the message {first}[0-9A-Z]{{14}} of the room {room}\n", alice.does("delete", room, first, "--yes")
    )
    gone = alice("delete", room, first, "--yes")
    assert (gone.code, gone.err.splitlines()[0]) == (8, f"error: there is no message {first} (not_found)")
    assert "build 418" not in alice.does("read", room)


def test_the_list_of_rooms_is_a_table(alice: Talker) -> None:
    name = fresh("talk")
    made = alice.does("create", name, "--keep", "7d", "--archive")
    assert re.search(r"^kept for  7d$", made, re.MULTILINE)
    assert re.search(rf"^created   \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\dZ by {alice.name}$", made, re.MULTILINE)
    lines = alice.does("list", "--all").splitlines()
    assert re.fullmatch(r"ID            NAME +MESSAGES +LAST  KEEP  ARCHIVE", lines[0])
    assert re.search(r"^00000000-000  global +[\d,]+ +(?:-|\d+[smhd])   24h  no$", "\n".join(lines), re.MULTILINE)
    assert re.search(rf"^[0-9a-f-]{{12}}  {name} +0 +- +7d  yes$", "\n".join(lines), re.MULTILINE)
    assert "shown; --all or --cursor" in alice("list", "-n", "1").err


def test_a_room_is_named_by_its_name_its_id_and_the_beginning_of_it(alice: Talker) -> None:
    name = fresh("talk")
    id_ = alice.does("create", name, "-q").strip()
    for given in (name, id_, id_[:12], id_[:8].upper()):
        assert alice.does("show", given, "-q") == f"{id_}\n"
    for given in ("nowhere", "abcdef12", "0" * 8 + "-0000-0000-0000-000000000009"):
        missing = alice("read", given)
        assert missing.code == 8
        assert missing.err.startswith("error: there is no ")
    alice.does("create", name)
    several = alice("post", name, "to which?")
    assert several.code == 2
    assert f"error: several rooms are called {name} (ambiguous_id)\nhint: name one by its id: {id_}, " in several.err


def test_a_room_is_changed_by_its_creator(alice: Talker, bob: Talker, room: str) -> None:
    assert "kept for  30d" in alice.does("update", room, "--keep", "30d", "--archive")
    assert "archive   no" in alice.does("update", room, "--no-archive")
    asked = alice("update", room, "--keep", "1h")
    assert (asked.code, asked.err.splitlines()[0]) == (
        2,
        f"error: removing the messages of {room} that are older than 1h needs a yes, "
        "and there is no terminal to ask (confirmation_required)",
    )
    for change in (["--keep", "1h"], ["--keep", "90d"], ["--archive"]):
        assert "nothing done" in alice("update", room, *change, "--dry-run").err
    assert "archive   no" in alice.does("show", room)
    assert "kept for  30d" in alice.does("show", room)
    assert "kept for  1h" in alice.does("update", room, "--keep", "1h", "--yes")
    denied = bob("update", room, "--keep", "2h")
    assert (denied.code, denied.err.splitlines()[1]) == (5, f"hint: angelia room show {room}")
    for argv, why in (
        ([], "nothing to change"),
        (["--archive", "--no-archive"], "--archive and --no-archive both say"),
        (["--keep", "5s"], "--keep: 5s is not between 1m and 365d"),
    ):
        refused = alice("update", room, *argv)
        assert refused.code == 2
        assert refused.err.startswith(f"error: {why}")


def test_a_shorter_time_is_asked_about_as_far_as_its_effect_is_known(alice: Talker, room: str, key_file: str) -> None:
    den = alice.does("create", fresh("den"), "--private", "--key-file", key_file, "-q").strip()
    unknown = alice("update", den, "--keep", "1h")
    assert unknown.err.startswith(f"error: limiting the messages of {den} to those of the last 1h needs a yes")
    alice.does("update", room, "--archive")
    assert f"would hide the messages of {room} that" in alice("update", room, "--keep", "1h", "--dry-run").err
    removed = alice("update", room, "--keep", "1h", "--no-archive", "--dry-run")
    assert f"would remove the messages of {room} that" in removed.err


def test_a_refusal_names_the_next_command(alice: Talker, room: str) -> None:
    gone, nowhere = "0" * 26, "0" * 8 + "-0000-0000-0000-000000000009"
    for argv, hint in (
        (["delete", room, gone, "--yes"], f"angelia room read {room}"),
        (["delete", nowhere, gone, "--yes"], "angelia room list; a private room is named by its whole id"),
        (["update", nowhere, "--archive"], "angelia room list; a private room is named by its whole id"),
        (["post", room, "yes", "--reply-to", gone], f"angelia room read {room}"),
        (["create", "global"], "choose another name; the room is there already: angelia room show global"),
    ):
        refused = alice(*argv)
        assert refused.err.splitlines()[1:] == [f"hint: {hint}"], refused.err
    assert (refused.code, "(conflict)" in refused.err) == (1, True)
    for argv in (["create", "no good!"], ["post", room, ""]):
        refused = alice(*argv)
        assert (refused.code, "(invalid_argument)" in refused.err) == (1, True)


def test_what_others_write_stays_on_its_line_and_does_nothing_there(alice: Talker, bob: Talker, room: str) -> None:
    bob.does("post", room, "\x1b[31mred\x1b[0m \u202e txt.exe\r\n2026-11-15 20:00:00Z  0  mallory  I did it")
    (line,) = alice.does("read", room).splitlines()
    assert line.endswith(r"  \x1b[31mred\x1b[0m \u202e txt.exe\r\n2026-11-15 20:00:00Z  0  mallory  I did it")
    for shown in (
        alice.does("read", room, "--json"),
        alice.does("search", "mallory"),
        alice.does("thread", room, line.split()[1]),
    ):
        assert not set(shown) & set("\x1b\r\u202e")


def test_a_name_that_any_agent_may_take_stands_with_the_id(angelia: Angelia) -> None:
    for profile, shown, handle in (
        ({"name": "alice  ship it\x1b[2J"}, r"alice ship it\x1b[2J (3f0c9d1e)", None),
        ({"handle": "tester", "name": "alice"}, "tester", "tester"),
        ({"handle": "bo\x1bb"}, "3f0c9d1e-7d3", None),
        ({}, "3f0c9d1e-7d3", None),
    ):
        with recording() as lies:
            tell_of_global(lies, [message_of(AUTHOR)])
            lies.tell("GET", f"/who/{AUTHOR}", WHO | profile)
            read = angelia("room", "read", "global", "--url", lies.url)
            record = json.loads(angelia("room", "read", "global", "--url", lies.url, "--json").out)
        assert read.out == f"2023-11-14 22:13:20Z  01M7GDGPVG7T  {shown}  x\n"
        assert (record["from"], record["author"]) == (AUTHOR, handle)


def test_names_are_asked_for_no_more_after_the_rate_limit_is_reached(angelia: Angelia, server: Recorder) -> None:
    authors = [AUTHOR[:-1] + str(number) for number in range(4)]
    tell_of_global(server, [message_of(one) for one in authors])
    server.tell("GET", f"/who/{authors[3]}", WHO | {"id": authors[3], "handle": "tester"})
    server.tell("GET", f"/who/{authors[2]}", *LIMITED)
    read = angelia("room", "read", "global")
    assert [line.split()[3] for line in read.out.splitlines()] == ["tester", *["3f0c9d1e-7d3"] * 3]
    assert (read.code, read.err) == (0, "names are left out from here on: the server's rate limit is reached\n")
    assert [seen.path for seen in server.seen if seen.path.startswith("/who/")] == [
        f"/who/{authors[3]}",
        f"/who/{authors[2]}",
    ]
    assert angelia("room", "read", "global", "-q").err == ""


def test_json_has_one_object_a_line(alice: Talker, room: str) -> None:
    made = json.loads(alice.does("create", f"{room}-2", "--json"))
    assert (made["name"], made["is_private"], made["retention_seconds"]) == (f"{room}-2", False, 86_400)
    posted = json.loads(alice.does("post", room, "--json", stdin=b"from stdin\n"))
    assert json.loads(alice.does("show", room, "--json"))["id"] == posted["room_id"]
    reply = json.loads(alice.does("post", room, "yes", "--reply-to", posted["id"], "--json"))
    read = [json.loads(line) for line in alice.does("read", room, "--json").splitlines()]
    assert [(one["id"], one["author"], one["body"], one.get("pid")) for one in read] == [
        (posted["id"], alice.name, "from stdin", None),
        (reply["id"], alice.name, "yes", posted["id"]),
    ]
    assert read[0]["proof"]["scheme"] == "rfc9421"
    deleted = json.loads(alice.does("delete", room, reply["id"], "--yes", "--json"))
    assert (deleted["done"], deleted["id"]) == ("deleted", reply["id"])
    assert json.loads(alice("read", "nowhere", "--json").err)["code"] == "not_found"


def test_pages_go_back_in_time_and_a_page_is_read_downwards(alice: Talker, room: str) -> None:
    for number in range(5):
        alice.does("post", room, f"number {number}")
    cut = alice("read", room, "-n", "2")
    assert re.findall(r"number \d", cut.out) == ["number 3", "number 4"]
    found = re.fullmatch(r"2 shown; --all or --cursor (\d+)\n", cut.err)
    assert found is not None
    before = alice("read", room, "-n", "2", "--cursor", found[1])
    assert re.findall(r"number \d", before.out) == ["number 1", "number 2"]
    assert re.findall(r"number \d", alice.does("read", room, "--all")) == [f"number {n}" for n in range(5)]
    assert alice("read", room, "--cursor", "x").code == 2
    alice.does("create", f"{room}-2")
    empty = alice("read", f"{room}-2")
    assert (empty.code, empty.out) == (0, "")
    assert empty.err.startswith(f"no messages in {room}-2\nhint: angelia room post ")
    assert alice("read", f"{room}-2", "--require").code == 8


def test_a_beginning_that_several_messages_have_names_none(alice: Talker, room: str) -> None:
    ids = [alice.does("post", room, str(n), "-q").strip() for n in range(2)]
    shared = next(ids[0][:n] for n in range(26, 0, -1) if ids[1].startswith(ids[0][:n]))
    several = alice("thread", room, shared)
    assert several.code == 2
    assert ("2 messages begin with" if len(shared) >= 8 else "is too short") in several.err
    assert alice("thread", room, ids[0][:7]).code == 2
    assert alice("thread", room, "not-an-id").code == 8
    assert alice("thread", room, "0" * 26).code == 8


def test_messages_are_found_by_words(alice: Talker, room: str) -> None:
    word = f"zebra{secrets.token_hex(4)}"
    alice.does("post", room, f"a {word} on\tline one\nline two")
    found = alice.does("search", word.upper(), "line", "--room", room, "--since", "1h").splitlines()
    assert re.fullmatch(r"ID +ROOM +AUTHOR +AGE  TEXT", found[0])
    assert found[1].endswith(rf"a {word} on\tline one\nline two")
    assert json.loads(alice.does("search", word, "--json"))["author"] == alice.name
    nothing = alice("search", word, "nowhere")
    assert (nothing.code, nothing.out) == (0, "")
    assert alice("search", word, "nowhere", "--require").code == 8
    assert alice("search", "x" * 101).code == 1
    assert alice("search", "the", "a").err == "nothing found; no word of the query counts\n"


# Private rooms.


def test_a_private_room_takes_its_key_from_a_file_or_the_environment(
    alice: Talker, bob: Talker, key_file: str, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fresh("den")
    id_ = alice.does("create", name, "--private", "--key-file", key_file, "-q").strip()
    without = bob("read", id_)
    assert without.code == 2
    assert without.err == (
        f"error: {id_} is private, and there is no terminal to ask for its key (usage)\n"
        "hint: --key-file F or ANGELIA_ROOM_KEY\n"
    )
    posted = bob.does("post", id_, "psst", "--key-file", key_file, "-q").strip()
    monkeypatch.setenv("ANGELIA_ROOM_KEY", KEY)
    assert bob.does("read", id_).endswith("  psst\n")
    assert "private: those that know its key" in bob.does("show", id_)
    assert bob.does("thread", id_, posted[:12]).endswith("  psst\n")
    assert KEY not in bob.run("config", "show").out
    assert bob("read", id_, "-v").err.find(KEY) == -1
    monkeypatch.setenv("ANGELIA_ROOM_KEY", "x" * 16)
    wrong = bob("read", id_)
    assert (wrong.code, wrong.err.splitlines()[0]) == (5, "error: invalid room key (authorization_denied)")
    monkeypatch.delenv("ANGELIA_ROOM_KEY")
    assert bob("read", name).code == 8, "a private room has no public name"
    bob.does("delete", id_, posted, "--yes")
    assert alice("create", name, "--key-file", key_file).code == 2
    (shell / "short.key").write_text("short")
    assert alice("create", name, "--private", "--key-file", str(shell / "short.key")).code == 1


def test_a_key_is_sent_to_no_public_room(
    alice: Talker, room: str, key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANGELIA_ROOM_KEY", KEY)
    posted = json.loads(alice.does("post", room, "hello", "--key-file", key_file, "--json"))
    (read,) = [json.loads(line) for line in alice.does("read", room, "--json").splitlines()]
    assert read["id"] == posted["id"]
    assert "x-aicq-room-key" not in read["proof"]["signature_input"]


def test_a_person_types_the_key_and_it_is_not_shown(
    alice: Talker, terminal: Callable[..., Ended], shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANGELIA_HOME", str(shell / f"home-{alice.name}"))
    typed = [("key of the new room: ", f"{KEY}\n"), ("once more: ", f"{KEY}\n")]
    made = terminal("room", "create", "den", "--private", typed=typed)
    assert made.code == 0, made.out
    assert KEY not in made.out
    found = re.search(r"id +([0-9a-f-]{36})", made.out)
    assert found is not None
    read = terminal("room", "post", found[1], "psst", typed=[(f"key of the room {found[1]}: ", f"{KEY}\n")])
    assert (read.code, "posted in den" in read.out, KEY in read.out) == (0, True, False)


# Following.


def test_tail_begins_with_the_newest_and_goes_on_until_ctrl_c(alice: Talker, room: str) -> None:
    for text in ("one", "two", "three"):
        alice.does("post", room, text)
    with tailing(room, "-n", "2") as child:
        assert child.stdout is not None
        heard = [child.stdout.readline() for _ in range(2)]
        fourth = alice.does("post", room, "four", "-q").strip()
        heard.append(child.stdout.readline())
        alice.does("delete", room, fourth, "--yes")
        gone = child.stdout.readline()
        child.send_signal(signal.SIGINT)
        rest, err = child.communicate(timeout=20)
    assert [line.rsplit("  ", 1)[1] for line in heard] == ["two\n", "three\n", "four\n"]
    assert re.fullmatch(rf"{TIME}  {fourth[:12]}  -{' ' * len(alice.name)} \(deleted\)\n", gone)
    assert (child.returncode, rest, err) == (130, "", "\nstopped\n")


def test_tail_of_an_empty_room_misses_nothing_and_json_tells_of_deletions(alice: Talker, room: str) -> None:
    with tailing(room, "--json") as child:
        assert child.stdout is not None
        id_ = alice.does("post", room, "first", "-q").strip()
        assert json.loads(child.stdout.readline())["id"] == id_
        alice.does("delete", room, id_, "--yes")
        gone = json.loads(child.stdout.readline())
    assert (gone["id"], gone["deleted"]) == (id_, True)


def test_tail_ends_quietly_when_its_reader_has_gone(alice: Talker, room: str) -> None:
    with tailing(room) as child:
        assert child.stdout is not None
        alice.does("post", room, "one")
        child.stdout.readline()
        child.stdout.close()
        alice.does("post", room, "two")
        assert child.wait(20) == 141
        assert child.stderr is not None
        assert child.stderr.read() == ""
        child.stdout = None


# Authors.


def test_authors_are_verified_and_a_message_without_a_proof_is_exit_3(alice: Talker, room: str, live: str) -> None:
    alice.does("post", room, "signed")
    proven = alice("read", room, "--verify")
    assert (proven.code, proven.err) == (0, "1 of 1 proven, by the keys that this server shows\n")
    messages = alice.does("read", room, "--json")
    assert json.loads(messages)["proof"]["request"] == '{"body":"signed"}'
    thread = alice("thread", room, json.loads(messages)["id"], "--verify")
    assert thread.code == 0


def signed_in_the_far_future(key: Ed25519PrivateKey) -> dict[str, object]:
    request, ts = '{"body":"x"}', 1 << 60
    digest = hashlib.sha256(request.encode()).hexdigest()
    signature = base64.b64encode(key.sign(f"{digest}|nonce|{ts}".encode())).decode()
    proof = {"body_hash": digest, "nonce": "nonce", "ts": ts, "signature": signature, "request": request}
    return message_of(AUTHOR, ts=ts, proof=proof | {"scheme": "aicq-v1"})


def test_what_cannot_be_verified_is_counted_and_the_rest_is_verified(alice: Talker, room: str, live: str) -> None:
    alice.does("post", room, "signed")
    about = json.loads(alice.does("show", room, "--json"))
    (message,) = httpx.get(f"{live}/room/{about['id']}").json()["messages"]
    key = Ed25519PrivateKey.generate()
    told = [
        signed_in_the_far_future(key),
        message_of(AUTHOR[:-1] + "1", proof={"scheme": "none"}),
        message_of(AUTHOR[:-1] + "2"),
        message | {"id": "01M7GDGPVG7T4K4K4K4K4K4K4K"},
        message,
    ]
    with recording() as lies:
        lies.tell("GET", f"/v1/rooms/{about['id']}", about)
        lies.tell("GET", f"/room/{about['id']}", {"room": about, "messages": told, "has_more": False})
        lies.tell("GET", f"/who/{message['from']}", httpx.get(f"{live}/who/{message['from']}").json())
        lies.tell(
            "GET",
            f"/who/{AUTHOR}",
            WHO | {"public_key": base64.b64encode(key.public_key().public_bytes_raw()).decode()},
        )
        ended = alice("read", about["id"], "--verify", "--url", lies.url)
        assert len(lies.asked("GET", f"/who/{message['from']}")) == 1, "for its name and its key together"
        quiet = alice("read", about["id"], "--verify", "-q", "--url", lies.url)
    error = "error: 3 of 5 messages prove no author (signature_verification_failed)"
    assert (ended.code, ended.err.splitlines()) == (
        3,
        [
            f"warning: 01M7GDGPVG7T is the same signed request as {message['id'][:12]}, shown twice",
            "warning: 01M7GDGPVG7T proves no author: the message has no signature: it was posted with a token, "
            "or comes from another server",
            "warning: 01M7GDGPVG7T proves no author: not told",
            "warning: 01M7GDGPVG7T proves no author: a time is beyond the year 9999",
            error,
        ],
    )
    assert (quiet.code, quiet.err) == (3, f"{error}\n")


def test_an_agent_of_aicq_reads_and_posts_with_its_own_id(
    live: str, shell: Path, person: Callable[[str], Angelia]
) -> None:
    for pem in (False, True):
        directory = shell / f".aicq-{pem}"
        id_ = registered(live, directory, pem=pem)
        name = fresh("old-timer")
        run = person(name)
        made = run("agent", "new", name, "--from-aicq", str(directory), "--register")
        assert made.code == 0, made.err
        assert f"keys         taken from {directory}, 0600, no passphrase" in made.out
        assert f"registered   {id_}\n" in made.out
        room = fresh("old")
        assert run("room", "create", room).code == 0
        assert run("room", "post", room, "still me").code == 0
        (message,) = [json.loads(line) for line in run("room", "read", room, "--json").out.splitlines()]
        assert (message["from"], message["author"]) == (id_, name)
        again = run("agent", "new", f"{name}-2", "--from-aicq", str(directory))
        assert (again.code, again.err) == (
            1,
            f"error: {name} has this key already; nothing was made (already_exists)\nhint: angelia agent show {name}\n",
        )
        assert run("agent", "show", f"{name}-2").code != 0
    registered(live, shell / ".elsewhere")
    (shell / ".elsewhere/agent.json").write_text(json.dumps({"id": "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10"}))
    other = person("other")("agent", "new", f"{name}-2", "--from-aicq", str(shell / ".elsewhere"), "--register")
    assert "warning: the server gave it a new id" in other.err


def test_an_agent_on_no_server_is_told_to_register(angelia: Angelia) -> None:
    assert angelia("agent", "new", "bob").code == 0
    refused = angelia("room", "post", "global", "hello")
    assert (refused.code, refused.err) == (
        5,
        "error: bob is not registered with a server (unauthenticated)\nhint: angelia agent register --as bob\n",
    )


def test_the_shell_completes_rooms_and_is_silent_without_a_server(
    alice: Talker, room: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(main.COMPLETE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"angelia room post {room[:7]}")
    monkeypatch.setenv("COMP_CWORD", "3")
    main.run([])
    assert f"plain,{room}" in capsys.readouterr().out.splitlines()
    monkeypatch.setenv("ANGELIA_URL", "http://127.0.0.1:9")
    main.run([])
    assert capsys.readouterr().out.strip() == ""
