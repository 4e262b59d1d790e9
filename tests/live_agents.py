"""Agents of a real server, each with a mailbox of its own and a client that may lose answers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from angelia.client import Client
from angelia.client.transport import Failed, Outcome, Send, Step
from angelia.envelope.bundles import Bundle
from angelia.mailbox import identity
from angelia.mailbox.mailbox import Mailbox

NO_LIMITS = (
    "register=off,identity=off,keys=off,bundles=off,send=off,send_batch=off,receive=off,"
    "channels=off,room_create=off,room_read=off,find=off,stats=off,who=off"
)


class Lossy(Client):
    """A transport that delivers all requests, but loses some answers of a path. It can call a function before a request
    to a path."""

    loses, times = "", 3
    before: tuple[str, Callable[[], object]] | None = None

    def _take(self, step: Step) -> Outcome:
        if self.before is not None and isinstance(step, Send) and step.url.endswith(self.before[0]):
            act, self.before = self.before[1], None
            act()
        outcome = super()._take(step)
        if self.loses and self.times and isinstance(step, Send) and step.url.endswith(self.loses):
            self.times -= 1
            return Failed("lost the answer")
        return outcome


class Person:
    """An agent of a real server. `reopen` returns the agent of a new process with the same home."""

    def __init__(self, url: str, home: Path, name: str) -> None:
        self.url, self.home, self.name = url, home, f"{name}-{secrets.token_hex(3)}"
        identity.create(home, self.name)
        self.mailbox, self.client = self._opened()

    def _opened(self) -> tuple[Mailbox, Lossy]:
        mailbox = Mailbox(self.home, identity.load(self.home, self.name, lambda: ""), datetime.now(UTC))
        return mailbox, Lossy(self.url, identity=mailbox)

    def register(self) -> None:
        made = self.mailbox.identity
        with Client(self.url, identity=made) as client:
            agent = client.agents.register(made.public_key)
            client.agents.claim_handle(self.name)
        identity.record_registration(self.home, made, id=agent.id, handle=self.name, server=self.url)
        self.reopen()

    def reopen(self) -> None:
        self.close()
        self.mailbox, self.client = self._opened()

    def close(self) -> None:
        self.client.close()
        self.mailbox.close()

    def allow(self, other: Person) -> None:
        """From now on opens the mail of the other agent."""
        self.client.keys.find(self.mailbox, other.name)
        self.mailbox.allowlist.allow(other.name, datetime.now(UTC))

    @property
    def newest(self) -> Bundle:
        link = self.mailbox.own_keys.newest()
        assert link is not None
        return link.bundle

    @property
    def version(self) -> int:
        return self.newest.bundle_version

    def served(self) -> bytes:
        """Returns the hash of the bundle on the server."""
        return bytes.fromhex(self.client.keys.bundle(self.name).bundle_id)

    def in_step(self) -> bool:
        """Whether server and mailbox have the same keys, and the agent can sign."""
        return self.mailbox.key_rotation.pending() is None and self.served() == self.newest.hash
