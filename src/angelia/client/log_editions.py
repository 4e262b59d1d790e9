"""Editions of groups, which owners send to members as sealed mail: who is in, which nodes, and the epoch's key."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from angelia.client import clock, peer_keys
from angelia.client.api_errors import Unreachable
from angelia.client.channel_key_mail import collect_controls
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.mail_sending import send_sealed
from angelia.envelope.refusals import NotAllowed
from angelia.envelope.sealing import Control
from angelia.errors import AngeliaError, InvalidArgument, NotMember, RateLimited, Unavailable
from angelia.grouplog.model.editions import EDITIONS, GroupEdition, decode_mail
from angelia.mailbox.drafts import Draft, SendOptions
from angelia.mailbox.mailbox import Mailbox

_AT_ONCE = 100  # members; each mail may have a mebibyte
_SERVER_ERRORS = (Unreachable, Unavailable, BadAnswer, RateLimited)


@dataclass(frozen=True, slots=True)
class EditionMail:
    """The members that an edition was sent to, and those that could not be reached, each with the reason."""

    sent: list[str]
    failed: dict[str, AngeliaError]


def collect_editions(mailbox: Mailbox) -> Exchange[int]:
    """Fetches editions from mail, and takes over those that may be believed. Returns how many changed a group."""
    yield from collect_controls(mailbox, EDITIONS)
    return take_editions(mailbox)


def take_editions(mailbox: Mailbox) -> int:
    """Takes over the editions that came with other mail. Returns how many changed a group."""
    new, last = 0, None
    while controls := mailbox.inbox.controls(Control.GROUP_KEY, after=last):
        for control in controls:
            last = control.message
            # One that is not believed is dropped; what fails for another reason is tried again.
            with contextlib.suppress(NotAllowed, InvalidArgument, NotMember):
                sent = decode_mail(control.body)
                new += mailbox.logs.accept(sent, last.sender, last.sender_fingerprint, clock.now())
            mailbox.inbox.mark_handled(last.replay_key)
    return new


def tell(mailbox: Mailbox, edition: GroupEdition) -> Exchange[EditionMail]:
    """Sends the newest edition to the members that have not been sent it, with the keys that they lack."""
    told, left = EditionMail([], {}), mailbox.logs.untold(edition)
    while some := list(islice(left, _AT_ONCE)):
        yield from _tell(mailbox, some, told)
        mailbox.logs.note_told(edition, told.sent)
    return told


def _tell(mailbox: Mailbox, mails: Iterable[tuple[str, bytes]], told: EditionMail) -> Exchange[None]:
    options: SendOptions = {"channel_id": EDITIONS, "control": True, "ttl_seconds": mailbox.channels.ttl}
    drafts = list[Draft]()
    for handle, body in mails:
        try:
            known, _ = yield from peer_keys.find_keys(mailbox, handle)
        except _SERVER_ERRORS:
            raise
        except AngeliaError as error:
            told.failed[handle] = error
        else:
            drafts.append(Draft(recipient=known.bundle, body=body, options=options))
    if not drafts:
        return
    envelopes = mailbox.outbox.seal_many(drafts, clock.now())
    refusals = yield from send_sealed(mailbox, envelopes)
    for draft, refusal in zip(drafts, refusals, strict=True):
        if refusal is None:
            told.sent.append(draft.recipient.agent_nhi)
        else:
            told.failed[draft.recipient.agent_nhi] = refusal
