"""The lies that a relay can tell, each told to the real SDK: it settles nothing, leaks nothing and loops on nothing.

A lie is told about sending, about what became of a message, or about what is handed out. When the relay is honest again
the message arrives, exactly once, and its recipient's signature settles it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from angelia.client import (
    ack_plan,
    clock,
    delivery_status,
    event_stream,
    mail_calls,
    mail_receiving,
    mailbox_server,
    own_key_renewal,
    transport,
)
from angelia.client.mail_sending import OutboxDelivery
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.receipts import Receipt, ReceiptStatus, receipt_document, sign_receipt
from angelia.envelope.wire import Envelope, decode
from angelia.errors import AngeliaError
from angelia.keys.model import ONE_TIME_LOW, RotationPolicy, link_document
from angelia.mailbox import own_keys
from angelia.mailbox.database import stamp
from angelia.mailbox.inbox import Opened
from angelia.mailbox.notices import NoticeKind
from angelia.mailbox.outbox_message import OutboxMessage, OutboxStatus
from angelia.mailbox.retry_rules import MOST_RESEALS, SealStands
from client.letters import now
from client.test_mailbox_server import served, until
from live_agents import Person
from lying_proxy import Answer, Asked, Liar, page, problem

SEND, BATCH, POLL, ACK = "/v1/messages", "/v1/messages/batch", "/v1/messages", "/v1/messages/acknowledge"
KEYS = r"/v1/keys/bundle/.*"
RECEIPT, RECEIPTS, MESSAGE = r"/v1/receipts/[0-9a-f]{64}", "/v1/receipts", r"/v1/messages/[0-9a-f]{64}"
# More than any of the plots needs, and far less than a loop.
MOST_REQUESTS = 40


@dataclass
class Plot:
    """Alice sends to Bob, Mallory and Carol have keys on the same server, and the relay is about to lie."""

    liar: Liar
    alice: Person
    bob: Person
    mallory: Person
    carol: Person
    body: bytes = b""
    envelope: Envelope | None = None

    def send(self) -> None:
        with contextlib.suppress(AngeliaError):
            self.alice.client.mail.send(self.alice.mailbox, self.bob.name, self.body)

    def send_batch(self) -> None:
        found, _ = self.alice.client.keys.find(self.alice.mailbox, self.bob.name)
        envelope = self.alice.mailbox.outbox.seal(found.bundle, self.body, now=now())
        self.alice.client.mail.send_sealed(self.alice.mailbox, [envelope])

    def later(self) -> None:
        """Minutes pass, and Alice's mailbox tries again what waits."""
        with contextlib.suppress(AngeliaError), pytest.MonkeyPatch.context() as patch:
            patch.setattr(clock, "now", lambda: now() + timedelta(seconds=200))
            self.alice.client.mail.deliver_outbox(self.alice.mailbox)

    def ask(self) -> delivery_status.OutboxUpdate | None:
        try:
            return self.alice.client.mail.update_outbox(self.alice.mailbox)
        except AngeliaError:
            return None

    def receive(self) -> None:
        with contextlib.suppress(AngeliaError):
            self.bob.client.mail.receive(self.bob.mailbox)

    def withdraw(self) -> None:
        with contextlib.suppress(AngeliaError):
            self.alice.client.mail.withdraw(self.alice.mailbox, self.row.replay_key)

    @property
    def row(self) -> OutboxMessage:
        """The message as Alice has it now; envelopes that were replaced are not it."""
        rows = [row for row in self.alice.mailbox.outbox.page() if row.status is not OutboxStatus.RESEALED]
        return rows[0]

    def opened(self) -> int:
        """How often Bob has the message."""
        messages = self.bob.mailbox.inbox.page(100).messages
        return sum(1 for one in messages if one.message_id == self.row.message_id)

    def logged(self) -> int:
        """How many lines Bob's log of receipts has."""
        return sum(len(path.read_bytes().splitlines()) for path in self.bob.mailbox.directory.glob("receipts_*"))

    def holds(self, key: UUID) -> bool:
        """Whether a key is one of Bob's own: in his bundle, or one-time."""
        return key in {entry.key.key_id for entry in self.bob.newest.kem_keys} or (
            self.bob.mailbox.database.row("kem_key", str(key), stamp(now())) is not None
        )

    def receipt(self, by: Person, **more: Any) -> dict[str, object]:
        """A receipt that somebody truly signed, for this message or another."""
        values: dict[str, Any] = {
            "status": ReceiptStatus.DELIVERED,
            "replay_key": self.row.replay_key,
            "message_id": self.row.message_id,
            "sender_nhi": self.alice.name,
            "recipient_nhi": self.bob.name,
            "time_ms": int(now().timestamp() * 1000),
            "signer_id": by.newest.signer.signer_id,
            **more,
        }
        signed = sign_receipt(Receipt(**values), by.mailbox.identity.pair)
        document: dict[str, object] = msgspec.to_builtins(receipt_document(signed))
        return document


Told = Callable[[Plot], None]
_lies: list[Any] = []


def lie(about: str, name: str) -> Callable[[Told], Told]:
    def named(told: Told) -> Told:
        _lies.append(pytest.param(about, told, id=f"{about}: {name}"))
        return told

    return named


def answers(about: str, name: str, method: str, path: str, answer: Answer) -> None:
    """A lie that is one answer, which the server never hears the question of."""
    lie(about, name)(lambda plot: plot.liar.instead(method, path, answer))


def receipts_say(name: str, **members: object) -> None:
    lie("receipts", name)(lambda plot: plot.liar.lie("GET", RECEIPT, lambda _, true: true.changed(**members)))


# About sending.

for status, what in ((404, "a bare 404"), (403, "a bare 403"), (413, "nginx says too large"), (500, "a bare 500")):
    answers("sending", what, "POST", SEND, page(status))
answers("sending", "a redirect", "POST", SEND, page(301, location="http://127.0.0.1:9/steal"))
answers("sending", "a captive portal", "POST", SEND, page(200, "<html>log in first</html>"))
answers("sending", "a portal that speaks JSON", "POST", SEND, Answer(200, {"content-type": "application/json"}, b"{}"))
answers("sending", "nothing at all", "POST", SEND, Answer(204))
answers("sending", "wrong types", "POST", SEND, problem(400, "invalid_argument", title=7, request_id=[]))
answers("sending", "it is denied", "POST", SEND, problem(403, "authorization_denied"))
answers("sending", "it has expired", "POST", SEND, problem(410, "message_expired"))
answers("sending", "its clock is wrong", "POST", SEND, problem(400, "clock_skew"))
answers("sending", "its id is taken", "POST", SEND, problem(409, "message_id_conflict"))
answers("sending", "a code from the future", "POST", SEND, problem(418, "teapot"))
answers("sending", "its key is stale, again and again", "POST", SEND, problem(409, "key_stale"))
answers("sending", "its key was revoked, again and again", "POST", SEND, problem(410, "key_revoked"))


@lie("sending", "come back in a century")
def _(plot: Plot) -> None:
    plot.liar.instead("POST", SEND, Answer(429, {"retry-after": "9" * 400}, problem(429, "queue_full").body))


@lie("sending", "another agent's keys are the new ones")
def _(plot: Plot) -> None:
    bundle = msgspec.to_builtins(plot.mallory.client.keys.bundle(plot.mallory.name))
    plot.liar.instead("POST", SEND, problem(409, "key_stale", **bundle))


@lie("sending", "another message was accepted")
def _(plot: Plot) -> None:
    plot.liar.lie("POST", SEND, lambda _, true: true.changed(replay_key="0" * 64))


@lie("sending", "an answer without an end")
def _(plot: Plot) -> None:
    plot.liar.instead("POST", SEND, Answer(201, {"content-type": "application/json"}, b" " * (1 << 21)))


@lie("a batch", "fewer outcomes than messages")
def _(plot: Plot) -> None:
    plot.liar.lie("POST", BATCH, lambda _, true: true.saying({"results": []}))


@lie("a batch", "more outcomes than messages")
def _(plot: Plot) -> None:
    plot.liar.lie("POST", BATCH, lambda _, true: true.saying({"results": true.json()["results"] * 2}))


@lie("a batch", "neither taken nor refused")
def _(plot: Plot) -> None:
    plot.liar.instead("POST", BATCH, Answer(200, {}, b'{"results": [{"new": true}]}'))


@lie("a batch", "refused for a key that was revoked")
def _(plot: Plot) -> None:
    refused = {"problem": {"code": "key_revoked", "title": "revoked", "retry_after": 10**30}}
    plot.liar.instead("POST", BATCH, Answer(200, {}, json.dumps({"results": [refused]}).encode()))


# About what became of it.

receipts_say("delivered, and nobody signed", status="delivered", attested_by="relay")
receipts_say("read, and nobody signed", status="read", attested_by="relay")
receipts_say("the recipient signed, and it is not shown", status="delivered", attested_by="recipient", receipt=None)
receipts_say("expired, long before its time", status="expired", attested_by="relay")
receipts_say("withdrawn, which nobody asked for", status="failed", failure_reason="withdrawn", attested_by="relay")
receipts_say("failed", status="failed", failure_reason="too many attempts", attested_by="relay")
receipts_say("its key was revoked, again and again", status="failed", failure_reason="key_revoked", attested_by="relay")
receipts_say("a status that does not exist", status="sold", attested_by="relay")
receipts_say("an attester that does not exist", status="delivered", attested_by="god")
receipts_say("a huge number", status="failed", delivery_attempts=10**60, priority=-(10**30))
receipts_say("wrong types", status=7, receipt="yes", recipient=[])
receipts_say("of another message", status="failed", message_id=str(UUID(int=7)))
receipts_say("to another recipient", status="delivered", recipient="mallory")
answers("receipts", "a bare 404", "GET", RECEIPT, page(404))
answers("receipts", "a captive portal", "GET", RECEIPT, page(200))


def _signed(name: str, receipt: Callable[[Plot], dict[str, object]]) -> None:
    def told(plot: Plot) -> None:
        forged = receipt(plot)
        said = {"status": forged["status"], "attested_by": "recipient", "receipt": forged}
        plot.liar.lie("GET", RECEIPT, lambda _, true: true.changed(**said))

    lie("receipts", name)(told)


_signed("signed by another agent", lambda plot: plot.receipt(plot.mallory))
_signed("signed by another agent in its own name", lambda p: p.receipt(p.mallory, recipient_nhi=p.mallory.name))
_signed("signed for another message", lambda plot: plot.receipt(plot.bob, message_id=UUID(int=7)))
_signed("signed for other bytes", lambda plot: plot.receipt(plot.bob, replay_key="ab" * 32))
_signed("signed for another sender", lambda plot: plot.receipt(plot.bob, sender_nhi=plot.carol.name))
_signed("made `read` after it was signed", lambda plot: plot.receipt(plot.bob) | {"status": "read"})
_signed("with another time than was signed", lambda plot: plot.receipt(plot.bob) | {"time_ms": 1})


@lie("many receipts", "pages that do not end")
def _(plot: Plot) -> None:
    def more(_: Asked, true: Answer) -> Answer:
        others = [one | {"replay_key": secrets.token_hex(32)} for one in true.json()["receipts"]]
        return true.saying({"receipts": others, "next": secrets.token_hex(4)})

    plot.liar.lie("GET", RECEIPTS, more)


@lie("many receipts", "empty pages that do not end")
def _(plot: Plot) -> None:
    empty = json.dumps({"receipts": [], "next": "more"}).encode()
    plot.liar.instead("GET", RECEIPTS, Answer(200, {"content-type": "application/json"}, empty))


@lie("many receipts", "all of them delivered, and nobody signed")
def _(plot: Plot) -> None:
    said = {"status": "delivered", "attested_by": "relay", "receipt": None}
    plot.liar.lie(
        "GET",
        RECEIPTS,
        lambda _, true: true.changed(receipts=[one | said for one in true.json()["receipts"]]),
    )


answers("withdrawing", "a captive portal", "DELETE", MESSAGE, page(200))
answers("withdrawing", "a portal that says nothing", "DELETE", MESSAGE, Answer(200))
answers("withdrawing", "a bare 404", "DELETE", MESSAGE, page(404))


# About what is handed out.


def record(wire: bytes, attempt: int = 1) -> bytes:
    return struct.pack(">I32sI", attempt, secrets.token_bytes(32), len(wire)) + wire


def polled(*records: bytes, more: str = "1") -> Answer:
    return Answer(200, {"content-type": MEDIA_TYPE, mail_calls.HAS_MORE: more}, b"".join(records))


@lie("handing out", "the same envelope for ever")
def _(plot: Plot) -> None:
    assert plot.envelope is not None
    wire = plot.envelope.wire
    plot.liar.instead("GET", POLL, lambda _: polled(record(wire)))


@lie("handing out", "the same envelope many times at once")
def _(plot: Plot) -> None:
    assert plot.envelope is not None
    wire = plot.envelope.wire
    plot.liar.instead("GET", POLL, lambda _: polled(*(record(wire) for _ in range(10))))


@lie("handing out", "more than was asked for")
def _(plot: Plot) -> None:
    assert plot.envelope is not None
    wire = plot.envelope.wire
    plot.liar.instead("GET", POLL, lambda _: polled(*(record(wire) for _ in range(200))))


@lie("handing out", "an envelope for somebody else, for ever")
def _(plot: Plot) -> None:
    wire = plot.mallory.client.mail.seal(plot.mallory.mailbox, plot.carol.name, b"for carol").wire
    plot.liar.instead("GET", POLL, lambda _: polled(record(wire)))


@lie("handing out", "an envelope with a flipped bit, for ever")
def _(plot: Plot) -> None:
    assert plot.envelope is not None
    wire = bytearray(plot.envelope.wire)
    wire[-1] ^= 1
    plot.liar.instead("GET", POLL, lambda _: polled(record(bytes(wire))))


@lie("handing out", "an empty page, and more waits")
def _(plot: Plot) -> None:
    plot.liar.instead("GET", POLL, polled())


@lie("handing out", "a message that breaks off")
def _(plot: Plot) -> None:
    assert plot.envelope is not None
    plot.liar.instead("GET", POLL, polled(record(plot.envelope.wire)[:-9]))


answers("handing out", "a captive portal", "GET", POLL, page(200))


@lie("handing out", "no acknowledgment is taken")
def _(plot: Plot) -> None:
    def refuse(_: Asked, true: Answer) -> Answer:
        lost = {"acknowledged": False, "problem": {"code": "lease_lost", "title": "too late"}}
        return true.saying({"results": [one | lost for one in true.json()["results"]]})

    plot.liar.lie("POST", ACK, refuse)


@lie("handing out", "other messages were acknowledged")
def _(plot: Plot) -> None:
    other = {"replay_key": "0" * 64}
    plot.liar.lie(
        "POST", ACK, lambda _, true: true.saying({"results": [one | other for one in true.json()["results"]]})
    )


answers("handing out", "acknowledgments go to a captive portal", "POST", ACK, page(200))


@lie("handing out", "the sender's keys go on for ever")
def _(plot: Plot) -> None:
    """The bundle that is known already comes again and again, and there is always more."""
    known = msgspec.to_builtins(link_document(plot.alice.mailbox.own_keys.chain()[-1]))
    told = {"bundles": [known], "has_more": True, "revoked": []}
    plot.bob.mailbox.pinned_keys.drop_bundle(plot.alice.name)
    plot.liar.lie(
        "GET", f"/v1/keys/bundle/{plot.alice.name}", lambda asked, true: true.saying(told) if asked.query else true
    )


@pytest.fixture(scope="module")
def people(_relay: Liar, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Person]]:
    """Four agents for all plots: what one leaves behind, the next must not notice."""
    home = tmp_path_factory.mktemp("homes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "FIRST_PAUSE", 0.001)
        patch.setattr(transport, "LONGEST_ANSWER", 1 << 20)
        patch.setattr(own_key_renewal, "ONE_TIME_BATCH", ONE_TIME_LOW + 1)
        _relay.honest()
        made = [Person(_relay.url, home, name) for name in ("alice", "bob", "mallory", "carol")]
        for person in made:
            person.register()
            person.client.keys.publish(person.mailbox)
        alice, bob, *_ = made
        bob.allow(alice)
        yield made
        for person in made:
            person.close()


@pytest.fixture
def plot(liar: Liar, people: list[Person]) -> Plot:
    return Plot(liar, *people, body=secrets.token_hex(16).encode())


def test_at_least_twenty_five_lies_are_told() -> None:
    assert len(_lies) >= 25


@pytest.mark.parametrize(("about", "told"), _lies)
def test_a_lie_settles_nothing_leaks_nothing_and_ends(
    plot: Plot, about: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar, alice, bob, logged = plot.liar, plot.alice, plot.bob, plot.logged()
    if about in ("sending", "a batch"):
        told(plot)
        plot.send() if about == "sending" else plot.send_batch()
    else:
        sent = alice.client.mail.send(alice.mailbox, bob.name, plot.body)
        plot.envelope = sent.envelope
        told(plot)
    liar.asked.clear() if about not in ("sending", "a batch") else None
    monkeypatch.setattr(ack_plan, "LATER", 1)
    if about == "many receipts":
        monkeypatch.setattr(delivery_status, "FEW", 0)
        monkeypatch.setattr(delivery_status, "MOST_PAGES", 5)
        monkeypatch.setattr(delivery_status, "_PAGE", 2)
    acts = {
        "sending": [plot.later, plot.later],
        "a batch": [plot.later],
        "receipts": [plot.ask] * 3,
        "many receipts": [plot.ask],
        "withdrawing": [plot.withdraw] * 2,
        "handing out": [plot.receive] * 3,
    }
    for act in acts[about]:
        act()

    # It loops on nothing.
    assert liar.count() <= MOST_REQUESTS
    # It settles nothing, and has everything that it takes to go on.
    row = plot.row
    assert row.status in (OutboxStatus.STORED, OutboxStatus.QUEUED)
    assert row.resealable
    # It leaks nothing: whatever went out is sealed to a key that Bob signed.
    for asked in liar.asked:
        assert plot.body not in asked.body
        if (asked.method, asked.path) == ("POST", SEND):
            header = decode(asked.body).header
            assert header.recipient_nhi == bob.name
            assert header.message_id == row.message_id
            assert plot.holds(header.key_id)

    liar.honest()
    done: OutboxDelivery = alice.client.mail.retry_outbox(alice.mailbox)
    assert len(done.sent) + len(done.unsent) <= 1
    bob.client.mail.receive(bob.mailbox)
    if about == "withdrawing":  # which is done as soon as somebody can be asked
        assert (plot.row.withdrawn, plot.opened()) == (True, 0)
        return
    if not plot.opened():  # the liar's lease has to run out
        bob.client.mail.receive(bob.mailbox, wait=10)
    assert plot.opened() == 1
    assert plot.logged() - logged <= 2  # that it was opened, and what was made of a forged one
    (message,) = bob.mailbox.inbox.page(1).messages
    opened = bob.mailbox.inbox.read(message.replay_key, now())
    assert opened.body == plot.body
    assert opened.receipt is not None
    bob.client.mail.hand_in_receipt(opened.receipt)
    alice.client.mail.update_outbox(alice.mailbox)
    assert (plot.row.status, plot.row.resealable) == (OutboxStatus.READ, False)


# Lies that take a while.


def test_a_relay_that_calls_the_key_revoked_after_every_delivery_makes_nobody_open_twice(
    deceived: tuple[Person, Person], liar: Liar
) -> None:
    alice, bob = deceived
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"pay 100")
    revoked = {"status": "failed", "failure_reason": "key_revoked", "attested_by": "relay", "receipt": None}
    liar.lie("GET", RECEIPT, lambda _, true: true.changed(**revoked))
    opened = []
    for _ in range(4):
        opened += [one.body for one in bob.client.mail.receive(bob.mailbox).messages]
        news = alice.client.mail.update_outbox(alice.mailbox)
        assert [type(one.error) for one in news.doubts] == [SealStands]
    assert liar.count("POST", SEND) == 1
    # Even when the key is truly gone, the message comes again under its own id only, and five times at most.
    for _ in range(8):
        bob.client.keys.emergency_rotate(bob.mailbox, why="stolen", signer=False)
        alice.client.mail.update_outbox(alice.mailbox)
        opened += [one.body for one in bob.client.mail.receive(bob.mailbox).messages]
    ids = {decode(one.body).header.message_id for one in liar.asked if (one.method, one.path) == ("POST", SEND)}
    assert ids == {sent.envelope.header.message_id}
    assert opened == [b"pay 100"]
    assert alice.mailbox.outbox.page(1)[0].reseals <= MOST_RESEALS
    # Its recipient signs that it had the message before, which settles it.
    liar.honest()
    bob.client.mail.receive(bob.mailbox)
    alice.client.mail.update_outbox(alice.mailbox)
    assert alice.mailbox.outbox.page(1)[0].status is OutboxStatus.DELIVERED


def revoked(_: Asked, true: Answer) -> Answer:
    """The relay says of its own that the key of a message was revoked."""
    return true.changed(status="failed", failure_reason="key_revoked", attested_by="relay", receipt=None)


@pytest.mark.parametrize("one_time", [True, False])
def test_however_often_a_relay_calls_the_key_of_what_it_took_revoked_nothing_is_sealed_again(
    deceived: tuple[Person, Person], liar: Liar, monkeypatch: pytest.MonkeyPatch, one_time: bool
) -> None:
    alice, bob = deceived
    alice.client.mail.send(alice.mailbox, bob.name, b"secret", one_time=one_time)
    liar.lie("GET", RECEIPT, revoked)
    liar.asked.clear()
    for minutes in (6, 12, 18):
        bob.client.keys.rotate(bob.mailbox)  # a newer bundle, which still lists the old key, in grace
        with monkeypatch.context() as patch:
            patch.setattr(clock, "now", functools.partial(lambda at: at, now() + timedelta(minutes=minutes)))
            news = alice.client.mail.update_outbox(alice.mailbox)
        assert [type(one.error) for one in news.doubts] == [SealStands]
    assert liar.count("POST", SEND) == 0
    assert not any("one_time" in one.query for one in liar.asked)  # nor is a one-time key taken


def test_an_emergency_of_the_recipient_makes_nobody_seal_again_what_has_a_one_time_key(
    deceived: tuple[Person, Person], liar: Liar
) -> None:
    alice, bob = deceived
    alice.client.mail.send(alice.mailbox, bob.name, b"once", one_time=True)
    liar.lie("GET", RECEIPT, revoked)
    bob.client.keys.emergency_rotate(bob.mailbox, why="stolen")
    assert [type(one.error) for one in alice.client.mail.update_outbox(alice.mailbox).doubts] == [SealStands]
    liar.honest()
    assert [one.body for one in bob.client.mail.receive(bob.mailbox).messages] == [b"once"]


@pytest.mark.parametrize("left", [True, False])
def test_a_message_with_a_one_time_key_that_is_sealed_again_gets_another_or_says_so(
    deceived: tuple[Person, Person], liar: Liar, left: bool
) -> None:
    alice, bob = deceived
    first = alice.client.mail.seal(alice.mailbox, bob.name, b"secret", one_time=True)
    alice.client.keys.emergency_rotate(alice.mailbox, why="laptop lost")
    if not left:
        liar.lie("GET", KEYS, lambda asked, true: true.changed(one_time=False, one_time_key=None))
    alice.mailbox.notices.take()
    (sent,) = alice.client.mail.retry_outbox(alice.mailbox).sent
    assert sent.envelope.header.message_id == first.header.message_id
    assert sent.replay_key != first.replay_key
    static = {entry.key.key_id for entry in bob.newest.kem_keys}
    assert (sent.envelope.header.key_id in static) is not left
    told = [notice.text for notice in alice.mailbox.notices.take() if notice.kind is NoticeKind.FALLBACK]
    assert any("had a one-time key" in text for text in told) is not left


def test_what_this_agents_own_lost_pair_signed_is_sealed_again_by_the_new_one_at_once(
    deceived: tuple[Person, Person], liar: Liar
) -> None:
    alice, bob = deceived
    waits = alice.client.mail.seal(alice.mailbox, bob.name, b"stored")
    alice.client.keys.emergency_rotate(alice.mailbox, why="laptop lost")
    (sent,) = alice.client.mail.retry_outbox(alice.mailbox).sent
    assert sent.envelope.header.message_id == waits.header.message_id
    assert sent.envelope.header.sender_key_id == alice.newest.signer.signer_id
    # One that both signed nothing about stands, and its sender is told of both.
    liar.instead("POST", SEND, problem(410, "key_revoked"))
    with pytest.raises(SealStands, match=f"nothing that {bob.name} or this agent signed"):
        alice.client.mail.send(alice.mailbox, bob.name, b"hello")


def test_a_message_that_comes_again_for_ever_is_acknowledged_once_an_hour_and_logged_once(
    deceived: tuple[Person, Person], liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = deceived
    wire = alice.client.mail.send(alice.mailbox, bob.name, b"once").envelope.wire
    assert [one.body for one in bob.client.mail.receive(bob.mailbox).messages] == [b"once"]
    liar.instead("GET", POLL, lambda _: polled(record(wire)))
    (log,) = bob.mailbox.directory.glob("receipts_*")
    first = log.read_bytes()
    for hours in range(3):
        at = now() + timedelta(minutes=61 * hours)
        monkeypatch.setattr(clock, "now", functools.partial(lambda at: at, at))
        for _ in range(5):
            received = bob.client.mail.receive(bob.mailbox)
            assert (received.messages, received.recovered) == ((), ())
        assert liar.count("POST", ACK) == 1 + hours
    assert log.read_bytes() == first
    assert liar.count("GET", POLL) <= 1 + 2 * 15


def test_an_acknowledgment_that_a_relay_never_took_is_said_again_before_the_message_is_a_dead_letter(
    deceived: tuple[Person, Person], liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = deceived
    wire = alice.client.mail.send(alice.mailbox, bob.name, b"once").envelope.wire
    lost = {"code": "lease_lost", "title": "the lease is over"}

    def refused(asked: Asked, _: Answer) -> Answer:
        keys = [one["replay_key"] for one in asked.json()["acks"]]
        document = {"results": [{"replay_key": key, "acknowledged": False, "problem": lost} for key in keys]}
        return Answer(200, {"content-type": "application/json"}).saying(document)

    liar.lie("POST", ACK, refused)
    liar.instead("GET", POLL, lambda _: polled(record(wire)))
    at = began = now()
    monkeypatch.setattr(clock, "now", lambda: at)
    for _ in range(5):
        bob.client.mail.receive(bob.mailbox)
        at += timedelta(seconds=30)  # as long as a lease
    assert liar.count("POST", ACK) == 5
    while at < began + timedelta(minutes=62):  # and ever more seldom, up to an hour
        bob.client.mail.receive(bob.mailbox)
        at += timedelta(seconds=30)
    assert 5 < liar.count("POST", ACK) <= 12


@pytest.mark.parametrize("ahead", [timedelta(seconds=6), timedelta(hours=-2)], ids=["right", "set back"])
def test_an_acknowledgment_that_was_cut_off_is_said_again_soon(
    deceived: tuple[Person, Person], liar: Liar, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    alice, bob = deceived
    wire = alice.client.mail.send(alice.mailbox, bob.name, b"once").envelope.wire
    bob.mailbox.receive(wire, now=now())
    liar.instead("GET", POLL, lambda _: polled(record(wire)))

    def killed() -> None:
        raise KeyboardInterrupt

    bob.client.before = (ACK, killed)
    with pytest.raises(KeyboardInterrupt):
        bob.client.mail.receive(bob.mailbox)
    bob.reopen()
    monkeypatch.setattr(clock, "now", lambda: now() + ahead)
    for _ in range(3):
        bob.client.mail.receive(bob.mailbox)
    assert liar.count("POST", ACK) == 1


async def test_a_stream_that_repeats_itself_is_acknowledged_once(deceived: tuple[Person, Person], liar: Liar) -> None:
    alice, bob = deceived
    liar.events(lambda event: event * 50 if b"event: message" in event else event)
    came: list[bytes] = []

    async def handler(opened: Opened) -> None:
        came.append(opened.body)

    async with served(bob, handler) as mailbox_server:
        for number in range(2):
            alice.client.mail.send(alice.mailbox, bob.name, bytes([number]))
            await until(lambda number=number: len(came) > number, mailbox_server)
    assert came == [b"\x00", b"\x01"]
    assert liar.count("POST", ACK) == 2


async def test_a_stream_of_rubbish_is_taken_up_again_and_ends_nobodys_service(
    deceived: tuple[Person, Person], liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = deceived
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(event_stream, "MOST_BYTES", 1 << 16)
    events = {"content-type": "text/event-stream"}
    rubbish = [
        page(200, "<html>log in first</html>"),
        page(404),
        page(301, location="http://127.0.0.1:9"),
        Answer(200, events, b"data: " + b"x" * (1 << 17)),
        Answer(200, events, b"data: x\n" * (1 << 15)),
        Answer(200, events, b'event: receipt\ndata: {"status": "sold"}\n\n'),
        Answer(200, events, b'event: message\ndata: {"envelope": {}, "lease_token": 7, "attempt": "x"}\n\n'),
        Answer(200, events, b'event: receipt\ndata: {"replay_key": "ab", "status": "delivered"}\n\n'),
    ]
    came: list[bytes] = []

    def next_lie(_: Asked) -> Answer:
        if len(rubbish) == 1:
            liar.honest()
        return rubbish.pop(0)

    liar.instead("GET", "/v1/messages/stream", next_lie)

    async def handler(opened: Opened) -> None:
        came.append(opened.body)

    async with served(bob, handler) as mailbox_server:
        await until(lambda: not rubbish, mailbox_server)
        alice.client.mail.send(alice.mailbox, bob.name, b"after all that")
        await until(lambda: came == [b"after all that"], mailbox_server)


async def test_news_of_a_stream_settles_nothing_that_is_not_signed(deceived: tuple[Person, Person], liar: Liar) -> None:
    alice, bob = deceived
    liar.lie("GET", RECEIPT, lambda _, true: true.changed(attested_by="relay", receipt=None))
    async with served(alice) as mailbox_server:
        alice.client.mail.send(alice.mailbox, bob.name, b"hello")
        bob.client.mail.receive(bob.mailbox)
        await until(lambda: alice.mailbox.outbox.page(1)[0].reported is OutboxStatus.DELIVERED, mailbox_server)
        row = alice.mailbox.outbox.page(1)[0]
        assert (row.status, row.resealable) == (OutboxStatus.QUEUED, True)
        liar.honest()
        alice.client.mail.update_outbox(alice.mailbox)
        assert alice.mailbox.outbox.page(1)[0].status is OutboxStatus.DELIVERED


@pytest.mark.parametrize("answer", [page(200), problem(503, "unavailable")], ids=["a captive portal", "unavailable"])
async def test_a_receipt_that_cannot_be_had_keeps_no_other_chore_from_being_done(
    deceived: tuple[Person, Person], liar: Liar, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    alice, bob = deceived
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(event_stream, "LONGEST_PAUSE", 0.1)
    async with served(alice) as task:
        await until(lambda: liar.count("GET", "/v1/messages/stream") > 0, task)
        alice.client.mail.send(alice.mailbox, bob.name, b"hello")
        liar.instead("GET", RECEIPT, answer)
        bob.client.mail.receive(bob.mailbox)
        await until(lambda: liar.count("GET", RECEIPT) > 0, task)
        waits = alice.client.mail.seal(alice.mailbox, bob.name, b"this too")
        monkeypatch.setattr(mailbox_server, "ROUND", 0.1)
        bob.client.mail.send(bob.mailbox, alice.name, b"the stream goes on")
        alice.client.mail.send(alice.mailbox, bob.name, b"so does its news")
        bob.client.mail.receive(bob.mailbox)
        await until(lambda: alice.mailbox.outbox.message(waits.replay_key).status is OutboxStatus.QUEUED, task)


def test_a_relay_that_always_runs_out_of_one_time_keys_gets_some_once_an_hour_and_never_more_than_can_be_used(
    deceived: tuple[Person, Person], liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, _ = deceived

    def living() -> int:
        with alice.mailbox.database.transaction() as tx:
            return int(tx.execute("SELECT count(*) FROM kem_keys WHERE usage = 'one_time'").fetchone()[0])

    liar.lie("POST", "/v1/keys/bundle", lambda _, true: true.changed(prekeys_uploaded=0))
    before = living()
    for _ in range(5):
        alice.client.keys.publish(alice.mailbox)
    assert living() == before
    monkeypatch.setattr(own_keys, "ONE_TIME_MADE_EVERY", timedelta(0))
    for _ in range(8):
        alice.client.keys.publish(alice.mailbox)
    assert living() < 4 * own_key_renewal.ONE_TIME_BATCH


def test_a_new_pair_gets_one_time_keys_at_once(deceived: tuple[Person, Person]) -> None:
    alice, _ = deceived
    assert alice.client.keys.rotate(alice.mailbox, signer=True).prekeys_uploaded == own_key_renewal.ONE_TIME_BATCH


def test_a_relay_whose_schedules_are_always_due_gets_a_new_key_once_an_hour(
    deceived: tuple[Person, Person], liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = deceived
    alice.client.keys.put_schedule(bob.name, RotationPolicy.HOURLY)

    def due(_: Asked, true: Answer) -> Answer:
        at = stamp(now() + timedelta(minutes=1))
        return true.saying({"schedules": [one | {"due_since": at} for one in true.json()["schedules"]], "next": None})

    liar.lie("GET", "/v1/schedules", due)
    for _ in range(3):
        alice.client.keys.rotate_due(alice.mailbox)
    assert alice.version == 1
    monkeypatch.setattr(own_key_renewal, "SCHEDULED_EVERY", timedelta(0))
    alice.client.keys.rotate_due(alice.mailbox)
    assert alice.version == 2


@pytest.mark.parametrize("answer", ["nothing", "the same"])
def test_a_relay_that_answers_a_long_poll_at_once_is_asked_ever_more_seldom(
    deceived: tuple[Person, Person], liar: Liar, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    alice, bob = deceived
    wire = alice.client.mail.send(alice.mailbox, bob.name, b"once").envelope.wire
    assert len(bob.client.mail.receive(bob.mailbox).messages) == 1
    liar.instead("GET", POLL, lambda _: polled(record(wire)) if answer == "the same" else polled())
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    clock = iter(range(1_000_000))
    monkeypatch.setattr(mail_receiving, "time", SimpleNamespace(monotonic=lambda: next(clock) / 10 + sum(pauses)))
    bob.client.mail.receive(bob.mailbox, wait=300)
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert max(pauses) <= 30
    assert liar.count("GET", POLL) <= 20
