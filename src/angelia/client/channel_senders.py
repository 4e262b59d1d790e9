"""The keys of publishers: pinned at first sight, and followed along their chains of bundles."""

from __future__ import annotations

from angelia.client import key_calls, mailbox_keys
from angelia.client.api_errors import Unreachable
from angelia.client.exchange import Exchange
from angelia.client.mailbox_keys import now
from angelia.errors import AngeliaError, KeyNotFound, NotFound, Unavailable
from angelia.keys.model import parse_links
from angelia.mailbox.mailbox import Mailbox


def know_senders(mailbox: Mailbox, senders: set[str]) -> Exchange[dict[str, AngeliaError]]:
    """Learns the keys of publishers, as for mail: pinned at first sight, later followed along the chain of bundles.
    Returns those publishers whose keys are not believed, with the reason.

    If the server is away, or does not know a publisher, messages still open with keys that are pinned here."""
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
    """Learns an agent's present keys. An agent that was not known is pinned from the beginning of its chain: messages
    that it signed before it rotated its pair may still be read."""
    if mailbox.pinned_keys.pin(agent) is None:
        page = yield from key_calls.bundles_since(agent, 0)
        links = parse_links(page.bundles[:1])
        if links and links[0].bundle.agent_nhi == agent:
            yield from mailbox_keys.catch_up(mailbox, mailbox.pinned_keys.pin_first(links[0], now(), page.revoked))
            return
    yield from mailbox_keys.find_keys(mailbox, agent)
