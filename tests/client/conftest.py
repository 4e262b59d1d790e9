from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from angelia.client import own_key_renewal, transport
from angelia.mailbox import identity
from angelia.mailbox.mailbox import Mailbox
from client.letters import now
from client.recorder import Recorder, recording
from live_agents import NO_LIMITS, Person
from lying_proxy import Liar, lying
from server_process import ServerProcess


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Callable[[str], Mailbox]]:
    """Makes an agent with a mailbox and a first bundle."""
    made: list[Mailbox] = []

    def make(name: str) -> Mailbox:
        box = Mailbox(tmp_path, identity.create(tmp_path, name), now())
        box.own_keys.first_bundle(now())
        box.key_rotation.finish(now())
        made.append(box)
        return box

    yield make
    for box in made:
        box.close()


@pytest.fixture(scope="session")
def server(directory: Path) -> Iterator[ServerProcess]:
    """A real server; an agent's name must be new on it."""
    server = ServerProcess(directory / f"sdk-{secrets.token_hex(4)}", limits=NO_LIMITS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def join(server: ServerProcess, tmp_path: Path) -> Iterator[Callable[..., Person]]:
    """Makes an agent of the real server, with its keys published."""
    made: list[Person] = []

    def make(name: str, *, publishes: bool = True) -> Person:
        person = Person(server.start_url, tmp_path / "homes", name)
        made.append(person)
        person.register()
        if publishes:
            person.client.keys.publish(person.mailbox)
        return person

    yield make
    for person in made:
        person.close()


@pytest.fixture(scope="session")
def _relay(server: ServerProcess) -> Iterator[Liar]:
    with lying(server.start_url) as liar:
        yield liar


@pytest.fixture
def liar(_relay: Liar) -> Liar:
    """A relay in front of the real server that lies when it is told to."""
    _relay.honest()
    return _relay


@pytest.fixture
def short_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few one-time keys, and no pauses to speak of."""
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(own_key_renewal, "ONE_TIME_BATCH", 21)
    monkeypatch.setattr(own_key_renewal, "ONE_TIME_LOW", 20)


@pytest.fixture
def acquainted(short_work: None, join: Callable[..., Person]) -> tuple[Person, Person]:
    """Alice and Bob, who open each other's mail."""
    alice, bob = join("alice"), join("bob")
    bob.allow(alice)
    alice.allow(bob)
    return alice, bob


@pytest.fixture
def alice(acquainted: tuple[Person, Person]) -> Person:
    return acquainted[0]


@pytest.fixture
def bob(acquainted: tuple[Person, Person]) -> Person:
    return acquainted[1]


@pytest.fixture
def deceived(short_work: None, liar: Liar, tmp_path: Path) -> Iterator[tuple[Person, Person]]:
    """Alice and Bob, who open each other's mail and know the server by way of the liar alone."""
    made = [Person(liar.url, tmp_path / "homes", name) for name in ("alice", "bob")]
    for person in made:
        person.register()
        person.client.keys.publish(person.mailbox)
    alice, bob = made
    bob.allow(alice)
    alice.allow(bob)
    yield alice, bob
    for person in made:
        person.close()
