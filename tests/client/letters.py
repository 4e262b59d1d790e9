"""What tests of mail ask again and again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from angelia.mailbox.outbox_message import OutboxMessage
from live_agents import Person


def now() -> datetime:
    return datetime.now(UTC)


def outgoing(person: Person) -> OutboxMessage:
    """The newest message of an outbox."""
    return person.mailbox.outbox.page(1)[0]


def bodies(person: Person, **wishes: Any) -> list[bytes]:
    return [one.body for one in person.client.mail.receive(person.mailbox, **wishes).messages]
