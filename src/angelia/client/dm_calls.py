"""Direct messages as AICQ's clients know them: hidden from the server, and not signed end to end."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from angelia.agents.api import AgentProfile
from angelia.client.agent_profiles import find_agent
from angelia.client.exchange import Exchange
from angelia.client.operation_requests import ask
from angelia.client.peer_keys import catch_up
from angelia.envelope import aicq_dm
from angelia.envelope.bundles import UntrustedBundle
from angelia.errors import InvalidArgument
from angelia.mailbox.mailbox import Mailbox
from angelia.rooms import api
from angelia.rooms.model import MOST_DM

# The body is base64 of the sealed text, four characters for three bytes.
MOST_TEXT = MOST_DM // 4 * 3 - aicq_dm.OVERHEAD


@dataclass(frozen=True, slots=True)
class Dm:
    """A direct message. Only the server's word says that it is from `sender`. `text` is None for one that cannot be
    opened: it is sealed to an earlier key, or is not sealed at all, as `body` shows."""

    id: str
    sender: UUID
    text: str | None
    body: str
    ts: int


def send_dm(mailbox: Mailbox, recipient: str | UUID, text: str) -> Exchange[api.Posted]:
    """Seals a text to an agent with the cipher of AICQ's clients, and puts it into its inbox. The server cannot read
    it; that it is from you, the recipient has by the server's word.

    The recipient's key comes from the server. For an agent whose keys are pinned here it must be the pinned one. If the
    network fails, the message may have been sent or not."""
    size = len(text.encode())
    if not 0 < size <= MOST_TEXT:
        raise InvalidArgument(
            f"a direct message has 1 to {MOST_TEXT:,} bytes, and this one has {size:,}",
            hint=f"sealed mail takes 1 MiB: angelia mail send {recipient}" if size else "",
        )
    profile = yield from find_agent(recipient)
    yield from _refuse_unpinned_key(mailbox, profile)
    return (yield from ask(api.SEND_DM, profile.id, body=api.DmBody(aicq_dm.seal(text, profile.public_key))))


def read_dms(mailbox: Mailbox, *, before: int | None = None, limit: int = 100) -> Exchange[list[Dm]]:
    """Returns the direct messages of the agent before a time in Unix milliseconds, the newest first, opened where that
    is possible. Reading removes none."""
    page = yield from ask(api.READ_DMS, query=api.DmQuery(limit=limit, before=before))
    return [Dm(one.id, one.from_, _opened(mailbox, one.body), one.body, one.ts) for one in page.messages]


def delete_dm(message: str) -> Exchange[None]:
    """Acknowledges a direct message, which is gone then."""
    return ask(api.DELETE_DM, message)


def _refuse_unpinned_key(mailbox: Mailbox, profile: AgentProfile) -> Exchange[None]:
    """Raises UntrustedBundle if the server shows another key for an agent than its pinned chain of bundles ends in."""
    pin = mailbox.pinned_keys.pin(profile.handle) if profile.handle else None
    if pin is None or pin.signer.ed25519 == profile.public_key:
        return
    pin = yield from catch_up(mailbox, pin)  # it may have rotated its pair
    if pin.signer.ed25519 != profile.public_key:
        raise UntrustedBundle(f"the server shows another key for {pin.nhi} than the one that is pinned here")


def _opened(mailbox: Mailbox, body: str) -> str | None:
    try:
        return aicq_dm.open_body(body, mailbox.key.private_bytes_raw())
    except aicq_dm.DmNotOpened:
        return None
