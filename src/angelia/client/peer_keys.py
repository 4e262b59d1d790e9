"""The keys of other agents: asked of the server, pinned, followed along their chains of bundles; and the mail that is
sealed and opened with them.

The mailbox decides which keys to trust; what a server says of an agent is believed only if that agent signed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, Unpack

import msgspec

from angelia.client import clock, key_calls
from angelia.client.agent_profiles import is_id
from angelia.client.api_errors import Unreachable
from angelia.client.exchange import MOST_PAGES, BadAnswer, Exchange
from angelia.envelope.bundles import Bundle, Link, OneTimeKey, UntrustedBundle
from angelia.envelope.refusals import Refused, UnknownSigner
from angelia.envelope.wire import Envelope
from angelia.errors import AngeliaError, KeyNotFound, KeyRevoked, KeyStale, NotFound, Unavailable
from angelia.keys.model import (
    ONE_TIME_A_PAIR,
    ONE_TIME_WINDOW,
    BundleAnswer,
    parse_link,
    parse_links,
    parse_one_time_key,
)
from angelia.mailbox.drafts import SendOptions
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind
from angelia.mailbox.pinned_keys import KnownBundle, Pin
from angelia.mailbox.time_window import DeliveryProfile

if TYPE_CHECKING:
    from angelia.mailbox.inbox import Opened

T = TypeVar("T")

# After an answer without a one-time key a sender waits this long: on average, the next one of its hourly share is free.
ONE_TIME_PAUSE = ONE_TIME_WINDOW / ONE_TIME_A_PAIR

# A server that is away, or does not know an agent, keeps no message from being opened with keys that are pinned here.
_NO_NEWS = (Unreachable, Unavailable, NotFound, KeyNotFound)

# True: only with a one-time key; "prefer": with one if there is one; False: without.
OneTime: TypeAlias = Literal[True, False, "prefer"]


class NoOneTimeKey(AngeliaError, code="prekey_exhausted"):
    """The recipient has no one-time key to give"""


class Renamed(AngeliaError, code="renamed"):
    """The agent of this id has a handle by which its keys are signed"""


def find_keys(
    mailbox: Mailbox, agent: str, *, one_time: bool = False
) -> Exchange[tuple[KnownBundle, OneTimeKey | None]]:
    """Returns an agent's present bundle, checked against its pin (or pinned now, at first sight), and a one-time key if
    one is wanted and there is one. Without one, a copy of the last hour is good enough."""
    known = mailbox.pinned_keys.bundle(agent, clock.now())
    if known is not None and not one_time:
        return known, None
    pin = mailbox.pinned_keys.pin(agent)
    if pin is not None and not one_time:
        yield from catch_up(mailbox, pin)
        return _known(mailbox, agent), None
    answer = yield from key_calls.bundle(agent, one_time=one_time)
    yield from take_bundle(mailbox, agent, answer)
    given = answer.one_time_key
    return _known(mailbox, agent), None if given is None else parse_one_time_key(given)


def take_bundle(mailbox: Mailbox, agent: str, answer: BundleAnswer) -> Exchange[Pin]:
    """Trusts the bundle of a server's answer, if it follows from the agent's pin; the first one is pinned. Returns the
    pin."""
    link = parse_link(answer)
    refuse_misnamed(agent, link.bundle)
    pin = mailbox.pinned_keys.pin(agent)
    if pin is None:
        return mailbox.pinned_keys.pin_first(link, clock.now(), answer.revoked)
    if link.bundle.bundle_version <= pin.bundle_version + 1:
        return mailbox.pinned_keys.advance(pin.nhi, [link], clock.now(), answer.revoked)
    return (yield from catch_up(mailbox, pin))


def refuse_misnamed(agent: str, bundle: Bundle) -> None:
    """Raises unless a bundle is that of the agent that was asked for. Which handle belongs to an id only the server
    could tell, and it is not trusted with that."""
    named = bundle.agent_nhi
    if named == agent:
        return
    if is_id(agent) and not is_id(named):
        raise Renamed(
            f"the server says that {agent} has claimed the handle {named}",
            hint=f"if {named} is the agent that you mean, name it so",
        )
    raise UntrustedBundle(f"asked for the keys of {agent}, the server gave those of {named}")


def seal(
    mailbox: Mailbox,
    recipient: str,
    body: bytes,
    *,
    one_time: OneTime = "prefer",
    **options: Unpack[SendOptions],
) -> Exchange[Envelope]:
    """Seals a message and returns its envelope, which is in the outbox by then.

    Each message has a one-time key of its own while the recipient has any for this sender; then, unless `one_time` is
    True, it is sealed to the recipient's static key, and the mailbox's notices say so."""
    mailbox.own_keys.refresh()  # the pair signs the envelope, perhaps before any request
    if one_time == "prefer":
        fallback = f"no one-time key of {recipient} was to be had, so its key of the week is used"
        found, key = yield from _preferably_one_time(mailbox, recipient, fallback)
    else:
        found, key = yield from find_keys(mailbox, recipient, one_time=one_time)
        if one_time and key is None:
            raise NoOneTimeKey(
                f"{recipient} has no one-time key for this sender now", hint='one_time="prefer" does without one'
            )
    return mailbox.outbox.seal(found.bundle, body, now=clock.now(), one_time_key=key, **options)


def reseal(mailbox: Mailbox, replay_key: str, refusal: KeyStale | KeyRevoked | None = None) -> Exchange[Envelope]:
    """Seals a message again for the recipient's present keys, under its own id. Returns the new envelope.

    Without a `refusal` of its keys it only waited too long. The mailbox decides whether there is reason to. A message
    that had a one-time key gets another one, or the mailbox's notices say that there was none."""
    mailbox.own_keys.refresh()  # as in `seal`
    row = mailbox.outbox.message(replay_key)
    if refusal is not None:
        mailbox.pinned_keys.drop_bundle(row.recipient)
        if "bundle" in refusal.members:
            yield from take_bundle(mailbox, row.recipient, _bundle_of(refusal))
    found, key = yield from find_keys(mailbox, row.recipient)
    mailbox.outbox.check_reseal(row.replay_key, found.bundle, clock.now())  # before a one-time key is taken for nothing
    if row.one_time:
        fallback = f"a message to {row.recipient} had a one-time key, and is sealed again to the key of the week"
        found, key = yield from _preferably_one_time(mailbox, row.recipient, fallback)
    return mailbox.outbox.reseal(row.replay_key, found.bundle, clock.now(), one_time_key=key)


def open_envelope(
    mailbox: Mailbox, content: bytes, *, profile: DeliveryProfile = DeliveryProfile.RELAY
) -> Exchange[Opened]:
    """Opens an envelope, once. If the sender has rotated its signing pair since, its chain of bundles is followed.

    Before a pair is believed, its agent's keys are looked up if that was more than an hour ago: it may have been
    stolen and revoked since. If the server is away, or does not know the agent, the envelope is opened all the same."""
    from angelia.mailbox.receiving import decoded

    envelope = decoded(content)
    yield from meet_sender(mailbox, envelope)
    return (yield from following_signer(mailbox, lambda: mailbox.receive(envelope, now=clock.now(), profile=profile)))


def following_signer(mailbox: Mailbox, check: Callable[[], T]) -> Exchange[T]:
    """Returns what `check` returns. If it does not know the signing pair of an agent that has a pin, the agent may have
    rotated: its chain of bundles is followed, and `check` is called again."""
    try:
        return check()
    except UnknownSigner as unknown:
        pin = mailbox.pinned_keys.pin(unknown.agent)
        if pin is None:
            raise
        yield from catch_up(mailbox, pin)
    return check()


def meet_sender(mailbox: Mailbox, envelope: Envelope) -> Exchange[None]:
    """Looks up the keys of a sender before its envelope is opened. Not those of a stranger, except for one that brings
    the key of a channel that this agent has joined."""
    sender = envelope.header.sender_nhi
    if mailbox.channels.expects(envelope) and mailbox.pinned_keys.pin(sender) is None:
        with contextlib.suppress(*_NO_NEWS):
            yield from find_keys(mailbox, sender)
    yield from look_up(mailbox, sender)


def know_sender(mailbox: Mailbox, sender: str) -> Exchange[None]:
    """Learns the present keys of a publisher; raises if they are not believed.

    A publisher that was not known is pinned from the beginning of its chain: messages that it signed before it rotated
    its pair may still be read."""
    if sender == mailbox.identity.handle:
        return
    with contextlib.suppress(*_NO_NEWS):
        if mailbox.pinned_keys.pin(sender) is None:
            page = yield from key_calls.bundles_since(sender, 0)
            links = parse_links(page.bundles[:1])
            if links and links[0].bundle.agent_nhi == sender:
                yield from catch_up(mailbox, mailbox.pinned_keys.pin_first(links[0], clock.now(), page.revoked))
                return
        yield from find_keys(mailbox, sender)


def know_senders(mailbox: Mailbox, senders: set[str]) -> Exchange[dict[str, AngeliaError]]:
    """Learns the keys of publishers. Returns those whose keys are not believed, with the reason."""
    problems: dict[str, AngeliaError] = {}
    for sender in sorted(senders):
        try:
            yield from know_sender(mailbox, sender)
        except AngeliaError as error:
            problems[sender] = error
    return problems


def look_up(mailbox: Mailbox, agent: str) -> Exchange[None]:
    """Looks up the keys of an agent that has a pin, if that was more than an hour ago."""
    pin = mailbox.pinned_keys.pin(agent)
    if pin is not None and mailbox.pinned_keys.bundle(pin.nhi, clock.now()) is None:
        with contextlib.suppress(*_NO_NEWS):
            yield from catch_up(mailbox, pin)


def catch_up(mailbox: Mailbox, pin: Pin) -> Exchange[Pin]:
    """Follows an agent's chain of bundles from the pin to its end, checking every link. Returns the new pin. A chain
    too long for one call is followed further by the next."""
    for _ in range(MOST_PAGES):
        page = yield from key_calls.bundles_since(pin.nhi, pin.bundle_version)
        links = parse_links(page.bundles)
        if not links:
            break
        pin = mailbox.pinned_keys.advance(pin.nhi, links, clock.now(), page.revoked)
        if not page.has_more:
            return pin
    else:
        raise BadAnswer(f"the bundles of {pin.nhi} did not end after {MOST_PAGES} pages")
    known = mailbox.pinned_keys.bundle(pin.nhi, clock.now(), max_age=None)
    if known is None:  # the copy was dropped, and there is no newer bundle
        answer = yield from key_calls.bundle(pin.nhi)
        return mailbox.pinned_keys.advance(pin.nhi, [parse_link(answer)], clock.now(), answer.revoked)
    return mailbox.pinned_keys.advance(pin.nhi, [Link(known.bundle)], clock.now(), page.revoked)


def _preferably_one_time(
    mailbox: Mailbox, recipient: str, fallback: str
) -> Exchange[tuple[KnownBundle, OneTimeKey | None]]:
    """Returns the recipient's keys, with a one-time key if there is one; else `fallback` becomes a notice. If the
    request fails, a copy of the last hour is used, unless the server's answer was untrustworthy."""
    key, found = None, mailbox.pinned_keys.bundle(recipient, clock.now())
    if found is None or mailbox.pinned_keys.may_ask_one_time(recipient, clock.now()):
        try:
            found, key = yield from find_keys(mailbox, recipient, one_time=True)
        except (UntrustedBundle, Refused, Renamed):
            raise
        except AngeliaError:
            if found is None:
                raise
        if key is None:
            mailbox.pinned_keys.note_no_one_time_key(recipient, clock.now() + ONE_TIME_PAUSE)
    if key is None:
        mailbox.notices.tell(NoticeKind.FALLBACK, fallback)
    return found, key


def _known(mailbox: Mailbox, agent: str) -> KnownBundle:
    known = mailbox.pinned_keys.bundle(agent, clock.now(), max_age=None)
    assert known is not None, "a pin and its bundle are written together"
    return known


def _bundle_of(refusal: KeyStale | KeyRevoked) -> BundleAnswer:
    try:
        return msgspec.convert(refusal.members, BundleAnswer)
    except msgspec.ValidationError as error:
        raise BadAnswer(f"the bundle that came with {refusal.code} cannot be read: {error}") from error
