"""Mailboxes of real agents in a directory of their own, and how they come to know each other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from angelia.mailbox import identity
from angelia.mailbox.mailbox import Mailbox

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def made(home: Path, name: str) -> Mailbox:
    """A new agent with a mailbox and a first bundle."""
    box = Mailbox(home, identity.create(home, name), NOW)
    box.own_keys.first_bundle(NOW)
    box.key_rotation.finish(NOW)
    return box


def pin(one: Mailbox, other: Mailbox) -> None:
    """Believe another agent, and allow its mail."""
    link = other.own_keys.newest()
    assert link is not None
    one.pinned_keys.pin_first(link, NOW)
    one.allowlist.allow(other.identity.handle, NOW)


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Alice alone, and Alice and Bob who know each other: made once, copied for every test."""
    path = tmp_path_factory.mktemp("originals")
    made(path / "alone", "alice").close()
    shutil.copytree(path / "alone", path / "acquainted")
    alice = Mailbox(path / "acquainted", identity.load(path / "acquainted", "alice", lambda: ""), NOW)
    with alice, made(path / "acquainted", "bob") as bob:
        pin(alice, bob)
        pin(bob, alice)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "agents"


@pytest.fixture
def agent(home: Path) -> Iterator[Callable[[str], Mailbox]]:
    """Makes an agent with a mailbox and a first bundle."""
    boxes: list[Mailbox] = []

    def make(name: str) -> Mailbox:
        boxes.append(made(home, name))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()


@pytest.fixture
def introduce() -> Callable[[Mailbox, Mailbox], None]:
    """Two agents pin each other, and each allows the other's mail."""

    def both(one: Mailbox, other: Mailbox) -> None:
        pin(one, other)
        pin(other, one)

    return both


@pytest.fixture
def alice(home: Path, originals: Path, request: pytest.FixtureRequest) -> Iterator[Mailbox]:
    """Alice; she knows Bob if the test has one."""
    shutil.copytree(originals / ("acquainted" if "bob" in request.fixturenames else "alone"), home)
    with Mailbox(home, identity.load(home, "alice", lambda: ""), NOW) as box:
        yield box


@pytest.fixture
def bob(home: Path, alice: Mailbox) -> Iterator[Mailbox]:
    """Bob, who knows Alice and is known to her."""
    with Mailbox(home, identity.load(home, "bob", lambda: ""), NOW) as box:
        yield box


@pytest.fixture
def send(alice: Mailbox) -> Callable[..., bytes]:
    """Seals a message from Alice to the newest bundle that she has of somebody; the wire form."""

    def seal(to: str = "bob", body: bytes = b"hello", now: datetime = NOW, **options: object) -> bytes:
        known = alice.pinned_keys.bundle(to, now, max_age=None)
        assert known is not None
        return alice.outbox.seal(known.bundle, body, now=now, **options).wire  # type: ignore[arg-type]

    return seal
