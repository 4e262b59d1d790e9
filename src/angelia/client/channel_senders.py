"""Whom a reader of channels believes: publishers along their chains of bundles, each on its own."""

from __future__ import annotations

from angelia.client import key_calls, mailbox_keys
from angelia.client.api_errors import Unreachable
from angelia.client.exchange import Exchange
from angelia.client.mailbox_keys import now
from angelia.errors import AngeliaError, KeyNotFound, NotFound, Unavailable
from angelia.keys.model import parse_links
from angelia.mailbox.mailbox import Mailbox


def know_senders(mailbox: Mailbox, senders: set[str]) -> Exchange[dict[str, AngeliaError]]:
    """Who publishes is believed as in mail: at first sight, and from then on along its chain of bundles. Whose keys
    cannot be had or believed is told, with the reason; it is nobody else's trouble.

    A server that is away, or does not know the agent, keeps nobody from reading whom it knows."""
    problems: dict[str, AngeliaError] = {}
    for sender in sorted(senders - {mailbox.identity.handle}):
        try:
            yield from _meet(mailbox, sender)
        except (Unreachable, Unavailable, NotFound, KeyNotFound):
            continue
        except AngeliaError as error:
            problems[sender] = error
    return problems


def _meet(mailbox: Mailbox, agent: str) -> Exchange[None]:
    """Know an agent's present keys. Who was not known is believed from the beginning of its chain on: what it signed
    before it rotated its pair is still there to be read."""
    if mailbox.pinned_keys.pin(agent) is None:
        page = yield from key_calls.bundles_since(agent, 0)
        links = parse_links(page.bundles[:1])
        if links and links[0].bundle.agent_nhi == agent:
            yield from mailbox_keys.catch_up(mailbox, mailbox.pinned_keys.pin_first(links[0], now(), page.revoked))
            return
    yield from mailbox_keys.find_keys(mailbox, agent)
