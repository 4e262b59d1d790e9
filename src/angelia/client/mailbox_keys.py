"""Sealing and opening with a mailbox and a server: whose keys, how fresh, what to do when they change.

Each function is a verb like those of `calls`: it yields requests and returns the answer. The mailbox decides whom to
believe; nothing that a server says is taken on its word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias, Unpack
from uuid import UUID

import msgspec

from angelia.client import key_calls
from angelia.client.answers import Published, Schedule
from angelia.client.api_errors import Unreachable
from angelia.client.exchange import MOST_PAGES, BadAnswer, Exchange
from angelia.envelope.bundles import Bundle, KemKeyStatus, Link, OneTimeKey, UntrustedBundle
from angelia.envelope.refusals import Refused, UnknownSigner
from angelia.envelope.times import moment, unix_ms
from angelia.envelope.wire import Envelope
from angelia.errors import (
    AngeliaError,
    KeyNotFound,
    KeyRevoked,
    KeyStale,
    NotFound,
    Unauthenticated,
    Unavailable,
    VersionConflict,
)
from angelia.keys.model import (
    ONE_TIME_A_PAIR,
    ONE_TIME_BATCH,
    ONE_TIME_LOW,
    ONE_TIME_WINDOW,
    BundleAnswer,
    LinkDocument,
    Reason,
    parse_link,
    parse_links,
    parse_one_time_key,
)
from angelia.mailbox.drafts import SendOptions
from angelia.mailbox.inbox import Opened
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.next_bundle import RotationPlan
from angelia.mailbox.notices import NoticeKind
from angelia.mailbox.own_keys import RenewalDue
from angelia.mailbox.pinned_keys import KnownBundle, Pin
from angelia.mailbox.receiving import decoded
from angelia.mailbox.time_window import DeliveryProfile

# A sender who was given no one-time key asks again when the first of the last hour's is an hour old, on average.
ONE_TIME_PAUSE = ONE_TIME_WINDOW / ONE_TIME_A_PAIR
SCHEDULED_EVERY = timedelta(hours=1)

# True: a one-time key or nothing; "prefer": one as long as there are any; False: none.
OneTime: TypeAlias = Literal[True, False, "prefer"]


def now() -> datetime:
    return datetime.now(UTC)


class NoOneTimeKey(AngeliaError):
    """The recipient has no one-time key to give"""

    code = "prekey_exhausted"


class Renamed(AngeliaError):
    """The agent of this id has a handle by which its keys are signed"""

    code = "renamed"


def is_id(agent: str) -> bool:
    """Whether an agent is named by its id: its handle until it claims another one, and no other handle looks so."""
    try:
        return str(UUID(agent)) == agent
    except ValueError:
        return False


def publish_keys(mailbox: Mailbox, *, suites: int | None = None) -> Exchange[Published]:
    """Make the agent reachable: publish its bundle, finish what a crash interrupted, and top up one-time keys."""
    own = mailbox.own_keys
    if mailbox.key_rotation.unconfirmed_plan() is not None:
        return (yield from rotate_keys(mailbox, kem=False))
    newest = own.first_bundle(now()) if suites is None else own.first_bundle(now(), suites)
    if (due := own.renewal_due(now())) is not None:
        return (yield from _renewed(mailbox, due))
    return (yield from _settled(mailbox, lambda: _posted(mailbox, newest), newest))


def tend_keys(mailbox: Mailbox) -> Exchange[None]:
    """Keep the agent's own keys fresh while it is in use: signed again every three days, a new KEM key every week,
    one-time keys in stock, and what was cut short finished. Nothing is asked when nothing is due; what cannot be done
    now is told, and done later: what was sent or received before it is safe, and stays so whatever the server or this
    disk does."""
    own = mailbox.own_keys
    if own.is_backing_off(now()):
        return
    plan = mailbox.key_rotation.unconfirmed_plan()
    try:
        if plan is not None:
            yield from rotate_keys(mailbox, kem=False)
            mailbox.notices.tell(NoticeKind.KEYS_SETTLED, f"{_named(plan)} was cut short, and is finished now")
        elif (due := own.renewal_due(now())) is not None:
            yield from _renewed(mailbox, due)
        elif own.one_time_count_due(now(), ONE_TIME_LOW):
            yield from _stocked(mailbox, (yield from key_calls.count_one_time_keys()))
    except (AngeliaError, OSError) as error:
        if plan is not None and mailbox.key_rotation.unconfirmed_plan() is None:
            return  # another process was faster
        told = "this agent's keys could not be renewed now" if plan is None else f"{_named(plan)} is not published yet"
        put_off(mailbox, told, error)


def put_off(mailbox: Mailbox, told: str, error: AngeliaError | OSError) -> None:
    """Leave the agent's keys alone for a while, and tell what could not be done now and why."""
    mailbox.own_keys.back_off(now())
    why = error.message if isinstance(error, AngeliaError) else error.strerror or str(error)
    mailbox.notices.tell(NoticeKind.WARNING, f"{told}: {why}")


def rotate_keys(
    mailbox: Mailbox,
    *,
    kem: bool = True,
    signer: bool = False,
    suites: int | None = None,
    reason: Reason = Reason.ON_DEMAND,
) -> Exchange[Published]:
    """Replace the agent's keys; the old ones go into grace. A rotation that was interrupted is finished instead, and an
    emergency that waits for it is carried out."""
    rotation = mailbox.key_rotation
    pending = rotation.pending()
    if pending is not None and pending.plan.renews and (kem or signer):
        yield from rotate_keys(mailbox, kem=False)  # it replaces nothing, so finishing it is not what was asked for
    link = rotation.begin(now(), kem=kem, signer=signer, suites=suites)
    pending = rotation.pending()  # None if another process has settled it meanwhile, which the server's answer tells
    plan = None if pending is None else pending.plan
    if plan is not None and plan.emergency:
        return (yield from _settled(mailbox, lambda: _emergency(link, plan), link))
    return (yield from _settled(mailbox, lambda: _posted(mailbox, link, reason), link))


def emergency_rotate_keys(
    mailbox: Mailbox, *, why: str, signer: bool = True, compromised_since: datetime | None = None
) -> Exchange[Published]:
    """Replace keys that somebody else may have. Nothing of them is kept: mail still sealed to them cannot be opened.

    The local key is replaced before the server is asked. Without the server the rest is written down, and whatever uses
    the mailbox next goes on with it. A rotation under way is settled before: the server may have it already, and only
    then is it known which keys must be revoked."""
    mailbox.key_rotation.begin(now(), signer=signer, emergency=True, why=why, compromised_since=compromised_since)
    try:
        return (yield from rotate_keys(mailbox, kem=False))
    except AngeliaError:
        if mailbox.key_rotation.unconfirmed_plan() is not None:
            told = "the emergency is written down and the local key replaced, but the server has not heard of it yet"
            goes_on = "whatever sends or receives mail next goes on with it, and so does `angelia key publish`"
            mailbox.notices.tell(NoticeKind.WARNING, f"{told}; {goes_on}")
        raise


def rotate_due_keys(mailbox: Mailbox) -> Exchange[list[Schedule]]:
    """Rotate once if any schedule asks for it and the key is an hour old, and report the key to all that do; returns
    those."""
    due = [one for one in (yield from key_calls.schedules()) if one.due_since is not None]
    if not due:
        return []
    # No schedule asks more often; a server that calls it due all the time makes no key after key.
    fresh = now() - SCHEDULED_EVERY
    if not all(_replaced_since(mailbox, min(one.due_since or fresh, fresh)) for one in due):
        yield from rotate_keys(mailbox, reason=Reason.SCHEDULED)
    newest = mailbox.own_keys.newest()
    assert newest is not None
    key = newest.bundle.best_key(unix_ms(now()))
    assert key is not None
    reported = []
    for one in due:
        if one.current_key_id == key.key_id:
            continue  # younger than an hour, and reported
        try:
            version = one.current_key_version + 1
            reported.append((yield from key_calls.report_rotation(one.peer, key.key_id, version)))
        except VersionConflict:
            continue  # another process of this agent was faster, and its key is as new
    return reported


def find_keys(
    mailbox: Mailbox, agent: str, *, one_time: bool = False
) -> Exchange[tuple[KnownBundle, OneTimeKey | None]]:
    """An agent's present bundle, checked against its pin (or pinned now, at first sight), and a one-time key if asked.

    A copy of the last hour is good enough when no one-time key is wanted."""
    known = mailbox.pinned_keys.bundle(agent, now())
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
    """Believe what a server says is an agent's bundle, as far as it follows from what is known of the agent."""
    link = parse_link(_link_document(answer))
    refuse_misnamed(agent, link.bundle)
    pin = mailbox.pinned_keys.pin(agent)
    if pin is None:
        return mailbox.pinned_keys.pin_first(link, now(), answer.revoked)
    if link.bundle.bundle_version <= pin.bundle_version + 1:
        return mailbox.pinned_keys.advance(pin.nhi, [link], now(), answer.revoked)
    return (yield from catch_up(mailbox, pin))


def refuse_misnamed(agent: str, bundle: Bundle) -> None:
    """A bundle is that of the agent that it names, whatever name it was asked for by. Only the server could tell which
    handle belongs to an id, and it is not believed."""
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
    """Seal a message; its bytes are in the outbox when this returns.

    Each message has a one-time key of its own while the recipient has any for this sender; then, unless `one_time` is
    True, it is sealed to the recipient's static key, and the mailbox's notices say so."""
    mailbox.own_keys.refresh()  # another process may have rotated the pair that signs
    if one_time == "prefer":
        found, key = yield from _preferably_one_time(mailbox, recipient)
        if key is None:
            told = f"no one-time key of {recipient} was to be had, so its key of the week is used"
            mailbox.notices.tell(NoticeKind.FALLBACK, told)
    else:
        found, key = yield from find_keys(mailbox, recipient, one_time=one_time)
        if one_time and key is None:
            raise NoOneTimeKey(
                f"{recipient} has no one-time key for this sender now", hint='one_time="prefer" does without one'
            )
    return mailbox.outbox.seal(found.link, body, now=now(), one_time_key=key, **options)


def reseal(mailbox: Mailbox, replay_key: str, refusal: KeyStale | KeyRevoked | None = None) -> Exchange[Envelope]:
    """Seal a message again for the recipient's present keys, under its own id.

    Without a `refusal` of its keys it only waited too long. The mailbox decides whether there is reason to. A message
    that had a one-time key gets another one, or the mailbox's notices say that there was none."""
    mailbox.own_keys.refresh()
    row = mailbox.outbox.message(replay_key)
    if refusal is not None:
        mailbox.pinned_keys.drop_bundle(row.recipient)
        if "bundle" in refusal.members:
            yield from take_bundle(mailbox, row.recipient, _bundle_of(refusal))
    found, key = yield from find_keys(mailbox, row.recipient)
    mailbox.outbox.check_reseal(row.replay_key, found.link, now())  # before a one-time key is taken for nothing
    if row.one_time:
        found, key = yield from _preferably_one_time(mailbox, row.recipient)
        if key is None:
            told = f"a message to {row.recipient} had a one-time key, and is sealed again to the key of the week"
            mailbox.notices.tell(NoticeKind.FALLBACK, told)
    return mailbox.outbox.reseal(row.replay_key, found.link, now(), one_time_key=key)


def open_envelope(
    mailbox: Mailbox, content: bytes, *, profile: DeliveryProfile = DeliveryProfile.RELAY
) -> Exchange[Opened]:
    """Open an envelope once. A sender who has rotated its signing pair since is followed along its chain.

    Before a pair is believed, its agent's keys are looked up if that was more than an hour ago: it may have been
    stolen and revoked since. A server that is away, or does not know the agent, keeps nobody from reading."""
    yield from meet_sender(mailbox, content)
    try:
        return mailbox.receive(content, now=now(), profile=profile)
    except UnknownSigner as unknown:
        pin = mailbox.pinned_keys.pin(unknown.agent)
        if pin is None:
            raise
        yield from catch_up(mailbox, pin)
    return mailbox.receive(content, now=now(), profile=profile)


def meet_sender(mailbox: Mailbox, content: bytes) -> Exchange[None]:
    """Before an envelope is opened: hear of its sender's keys. Nobody's keys are looked up for a stranger, except for
    one that brings the key of a channel that this agent has joined."""
    envelope = decoded(content)
    sender = envelope.header.sender_nhi
    if mailbox.channels.expects(envelope) and mailbox.pinned_keys.pin(sender) is None:
        with contextlib.suppress(Unreachable, Unavailable, NotFound, KeyNotFound):
            yield from find_keys(mailbox, sender)
    yield from look_up(mailbox, sender)


def look_up(mailbox: Mailbox, agent: str) -> Exchange[None]:
    """Hear of an agent's keys if that was more than an hour ago, before something is believed that they signed."""
    pin = mailbox.pinned_keys.pin(agent)
    if pin is not None and mailbox.pinned_keys.bundle(pin.nhi, now()) is None:
        with contextlib.suppress(Unreachable, Unavailable, NotFound, KeyNotFound):
            yield from catch_up(mailbox, pin)


def catch_up(mailbox: Mailbox, pin: Pin) -> Exchange[Pin]:
    """Follow an agent's chain from the pin to its end, checking every link as it comes. Of a chain that is too long to
    be followed now, the next call goes on from where this one came to."""
    for _ in range(MOST_PAGES):
        page = yield from key_calls.bundles_since(pin.nhi, pin.bundle_version)
        links = parse_links(page.bundles)
        if not links:
            break
        pin = mailbox.pinned_keys.advance(pin.nhi, links, now(), page.revoked)
        if not page.has_more:
            return pin
    else:
        raise BadAnswer(f"the bundles of {pin.nhi} did not end after {MOST_PAGES} pages")
    known = mailbox.pinned_keys.bundle(pin.nhi, now(), max_age=None)
    if known is None:  # the copy was dropped, and nothing has followed it
        answer = yield from key_calls.bundle(pin.nhi)
        return mailbox.pinned_keys.advance(pin.nhi, [parse_link(_link_document(answer))], now(), answer.revoked)
    return mailbox.pinned_keys.advance(pin.nhi, [known.link], now(), page.revoked)


def _preferably_one_time(mailbox: Mailbox, recipient: str) -> Exchange[tuple[KnownBundle, OneTimeKey | None]]:
    """The recipient's keys, with one for this message alone if it can be had. A copy of the last hour serves without
    the server, unless what the server says is a lie. Where there was none the caller tells so, for every message."""
    known = mailbox.pinned_keys.bundle(recipient, now())
    if known is not None and not mailbox.pinned_keys.may_ask_one_time(recipient, now()):
        return known, None
    try:
        found, key = yield from find_keys(mailbox, recipient, one_time=True)
    except (UntrustedBundle, Refused, Renamed):
        raise
    except AngeliaError:
        if known is None:
            raise
        found, key = known, None
    if key is None:
        mailbox.pinned_keys.note_no_one_time_key(recipient, now() + ONE_TIME_PAUSE)
    return found, key


def _known(mailbox: Mailbox, agent: str) -> KnownBundle:
    known = mailbox.pinned_keys.bundle(agent, now(), max_age=None)
    assert known is not None, "a pin and its bundle are written together"
    return known


def _settled(mailbox: Mailbox, publish: Callable[[], Exchange[Published]], link: Link) -> Exchange[Published]:
    """Publish; make the bundle ours once the server has it, also when it had taken it before and we never heard.

    A server that is behind, because the agent handed its bundles over as files, gets the chain from where it is. An
    emergency that waited for this follows."""
    signed_by = mailbox.own_keys.identity.key_id
    try:
        done = yield from publish()
    except VersionConflict as conflict:
        held = conflict.members.get("bundle_version")
        if isinstance(held, int) and held < link.bundle.bundle_version - 1:
            for earlier in mailbox.own_keys.chain()[held : link.bundle.bundle_version - 1]:
                yield from _posted(mailbox, earlier)
            done = yield from publish()
            _finish(mailbox, link)
        else:
            done = yield from _confirmed(mailbox, link)
    except Unauthenticated:
        mailbox.own_keys.refresh()
        pending = mailbox.key_rotation.pending()
        if mailbox.own_keys.identity.key_id != signed_by:  # another process was faster, and its pair signs now
            done = yield from _confirmed(mailbox, link)
        elif pending is None or not pending.plan.signer:
            raise
        else:
            # The old pair signs no more. If the new one does, the server took the bundle, and only its answer was lost.
            with mailbox.own_keys.signing_as_next():
                done = yield from _confirmed(mailbox, link)
    else:
        _finish(mailbox, link)
    if mailbox.key_rotation.queued_emergency() is not None:  # before one-time keys are made for a pair that it replaces
        return (yield from rotate_keys(mailbox, kem=False))
    return (yield from _topped_up(mailbox, done))


def _finish(mailbox: Mailbox, link: Link) -> None:
    """Make the very bundle ours that the server took; what is pending may have been signed anew meanwhile."""
    newest = mailbox.own_keys.newest()
    if mailbox.key_rotation.pending() is not None and newest is not None and newest.bundle.hash == link.bundle.hash:
        return  # another process was faster, and has begun the next rotation
    mailbox.key_rotation.finish(now(), link)


def _emergency(link: Link, plan: RotationPlan) -> Exchange[Published]:
    """Publish the bundle of an emergency that was interrupted, with what was said of it when it began."""
    why = plan.why or "an emergency rotation that was interrupted"
    return key_calls.emergency_bundle(link, why=why, compromised_since=plan.compromised_since)


def _named(plan: RotationPlan) -> str:
    kind = "an emergency rotation" if plan.emergency else "a rotation"
    return f"{kind} of this agent's keys"


def _renewed(mailbox: Mailbox, due: RenewalDue) -> Exchange[Published]:
    return (yield from rotate_keys(mailbox, kem=due is RenewalDue.KEY, reason=Reason.SCHEDULED))


def _replaced_since(mailbox: Mailbox, at: datetime) -> bool:
    """Whether the active keys are newer than that: another process, or one that crashed, has rotated already."""
    newest = mailbox.own_keys.newest()
    if newest is None or mailbox.key_rotation.pending() is not None:
        return False
    return all(moment(e.created_at) > at for e in newest.bundle.kem_keys if e.status is KemKeyStatus.ACTIVE)


def _posted(mailbox: Mailbox, link: Link, reason: Reason = Reason.ON_DEMAND) -> Exchange[Published]:
    """Publish one bundle of our own chain: as a rotation if it has other keys than the one before."""
    before = next((one for one in mailbox.own_keys.chain() if one.bundle.hash == link.bundle.prev_bundle_hash), None)
    if before is None or _keys_of(before.bundle) == _keys_of(link.bundle):
        return (yield from key_calls.publish_bundle(link))
    return (yield from key_calls.rotate_bundle(link, reason=reason))


def _keys_of(bundle: Bundle) -> tuple[object, ...]:
    return bundle.signer.signer_id, {
        entry.key.key_id for entry in bundle.kem_keys if entry.status is KemKeyStatus.ACTIVE
    }


def _topped_up(mailbox: Mailbox, done: Published) -> Exchange[Published]:
    """More one-time keys when few are left; a new signing pair has none, since the old one signed them."""
    count = yield from _stocked(mailbox, done.prekeys_uploaded)
    return msgspec.structs.replace(done, prekeys_uploaded=count)


def _stocked(mailbox: Mailbox, left: int) -> Exchange[int]:
    """How many one-time keys the server has after those that were missing. That any are is the server's word, which
    makes no keys without end."""
    if left <= ONE_TIME_LOW and mailbox.own_keys.may_make_one_time_keys(now(), 3 * ONE_TIME_BATCH):
        made = mailbox.own_keys.make_one_time_keys(ONE_TIME_BATCH - left, now())
        left = (yield from key_calls.add_one_time_keys(made)).count
        mailbox.own_keys.one_time_made(now())
    mailbox.own_keys.one_time_counted(now())
    return left


def _confirmed(mailbox: Mailbox, link: Link) -> Exchange[Published]:
    """Make the bundle ours that the server has, if it is one that we signed."""
    answer = yield from key_calls.bundle(link.bundle.agent_nhi)
    left = yield from key_calls.count_one_time_keys()
    theirs = parse_link(_link_document(answer))
    ours = mailbox.key_rotation.finish(now(), theirs)
    if ours.bundle.hash != theirs.bundle.hash:
        raise UntrustedBundle(
            f"the server has bundle {theirs.bundle.bundle_version} of {ours.bundle.agent_nhi}, and this mailbox has "
            f"bundle {ours.bundle.bundle_version}, which it does not follow",
            hint="was the mailbox put back from an old copy? its newest copy has the keys",
        )
    return Published(bundle_id=answer.bundle_id, bundle_version=answer.bundle.bundle_version, prekeys_uploaded=left)


def _bundle_of(refusal: KeyStale | KeyRevoked) -> BundleAnswer:
    try:
        return msgspec.convert(refusal.members, BundleAnswer)
    except msgspec.ValidationError as error:
        raise BadAnswer(f"the bundle that came with {refusal.code} cannot be read: {error}") from error


def _link_document(answer: BundleAnswer) -> LinkDocument:
    return LinkDocument(bundle=answer.bundle, rotation_statement=answer.rotation_statement)
