"""Finds an agent of this machine and its server as the command line does: settings, keys, mailbox and URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from angelia.client import clock
from angelia.client.transport import origin
from angelia.errors import InvalidArgument, NotFound, Unauthenticated
from angelia.mailbox import agent_names
from angelia.mailbox import identity as identities
from angelia.mailbox.keyfile import PassphrasePrompt, WrongPassphrase
from angelia.mailbox.mailbox import Mailbox
from angelia.runtime_file import read_runtime
from angelia.settings import load

FALLBACK_URL = "http://localhost:8080"
_MOST_NAMES = 10

Passphrase = str | Callable[[], str] | None


def server_url(data_dir: Path, named: str | None) -> str:
    """Returns the URL of the server that is named, else of one that runs on this data directory, else the default."""
    if not named:
        running = read_runtime(data_dir)
        named = FALLBACK_URL if running is None else running.url
    return origin(named)


def open_mailbox(
    name: str | None, home: Path | str | None, url: str | None, passphrase: Passphrase
) -> tuple[str, Mailbox]:
    """Returns the URL of an agent's server, and the agent's mailbox. What is None comes from the settings; with one
    agent in the home the name may be left out."""
    settings = load({"home": home, "url": url, "identity": name}).settings
    server = server_url(settings.data_dir, settings.url)
    local = _local_name(settings.home, settings.identity)
    identity = identities.load(settings.home, local, _prompt(local, passphrase))
    if identity.id is None:
        raise Unauthenticated(
            f"{identity.handle} is not registered with a server", hint=f"angelia agent register --as {local}"
        )
    return server, Mailbox(settings.home, identity, clock.now(), ttl_max=settings.max_ttl_seconds)


def _local_name(home: Path, wanted: str | None) -> str:
    found = identities.local_name(home, wanted)
    if found is not None:
        return found
    names = agent_names.names(home)
    listed = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES:,} more" if names[_MOST_NAMES:] else "")
    if wanted is None and names:
        raise InvalidArgument(
            f"{len(names)} agents have keys in {home}: {listed}", hint=f'say which: Agent.open("{names[0]}")'
        )
    here = f"; here are: {listed}" if names else ""
    missing = "no agent has keys" if wanted is None else f"the agent {wanted} has no keys"
    raise NotFound(f"{missing} in {home}{here}", hint=f"angelia agent new {wanted or 'NAME'} --register")


def _prompt(name: str, passphrase: Passphrase) -> PassphrasePrompt:
    """Returns the function that gives the passphrase of a key. Only `passphrase` itself may ask a person."""

    def prompt() -> str:
        if passphrase is None:
            raise WrongPassphrase(
                f"the key of {name} has a passphrase, and none was given",
                hint=f'Agent.open("{name}", passphrase=getpass.getpass) asks for it',
            )
        return passphrase if isinstance(passphrase, str) else passphrase()

    return prompt
