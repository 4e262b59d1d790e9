"""Sealed mail from the command line: what a person sees, and the exit code that a script sees."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from angelia.envelope import json_form, wire
from angelia.envelope.sealing import Control
from angelia.mailbox import bundle_file, identity
from angelia.mailbox.mailbox import Mailbox
from cli.running import Angelia, Ended
from client.recorder import Recorder

Into = Callable[..., tuple[bytes, str]]
Terminal = Callable[..., Ended]
SIGNATURE = "signature_verification_failed"
SEALED = r"sealed for bob \(X-Wing, Ed25519 \+ ML-DSA-65\), ([\d,]+) bytes, expires in 7d"


@dataclass
class Desk:
    """Alice and Bob with a home each, who know each other's keys, and no server that anybody asks."""

    alice: Angelia
    bob: Angelia
    server: Recorder
    shell: Path
    clock: Callable[[timedelta], None]

    def letter(self, body: str = "hello", *flags: str, name: str = "letter.agl", age: timedelta = timedelta(0)) -> Path:
        """A sealed envelope from Alice to Bob, as old as that."""
        self.clock(-age)
        sent = self.alice("mail", "send", "bob", body, "--out", name, *flags)
        self.clock(timedelta(0))
        assert sent.code == 0, sent.err
        return self.shell / name


@pytest.fixture(scope="session")
def acquainted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two homes whose agents learned each other's keys an hour ago, and their bundles as files."""
    place, then = tmp_path_factory.mktemp("acquainted"), datetime.now(UTC) - timedelta(hours=1)
    alice, bob = (
        Mailbox(place / f"home-{name}", identity.create(place / f"home-{name}", name), then)
        for name in ("alice", "bob")
    )
    for box in (alice, bob):
        box.own_keys.first_bundle(then)
        box.key_rotation.finish(then)
        (place / f"{box.identity.handle}.keys").write_bytes(bundle_file.encode(box.own_keys.chain()))
    bundle_file.take(alice.pinned_keys, bob.own_keys.chain(), then)
    bundle_file.take(bob.pinned_keys, alice.own_keys.chain(), then)
    bob.allowlist.allow("alice", then)
    for box in (alice, bob):
        box.close()
    return place


@pytest.fixture
def desk(
    acquainted: Path,
    person: Callable[[str], Angelia],
    server: Recorder,
    shell: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Desk]:
    def clock(shift: timedelta) -> None:
        monkeypatch.setattr("angelia.cli.times.now", lambda: datetime.now(UTC) + shift)

    shutil.copytree(acquainted, shell, dirs_exist_ok=True)
    yield Desk(person("alice"), person("bob"), server, shell, clock)
    assert server.seen == []


def opened(desk: Desk, name: str) -> Mailbox:
    """The mailbox itself of one of the two."""
    home = desk.shell / f"home-{name}"
    return Mailbox(home, identity.load(home, name, lambda: ""), datetime.now(UTC))


def errors(ended: Ended) -> tuple[int, str]:
    """The exit code, and the code in the one line of the error."""
    (line,) = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert ended.out == ""
    return ended.code, line.rpartition("(")[2].removesuffix(")")


def test_a_message_travels_as_a_file_and_its_receipt_comes_back_as_one(desk: Desk) -> None:
    sent = desk.alice("mail", "send", "bob", "deploy at 18:00", "--out", "letter.agl")
    words, id_ = sent.out.splitlines()
    size = (desk.shell / "letter.agl").stat().st_size
    found = re.fullmatch(SEALED, words)
    assert found is not None
    assert found[1] == f"{size:,}"
    assert re.fullmatch("[0-9a-f]{12}", id_)
    assert sent.err == "hand it over within 5 minutes, for `angelia mail open FILE`: letter.agl\n"

    opened = desk.bob("mail", "open", "letter.agl")
    assert (opened.code, opened.out) == (0, "deploy at 18:00\n")
    assert re.fullmatch(rf"from alice, \ds ago, signature ok, not seen before, {id_}\n", opened.err)

    acked = desk.bob("mail", "ack", id_, "--out", "receipt.json")
    assert (acked.code, acked.out) == (0, f"acknowledged {id_} of alice: read\n")
    taken = desk.alice("mail", "receipts", "receipt.json")
    assert taken.code == 0
    assert re.fullmatch(rf"bob signed: {id_} read \ds ago\n", taken.out)
    assert desk.alice("mail", "outbox").out.splitlines()[1].split()[:2] == [id_, "bob"]
    assert desk.alice("mail", "outbox").out.splitlines()[1].split()[3] == "read"


def test_a_copy_is_refused_the_second_time_and_the_hint_works_when_pasted(desk: Desk) -> None:
    desk.letter("once", name="copy.agl")
    assert desk.bob("mail", "open", "./copy.agl").code == 0
    desk.clock(timedelta(minutes=12))
    again = desk.bob("mail", "open", "./copy.agl")
    error, hint = again.err.splitlines()
    assert again.code == 4
    assert error == "error: this envelope was opened 12m ago and is refused a second time (replay_rejected)"
    assert re.fullmatch("hint: read the stored copy: angelia mail open [0-9a-f]{12}", hint)
    desk.clock(timedelta(0))
    stored = desk.bob(*hint.partition(": ")[2].partition(": ")[2].split()[1:])
    assert (stored.code, stored.out) == (0, "once\n")
    assert "not seen before" not in stored.err
    assert errors(desk.bob("mail", "open", "copy.agl")) == (4, "replay_rejected")


def test_a_changed_envelope_is_tampering(desk: Desk) -> None:
    path = desk.letter("x" * 600)
    for at, ended in ((50, (8, "key_not_found")), *((at, (3, SIGNATURE)) for at in (16, 100, -3600, -3400, -3380, -1))):
        wire = bytearray(path.read_bytes())
        wire[at] ^= 1
        (desk.shell / "changed.agl").write_bytes(wire)
        assert errors(desk.bob("mail", "open", "changed.agl")) == ended, at
    assert desk.bob("mail", "inbox").out == ""


def test_what_is_no_envelope_is_said_so(desk: Desk) -> None:
    (desk.shell / "letter.agl").write_bytes(b"hello")
    (desk.shell / "empty.agl").touch()
    assert errors(desk.bob("mail", "open", "letter.agl")) == (1, "invalid_argument")
    assert errors(desk.bob("mail", "open", "empty.agl")) == (1, "invalid_argument")


def test_mail_of_somebody_who_is_not_allowed_stays_closed_until_it_is(desk: Desk) -> None:
    desk.bob("mail", "deny", "alice")
    desk.letter("please")
    refused = desk.bob("mail", "open", "letter.agl")
    assert errors(refused) == (5, "authorization_denied")
    assert refused.err.splitlines()[1] == "hint: angelia mail allow alice"
    assert desk.bob("mail", "allow", "alice").code == 0
    assert desk.bob("mail", "open", "letter.agl").out == "please\n"


def test_nobody_opens_what_is_for_somebody_else(desk: Desk, person: Callable[[str], Angelia]) -> None:
    carol = person("carol")
    carol("agent", "new", "carol")
    carol("key", "publish", "--out", "carol.keys")
    carol("mail", "allow", "alice", "alice.keys")
    desk.letter("for bob")
    assert errors(carol("mail", "open", "letter.agl")) == (5, "wrong_recipient")


def test_five_minutes_are_the_limit_of_handing_over(desk: Desk) -> None:
    desk.letter("in time", name="young.agl", age=timedelta(seconds=290))
    desk.letter("too late", name="old.agl", age=timedelta(seconds=301))
    desk.letter("too early", name="future.agl", age=timedelta(seconds=-310))
    desk.letter("over", "--ttl", "60s", name="expired.agl", age=timedelta(seconds=61))
    assert desk.bob("mail", "open", "young.agl").code == 0
    assert errors(desk.bob("mail", "open", "old.agl")) == (6, "stale")
    assert errors(desk.bob("mail", "open", "future.agl")) == (6, "from_future")
    assert errors(desk.bob("mail", "open", "expired.agl")) == (6, "message_expired")


def test_several_files_have_an_outcome_each(desk: Desk) -> None:
    desk.letter("one", name="1.agl")
    desk.letter("two", name="2.agl", age=timedelta(seconds=400))
    ended = desk.bob("mail", "receive", "1.agl", "2.agl", "3.agl", "-q")
    assert (ended.code, ended.out) == (1, "one\n")
    lines = ended.err.splitlines()
    assert lines[0].startswith("error: 2.agl: the envelope was made 400.")
    assert lines[1] == "error: there is no file 3.agl (not_found)"
    desk.letter("three", name="3.agl")
    twice = desk.bob("mail", "receive", "3.agl", "3.agl")
    assert (twice.code, twice.out) == (4, "three\n")
    assert desk.bob("mail", "receive", "nowhere.agl").code == 8


def test_what_is_not_there_is_not_found(desk: Desk) -> None:
    for said in (
        "mail open nowhere.agl",
        "mail open ./nowhere",
        "mail open 0123456789ab",
        "mail ack 0123456789ab",
        "mail receipts nowhere.json",
        "mail allow alice nowhere.keys",
        "mail allow --import nowhere.json",
        "mail deny mallory",
        "mail allow carol",
        "mail send carol hi",
    ):
        assert errors(desk.bob(*said.split()))[0] == 8, said
    assert errors(desk.bob("mail", "open", "0123")) == (2, "usage")
    assert errors(desk.bob("mail", "migrate", "--from", "nowhere")) == (2, "usage")


def test_an_id_that_begins_two_messages_is_ambiguous(desk: Desk) -> None:
    for name in ("1.agl", "2.agl"):
        desk.letter(name, name=name)
        desk.bob("mail", "open", name)
    (database,) = desk.shell.glob("home-bob/bob/mail/replay_state.db")
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE inbox SET replay_key = 'abcdef01' || substr(replay_key, 9)")
    connection.close()
    assert errors(desk.bob("mail", "open", "ABCDEF01")) == (2, "ambiguous_id")
    assert errors(desk.bob("mail", "ack", "abcdef01")) == (2, "ambiguous_id")


def test_json_is_one_object_a_line_with_more_than_the_tables(desk: Desk) -> None:
    sent = json.loads(desk.alice("mail", "send", "bob", "hi", "--out", "letter.agl", "--json").out)
    assert sent.keys() == {"replay_key", "message_id", "recipient", "bytes", "expires_at", "file"}
    assert (sent["recipient"], sent["file"]) == ("bob", "letter.agl")
    read = json.loads(desk.bob("mail", "open", "letter.agl", "--json").out)
    assert read["body"] == "hi"
    assert (read["replay_key"], read["sender"], read["priority"]) == (sent["replay_key"], "alice", 1)
    (row,) = [json.loads(line) for line in desk.bob("mail", "inbox", "--json").out.splitlines()]
    assert {"replay_key", "message_id", "sender", "sender_fingerprint", "created_at", "priority", "status"} < row.keys()
    assert row["replay_key"] == sent["replay_key"]
    (row,) = [json.loads(line) for line in desk.alice("mail", "outbox", "--json").out.splitlines()]
    assert {"replay_key", "recipient", "created_at", "status", "expires_at", "attempts"} < row.keys()
    (entry,) = [json.loads(line) for line in desk.bob("mail", "allow", "--json").out.splitlines()]
    assert entry.keys() == {"fingerprint", "nhi", "label", "added_at"}
    receipts = [json.loads(line) for line in desk.bob("mail", "receipts", "--json").out.splitlines()]
    assert [one["status"] for one in receipts] == ["read", "delivered"]
    refused = desk.bob("mail", "open", "letter.agl", "--json")
    assert json.loads(refused.err)["code"] == "replay_rejected"
    assert json.loads(refused.err)["exit"] == 4


def test_quiet_prints_only_the_id(desk: Desk) -> None:
    sent = desk.alice("mail", "send", "bob", "hi", "--out", "letter.agl", "-q")
    assert re.fullmatch("[0-9a-f]{64}\n", sent.out)
    assert sent.err == ""
    assert desk.bob("mail", "open", "letter.agl", "-q") == Ended(0, "hi\n", "")
    assert desk.bob("mail", "open", sent.out.strip(), "-q") == Ended(0, "hi\n", "")
    assert desk.bob("mail", "ack", sent.out.strip(), "-q") == Ended(0, "", "")


def test_an_empty_list_says_so_on_stderr(desk: Desk) -> None:
    for list_ in ("inbox", "outbox", "receipts", "allow"):
        ended = desk.alice("mail", list_)
        assert (ended.code, ended.out) == (0, "")
        assert ended.err.splitlines()[1].startswith("hint: ")
        assert desk.alice("mail", list_, "--json").out == ""
        assert errors(desk.alice("mail", list_, "--require")) == (8, "not_found")


def test_lists_come_in_pages(desk: Desk) -> None:
    for name in ("1", "2", "3"):
        desk.letter(name, name=name)
        desk.bob("mail", "open", name)
    for words in (("mail", "inbox"), ("mail", "receipts")):
        first = desk.bob(*words, "-n", "2")
        assert len(first.out.splitlines()) == 3
        cursor = first.err.split("--cursor ")[1].strip()
        rest = desk.bob(*words, "--cursor", cursor)
        both = desk.bob(*words, "-n", "2", "--all").out.splitlines()
        assert both == first.out.splitlines() + rest.out.splitlines()[1:]
    assert desk.bob("mail", "receipts", "--cursor", "x").code == 2


EVIL = "red \x1b[31m\u202eevil\u2066 \x00 end"


def test_what_others_write_stays_text_on_a_terminal(desk: Desk) -> None:
    shown = "red \\x1b[31m\\u202eevil\\u2066 \\x00 end"
    desk.alice("mail", "send", "bob", "--out", "letter.agl", stdin=f"first\n{EVIL}\tx\n".encode())
    assert desk.bob("mail", "open", "letter.agl").out == f"first\n{shown}\tx\n"
    desk.letter(name="json.agl")
    desk.alice("mail", "send", "bob", "--out", "2.agl", stdin=EVIL.encode())
    machine = desk.bob("mail", "open", "2.agl", "--json").out
    assert machine.isascii()
    assert machine.rstrip("\n").isprintable()
    assert json.loads(machine)["body"] == EVIL
    assert desk.bob("mail", "allow", "alice", "--label", EVIL.replace("\x00", "")).code == 0
    assert "\\x1b[31m\\u202eevil" in desk.bob("mail", "allow").out


def test_bytes_that_are_no_text_go_into_a_file_as_they_are(desk: Desk, into: Into, terminal: Terminal) -> None:
    desk.alice("mail", "send", "bob", "-", "--out", "letter.agl", stdin=bytes(range(250, 256)))
    written, said = into(desk.bob, "mail", "open", "letter.agl")
    assert written == bytes(range(250, 256))
    assert said.splitlines()[1] == "6 bytes that are no text, written as they are"
    id_ = said.splitlines()[0].rpartition(" ")[2]
    assert into(desk.bob, "mail", "open", id_, "-q") == (written, "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANGELIA_HOME", str(desk.shell / "home-bob"))
        shown = terminal("mail", "open", id_).out
    ways = f"`angelia mail open {id_} > FILE` writes them, --json shows them in base64url"
    assert shown.splitlines()[1] == f"6 bytes that are no text; {ways}"
    read = json.loads(desk.bob("mail", "open", id_, "--json").out)
    assert read["body_base64"] == "-vv8_f7_"
    assert "body" not in read


def test_several_messages_that_are_no_text_are_not_run_together(desk: Desk, into: Into) -> None:
    for name in ("1.agl", "2.agl"):
        desk.alice("mail", "send", "bob", "-", "--out", name, stdin=b"\xff\xff")
    written, said = into(desk.bob, "mail", "receive", "1.agl", "2.agl")
    assert written == b""
    assert len(re.findall("2 bytes that are no text; `angelia mail open [0-9a-f]{12} > FILE` writes them", said)) == 2


def test_an_answer_names_its_question_as_the_inbox_does(desk: Desk) -> None:
    desk.letter("a question")
    question = json.loads(desk.bob("mail", "open", "letter.agl", "--json").out)
    id_, uuid = question["replay_key"], question["message_id"]
    for number, said in enumerate((id_[:8], id_[:12].upper(), id_, uuid, uuid.replace("-", ""))):
        answer = f"answer-{number}.agl"
        sent = desk.bob("mail", "send", "alice", "yes", "--correlation", said, "--out", answer)
        assert sent.code == 0, sent.err
        assert str(wire.decode((desk.shell / answer).read_bytes()).header.correlation_id) == uuid
    unknown = desk.bob("mail", "send", "alice", "yes", "--correlation", "deadbeef", "--out", "x.agl")
    assert errors(unknown) == (8, "not_found")
    assert "hint: `angelia mail inbox` lists them\n" in unknown.err
    wrong = desk.bob("mail", "send", "alice", "yes", "--correlation", "that one", "--out", "x.agl")
    assert "--correlation: 'that one' is neither a UUID nor the id of a message in the inbox (usage)" in wrong.err


@pytest.mark.parametrize(
    ("said", "error", "hint"),
    [
        ("withdraw zzz", "'zzz' is no id: no message of the outbox has such an id", "`angelia mail outbox` lists them"),
        ("withdraw deadbeef", "there is no message deadbeef in the outbox", "`angelia mail outbox` lists them"),
        ("open deadbeef", "there is no message deadbeef in the inbox", "`angelia mail inbox` lists them"),
        ("ack deadbeef", "there is no message deadbeef in the inbox", "`angelia mail inbox` lists them"),
        (
            "open zz",
            "there is no file zz, and no message of the inbox has such an id",
            "`angelia mail inbox` lists them",
        ),
        ("open", "an empty text is no id: say the id of a message, or a file", "`angelia mail inbox` lists them"),
        ("receive no.agl", "there is no file no.agl", "without FILE, mail comes from the server"),
    ],
)
def test_what_is_not_there_is_named_with_the_list_to_look_at(desk: Desk, said: str, error: str, hint: str) -> None:
    words = said.split() if " " in said else [said, ""]
    ended = desk.bob("mail", *words)
    lines = ended.err.splitlines()
    assert lines[0].startswith(f"error: {error} (")
    assert lines[1] == f"hint: {hint}"


def test_a_file_that_is_no_envelope_or_somebody_elses_says_so(desk: Desk) -> None:
    (desk.shell / "README.md").write_text("# Read me\n" * 99)
    error, hint = desk.bob("mail", "open", "README.md").err.splitlines()
    assert error.startswith("error: the file README.md is no envelope: ")
    assert hint == "hint: `angelia mail send NAME --out FILE` makes one"
    desk.letter()
    ended = desk.alice("mail", "open", "letter.agl")
    assert ended.err.splitlines() == [
        "error: the envelope is for bob (wrong_recipient)",
        "hint: only bob can open the file letter.agl: hand it over",
    ]
    shutil.copytree(desk.shell / "home-bob" / "bob", desk.shell / "home-alice" / "bob")
    ended = desk.alice("mail", "open", "letter.agl", "--as", "alice")
    assert ended.err.splitlines()[1] == "hint: angelia mail open letter.agl --as bob"


def test_the_message_may_be_empty_and_may_not_be_too_big(desk: Desk) -> None:
    assert desk.alice("mail", "send", "bob", "--out", "empty.agl", stdin=b"").code == 0
    assert desk.bob("mail", "open", "empty.agl", "-q") == Ended(0, "\n", "")
    most = 1 << 20
    assert desk.alice("mail", "send", "bob", "--out", "most.agl", stdin=b"x" * most).code == 0
    assert len(desk.bob("mail", "open", "most.agl", "-q").out) == most + 1
    refused = desk.alice("mail", "send", "bob", "--out", "more.agl", stdin=b"x" * (most + 1))
    assert errors(refused) == (1, "invalid_argument")
    assert "a message has at most 1,048,576 bytes, and stdin has more" in refused.err
    assert not (desk.shell / "more.agl").exists()
    assert len(desk.alice("mail", "outbox").out.splitlines()) == 3


def test_a_message_travels_as_its_sender_wishes(desk: Desk) -> None:
    question = "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10"
    wishes = ("--compress zstd --pad", "--compress gzip", "--priority critical --ttl 1h", f"--correlation {question}")
    for number, flags in enumerate(wishes):
        desk.letter("wish " * 100, *flags.split(), name=f"{number}.agl")
        read = json.loads(desk.bob("mail", "open", f"{number}.agl", "--json").out)
        assert read["body"] == "wish " * 100
        assert read["priority"] == (3 if "critical" in flags else 1)
        assert read.get("correlation_id") == (question if question in flags else None)


def test_a_time_to_live_beyond_the_limit_is_refused(desk: Desk) -> None:
    refused = desk.alice("mail", "send", "bob", "x", "--ttl", "8d", "--out", "letter.agl")
    assert refused.err == (
        "error: --ttl: a message lives for 7d at most (usage)\n"
        "hint: the setting max_ttl_seconds says so, here and on the server\n"
    )
    assert refused.code == 2


def test_a_file_that_is_there_is_never_overwritten_and_nothing_is_done(desk: Desk) -> None:
    desk.letter("kept")
    before = (desk.shell / "letter.agl").read_bytes()
    assert errors(desk.alice("mail", "send", "bob", "other", "--out", "letter.agl")) == (1, "conflict")
    assert (desk.shell / "letter.agl").read_bytes() == before
    assert len(desk.alice("mail", "outbox").out.splitlines()) == 2
    id_ = desk.bob("mail", "open", "letter.agl").err.rpartition(" ")[2].strip()
    given = len(desk.bob("mail", "receipts").out.splitlines())
    assert errors(desk.bob("mail", "ack", id_, "--out", "letter.agl")) == (1, "conflict")
    assert len(desk.bob("mail", "receipts").out.splitlines()) == given


def test_a_receipt_that_somebody_changed_counts_for_nothing(desk: Desk) -> None:
    id_ = desk.alice("mail", "send", "bob", "hi", "--out", "letter.agl", "-q").out[:12]
    desk.bob("mail", "open", "letter.agl")
    desk.bob("mail", "ack", id_, "--out", "receipt.json")
    receipt = json.loads((desk.shell / "receipt.json").read_text())
    for change, code in (
        ({"status": "failed"}, 3),
        ({"time_ms": receipt["time_ms"] - 1}, 3),
        ({"message_id": "3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10"}, 1),
        ({"replay_key": receipt["replay_key"][:9]}, 1),
        ({"replay_key": "0" * 64}, 8),
        ({"status": "eaten"}, 1),
        ({"signature_ed25519": "!"}, 1),
    ):
        (desk.shell / "forged.json").write_text(json.dumps({**receipt, **change}))
        ended = desk.alice("mail", "receipts", "forged.json")
        assert (ended.code, ended.out) == (code, ""), change
    assert "stored" in desk.alice("mail", "outbox").out
    (desk.shell / "forged.json").write_bytes(b"\xff\xfe")
    assert desk.alice("mail", "receipts", "forged.json").code == 1


def test_the_allowlist_takes_over_a_list_and_says_what_it_refused(desk: Desk) -> None:
    fingerprint = json.loads(desk.bob("mail", "allow", "--json").out)["fingerprint"]
    desk.bob("mail", "deny", "alice")
    listed = [{"fingerprint": fingerprint, "nhi": "alice"}, "abc", {"fingerprint": "x", "nhi": "y"}]
    (desk.shell / "list.json").write_text(json.dumps(listed))
    ended = desk.bob("mail", "allow", "--import", "list.json")
    assert (ended.code, ended.out) == (0, "added 1 entry, 2 refused\n")
    assert len(ended.err.splitlines()) == 2
    (desk.shell / "list.json").write_text("{")
    assert desk.bob("mail", "allow", "--import", "list.json").code == 1


def test_the_allowlist_is_handed_over_as_a_file_that_can_be_imported(desk: Desk) -> None:
    listed = json.loads(desk.bob("mail", "allow", "--json").out)
    ended = desk.bob("mail", "allow", "--export", "list.json")
    assert (ended.code, ended.out) == (0, "exported 1 entry to list.json\n")
    assert [one["fingerprint"] for one in json.loads((desk.shell / "list.json").read_text())] == [listed["fingerprint"]]
    assert desk.bob("mail", "allow", "--export", "list.json").code != 0  # never overwritten
    desk.bob("mail", "deny", "alice")
    assert desk.bob("mail", "allow", "--import", "list.json").out == "added 1 entry\n"


def test_a_control_message_is_stored_for_the_sdk_and_never_shown(desk: Desk) -> None:
    now = datetime.now(UTC)
    with opened(desk, "alice") as alice:
        known = alice.pinned_keys.bundle("bob", now, max_age=None)
        assert known is not None
        sealed = [
            alice.outbox.seal(known.bundle, bytes([Control.GROUP_KEY]) + b"secret", now=now, control=True)
            for _ in range(2)
        ]
    for name, one in zip(("1.agl", "2.agl"), sealed, strict=True):
        (desk.shell / name).write_bytes(one.wire)
    note = "a control message for the SDK was stored\n"
    assert desk.bob("mail", "open", "1.agl") == Ended(0, "", note)
    assert desk.bob("mail", "receive", "2.agl", "--json") == Ended(0, "", note)
    for verb in ("open", "ack"):
        assert errors(desk.bob("mail", verb, sealed[0].replay_key)) == (8, "not_found")
    assert desk.bob("mail", "inbox").out == ""
    with opened(desk, "bob") as bob:
        assert [one.body for one in bob.inbox.controls(Control.GROUP_KEY)] == [b"\x02secret"] * 2


def test_an_old_copy_in_json_is_known_to_have_been_opened(desk: Desk) -> None:
    letter = desk.letter(age=timedelta(seconds=200))
    (desk.shell / "letter.json").write_bytes(json_form.encode(wire.decode(letter.read_bytes())))
    assert desk.bob("mail", "open", "letter.json").code == 0
    desk.clock(timedelta(seconds=200))
    for name in ("letter.json", "letter.agl"):
        assert errors(desk.bob("mail", "open", name)) == (4, "replay_rejected")


def test_the_mailbox_checks_its_files(desk: Desk) -> None:
    desk.letter()
    desk.bob("mail", "open", "letter.agl")
    assert desk.bob("mail", "verify") == Ended(0, "every file is what its name says\n", "")
    (stored,) = desk.shell.glob("home-bob/bob/mail/inbox/*.agl")
    stored.write_bytes(stored.read_bytes() + b"x")
    ended = desk.bob("mail", "verify")
    assert (ended.code, ended.out) == (3, "1 problem\n")
    assert "was changed" in ended.err
    assert json.loads(desk.bob("mail", "verify", "--json").out) == {"done": "problems", "count": 1}


def test_forgetting_earlier_than_a_day_has_to_be_forced(desk: Desk) -> None:
    desk.letter()
    desk.bob("mail", "open", "letter.agl")
    assert desk.bob("mail", "prune") == Ended(0, "pruned 0 rows\n", "")
    assert desk.bob("mail", "prune", "--retention-hours", "1").code == 1
    assert desk.bob("mail", "prune", "--retention-hours", "0", "--force").out == "pruned 0 rows\n"
    assert errors(desk.bob("mail", "open", "letter.agl")) == (4, "replay_rejected")


def test_a_calyx_mailbox_is_taken_over(desk: Desk) -> None:
    old = desk.shell / "calyx"
    (old / "mailbox").mkdir(parents=True)
    (old / "mailbox" / "seen_cache.json").write_text(json.dumps(["m1", "m2"]))
    ended = desk.bob("mail", "migrate", "--from", str(old))
    assert ended.code == 0
    assert ended.out.splitlines()[0].split(maxsplit=1) == ["ids", "2 in the old cache"]
    assert desk.bob("mail", "migrate", "--from", str(old)).code == 0


def test_with_a_server_keys_need_no_files(live: str, person: Callable[[str], Angelia], shell: Path) -> None:
    alice, bob, carol = (f"{name}-{secrets.token_hex(3)}" for name in ("alice", "bob", "carol"))
    one, other = person(alice), person(bob)
    made = one("agent", "new", alice, "--register")
    facts = dict(line.split(maxsplit=1) for line in made.out.splitlines())
    assert list(facts) == ["keys", "registered", "handle", "bundle", "fingerprint"]
    assert facts["bundle"] == "v1 published, 100 one-time keys"
    assert re.fullmatch(r"[\w-]{43}", facts["fingerprint"], re.ASCII)
    assert re.fullmatch("[0-9a-f-]{36}\n", other("agent", "new", bob, "--register", "-q").out)

    allowed = other("mail", "allow", alice, "--as", bob)
    assert allowed.out == f"allowed {alice}: {facts['fingerprint']} (must equal {alice}'s `agent show`)\n"
    assert f"fingerprint  {facts['fingerprint']}\n" in one("agent", "show").out

    sent = one("mail", "send", bob, "the server cannot read this", "--out", "letter.agl", "--as", alice)
    assert re.match(rf"sealed for {bob} \(X-Wing, Ed25519 \+ ML-DSA-65\), [\d,]+ bytes, expires in 7d\n", sent.out)
    opened = other("mail", "open", "letter.agl")
    assert (opened.code, opened.out) == (0, "the server cannot read this\n")

    # A sender who rotates its pair is followed by whoever opens its mail.
    assert one("key", "rotate", "--signer").code == 0
    one("mail", "send", bob, "with another pair", "--out", "new.agl")
    assert other("mail", "open", "new.agl").out == "with another pair\n"

    # Keys once seen are looked up again after an hour, unless nobody answers.
    assert other("key", "rotate").code == 0
    database = sqlite3.connect(shell / f"home-{alice}" / alice / "mail" / "replay_state.db")
    with database:
        database.execute("UPDATE bundles SET fetched_at = '2026-01-01T00:00:00.000000Z'")
    nowhere = ("--url", "http://127.0.0.1:9", "--timeout", "1")
    assert one("mail", "send", bob, "hi", *nowhere).code != 0
    by_hand = one("mail", "send", bob, "by hand", "--out", "old-keys.agl", *nowhere)
    assert by_hand.code == 0
    assert by_hand.err.startswith("warning: ")
    assert database.execute("SELECT bundle_version FROM pins").fetchall() == [(1,)]
    assert one("mail", "send", bob, "fresh", "--out", "new-keys.agl").code == 0
    assert database.execute("SELECT bundle_version FROM pins").fetchall() == [(2,)]
    database.close()
    assert other("mail", "receive", "old-keys.agl", "new-keys.agl").out == "by hand\nfresh\n"

    person(carol)("agent", "new", carol)
    person(carol)("agent", "register", "--url", "http://127.0.0.1:9", "--timeout", "1")
    missing = one("mail", "send", carol, "hi")
    assert errors(missing)[0] == 8


def test_nothing_is_sealed_for_an_agent_without_a_bundle(server: Recorder, person: Callable[[str], Angelia]) -> None:
    from cli.test_agent import AGENT, PUBLISHED

    server.tell("POST", "/register", {"id": AGENT["id"], "profile_url": "/who/x"}, status=201)
    server.tell("GET", "/v1/agents/me", AGENT)
    server.tell("POST", "/v1/keys/bundle", PUBLISHED, status=201)
    problem = {
        "title": "The agent has published no keys",
        "detail": "carol has no key bundle, so nothing can be sealed to it",
        "code": "key_not_found",
        "status": 404,
        "hint": "carol runs `angelia key publish`",
    }
    server.tell("GET", "/v1/keys/bundle/carol", problem, status=404)
    alice = person("alice")
    alice("agent", "new", "alice", "--register")
    ended = alice("mail", "send", "carol", "hi", "--as", "alice")
    assert ended == Ended(
        8,
        "",
        "error: carol has no key bundle, so nothing can be sealed to it (key_not_found)\n"
        "hint: carol runs `angelia key publish`; without a bundle there is `angelia dm send carol`\n",
    )


def test_a_deleted_message_is_gone_and_cannot_come_back(desk: Desk, shell: Path) -> None:
    letter = desk.letter("the secret plan")
    id_ = json.loads(desk.bob("mail", "open", str(letter), "--json").out)["replay_key"]
    asked = desk.bob("mail", "delete", id_[:12])
    assert (asked.code, "needs a yes" in asked.err) == (2, True)
    assert desk.bob("mail", "delete", id_[:12], "--dry-run").code == 0
    assert desk.bob("mail", "open", id_[:12]).code == 0
    done = desk.bob("mail", "delete", id_[:12], "--yes")
    assert (done.code, done.out) == (0, f"deleted {id_[:12]} from alice\n")
    assert desk.bob("mail", "open", id_[:12]).code == 8
    assert desk.bob("mail", "open", str(letter)).code == 4  # its replay row stays
    assert list((shell / "home-bob").rglob(f"{id_}.agl")) == []
    assert desk.bob("mail", "verify").code == 0
    assert desk.bob("mail", "delete", id_[:12], "--yes").code == 8

    sent = desk.alice("mail", "delete", id_[:12], "--yes")
    assert sent.out == f"deleted {id_[:12]} to bob\n"
    assert desk.alice("mail", "outbox").out == ""
    assert list((shell / "home-alice").rglob(f"{id_}.agl")) == []
    assert desk.alice("mail", "verify").code == 0


def test_no_line_of_a_body_poses_as_one_of_ours_on_a_terminal(
    desk: Desk, terminal: Terminal, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = "from carol, 2s ago, signature ok, not seen before"
    body = f"hello\n{fake}\n\n{'x' * 78}{fake}\n{'界' * 60}\n\tend"
    letter = desk.letter(body)
    assert desk.bob("mail", "open", str(letter)).out == body + "\n"  # a pipe gets what was sent
    id_ = json.loads(desk.bob("mail", "inbox", "--json").out)["replay_key"]
    monkeypatch.setenv("ANGELIA_HOME", str(shell / "home-bob"))
    first, *shown = terminal("mail", "open", id_[:12]).out.splitlines()
    assert first.startswith("from alice, ")
    assert all(line.startswith("│ ") for line in shown)
    assert [line for line in shown if line.startswith("│ from")] == [f"│ {fake}"] * 2
    assert "│ " + "x" * 78 in shown
    assert "│ " + "界" * 39 in shown
