"""Mailboxes of real agents in a directory of their own, and how they come to know each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from angelia.mailbox import identity
from angelia.mailbox.box import Mailbox

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "agents"


@pytest.fixture
def agent(home: Path) -> Iterator[Callable[[str], Mailbox]]:
    """Makes an agent with a mailbox and a first bundle."""
    made: list[Mailbox] = []

    def make(name: str) -> Mailbox:
        box = Mailbox(home, identity.create(home, name), NOW)
        made.append(box)
        box.own.first_bundle(NOW)
        box.own.finish_rotation(NOW)
        return box

    yield make
    for box in made:
        box.close()


@pytest.fixture
def introduce() -> Callable[[Mailbox, Mailbox], None]:
    """Two agents pin each other, and each allows the other's mail."""

    def pin(one: Mailbox, other: Mailbox) -> None:
        link = other.own.newest()
        assert link is not None
        one.trust.pin_first(link, NOW)
        one.allowlist.allow(other.identity.handle, NOW)

    def both(one: Mailbox, other: Mailbox) -> None:
        pin(one, other)
        pin(other, one)

    return both


@pytest.fixture
def alice(agent: Callable[[str], Mailbox]) -> Mailbox:
    return agent("alice")


@pytest.fixture
def bob(agent: Callable[[str], Mailbox], alice: Mailbox, introduce: Callable[[Mailbox, Mailbox], None]) -> Mailbox:
    """Bob, who knows Alice and is known to her."""
    made = agent("bob")
    introduce(alice, made)
    return made


@pytest.fixture
def send(alice: Mailbox) -> Callable[..., bytes]:
    """Seals a message from Alice to the newest bundle that she has of somebody; the wire form."""

    def seal(to: str = "bob", body: bytes = b"hello", now: datetime = NOW, **options: object) -> bytes:
        known = alice.trust.bundle(to, now, max_age=None)
        assert known is not None
        return alice.outbox.seal(known.link, body, now=now, **options).wire  # type: ignore[arg-type]

    return seal
