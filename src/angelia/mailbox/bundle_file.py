"""Key bundles as a file, for exchange without a server: the agent's whole chain, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from uuid import UUID

import msgspec

from angelia.envelope.bundles import Link, UntrustedBundle
from angelia.errors import InvalidArgument
from angelia.keys.model import LinkDocument, link_document, parse_links
from angelia.mailbox.envelope_files import read_safely
from angelia.mailbox.pinned_keys import Pin, PinnedKeys

MOST_BYTES = 16 << 20


def encode(links: Sequence[Link]) -> bytes:
    return msgspec.json.encode([link_document(link) for link in links]) + b"\n"


def read(path: Path) -> list[Link]:
    """Returns the chain in a file. Its signatures are not verified yet."""
    content = read_safely(path, path, most=MOST_BYTES)
    try:
        links = parse_links(msgspec.json.decode(content, type=list[LinkDocument]))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"{path} is no file of key bundles: {error}", hint="its agent makes one by `angelia key publish --out FILE`"
        ) from error
    if not links or len({link.bundle.agent_nhi for link in links}) != 1:
        raise InvalidArgument(
            f"{path} must hold the bundles of one agent", hint="its agent makes one by `angelia key publish --out FILE`"
        )
    return links


def take(pinned_keys: PinnedKeys, links: Sequence[Link], now: datetime, revoked: Sequence[UUID] | None = None) -> Pin:
    """Pins an agent at first contact, or advances its pin along the chain. Returns the pin."""
    newest = links[-1]
    pin = pinned_keys.pin(newest.bundle.agent_nhi)
    if pin is None:
        return pinned_keys.pin_first(newest, now, revoked)
    ahead = [link for link in links if link.bundle.bundle_version >= pin.bundle_version]
    if not ahead:
        old, seen = newest.bundle.bundle_version, pin.bundle_version
        raise UntrustedBundle(
            f"bundle {old} of {pin.nhi} is older than bundle {seen}, which was seen before",
            hint=f"ask {pin.nhi} for its newest",
        )
    return pinned_keys.advance(pin.nhi, ahead, now, revoked)
