"""Two agents, their mailboxes and a server: what the SDK seals opens, whatever the keys do meanwhile."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from angelia.client import Client
from angelia.envelope import sealing
from angelia.envelope.refusals import NotAllowed, Replayed
from angelia.envelope.wire import Envelope, decode
from angelia.errors import KeyRevoked, KeyStale
from angelia.keys import service as keys
from angelia.mailbox import identity
from angelia.mailbox.box import Mailbox
from angelia.stores.embedded.datadir import read_runtime
from angelia.stores.ledger import Ledger, Tx
from processes import ServerProcess

T = TypeVar("T")
LIMITS = "register=off,identity=off,keys=off,bundles=off"


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(directory / f"sealed-{secrets.token_hex(4)}", limits=LIMITS)
    server.start()
    yield server
    server.stop()


class Person:
    """An agent with a mailbox of its own and a client that speaks for it."""

    def __init__(self, server: ServerProcess, home: Path, name: str) -> None:
        self.name = f"{name}-{secrets.token_hex(3)}"
        made = identity.create(home, self.name)
        with Client(server.start_url, identity=made) as client:
            agent = client.register(made.public_key)
            client.claim_handle(self.name)
        made = identity.record_registration(home, made, id=agent.id, handle=self.name, server=server.start_url)
        self.mailbox = Mailbox(home, made, datetime.now(UTC))
        self.client = Client(server.start_url, identity=self.mailbox)
        self.client.publish_keys(self.mailbox)

    def allow(self, other: Person) -> None:
        self.client.find_keys(self.mailbox, other.name)
        self.mailbox.allowlist.allow(other.name, datetime.now(UTC))

    def close(self) -> None:
        self.client.close()
        self.mailbox.close()


@pytest.fixture
def people(server: ServerProcess, tmp_path: Path) -> Iterator[Callable[[str], Person]]:
    made: list[Person] = []

    def make(name: str) -> Person:
        made.append(Person(server, tmp_path, name))
        return made[-1]

    yield make
    for person in made:
        person.close()


class Relay:
    """What a relay asks of the keys before it takes an envelope; a server's own ledger answers."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def take(self, envelope: Envelope) -> None:
        async def admit(tx: Tx) -> None:
            now = datetime.now(UTC)
            pair = await keys.signer(tx, envelope.header, now)
            sealing.verify(envelope, pair)
            await keys.admit_key(tx, envelope.header, now)

        self._run(admit)

    def _run(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        async def run() -> T:
            runtime = read_runtime(self._server.data_dir)
            assert runtime is not None
            ledger = await Ledger.open(runtime.database_url, 1)
            try:
                async with ledger.transaction() as tx:
                    return await work(tx)
            finally:
                await ledger.close()

        return asyncio.run(run())


def deliver(sender: Person, relay: Relay, envelope: Envelope) -> bytes:
    """Hand an envelope to the relay, sealing it again for as long as it is stale."""
    for _ in range(5):
        try:
            relay.take(envelope)
        except (KeyStale, KeyRevoked) as refusal:
            envelope = sender.client.reseal(sender.mailbox, envelope.replay_key, refusal)
        else:
            return envelope.wire
    raise AssertionError("five rotations while one message was sealed")


def test_a_message_goes_from_one_agent_to_another_and_opens_once(
    server: ServerProcess, people: Callable[[str], Person]
) -> None:
    alice, bob = people("alice"), people("bob")
    envelope = alice.client.seal(alice.mailbox, bob.name, b"the server cannot read this")
    with pytest.raises(NotAllowed):
        bob.client.open(bob.mailbox, envelope.wire)
    bob.allow(alice)
    relayed = deliver(alice, Relay(server), envelope)
    assert bob.client.open(bob.mailbox, relayed).body == b"the server cannot read this"
    with pytest.raises(Replayed):
        bob.client.open(bob.mailbox, relayed)


def test_ten_rotations_under_continuous_sealing_with_stale_copies_lose_nothing(
    server: ServerProcess, people: Callable[[str], Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob, relay = people("alice"), people("bob"), Relay(server)
    # The relay bears no copy that is older than a rotation, so that stale ones are met within seconds.
    monkeypatch.setattr("angelia.keys.model.CACHE", timedelta(0))
    bob.allow(alice)
    sent: dict[str, bytes] = {}
    waiting: list[bytes] = []
    stop = threading.Event()
    resealed = 0

    def keep_sending() -> None:
        nonlocal resealed
        while not stop.is_set() or len(sent) < 40:
            body = f"message {len(sent)}".encode()
            envelope = alice.client.seal(alice.mailbox, bob.name, body)
            wire = deliver(alice, relay, envelope)
            resealed += wire != envelope.wire
            sent[decode(wire).replay_key] = body
            waiting.append(wire)

    sender = threading.Thread(target=keep_sending)
    sender.start()
    try:
        for number in range(10):
            target = len(sent) + 2
            while len(sent) < target and sender.is_alive():
                stop.wait(0.01)
            # Both sides rotate, with and without a new signing pair; nobody tells the other.
            bob.client.rotate_keys(bob.mailbox, signer=number % 3 == 0)
            if number % 4 == 1:
                alice.client.rotate_keys(alice.mailbox, signer=True)
    finally:
        stop.set()
        sender.join(120)
    opened = {bob.client.open(bob.mailbox, wire).body for wire in waiting}
    assert opened == set(sent.values())
    assert len(waiting) == len(sent) >= 40
    assert resealed > 0
    for wire in waiting:
        with pytest.raises(Replayed):
            bob.client.open(bob.mailbox, wire)
    print(f"{len(sent)} messages through 10 rotations, {resealed} sealed again")
