"""What tests of mail and of keys ask again and again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from angelia.client import clock
from angelia.envelope.bundles import Link, OneTimeKey
from angelia.keys.model import link_document, one_time_document
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import OutboxMessage
from client.recorder import Recorder
from live_agents import Person


def now() -> datetime:
    return datetime.now(UTC)


def later(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """The clients' clock, so much ahead."""
    monkeypatch.setattr(clock, "now", lambda: now() + by)


def outgoing(person: Person) -> OutboxMessage:
    """The newest message of an outbox."""
    return person.mailbox.outbox.page(1)[0]


def bodies(person: Person, **wishes: Any) -> list[bytes]:
    return [one.body for one in person.client.mail.receive(person.mailbox, **wishes).messages]


def rotated(box: Mailbox, **how: bool) -> Link:
    box.key_rotation.begin(now(), **how)
    return box.key_rotation.finish(now())


def newest(box: Mailbox) -> Link:
    link = box.own_keys.newest()
    assert link is not None
    return link


def answer(link: Link, key: OneTimeKey | None = None, **more: object) -> dict[str, Any]:
    """A bundle as a server gives it out, with a one-time key or without."""
    said: dict[str, Any] = msgspec.to_builtins(link_document(link))
    if key is not None:
        more = {"one_time": True, "one_time_key": msgspec.to_builtins(one_time_document(key)), **more}
    return {**said, "bundle_id": link.bundle.hash.hex(), **more}


def serve(recorder: Recorder, name: str, *answers: dict[str, Any]) -> None:
    """From now on the server says this about an agent's bundle, and nothing else."""
    recorder.told["GET", f"/v1/keys/bundle/{name}"] = []
    for one in answers:
        recorder.tell("GET", f"/v1/keys/bundle/{name}", one)
