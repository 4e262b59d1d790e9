"""Two agents, their mailboxes and a server: what the SDK seals arrives and opens, whatever the keys do meanwhile."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from angelia.client import own_key_renewal
from angelia.client.ack_plan import AckVerdict
from angelia.envelope.refusals import NotAllowed, Replayed
from angelia.mailbox.outbox_message import OutboxStatus
from live_agents import NO_LIMITS, Person
from server_process import ServerProcess

ROTATIONS = 10
# New signing pairs come after the emergencies, which revoke pairs in grace as well: what those signed is not believed.
EMERGENCIES, NEW_PAIRS = (1, 3), (5, 7, 9)


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(directory / f"sealed-{secrets.token_hex(4)}", limits=NO_LIMITS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def people(server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Person]]:
    monkeypatch.setattr(own_key_renewal, "ONE_TIME_BATCH", 21)
    monkeypatch.setattr(own_key_renewal, "ONE_TIME_LOW", 20)
    made: list[Person] = []

    def make(name: str) -> Person:
        person = Person(server.start_url, tmp_path, name)
        made.append(person)
        person.register()
        person.client.keys.publish(person.mailbox)
        return person

    yield make
    for person in made:
        person.close()


def test_a_message_goes_from_one_agent_to_another_and_opens_once(people: Callable[[str], Person]) -> None:
    alice, bob = people("alice"), people("bob")
    sent = alice.client.mail.send(alice.mailbox, bob.name, b"the server cannot read this")
    (kept_out,) = bob.client.mail.receive(bob.mailbox).not_opened
    assert (type(kept_out.error), kept_out.verdict) == (NotAllowed, AckVerdict.HELD)
    bob.allow(alice)
    (opened,) = bob.client.mail.receive(bob.mailbox).messages
    assert opened.body == b"the server cannot read this"
    with pytest.raises(Replayed):
        bob.client.mail.open(bob.mailbox, sent.envelope.wire)
    alice.client.mail.update_outbox(alice.mailbox)
    assert alice.mailbox.outbox.message(sent.replay_key).status is OutboxStatus.DELIVERED


class Traffic:
    """One agent sends and another receives, without a pause, until told to stop."""

    def __init__(self, sender: Person, recipient: Person) -> None:
        self.sender, self.recipient = sender, recipient
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        # Nobody holds a message while its key is destroyed: otherwise it is opened, and sent again all the same.
        self.receiving = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._send, self.receive)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert self._failures == []

    def flow(self, messages: int) -> None:
        """Until so many more were sent."""
        target = len(self.sent) + messages
        while len(self.sent) < target and not self._failures:
            time.sleep(0.01)

    def receive(self) -> None:
        with self.receiving:
            received = self.recipient.client.mail.receive(self.recipient.mailbox, wait=0.2, most=20)
        assert all(isinstance(one.error, Replayed) or one.verdict is AckVerdict.NACKED for one in received.not_opened)
        self.received += [one.body for one in received.messages]

    def _send(self) -> None:
        body = f"message {len(self.sent)}".encode()
        self.sender.client.mail.send(self.sender.mailbox, self.recipient.name, body)
        self.sent.append(body)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test that waits for it must hear of it
            self._failures.append(error)


def test_ten_rotations_under_continuous_sending_lose_nothing_and_show_nothing_twice(
    people: Callable[[str], Person],
) -> None:
    alice, bob = people("alice"), people("bob")
    bob.allow(alice)
    with Traffic(alice, bob) as traffic:
        for number in range(ROTATIONS):
            traffic.flow(4)
            # Both sides rotate, with and without a new signing pair; nobody tells the other.
            if number in EMERGENCIES:
                with traffic.receiving:
                    traffic.flow(2)  # these wait under the key that is revoked
                    bob.client.keys.emergency_rotate(bob.mailbox, why="a drill", signer=False)
            else:
                bob.client.keys.rotate(bob.mailbox, signer=number in NEW_PAIRS)
            if number % 4 == 1:
                alice.client.keys.rotate(alice.mailbox, signer=True)
        traffic.flow(4)
    # What waited under a revoked key has failed, and is sealed again by whoever sent it.
    deadline, resent = time.monotonic() + 60, 0
    while len(traffic.received) < len(traffic.sent) and time.monotonic() < deadline:
        news = alice.client.mail.update_outbox(alice.mailbox)
        assert news.doubts == []
        resent += len(news.resent)
        traffic.receive()
    assert sorted(traffic.received) == sorted(traffic.sent)
    sealed_again = [row.status for row in alice.mailbox.outbox.page(1000)].count(OutboxStatus.RESEALED)
    assert sealed_again > resent > 0
    traffic.receive()
    assert len(traffic.received) == len(traffic.sent)
    alice.client.mail.update_outbox(alice.mailbox)
    assert {row.status for row in alice.mailbox.outbox.page(1000)} == {OutboxStatus.DELIVERED, OutboxStatus.RESEALED}
    print(
        f"{len(traffic.sent)} messages through {ROTATIONS} rotations, {sealed_again} sealed again, "
        f"{resent} of them after the relay had taken them"
    )
