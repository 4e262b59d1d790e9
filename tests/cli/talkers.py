"""Agents of a real server that use one noun of the command line, each with a home of its own."""

from __future__ import annotations

import secrets
from pathlib import Path

from angelia.client import Client
from angelia.mailbox import identity
from cli.running import Angelia, Ended


class Talker:
    """An agent, and its command: `alice("read", room)` runs `angelia room read`."""

    def __init__(self, name: str, run: Angelia, noun: str) -> None:
        self.name, self.run, self._noun = name, run, noun

    def __call__(self, *argv: str, **how: object) -> Ended:
        return self.run(self._noun, *argv, **how)

    def does(self, *argv: str, **how: object) -> str:
        ended = self(*argv, **how)
        assert ended.code == 0, f"{argv}: {ended.err}"
        return ended.out


def fresh(name: str) -> str:
    return f"{name}-{secrets.token_hex(3)}"


def register(url: str, home: Path, handle: str) -> None:
    """Makes an agent with a handle, and without a bundle, which takes the longest to make."""
    made = identity.create(home, handle)
    with Client(url, identity=made) as client:
        agent = client.agents.register(made.public_key)
        client.agents.claim_handle(handle)
    identity.record_registration(home, made, id=agent.id, handle=handle, server=url)
