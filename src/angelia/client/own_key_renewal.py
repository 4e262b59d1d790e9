"""The agent's own keys: published, rotated, renewed when that is due, and topped up with one-time keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from angelia.client import clock, key_calls
from angelia.client.exchange import Exchange
from angelia.client.operation_requests import ask
from angelia.envelope.bundles import Bundle, KemKeyStatus, Link, UntrustedBundle
from angelia.envelope.times import moment, unix_ms
from angelia.errors import AngeliaError, Unauthenticated, VersionConflict
from angelia.keys.api import COUNT_ONE_TIME_KEYS, REPORT_ROTATION, PublicationAnswer, RotatedBody
from angelia.keys.model import ONE_TIME_BATCH, ONE_TIME_LOW, Reason, ScheduleRecord, parse_link
from angelia.mailbox.bundle_signing import RotationPlan
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind
from angelia.mailbox.own_keys import RenewalDue

SCHEDULED_EVERY = timedelta(hours=1)


def publish_keys(mailbox: Mailbox, *, suites: int | None = None) -> Exchange[PublicationAnswer]:
    """Makes the agent reachable: publishes its bundle, finishes an interrupted rotation, and tops up one-time keys."""
    own = mailbox.own_keys
    if mailbox.key_rotation.unconfirmed_plan() is not None:
        return (yield from rotate_keys(mailbox, kem=False))
    newest = own.first_bundle(clock.now()) if suites is None else own.first_bundle(clock.now(), suites)
    if (due := own.renewal_due(clock.now())) is not None:
        return (yield from _renewed(mailbox, due))
    return (yield from _settled(mailbox, lambda: _posted(mailbox, newest), newest))


def tend_keys(mailbox: Mailbox) -> Exchange[None]:
    """Renews the agent's own keys if that is due: signed again every three days, a new KEM key every week, one-time
    keys topped up, an interrupted rotation finished. No request is made if nothing is due. A failure is put into the
    mailbox's notices and the work is done later; it never fails the sending or receiving that came before."""
    own = mailbox.own_keys
    if own.is_backing_off(clock.now()):
        return
    plan = mailbox.key_rotation.unconfirmed_plan()
    try:
        if plan is not None:
            yield from rotate_keys(mailbox, kem=False)
            mailbox.notices.tell(NoticeKind.KEYS_SETTLED, f"{_named(plan)} was cut short, and is finished now")
        elif (due := own.renewal_due(clock.now())) is not None:
            yield from _renewed(mailbox, due)
        elif own.one_time_count_due(clock.now(), ONE_TIME_LOW):
            yield from _stocked(mailbox, (yield from ask(COUNT_ONE_TIME_KEYS)).count)
    except (AngeliaError, OSError) as error:
        if plan is not None and mailbox.key_rotation.unconfirmed_plan() is None:
            return  # another process was faster
        told = "this agent's keys could not be renewed now" if plan is None else f"{_named(plan)} is not published yet"
        put_off(mailbox, told, error)


def put_off(mailbox: Mailbox, told: str, error: AngeliaError | OSError) -> None:
    """Waits a while before the agent's keys are renewed again, and notes what could not be done now and why."""
    mailbox.own_keys.back_off(clock.now())
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
    """Replaces the agent's keys; the old ones go into grace. A rotation that was interrupted is finished instead, and
    an emergency that waits for it is carried out."""
    rotation = mailbox.key_rotation
    pending = rotation.pending()
    if pending is not None and pending.plan.renews and (kem or signer):
        yield from rotate_keys(mailbox, kem=False)  # it replaces nothing, so finishing it is not what was asked for
    link = rotation.begin(clock.now(), kem=kem, signer=signer, suites=suites)
    pending = rotation.pending()  # None if another process has settled it meanwhile, which the server's answer tells
    plan = None if pending is None else pending.plan
    if plan is not None and plan.emergency:
        return (yield from _settled(mailbox, lambda: _emergency(link, plan), link))
    return (yield from _settled(mailbox, lambda: _posted(mailbox, link, reason), link))


def emergency_rotate_keys(
    mailbox: Mailbox, *, why: str, signer: bool = True, compromised_since: datetime | None = None
) -> Exchange[PublicationAnswer]:
    """Replaces keys that may be stolen. They are not kept: mail that is still sealed to them cannot be opened.

    The local key is replaced before the server is asked. If the server is away, the plan is stored, and the next
    process that uses the mailbox goes on with it. A rotation under way is finished first: the server may have it
    already, and only then is it known which keys must be revoked."""
    mailbox.key_rotation.begin(clock.now(), signer=signer, emergency=True, why=why, compromised_since=compromised_since)
    try:
        return (yield from rotate_keys(mailbox, kem=False))
    except AngeliaError:
        if mailbox.key_rotation.unconfirmed_plan() is not None:
            told = "the emergency is written down and the local key replaced, but the server has not heard of it yet"
            goes_on = "whatever sends or receives mail next goes on with it, and so does `angelia key publish`"
            mailbox.notices.tell(NoticeKind.WARNING, f"{told}; {goes_on}")
        raise


def rotate_due_keys(mailbox: Mailbox) -> Exchange[list[ScheduleRecord]]:
    """Rotates once if any schedule asks for it and the key is an hour old, and reports the key for all schedules that
    ask. Returns those."""
    due = [one for one in (yield from key_calls.schedules()) if one.due_since is not None]
    if not due:
        return []
    # No schedule asks more often than hourly; a server that always says due must not cause a key each time.
    fresh = clock.now() - SCHEDULED_EVERY
    if not all(_replaced_since(mailbox, min(one.due_since or fresh, fresh)) for one in due):
        yield from rotate_keys(mailbox, reason=Reason.SCHEDULED)
    newest = mailbox.own_keys.newest()
    assert newest is not None
    key = newest.bundle.best_key(unix_ms(clock.now()))
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
            yield from _announced(mailbox)
            _finish(mailbox, link)
        else:
            yield from _announced(mailbox)
            done = yield from _confirmed(mailbox, link)
    except Unauthenticated:
        mailbox.own_keys.refresh()  # the pair may have been rotated since the refused request was signed
        pending = mailbox.key_rotation.pending()
        if mailbox.own_keys.identity.key_id != signed_by:  # another process was faster; its pair signs now
            done = yield from _confirmed(mailbox, link)
        elif pending is None or not pending.plan.signer:
            raise
        else:
            # The old pair is refused. If the new one is not, the server took the bundle, and its answer was lost.
            yield from _announced(mailbox)
            with mailbox.own_keys.signing_as_next():
                done = yield from _confirmed(mailbox, link)
    else:
        yield from _announced(mailbox)
        _finish(mailbox, link)
    if mailbox.key_rotation.queued_emergency() is not None:  # before one-time keys are made for a pair that it replaces
        return (yield from rotate_keys(mailbox, kem=False))
    # After a new signing pair there are no one-time keys, since the old one signed them.
    count = yield from _stocked(mailbox, done.prekeys_uploaded)
    return msgspec.structs.replace(done, prekeys_uploaded=count)


def _announced(mailbox: Mailbox) -> Exchange[None]:
    """Names a new signing key to the nodes of group logs, while the old one can still sign. Loaded only if there are
    any: most agents are in none."""
    if mailbox.logs.any():
        from angelia.client.log_key_rotation import announce_next_key

        yield from announce_next_key(mailbox)


def _finish(mailbox: Mailbox, link: Link) -> None:
    """Stores the bundle that the server took as the agent's own; the pending one may have been signed again since."""
    newest = mailbox.own_keys.newest()
    if mailbox.key_rotation.pending() is not None and newest is not None and newest.bundle.hash == link.bundle.hash:
        return  # another process was faster, and has begun the next rotation
    mailbox.key_rotation.finish(clock.now(), link)


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
    return bundle.signer.signer_id, bundle.active_ids


def _stocked(mailbox: Mailbox, left: int) -> Exchange[int]:
    """Adds one-time keys if the server says that few are left, within a limit per day, since the server might lie.
    Returns how many the server has now."""
    if left <= ONE_TIME_LOW and mailbox.own_keys.may_make_one_time_keys(clock.now(), 3 * ONE_TIME_BATCH):
        made = mailbox.own_keys.make_one_time_keys(ONE_TIME_BATCH - left, clock.now())
        left = (yield from key_calls.add_one_time_keys(made)).count
        mailbox.own_keys.one_time_made(clock.now())
    mailbox.own_keys.one_time_counted(clock.now())
    return left


def _confirmed(mailbox: Mailbox, link: Link) -> Exchange[PublicationAnswer]:
    """Stores the server's bundle as the agent's own, if this mailbox signed it."""
    answer = yield from key_calls.bundle(link.bundle.agent_nhi)
    left = (yield from ask(COUNT_ONE_TIME_KEYS)).count
    theirs = parse_link(answer)
    ours = mailbox.key_rotation.finish(clock.now(), theirs)
    if ours.bundle.hash != theirs.bundle.hash:
        raise UntrustedBundle(
            f"the server has bundle {theirs.bundle.bundle_version} of {ours.bundle.agent_nhi}, and this mailbox has "
            f"bundle {ours.bundle.bundle_version}, which it does not follow",
            hint="was the mailbox put back from an old copy? its newest copy has the keys",
        )
    return PublicationAnswer(
        bundle_id=answer.bundle_id, bundle_version=answer.bundle.bundle_version, prekeys_uploaded=left
    )
