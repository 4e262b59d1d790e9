from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from angelia.mailbox import identity
from angelia.mailbox.identity import Identity
from client.recorder import Recorder, recording
from people import NO_LIMITS, Person
from processes import ServerProcess


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


@pytest.fixture
def alice(tmp_path: Path) -> Identity:
    return identity.create(tmp_path / "home", "alice")


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
            person.client.publish_keys(person.mailbox)
        return person

    yield make
    for person in made:
        person.close()
