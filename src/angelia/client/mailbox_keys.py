"""Keys of a mailbox and a server: publishes and renews the agent's own, finds and checks those of other agents, and
seals and opens with them.

Each function is an exchange: it yields requests and returns the answer. The mailbox decides which keys to trust; what a
server says is believed only if the agent concerned signed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias, Unpack
from uuid import UUID

import msgspec

from angelia.client import key_calls
from angelia.client.api_errors import Unreachable
from angelia.client.exchange import MOST_PAGES, BadAnswer, Exchange
from angelia.client.operation_requests import ask
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
from angelia.keys.api import COUNT_ONE_TIME_KEYS, REPORT_ROTATION, PublicationAnswer, RotatedBody
from angelia.keys.model import (
    ONE_TIME_A_PAIR,
    ONE_TIME_BATCH,
    ONE_TIME_LOW,
    ONE_TIME_WINDOW,
    BundleAnswer,
    LinkDocument,
    Reason,
    ScheduleRecord,
    parse_link,
    parse_links,
    parse_one_time_key,
)
from angelia.mailbox.bundle_signing import RotationPlan
from angelia.mailbox.drafts import SendOptions
from angelia.mailbox.inbox import Opened
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind
from angelia.mailbox.own_keys import RenewalDue
from angelia.mailbox.pinned_keys import KnownBundle, Pin
from angelia.mailbox.receiving import decoded
from angelia.mailbox.time_window import DeliveryProfile

# After an answer without a one-time key a sender waits this long: on average, the next one of its hourly share is free.
ONE_TIME_PAUSE = ONE_TIME_WINDOW / ONE_TIME_A_PAIR
SCHEDULED_EVERY = timedelta(hours=1)

# True: only with a one-time key; "prefer": with one if there is one; False: without.
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
    """Whether a name is an id. An agent that claimed no handle has its id as handle; no other handle looks like one."""
    try:
        return str(UUID(agent)) == agent
    except ValueError:
        return False


def publish_keys(mailbox: Mailbox, *, suites: int | None = None) -> Exchange[PublicationAnswer]:
    """Make the agent reachable: publish its bundle, finish an interrupted rotation, and top up one-time keys."""
    own = mailbox.own_keys
    if mailbox.key_rotation.unconfirmed_plan() is not None:
        return (yield from rotate_keys(mailbox, kem=False))
    newest = own.first_bundle(now()) if suites is None else own.first_bundle(now(), suites)
    if (due := own.renewal_due(now())) is not None:
        return (yield from _renewed(mailbox, due))
    return (yield from _settled(mailbox, lambda: _posted(mailbox, newest), newest))


def tend_keys(mailbox: Mailbox) -> Exchange[None]:
    """Renew the agent's own keys if that is due: signed again every three days, a new KEM key every week, one-time keys
    topped up, an interrupted rotation finished. No request is made if nothing is due. A failure is put into the
    mailbox's notices and the work is done later; it never fails the sending or receiving that came before."""
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
            yield from _stocked(mailbox, (yield from ask(COUNT_ONE_TIME_KEYS)).count)
    except (AngeliaError, OSError) as error:
        if plan is not None and mailbox.key_rotation.unconfirmed_plan() is None:
            return  # another process was faster
        told = "this agent's keys could not be renewed now" if plan is None else f"{_named(plan)} is not published yet"
        put_off(mailbox, told, error)


def put_off(mailbox: Mailbox, told: str, error: AngeliaError | OSError) -> None:
    """Waits a while before the agent's keys are renewed again, and notes what could not be done now and why."""
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
) -> Exchange[PublicationAnswer]:
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
) -> Exchange[PublicationAnswer]:
    """Replace keys that may be stolen. They are not kept: mail that is still sealed to them cannot be opened.

    The local key is replaced before the server is asked. If the server is away, the plan is stored, and the next
    process that uses the mailbox goes on with it. A rotation under way is finished first: the server may have it
    already, and only then is it known which keys must be revoked."""
    mailbox.key_rotation.begin(now(), signer=signer, emergency=True, why=why, compromised_since=compromised_since)
    try:
        return (yield from rotate_keys(mailbox, kem=False))
    except AngeliaError:
        if mailbox.key_rotation.unconfirmed_plan() is not None:
            told = "the emergency is written down and the local key replaced, but the server has not heard of it yet"
            goes_on = "whatever sends or receives mail next goes on with it, and so does `angelia key publish`"
            mailbox.notices.tell(NoticeKind.WARNING, f"{told}; {goes_on}")
        raise


def rotate_due_keys(mailbox: Mailbox) -> Exchange[list[ScheduleRecord]]:
    """Rotate once if any schedule asks for it and the key is an hour old, and report the key for all schedules that
    ask. Returns those."""
    due = [one for one in (yield from key_calls.schedules()) if one.due_since is not None]
    if not due:
        return []
    # No schedule asks more often than hourly; a server that always says due must not cause a key each time.
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
            continue  # less than an hour old, and reported
        try:
            done = RotatedBody(key.key_id, one.current_key_version + 1)
            reported.append((yield from ask(REPORT_ROTATION, one.peer, body=done)))
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
    """Trusts the bundle of a server's answer, if it follows from the agent's pin; the first one is pinned. Returns the
    pin."""
    link = parse_link(_link_document(answer))
    refuse_misnamed(agent, link.bundle)
    pin = mailbox.pinned_keys.pin(agent)
    if pin is None:
        return mailbox.pinned_keys.pin_first(link, now(), answer.revoked)
    if link.bundle.bundle_version <= pin.bundle_version + 1:
        return mailbox.pinned_keys.advance(pin.nhi, [link], now(), answer.revoked)
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
    """Seal a message; its bytes are in the outbox when this returns.

    Each message has a one-time key of its own while the recipient has any for this sender; then, unless `one_time` is
    True, it is sealed to the recipient's static key, and the mailbox's notices say so."""
    mailbox.own_keys.refresh()  # the pair signs the envelope, perhaps before any request
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
    return mailbox.outbox.seal(found.bundle, body, now=now(), one_time_key=key, **options)


def reseal(mailbox: Mailbox, replay_key: str, refusal: KeyStale | KeyRevoked | None = None) -> Exchange[Envelope]:
    """Seal a message again for the recipient's present keys, under its own id.

    Without a `refusal` of its keys it only waited too long. The mailbox decides whether there is reason to. A message
    that had a one-time key gets another one, or the mailbox's notices say that there was none."""
    mailbox.own_keys.refresh()  # as in `seal`
    row = mailbox.outbox.message(replay_key)
    if refusal is not None:
        mailbox.pinned_keys.drop_bundle(row.recipient)
        if "bundle" in refusal.members:
            yield from take_bundle(mailbox, row.recipient, _bundle_of(refusal))
    found, key = yield from find_keys(mailbox, row.recipient)
    mailbox.outbox.check_reseal(row.replay_key, found.bundle, now())  # before a one-time key is taken for nothing
    if row.one_time:
        found, key = yield from _preferably_one_time(mailbox, row.recipient)
        if key is None:
            told = f"a message to {row.recipient} had a one-time key, and is sealed again to the key of the week"
            mailbox.notices.tell(NoticeKind.FALLBACK, told)
    return mailbox.outbox.reseal(row.replay_key, found.bundle, now(), one_time_key=key)


def open_envelope(
    mailbox: Mailbox, content: bytes, *, profile: DeliveryProfile = DeliveryProfile.RELAY
) -> Exchange[Opened]:
    """Open an envelope once. If the sender has rotated its signing pair since, its chain of bundles is followed.

    Before a pair is believed, its agent's keys are looked up if that was more than an hour ago: it may have been
    stolen and revoked since. A server that is away, or does not know the agent, keeps nobody from reading."""
    envelope = decoded(content)
    yield from meet_sender(mailbox, envelope)
    try:
        return mailbox.receive(envelope, now=now(), profile=profile)
    except UnknownSigner as unknown:
        pin = mailbox.pinned_keys.pin(unknown.agent)
        if pin is None:
            raise
        yield from catch_up(mailbox, pin)
    return mailbox.receive(envelope, now=now(), profile=profile)


def meet_sender(mailbox: Mailbox, envelope: Envelope) -> Exchange[None]:
    """Looks up the keys of a sender before its envelope is opened. Not those of a stranger, except for one that brings
    the key of a channel that this agent has joined."""
    sender = envelope.header.sender_nhi
    if mailbox.channels.expects(envelope) and mailbox.pinned_keys.pin(sender) is None:
        with contextlib.suppress(Unreachable, Unavailable, NotFound, KeyNotFound):
            yield from find_keys(mailbox, sender)
    yield from look_up(mailbox, sender)


def look_up(mailbox: Mailbox, agent: str) -> Exchange[None]:
    """Looks up the keys of an agent that has a pin, if that was more than an hour ago."""
    pin = mailbox.pinned_keys.pin(agent)
    if pin is not None and mailbox.pinned_keys.bundle(pin.nhi, now()) is None:
        with contextlib.suppress(Unreachable, Unavailable, NotFound, KeyNotFound):
            yield from catch_up(mailbox, pin)


def catch_up(mailbox: Mailbox, pin: Pin) -> Exchange[Pin]:
    """Follows an agent's chain of bundles from the pin to its end, checking every link. Returns the new pin. A chain
    too long for one call is followed further by the next."""
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
    if known is None:  # the copy was dropped, and there is no newer bundle
        answer = yield from key_calls.bundle(pin.nhi)
        return mailbox.pinned_keys.advance(pin.nhi, [parse_link(_link_document(answer))], now(), answer.revoked)
    return mailbox.pinned_keys.advance(pin.nhi, [Link(known.bundle)], now(), page.revoked)


def _preferably_one_time(mailbox: Mailbox, recipient: str) -> Exchange[tuple[KnownBundle, OneTimeKey | None]]:
    """The recipient's keys, with a one-time key if there is one; None is for the caller to note. If the request fails,
    a copy of the last hour is used, unless the server's answer was untrustworthy."""
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


def _settled(
    mailbox: Mailbox, publish: Callable[[], Exchange[PublicationAnswer]], link: Link
) -> Exchange[PublicationAnswer]:
    """Publishes a bundle, and stores it as the agent's own once the server has it, also if an earlier answer was lost.

    A server that is behind, because the agent handed its bundles over as files, gets the missing links first. Then an
    emergency that waited for this rotation is carried out."""
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
        mailbox.own_keys.refresh()  # since the request that was refused
        pending = mailbox.key_rotation.pending()
        if mailbox.own_keys.identity.key_id != signed_by:  # another process was faster; its pair signs now
            done = yield from _confirmed(mailbox, link)
        elif pending is None or not pending.plan.signer:
            raise
        else:
            # The old pair is refused. If the new one is not, the server took the bundle, and its answer was lost.
            with mailbox.own_keys.signing_as_next():
                done = yield from _confirmed(mailbox, link)
    else:
        _finish(mailbox, link)
    if mailbox.key_rotation.queued_emergency() is not None:  # before one-time keys are made for a pair that it replaces
        return (yield from rotate_keys(mailbox, kem=False))
    return (yield from _topped_up(mailbox, done))


def _finish(mailbox: Mailbox, link: Link) -> None:
    """Stores the bundle that the server took as the agent's own; the pending one may have been signed again since."""
    newest = mailbox.own_keys.newest()
    if mailbox.key_rotation.pending() is not None and newest is not None and newest.bundle.hash == link.bundle.hash:
        return  # another process was faster, and has begun the next rotation
    mailbox.key_rotation.finish(now(), link)


def _emergency(link: Link, plan: RotationPlan) -> Exchange[PublicationAnswer]:
    """Publishes the bundle of an interrupted emergency, with the reason that was given when it began."""
    why = plan.why or "an emergency rotation that was interrupted"
    return key_calls.emergency_bundle(link, why=why, compromised_since=plan.compromised_since)


def _named(plan: RotationPlan) -> str:
    kind = "an emergency rotation" if plan.emergency else "a rotation"
    return f"{kind} of this agent's keys"


def _renewed(mailbox: Mailbox, due: RenewalDue) -> Exchange[PublicationAnswer]:
    return (yield from rotate_keys(mailbox, kem=due is RenewalDue.KEY, reason=Reason.SCHEDULED))


def _replaced_since(mailbox: Mailbox, at: datetime) -> bool:
    """Whether all active keys are newer than a time: another process, or one that crashed, has rotated already."""
    newest = mailbox.own_keys.newest()
    if newest is None or mailbox.key_rotation.pending() is not None:
        return False
    return all(moment(e.created_at) > at for e in newest.bundle.kem_keys if e.status is KemKeyStatus.ACTIVE)


def _posted(mailbox: Mailbox, link: Link, reason: Reason = Reason.ON_DEMAND) -> Exchange[PublicationAnswer]:
    """Publishes one bundle of the agent's own chain: as a rotation if it has other keys than the one before."""
    before = next((one for one in mailbox.own_keys.chain() if one.bundle.hash == link.bundle.prev_bundle_hash), None)
    if before is None or _keys_of(before.bundle) == _keys_of(link.bundle):
        return (yield from key_calls.publish_bundle(link))
    return (yield from key_calls.rotate_bundle(link, reason=reason))


def _keys_of(bundle: Bundle) -> tuple[object, ...]:
    return bundle.signer.signer_id, {
        entry.key.key_id for entry in bundle.kem_keys if entry.status is KemKeyStatus.ACTIVE
    }


def _topped_up(mailbox: Mailbox, done: PublicationAnswer) -> Exchange[PublicationAnswer]:
    """Adds one-time keys if few are left; after a new signing pair there are none, since the old one signed them."""
    count = yield from _stocked(mailbox, done.prekeys_uploaded)
    return msgspec.structs.replace(done, prekeys_uploaded=count)


def _stocked(mailbox: Mailbox, left: int) -> Exchange[int]:
    """Adds one-time keys if the server says that few are left, within a limit per day, since the server might lie.
    Returns how many the server has now."""
    if left <= ONE_TIME_LOW and mailbox.own_keys.may_make_one_time_keys(now(), 3 * ONE_TIME_BATCH):
        made = mailbox.own_keys.make_one_time_keys(ONE_TIME_BATCH - left, now())
        left = (yield from key_calls.add_one_time_keys(made)).count
        mailbox.own_keys.one_time_made(now())
    mailbox.own_keys.one_time_counted(now())
    return left


def _confirmed(mailbox: Mailbox, link: Link) -> Exchange[PublicationAnswer]:
    """Stores the server's bundle as the agent's own, if this mailbox signed it."""
    answer = yield from key_calls.bundle(link.bundle.agent_nhi)
    left = (yield from ask(COUNT_ONE_TIME_KEYS)).count
    theirs = parse_link(_link_document(answer))
    ours = mailbox.key_rotation.finish(now(), theirs)
    if ours.bundle.hash != theirs.bundle.hash:
        raise UntrustedBundle(
            f"the server has bundle {theirs.bundle.bundle_version} of {ours.bundle.agent_nhi}, and this mailbox has "
            f"bundle {ours.bundle.bundle_version}, which it does not follow",
            hint="was the mailbox put back from an old copy? its newest copy has the keys",
        )
    return PublicationAnswer(
        bundle_id=answer.bundle_id, bundle_version=answer.bundle.bundle_version, prekeys_uploaded=left
    )


def _bundle_of(refusal: KeyStale | KeyRevoked) -> BundleAnswer:
    try:
        return msgspec.convert(refusal.members, BundleAnswer)
    except msgspec.ValidationError as error:
        raise BadAnswer(f"the bundle that came with {refusal.code} cannot be read: {error}") from error


def _link_document(answer: BundleAnswer) -> LinkDocument:
    return LinkDocument(bundle=answer.bundle, rotation_statement=answer.rotation_statement)
