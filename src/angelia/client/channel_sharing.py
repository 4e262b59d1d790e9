"""Shares a channel's key with the members that lack it: sealed to each of them, and sent as mail."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from angelia.api import ItemProblem
from angelia.channels import api
from angelia.channels.model import MOST_SUBSCRIBERS, ChannelView
from angelia.client import clock, mail_calls, peer_keys
from angelia.client.api_errors import Unreachable, item_fault
from angelia.client.channel_keys import SealingKey
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.mail_sending import send_sealed
from angelia.client.operation_requests import ask
from angelia.client.rate_limit_wait import Patience, patiently
from angelia.envelope.refusals import NotAllowed
from angelia.envelope.sealing import ChannelKey
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError, KeyRevoked, KeyStale, RateLimited, Unavailable
from angelia.mailbox.drafts import Draft, SendOptions
from angelia.mailbox.mailbox import Mailbox

_SEALED_TOGETHER = 256
_MOST_PAGES = 2 * MOST_SUBSCRIBERS // _SEALED_TOGETHER
# Ten thousand subscribers whose keys have to be looked up first take a quarter of an hour at 600 a minute.
_PATIENCE_SECONDS = 1_800.0
# Errors that concern no single recipient: the others would fail as well.
_SERVER_ERRORS = (Unreachable, Unavailable, BadAnswer)


@dataclass(frozen=True, slots=True)
class KeyShareResult:
    """The agents to which a channel's key was sent, and those to which it could not be, with the reason."""

    sent: list[str]
    failed: dict[str, AngeliaError]


def share(mailbox: Mailbox, sealing: SealingKey) -> Exchange[KeyShareResult]:
    """Seals the key to the members that lack it, and sends it: one pair of signatures for 256 of them, a hundred in a
    request.

    The server says which agents lack it; the roster, which may have it. An agent that only the server lists is sent
    nothing, and is among the failed. So is a member that could not be reached, which is retried after a back-off. Rate
    limits of the server are waited for; if that takes too long it is RateLimited, and the next call goes on from
    there."""
    return patiently(_shared(mailbox, sealing), Patience(_PATIENCE_SECONDS))


def _shared(mailbox: Mailbox, sealing: SealingKey) -> Exchange[KeyShareResult]:
    found, key, roster, shared = sealing.channel, sealing.key, sealing.roster, KeyShareResult([], {})
    made_under = mailbox.channels.made_under(found.channel_id, key.key_id)
    body = ChannelKey(found.channel_id, found.epoch, key, made_under).encode()
    put_off = mailbox.channels.key_share_retries.waiting(found.channel_id, found.epoch, clock.now())
    cursor = ""
    for _ in range(_MOST_PAGES):
        wanted = api.SubscribersQuery(without_key=True, cursor=cursor, limit=_SEALED_TOGETHER)
        page = yield from ask(api.LIST_SUBSCRIBERS, found.channel_id, query=wanted)
        names = list[str]()
        for name in (one.subscriber_nhi for one in page.subscribers):
            if not roster.lets_hold_key(name):
                told = f"the server lists {name}, and the roster that {roster.owner_nhi} signed does not"
                shared.failed[name] = NotAllowed(told)
            elif name not in put_off:
                names.append(name)
            elif (last := put_off[name]) is not None:  # it failed, and its retry is not due yet
                shared.failed[name] = item_fault(ItemProblem(code=last.code, title=last.reason))
        some = yield from _offered(mailbox, found, names, body)
        shared.sent.extend(some.sent)
        shared.failed.update(some.failed)
        if page.next is None:
            return shared
        if page.next <= cursor:
            break
        cursor = page.next
    raise BadAnswer("the server's pages of subscribers do not come to an end")


def _offered(mailbox: Mailbox, found: ChannelView, names: Sequence[str], body: bytes) -> Exchange[KeyShareResult]:
    """Sends the key to these members, and notes the outcomes, here and with the server."""
    own = [name for name in names if name == mailbox.identity.handle]
    some = KeyShareResult(list(own), {})
    drafts = yield from _drafted(mailbox, [name for name in names if name not in own], found, body, some)
    yield from _sent(mailbox, _sealed(mailbox, drafts, some), some)
    retries = mailbox.channels.key_share_retries
    if some.failed:
        retries.back_off(found.channel_id, found.epoch, some.failed, clock.now())
    if some.sent:
        sent = api.KeysSentBody(epoch=found.epoch, subscribers=some.sent)
        answer = yield from ask(api.KEYS_SENT, found.channel_id, body=sent)
        if answer.noted < len(some.sent):
            retries.await_confirmation(
                found.channel_id, found.epoch, [name for name in some.sent if name not in own], clock.now()
            )
    return some


def _drafted(
    mailbox: Mailbox, names: Sequence[str], found: ChannelView, body: bytes, some: KeyShareResult
) -> Exchange[list[Draft]]:
    drafts = list[Draft]()
    options: SendOptions = {"channel_id": found.channel_id, "control": True, "ttl_seconds": mailbox.channels.ttl}
    for name in names:
        try:
            known, _ = yield from peer_keys.find_keys(mailbox, name)
        except (*_SERVER_ERRORS, RateLimited):
            raise
        except AngeliaError as error:
            some.failed[name] = error
            continue
        drafts.append(Draft(recipient=known.bundle, body=body, options=options))
    return drafts


def _sealed(mailbox: Mailbox, drafts: Sequence[Draft], some: KeyShareResult) -> list[Envelope]:
    """Seals to all members together, or to each alone if one cannot be sealed to: the others must not wait for it."""
    with contextlib.suppress(AngeliaError):
        return mailbox.outbox.seal_many(drafts, clock.now()) if drafts else []
    envelopes = []
    for draft in drafts:
        try:
            envelopes += mailbox.outbox.seal_many([draft], clock.now())
        except AngeliaError as error:
            some.failed[draft.recipient.agent_nhi] = error
    return envelopes


def _sent(mailbox: Mailbox, envelopes: Sequence[Envelope], some: KeyShareResult) -> Exchange[None]:
    for batch in mail_calls.in_hundreds(envelopes):
        outcomes = yield from send_sealed(mailbox, batch)
        for envelope, refusal in zip(batch, outcomes, strict=True):
            name = envelope.header.recipient_nhi
            if isinstance(refusal, KeyStale | KeyRevoked):
                refusal = yield from _sent_again(mailbox, envelope, refusal)
            if refusal is None:
                some.sent.append(name)
            elif isinstance(refusal, _SERVER_ERRORS):
                raise refusal
            else:
                some.failed[name] = refusal


def _sent_again(mailbox: Mailbox, envelope: Envelope, refusal: KeyStale | KeyRevoked) -> Exchange[AngeliaError | None]:
    """Seals and sends a key again, to the keys that the recipient has by now. Returns the error, if any."""
    try:
        again = yield from peer_keys.reseal(mailbox, envelope.replay_key, refusal)
    except AngeliaError as error:
        return error
    (outcome,) = yield from send_sealed(mailbox, [again])
    return outcome
