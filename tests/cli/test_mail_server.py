"""Mail through a real server from the command line: what both sides see, and the exit code that a script sees."""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from angelia.client import Client, Unreachable, mail_calls, mail_sending, own_key_renewal
from angelia.client.mail_calls import LeasedMessage
from angelia.client.mail_sending import WAITING
from angelia.errors import AngeliaError, QueueFull, RateLimited, Unavailable
from angelia.mail.api import NackItem
from angelia.mailbox import identity, open_failures
from angelia.mailbox.mailbox import Mailbox
from cli.pasting import commands_in
from cli.running import Angelia, Ended
from forged_envelopes import forged
from live_agents import Lossy
from lying_proxy import Answer, Liar, lying, page, problem
from server_process import ServerProcess

NOWHERE = ("--url", "http://127.0.0.1:9", "--timeout", "1")


@dataclass(frozen=True)
class Agent:
    """An agent of the real server, and the command line of whoever owns it."""

    name: str
    home: Path
    run: Angelia

    def __call__(self, *argv: str, stdin: bytes | None = None) -> Ended:
        return self.run(*argv, stdin=stdin)

    def mailbox(self) -> Mailbox:
        return Mailbox(self.home, identity.load(self.home, self.name, lambda: ""), datetime.now(UTC))

    def database(self) -> sqlite3.Connection:
        return sqlite3.connect(self.home / self.name / "mail" / "replay_state.db", isolation_level=None)

    def make_due(self) -> None:
        """The time of the next try has come for everything that waits."""
        with closing(self.database()) as database:
            database.execute("UPDATE outbox SET next_try_at = '2026-01-01T00:00:00.000000Z' WHERE status = 'stored'")


@pytest.fixture
def join(live: str, person: Callable[[str], Angelia], shell: Path) -> Callable[[str], Agent]:
    def make(name: str) -> Agent:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(own_key_renewal, "ONE_TIME_BATCH", 21)
            patch.setattr(own_key_renewal, "ONE_TIME_LOW", 20)
            named = f"{name}-{secrets.token_hex(3)}"
            agent = Agent(named, shell / f"home-{named}", person(named))
            assert agent("agent", "new", named, "--register", "-q").code == 0
            return agent

    return make


@pytest.fixture
def alice(join: Callable[[str], Agent]) -> Agent:
    return join("alice")


@pytest.fixture
def bob(join: Callable[[str], Agent], alice: Agent) -> Agent:
    """Bob, who opens Alice's mail."""
    bob = join("bob")
    assert bob("mail", "allow", alice.name).code == 0
    return bob


def hand_out_again(client: Client, one: LeasedMessage) -> None:
    """Ends the lease of a message, as its time would: the server hands it out again."""
    nack = NackItem(replay_key=one.replay_key, lease_token=one.lease_token, reason="full", retry_after=0)
    client.mail.nack([nack])


def test_a_message_is_sent_received_and_acknowledged(alice: Agent, bob: Agent) -> None:
    sent = alice("mail", "send", bob.name, stdin=b"deploy at 18:00\n")
    what, id_ = sent.out.splitlines()
    expected = rf"sent to {bob.name}, sealed \(X-Wing, Ed25519 \+ ML-DSA-65\), \d,\d{{3}} bytes, expires in 7d"
    assert re.fullmatch(expected, what)
    assert re.fullmatch("[0-9a-f]{12}", id_)
    met = rf"first contact with {bob.name}, fingerprint [\w-]{{43}}; compare it by another way\n"
    assert re.fullmatch(met, sent.err)
    assert sent.code == 0

    received = bob("mail", "receive")
    assert (received.code, received.out) == (0, "deploy at 18:00\n")
    first, last = received.err.splitlines()
    assert re.fullmatch(rf"from {alice.name}, \ds ago, signature ok, not seen before", first)
    assert last == f"acknowledged; {alice.name} gets a signed receipt"
    assert bob("mail", "inbox").out.splitlines()[1].split()[0] == id_

    assert alice("mail", "outbox").out.splitlines()[1].split()[3] == "delivered"
    (header, row) = alice("mail", "receipts").out.splitlines()
    assert header.split() == ["ID", "FROM", "TO", "STATE", "BY", "ATTEMPTS", "SENT", "REASON"]
    assert row.split()[:6] == [id_, alice.name, bob.name, "delivered", "recipient", "1"]
    assert bob("mail", "receipts").out.splitlines()[1].split()[:5] == row.split()[:5]

    assert bob("mail", "open", id_).out == "deploy at 18:00\n"
    assert bob("mail", "ack", id_).out == f"acknowledged {id_} of {alice.name}: read\n"
    assert alice("mail", "outbox").out.splitlines()[1].split()[3] == "read"
    assert alice("mail", "receipts", "--state", "read").out.splitlines()[1].split()[3:5] == ["read", "recipient"]
    assert alice("mail", "receipts", "--state", "failed", "--require").code == 8
    assert len(bob("mail", "receipts", "--given").out.splitlines()) == 4


def test_scripts_get_ids_and_objects(alice: Agent, bob: Agent) -> None:
    id_ = alice("mail", "send", bob.name, "one", "-q")
    assert re.fullmatch("[0-9a-f]{64}\n", id_.out)
    sent = json.loads(alice("mail", "send", bob.name, "two", "--json").out)
    assert sent.keys() == {"replay_key", "message_id", "recipient", "bytes", "enqueued_at", "expires_at"}
    received = bob("mail", "receive", "--json")
    assert [json.loads(line)["body"] for line in received.out.splitlines()] == ["one", "two"]
    assert received.err == ""
    receipts = [json.loads(line) for line in alice("mail", "receipts", "--json").out.splitlines()]
    assert [(one["replay_key"], one["by"], one["status"]) for one in receipts] == [
        (sent["replay_key"], "recipient", "delivered"),
        (id_.out.strip(), "recipient", "delivered"),
    ]
    assert {"receipt_id", "sent_at", "delivery_attempts", "receipt"} < receipts[0].keys()
    alice("mail", "send", bob.name, "three")
    assert bob("mail", "receive", "-q") == Ended(0, "three\n", "")


def test_no_mail_is_no_error_unless_one_says_so(bob: Agent) -> None:
    assert bob("mail", "receive") == Ended(0, "", "no mail\nhint: angelia mail receive --wait\n")
    assert bob("mail", "receive", "-q") == Ended(0, "", "")
    required = bob("mail", "receive", "--require")
    assert (required.code, required.err.splitlines()[0]) == (8, "error: no mail (not_found)")
    assert bob("mail", "receive", "--wait", "1s") == Ended(0, "", "no mail\n")
    assert bob("mail", "receive", "--wait", "soon").code == 2


def test_waiting_ends_with_the_first_mail(alice: Agent, bob: Agent, live: str) -> None:
    def send() -> None:
        with alice.mailbox() as mailbox, Client(live, identity=mailbox) as client:
            client.mail.send(mailbox, bob.name, b"at last")

    for wait in (["--wait"], ["--wait", "20"]):
        later = threading.Timer(0.1, send)
        later.start()
        received = bob("mail", "receive", *wait, "-q")
        later.join()
        assert received == Ended(0, "at last\n", "")


def test_as_much_as_is_asked_for_is_fetched_and_the_rest_is_named(alice: Agent, bob: Agent) -> None:
    for number in "123":
        alice("mail", "send", bob.name, number)
    first = bob("mail", "receive", "-n", "2")
    assert first.out == "1\n2\n"
    assert first.err.splitlines()[-1] == "more waits: angelia mail receive"
    assert bob("mail", "receive").out == "3\n"


def test_mail_of_a_stranger_is_named_with_what_to_do_and_comes_after_that(join: Callable[[str], Agent]) -> None:
    alice, bob = join("alice"), join("bob")
    for text in ("may I?", "please"):
        alice("mail", "send", bob.name, text)
    kept_out = bob("mail", "receive")
    assert (kept_out.code, kept_out.out) == (0, "")
    note = kept_out.err.splitlines()[0]
    assert note == f"2 messages of {alice.name}, who is not allowed: angelia mail allow {alice.name}"
    assert alice("mail", "receipts").out.split().count("pending") == 2
    assert bob(*note.rpartition(": ")[2].split()[1:]).code == 0
    assert bob("mail", "receive", "-q") == Ended(0, "may I?\nplease\n", "")


def sent_with(alice: Agent, bob: Agent, live: str, **changes: object) -> None:
    """A message that Alice signed, but not as it should be."""
    with alice.mailbox() as mailbox, Client(live, identity=mailbox) as client:
        sealed = client.mail.seal(mailbox, bob.name, b"garbled")
        client.mail.send_envelope(forged(dataclasses.replace(sealed, **changes), mailbox))  # type: ignore[arg-type]


def test_a_message_that_was_tampered_with_is_told_by_the_exit_code(alice: Agent, bob: Agent, live: str) -> None:
    sent_with(alice, bob, live, tag=bytes(16))
    ended = bob("mail", "receive")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith(f"warning: {alice.name} is told that its message was refused: ")
    sent_with(alice, bob, live, tag=bytes(16))
    alice("mail", "send", bob.name, "sound")
    assert (both := bob("mail", "receive")).code == 3
    assert both.out == "sound\n"
    assert bob("mail", "receive").code == 0


def test_a_message_that_is_handed_out_after_it_was_acknowledged_is_a_replay(
    alice: Agent, bob: Agent, live: str
) -> None:
    id_ = alice("mail", "send", bob.name, "once", "-q").out.strip()
    with bob.mailbox() as mailbox, Client(live, identity=mailbox) as client:
        (handed,) = client.mail.poll().messages
        mailbox.receive(handed.wire, now=datetime.now(UTC))
        mailbox.inbox.mark_acked([id_], datetime.now(UTC))
        hand_out_again(client, handed)
    again = bob("mail", "receive")
    assert (again.code, again.out) == (4, "")


def test_an_allowed_sender_that_failed_too_often_is_not_called_a_stranger(
    alice: Agent, bob: Agent, live: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice("mail", "send", bob.name, "hello")
    monkeypatch.setattr(open_failures, "MOST", 0)
    ended = bob("mail", "receive")
    assert ended.code == 0
    assert f"a message of {alice.name} waits: 0 envelopes of {alice.name} did not open within an hour" in ended.err
    assert "mail allow" not in ended.err


def test_mail_is_shown_although_the_server_goes_away_in_the_middle(
    join: Callable[[str], Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = join("alice"), join("bob")
    alice("mail", "send", bob.name, "precious")
    bob("mail", "receive")
    bob("mail", "allow", alice.name)

    def gone(**_: object) -> None:
        raise Unreachable("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(mail_calls, "poll", gone)
        shown = bob("mail", "receive")
        assert (shown.code, shown.out) == (0, "precious\n")
        assert "warning: there may be more: the server is gone" in shown.err
        assert bob("mail", "receive").code == 7


def test_a_message_is_taken_back_until_it_was_given(alice: Agent, bob: Agent) -> None:
    first = alice("mail", "send", bob.name, "oh no").out.splitlines()[1]
    assert alice("mail", "withdraw", first) == Ended(0, f"withdrew {first} to {bob.name}\n", "")
    assert bob("mail", "receive").out == ""
    assert alice("mail", "outbox").out.splitlines()[1].split()[3] == "withdrawn"
    assert alice("mail", "withdraw", first).code == 0  # saying it again is no error
    second = json.loads(alice("mail", "send", bob.name, "too late", "--json").out)
    bob("mail", "receive")
    late = alice("mail", "withdraw", second["replay_key"])
    assert (late.code, late.err.splitlines()[0]) == (1, "error: the message is delivered already (conflict)")
    third = json.loads(alice("mail", "send", bob.name, "again", "--json").out)
    withdrawn = json.loads(alice("mail", "withdraw", third["replay_key"][:8], "--json").out)
    assert withdrawn == {name: third[name] for name in ("replay_key", "message_id", "recipient")}
    assert alice("mail", "withdraw", "0" * 12).code == 8
    assert alice("mail", "withdraw", "abc").code == 2


def test_dead_letters_are_listed_and_tried_again_by_their_owner_and_by_an_operator(
    alice: Agent, bob: Agent, live: str, live_server: ServerProcess, tmp_path: Path
) -> None:
    nothing = bob("mail", "dead")
    assert nothing == Ended(0, "", "no dead letters\nhint: angelia mail receive\n")
    id_ = alice("mail", "send", bob.name, "again and again", "-q").out.strip()

    def bury() -> None:
        with bob.mailbox() as mailbox, Client(live, identity=mailbox) as client:
            for _ in range(5):
                (one,) = client.mail.poll(wait=5).messages
                hand_out_again(client, one)

    bury()
    header, row = bob("mail", "dead").out.splitlines()
    assert header.split() == ["ID", "FROM", "SINCE", "BYTES", "EXPIRES", "REASON"]
    assert (row.split()[:2], row.split()[-1]) == ([id_[:12], alice.name], "full")
    (listed,) = bob("mail", "dead", "--json").out.splitlines()
    assert json.loads(listed)["replay_key"] == id_
    assert bob("mail", "requeue", "0" * 12).code == 8
    done = bob("mail", "requeue", id_[:8])
    assert (done.code, done.out) == (0, f"{id_[:12]} of {alice.name} waits for {bob.name} again\n")
    assert bob("mail", "requeue", id_[:8]).code == 8

    bury()
    token = ("--token-file", str(live_server.data_dir / "admin.token"))
    assert alice("mail", "dead", "--of", bob.name, *token).out.splitlines()[1].split()[0] == id_[:12]
    assert alice("mail", "requeue", id_, "--of", bob.name, *token).code == 0
    assert bob("mail", "receive", "-q").out == "again and again\n"


def test_first_contact_is_said_aloud_and_once(alice: Agent, bob: Agent, join: Callable[[str], Agent]) -> None:
    carol = join("carol")
    fingerprint = json.loads(bob("key", "show", "--json").out)["fingerprint"]
    line = f"first contact with {bob.name}, fingerprint {fingerprint}; compare it by another way"
    for verb in (("mail", "allow", bob.name), ("mail", "send", bob.name, "hello")):
        met = carol(*verb)
        assert (met.code, line in met.err.splitlines()) == (0, verb[1] == "allow")
    assert line in alice("mail", "send", bob.name, "hello").err.splitlines()
    assert line not in alice("mail", "send", bob.name, "hello").err.splitlines()


def test_an_agent_with_a_handle_is_not_written_to_by_its_id(alice: Agent, bob: Agent) -> None:
    id_ = json.loads(bob("agent", "show", "--json").out)["id"]
    for verb in (("mail", "send", id_, "hello"), ("mail", "allow", id_), ("key", "show", id_), ("key", "pin", id_)):
        refused = alice(*verb)
        assert refused.code == 1
        assert "(renamed)" in refused.err
        assert bob.name in refused.err
    assert alice("mail", "outbox").out == ""


def test_keys_are_shown_with_their_age(alice: Agent, bob: Agent) -> None:
    for shown in (bob("key", "show").out, alice("key", "show", bob.name).out):
        (line,) = [line for line in shown.splitlines() if line.startswith("bundle")]
        assert re.search(r"v1, issued \S+ \S+, \d+s old$", line)


def test_what_cannot_be_sent_waits_and_goes_out_with_the_next_command(alice: Agent, bob: Agent) -> None:
    alice("mail", "send", bob.name, "keys are known from now on", "-q")
    bob("mail", "receive")
    away = alice("mail", "send", bob.name, "later", *NOWHERE)
    fallback, error, hint = away.err.splitlines()
    assert fallback == f"no one-time key of {bob.name} was to be had, so its key of the week is used"
    assert away.code == 7
    assert error.endswith("(network)")
    assert hint.startswith("hint: it is sealed and waits: `angelia mail send --retry ")
    listed = alice("mail", "outbox", *NOWHERE)
    assert listed.out.splitlines()[1].split()[3] == "stored"
    assert listed.err.startswith("warning: these states may be old: ")

    alice.make_due()
    sent = alice("mail", "send", bob.name, "now")
    assert sent.err == "sent 1 message that waited in the outbox\n"
    assert sorted(bob("mail", "receive", "-q").out.splitlines()) == ["later", "now"]
    assert alice("mail", "send", bob.name, "again", "--url", "http://127.0.0.1:9", "-q").code == 7
    alice.make_due()
    assert alice("mail", "receive").err.splitlines()[0] == "sent 1 message that waited in the outbox"
    assert bob("mail", "receive", "-q").out == "again\n"


@pytest.mark.parametrize(
    ("refusal", "hint"),
    [
        (
            RateLimited("too often", hint="try again in 95 s", retry_after=95),
            "it is sealed and waits: in 1m35s",
        ),
        (QueueFull("full", hint="send it later"), "send it later; it is sealed and waits:"),
        (Unavailable("away"), "it is sealed and waits:"),
    ],
)
def test_a_refusal_says_how_long_a_sealed_message_waits(
    alice: Agent, bob: Agent, monkeypatch: pytest.MonkeyPatch, refusal: AngeliaError, hint: str
) -> None:
    def refused(*_: object, **__: object) -> None:
        refusal.members[WAITING] = "0" * 64
        raise refusal

    monkeypatch.setattr(mail_sending, "send", refused)
    ended = alice("mail", "send", bob.name, "x")
    sends_it = "`angelia mail send --retry` sends it, and so does the next `mail send` or `mail receive`"
    assert ended.err.splitlines()[1] == f"hint: {hint} {sends_it}"


def test_a_handle_in_upper_case_is_answered_with_the_lower(alice: Agent, bob: Agent) -> None:
    ended = alice("mail", "send", bob.name.upper(), "x")
    assert ended.code != 0
    assert ended.err.splitlines()[1] == f"hint: handles are lower case: angelia mail send {bob.name}"
    nobody = alice("mail", "send", "nobody-at-all", "x")
    assert "/register" not in nobody.err


def test_bytes_that_are_no_text_are_received_into_a_file(
    alice: Agent, bob: Agent, into: Callable[..., tuple[bytes, str]]
) -> None:
    alice("mail", "send", bob.name, stdin=b"\x00\xff\n")
    assert into(bob.run, "mail", "receive", "-q") == (b"\x00\xff\n", "")


def test_what_is_handed_over_by_hand_is_not_sent_as_well(alice: Agent, bob: Agent) -> None:
    assert alice("mail", "send", bob.name, "by hand", "--out", "letter.agl").code == 0
    with closing(alice.database()) as database:
        assert database.execute("SELECT status, next_try_at FROM outbox").fetchall() == [("stored", None)]
    assert alice("mail", "receive").err.splitlines()[0] == "no mail"
    assert bob("mail", "receive", "--require").code == 8
    id_ = bob("mail", "open", "letter.agl").err.rpartition(" ")[2].strip()
    acked = bob("mail", "ack", id_)
    assert acked.code == 0
    assert acked.err == f"the server has no such message; --out FILE hands the receipt to {alice.name}\n"


def test_the_server_is_told_again_when_a_crash_kept_it_from_hearing(alice: Agent, bob: Agent, live: str) -> None:
    id_ = alice("mail", "send", bob.name, "once", "-q").out.strip()
    with bob.mailbox() as mailbox, Client(live, identity=mailbox) as client:
        (handed,) = client.mail.poll().messages
        mailbox.receive(handed.wire, now=datetime.now(UTC))
        hand_out_again(client, handed)
    again = bob("mail", "receive")
    assert (again.code, again.out) == (0, "")
    note = f"a message of {alice.name} was opened before, and is in the inbox: angelia mail open {id_[:12]}\n"
    assert again.err == note
    assert bob(*note.rpartition(": ")[2].split()[1:]).out == "once\n"
    assert alice("mail", "outbox").out.splitlines()[1].split()[3] == "delivered"


def test_the_longest_life_is_a_setting(alice: Agent, bob: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANGELIA_MAX_TTL_SECONDS", "3600")
    refused = alice("mail", "send", bob.name, "x", "--ttl", "2h")
    assert refused.code == 2
    assert refused.err.startswith("error: --ttl: a message lives for 1h at most (usage)\nhint: the setting max_ttl")
    assert alice("mail", "send", bob.name, "x").out.splitlines()[0].endswith("expires in 1h")


def test_without_a_registration_mail_is_fetched_from_nowhere(live: str, person: Callable[[str], Angelia]) -> None:
    carol = person("carol")
    carol("agent", "new", "carol")
    ended = carol("mail", "receive")
    assert ended == Ended(
        5,
        "",
        "error: carol is not registered with a server (unauthenticated)\n"
        "hint: angelia agent register --as carol; without a server: angelia mail receive FILE\n",
    )


def test_after_a_lost_answer_the_hints_lead_to_the_new_pair(alice: Agent, bob: Agent, live: str) -> None:
    with alice.mailbox() as mailbox, Lossy(live, identity=mailbox) as client:
        client.loses = "/v1/keys/emergency-rotate"
        with pytest.raises(Unreachable):
            client.keys.emergency_rotate(mailbox, why="laptop lost")
    assert "an emergency is under way; `angelia key publish" in alice("key", "show").out
    publish = f"angelia key publish --as {alice.name}"
    for verb in (("mail", "receive"), ("mail", "send", bob.name, "x"), ("agent", "register")):
        refused = alice(*verb, "--url", live)
        assert refused.code != 0
        assert commands_in(refused.err) == [f"{publish} --url {live}"]
    assert alice(*publish.split()[1:]).code == 0
    assert alice("mail", "send", bob.name, "x").code == 0
    assert bob("mail", "receive", "-q").out == "x\n"


def test_an_emergency_that_the_server_did_not_take_is_told_and_done_by_the_next_command(
    alice: Agent, bob: Agent, liar: Liar
) -> None:
    liar.instead("POST", "/v1/keys/.*", problem(503, "unavailable"))
    asked = ("key", "rotate", "--emergency", "--why", "laptop lost", "--yes")
    for _ in range(2):  # the second one has to wait for the first
        ended = alice(*asked, "--url", liar.url, "--timeout", "1")
        assert ended.code == 7
        assert "warning: the emergency is written down and the local key replaced" in ended.err
    line = "an emergency rotation of this agent's keys was cut short, and is finished now"
    assert line in alice("mail", "send", bob.name, "x").err.splitlines()
    assert "bundle       v3," in alice("key", "show").out
    assert line not in alice("mail", "receive").err.splitlines()


def test_a_command_tells_once_how_messages_to_a_recipient_are_sealed(
    alice: Agent, bob: Agent, live: str, liar: Liar
) -> None:
    with alice.mailbox() as mailbox, Client(live, identity=mailbox) as client:
        for body in (b"one", b"two"):
            client.mail.seal(mailbox, bob.name, body, one_time=True)
        client.keys.emergency_rotate(mailbox, why="laptop lost")  # both are sealed again
    none_left = {"one_time": False, "one_time_key": None}
    liar.lie("GET", f"/v1/keys/bundle/{bob.name}", lambda asked, answer: answer.changed(**none_left))
    sent = alice("mail", "send", "--retry", "--url", liar.url)
    assert sent.out == "sent 2 of 2 messages that waited\n"
    told = f"a message to {bob.name} had a one-time key, and is sealed again to the key of the week"
    assert sent.err.splitlines() == [told]


# A server that is none, or lies.

RECEIPT = r"/v1/receipts/[0-9a-f]{64}"


@pytest.fixture
def liar(live_server: ServerProcess) -> Iterator[Liar]:
    with lying(live_server.start_url) as liar:
        yield liar


def rows(agent: Agent, *flags: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in agent("mail", "outbox", "--json", *flags).out.splitlines()]


def test_what_does_not_come_from_angelia_leaves_a_message_stored_and_the_outbox_says_why(
    alice: Agent, bob: Agent, liar: Liar
) -> None:
    answers = [page(404), page(403), page(413), page(301, location="http://127.0.0.1:9/"), page(200), Answer(200)]
    for answer in answers:
        liar.honest()
        liar.instead("POST", "/v1/messages", answer)
        sent = alice("mail", "send", bob.name, f"{answer.status}", "--url", liar.url)
        assert sent.code == 7, sent
        assert "it is sealed and waits" in sent.err
        row = rows(alice)[0]
        assert (row["state"], row["by"], row["content_kept"]) == ("stored", "", True)
        assert "Angelia" in str(row["why"]) or "cannot be read" in str(row["why"])
        assert liar.count("POST", "/v1/messages") == 1
    assert "this is no Angelia server" in alice("mail", "outbox", "--url", liar.url).out

    retried = alice("mail", "send", "--retry")
    assert (retried.code, retried.out) == (0, f"sent {len(answers)} of {len(answers)} messages that waited\n")
    assert len(bob("mail", "receive", "-q").out.splitlines()) == len(answers)
    assert alice("mail", "send", "--retry").out == "nothing waits in the outbox\n"
    assert alice("mail", "send", "--retry", bob.name).code == 2
    assert alice("mail", "send").code == 2


def test_a_refusal_is_the_servers_word_and_retry_sends_what_was_refused(alice: Agent, bob: Agent, liar: Liar) -> None:
    liar.instead("POST", "/v1/messages", problem(403, "authorization_denied"))
    assert alice("mail", "send", bob.name, "please", "--url", liar.url).code == 5
    (row,) = rows(alice)
    assert (row["status"], row["state"], row["by"], row["why"]) == (
        "stored",
        "failed",
        "relay",
        "authorization_denied",
    )
    again = alice("mail", "send", "--retry", "--url", liar.url)
    assert (again.code, again.out) == (5, "sent 0 of 1 message that waited\n")
    assert alice("mail", "send", "--retry").out == "sent 1 of 1 message that waited\n"
    assert bob("mail", "receive", "-q").out == "please\n"


def test_what_the_server_cannot_know_is_called_untrue(alice: Agent, bob: Agent, liar: Liar) -> None:
    alice("mail", "send", bob.name, "hello")
    for said, why in (
        ({"status": "expired"}, "untrue: the server says that it has expired"),
        ({"status": "failed", "failure_reason": "withdrawn"}, "untrue: the server says that it was withdrawn"),
    ):
        liar.honest()
        liar.lie("GET", RECEIPT, lambda _, true, said=said: true.changed(**said))
        listed = alice("mail", "outbox", "--url", liar.url)
        assert "stays as it is: the server says that it" in listed.err
        (row,) = rows(alice, "--url", liar.url)
        assert (row["status"], row["by"], row["content_kept"]) == ("queued", "relay", True)
        assert str(row["why"]).startswith(why)
    assert bob("mail", "receive", "-q").out == "hello\n"
    (row,) = rows(alice)
    assert (row["state"], row["by"], row["why"], row["content_kept"]) == ("delivered", "recipient", "", False)
