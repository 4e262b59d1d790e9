"""`angelia key`: an agent's own keys, and the keys of other agents that it trusts."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click
import msgspec

from angelia.cli import times
from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.errors import ConfirmationRequired, Usage
from angelia.cli.flags import Needs, moment
from angelia.cli.grammar import Noun
from angelia.cli.mail_files import chain_in, handing_over, not_known, refuse_unregistered
from angelia.cli.paging import ago, full_id
from angelia.cli.times import full
from angelia.errors import AngeliaError, Conflict, KeyNotFound

if TYPE_CHECKING:
    from angelia.client import Client
    from angelia.envelope.bundles import Bundle, KemEntry, Link
    from angelia.keys.api import PublicationAnswer
    from angelia.mailbox.mailbox import Mailbox
    from angelia.mailbox.pinned_keys import Pin

# The width of `fingerprint`, so that all facts about an agent stand in one column.
FACTS = 11
_SUITES = {1: "ML-KEM-768", 2: "X-Wing", 4: "channels"}
_PURPOSES = ("queue", "grace_period_keys")  # of the model, which takes longer to load than a command's help
_file = click.Path(path_type=Path, dir_okay=False)

command = Noun("key", "publish, show, rotate, revoke and pin keys")


@command.verb(example="angelia key publish --as alice", needs=Needs.SERVER | Needs.AGENT)
@click.option("--out", type=_file, metavar="FILE", help="write the bundles to a file to hand over; needs no server")
def publish(session: CommandContext, out: Path | None) -> None:
    """Publish the agent's keys, so that others can seal messages to it.

    Saying it again does no harm: it tops up one-time keys, signs keys again that are three days old,
    and replaces those of last week. An agent that sends or receives mail does so by itself."""
    mailbox = session.mailbox
    done: PublicationAnswer | None = None
    with handing_over(out) as file:
        if out is None:
            refuse_unregistered(mailbox)
            done = session.as_agent(mailbox).keys.publish(mailbox)
        else:
            _make_first(mailbox)
            file.write(_chain(mailbox))
    _say_published(session, mailbox, done, [], out)


@command.verb(example="angelia key show bob", needs=Needs.SERVER | Needs.AGENT)
@click.argument("name", metavar="[NAME]", required=False)
def show(session: CommandContext, name: str | None) -> None:
    """Show keys: the agent's own, or those of NAME and whether they are believed."""
    mailbox = session.mailbox
    if name is None or name == mailbox.identity.handle:
        _show_own(session, mailbox)
        return
    bundle, revoked = _seen(session, mailbox, name)
    pin = mailbox.pinned_keys.pin(bundle.agent_nhi)
    facts = [*_facts(bundle, revoked), ("pinned", _pinned(pin, bundle))]
    session.out.thing(_state(bundle, revoked, pin), facts, quietly=bundle.signer.fingerprint, least=FACTS)
    if pin is None:
        session.out.note(f"next: compare the fingerprint with its owner, then `angelia key pin {bundle.agent_nhi}`")


@command.verb(example="angelia key rotate --as alice", needs=Needs.SERVER | Needs.AGENT | Needs.YES)
@click.option(
    "--signer", is_flag=True,
    help="also make a new signing pair; others follow by its statement. Before it, register: a server takes no chain "
    "whose first pair is gone",
)  # fmt: skip
@click.option("--emergency", is_flag=True, help="the keys may be stolen: revoke them at once, without grace")
@click.option("--why", metavar="TEXT", help="with --emergency: the reason, for the audit")
@click.option("--stolen-since", type=moment, metavar="T", help="with --emergency: since when they may be stolen")
@click.option(
    "--out", type=_file, metavar="FILE",
    help="also write the bundles to a file to hand over; an agent that never registered needs no server",
)  # fmt: skip
def rotate(
    session: CommandContext,
    signer: bool,
    emergency: bool,
    why: str | None,
    stolen_since: datetime | None,
    out: Path | None,
) -> None:
    """Replace the agent's keys. The old ones open mail that is still under way, for a week."""
    mailbox = session.mailbox
    if emergency != bool(why) or (stolen_since and not emergency):
        raise Usage("--emergency and --why go together", hint='angelia key rotate --emergency --why "laptop lost"')
    all_keys = f"all keys of {mailbox.identity.handle} (mail that is still sealed to them will not open)"
    if emergency and not may(session, _revocation(session, mailbox, all_keys)):
        return
    if session.shared.dry_run:
        raise Usage("--dry-run goes with --emergency; nothing else is destroyed here")
    done: PublicationAnswer | None = None
    with handing_over(out) as file:
        if out is None:
            refuse_unregistered(mailbox)
        if mailbox.identity.id is None:
            # The server never saw these keys; it gets the whole chain when the agent registers.
            if emergency:
                mailbox.key_rotation.abandon()  # its keys were shown to no other agent, but perhaps to the thief
            link = mailbox.key_rotation.begin(
                times.now(), signer=signer or emergency, emergency=emergency, why=why or ""
            )
            mailbox.key_rotation.finish(times.now(), link)
        elif emergency:
            client = session.as_agent(mailbox)
            done = client.keys.emergency_rotate(mailbox, why=str(why), compromised_since=stolen_since)
        else:
            done = session.as_agent(mailbox).keys.rotate(mailbox, signer=signer)
        if out is not None:
            file.write(_chain(mailbox))
    old = "destroyed" if emergency else "open what is under way for 7d 1h 5m more"
    _say_published(session, mailbox, done, [("old keys", old)], out)


@command.verb(example="angelia key revoke 31e6bc41-7ce --as alice", needs=Needs.SERVER | Needs.AGENT | Needs.YES)
@click.argument("key_id", metavar="KEY")
def revoke(session: CommandContext, key_id: str) -> None:
    """Withdraw a replaced key before its week is over.

    KEY is an id of `angelia key show`, or its beginning."""
    from angelia.envelope.bundles import KemKeyStatus

    mailbox = session.mailbox
    entries = {str(entry.key.key_id): entry for entry in _own(mailbox).bundle.kem_keys}
    chosen = full_id(key_id, entries, "key", "angelia key show")
    if entries[chosen].status is KemKeyStatus.ACTIVE:
        raise Conflict(
            "this is the active key: without it nothing could be sealed to the agent",
            hint='replace it: angelia key rotate --emergency --why "…"',
        )
    what = f"the key {chosen[:12]} (mail that is still sealed to it will not open)"
    if not may(session, _revocation(session, mailbox, what)):
        return
    record: object = {"key_id": chosen, "status": "revoked"}
    if mailbox.identity.id is not None:
        revoked = msgspec.structs.asdict(session.as_agent(mailbox).keys.revoke(chosen))
        record = {name: value for name, value in revoked.items() if value is not None}
    mailbox.key_rotation.destroy_replaced(UUID(chosen))
    session.out.done(record, f"revoked {chosen}, and destroyed its private half here")


@command.verb(example="angelia key pin bob --as alice", needs=Needs.SERVER | Needs.AGENT | Needs.YES)
@click.argument("name", metavar="NAME")
@click.argument("file", metavar="[FILE]", required=False, type=_file)
@click.option("--fingerprint", metavar="F", help="what its owner told you; it must be the same")
def pin(session: CommandContext, name: str, file: Path | None, fingerprint: str | None) -> None:
    """Believe the keys of NAME, because you compared their fingerprint.

    The keys come from the server, or from a FILE that NAME made with `angelia key publish --out`.
    Keys that follow from those believed before need no comparing; any others need --fingerprint."""
    from angelia.envelope.bundles import UntrustedBundle

    mailbox = session.mailbox
    links, revoked = _presented(session, mailbox, name, file)
    newest = links[-1].bundle
    handle, found = newest.agent_nhi, newest.signer.fingerprint
    if fingerprint is not None and fingerprint != found:
        raise UntrustedBundle(
            f"the keys of {handle} have the fingerprint {found}, not the one that you gave",
            hint="do not use them; ask their owner by another way",
        )
    before = mailbox.pinned_keys.pin(handle)
    agreed = fingerprint is not None or session.shared.yes
    if session.shared.dry_run or (before is None and not agreed):
        if not _compared(session, handle, found):
            return
        agreed = True
    if before is not None and not _follows(mailbox, links, revoked, before, told=fingerprint is not None):
        agreed = True
    pinned = mailbox.pinned_keys.trust(links[-1], times.now(), revoked) if agreed else mailbox.pinned_keys.pin(handle)
    assert pinned is not None
    session.out.done(_state(newest, revoked or (), pinned), f"pinned {handle}: {pinned.fingerprint}")
    if pinned.trusted_by.value == "first_use":
        session.out.note("believed at first use; when its owner has told you the same, add --fingerprint F")
    if before is not None and before.fingerprint != found and pinned.trusted_by.value == "operator":
        session.out.note(f"next: its mail is opened again after `angelia mail allow {handle}`")


@command.verb(name="rotate-data", example="angelia key rotate-data queue", needs=Needs.SERVER | Needs.OPERATOR)
@click.argument("purpose", metavar="PURPOSE", type=click.Choice(_PURPOSES))
def rotate_data(session: CommandContext, purpose: str) -> None:
    """Replace a data key of the server, which encrypts what it stores.

    PURPOSE is queue, for the payloads of encrypted queues, or grace_period_keys. What the old key
    encrypted stays readable. Within a minute all processes of the server use the new one."""
    made = session.as_operator().keys.rotate_data_key(purpose)
    session.out.done(made, f"the data key of {made.purpose} is now {made.key_id}")


def publish_first(client: Client, mailbox: Mailbox) -> list[tuple[str, str]]:
    """Publishes a new agent's keys; returns the facts to show."""
    done = client.keys.publish(mailbox)
    return [
        ("bundle", f"v{done.bundle_version} published, {done.prekeys_uploaded} one-time keys"),
        ("fingerprint", mailbox.identity.pair.public.fingerprint),
    ]


def _make_first(mailbox: Mailbox) -> None:
    """Makes the first bundle, to be handed over; a server gets the same one later. Without a server, this is also where
    bundles with fresh signatures or the week's key follow."""
    from angelia.mailbox.own_keys import RenewalDue

    own, rotation = mailbox.own_keys, mailbox.key_rotation
    if own.newest() is None:
        own.first_bundle(times.now())
    if rotation.pending() is None:
        rotation.finish(times.now())
    if mailbox.identity.id is None and (due := own.renewal_due(times.now())) is not None:
        link = rotation.begin(times.now(), kem=due is RenewalDue.KEY)
        rotation.finish(times.now(), link)


def _chain(mailbox: Mailbox) -> bytes:
    """The agent's bundles as the file that it hands over."""
    from angelia.mailbox import bundle_file

    return bundle_file.encode(mailbox.own_keys.chain())


def _say_published(
    session: CommandContext,
    mailbox: Mailbox,
    done: PublicationAnswer | None,
    more: list[tuple[str, str]],
    out: Path | None,
) -> None:
    link = _own(mailbox)
    version, left = f"v{link.bundle.bundle_version}", None if done is None else done.prekeys_uploaded
    pairs = [
        ("bundle", version if left is None else f"{version} published, {left} one-time keys"),
        *more,
        ("fingerprint", link.bundle.signer.fingerprint + (" (new)" if more and link.statement else "")),
    ]
    quietly = link.bundle.hash.hex() if out is None else str(out)
    session.out.thing(_state(link.bundle, one_time_keys=left), pairs, quietly=quietly, least=FACTS)
    if out is not None:
        pins = f"`angelia key pin {link.bundle.agent_nhi} {out.name}`"
        session.out.note(f"next: hand over {out}, and whoever gets it runs {pins}")


def _show_own(session: CommandContext, mailbox: Mailbox) -> None:
    link = _own(mailbox)
    left, revoked, why = _server_says(session, mailbox)
    pairs = _facts(link.bundle, revoked)
    pairs.append(("one-time", f"not known: {why}" if left is None else f"{left} keys unused"))
    if (plan := mailbox.key_rotation.unconfirmed_plan()) is not None:
        kind = "an emergency is" if plan.emergency else ""
        pairs.append(("rotation", f"{kind} under way; `angelia key publish` finishes it".lstrip()))
    state = _state(link.bundle, revoked, one_time_keys=left)
    session.out.thing(state, pairs, quietly=link.bundle.signer.fingerprint, least=FACTS)


def _server_says(session: CommandContext, mailbox: Mailbox) -> tuple[int | None, list[UUID], str]:
    """The number of one-time keys left, the revoked keys, and if the server does not tell, the reason."""
    if mailbox.identity.id is None:
        return None, [], "no server has any"
    try:
        client = session.as_agent(mailbox)
        return client.keys.count_one_time_keys().count, list(client.keys.bundle(mailbox.identity.handle).revoked), ""
    except AngeliaError as error:
        session.out.detail(f"{error.message} ({error.code})")
        return None, [], "the server did not say (-v tells why)"


def _seen(session: CommandContext, mailbox: Mailbox, name: str) -> tuple[Bundle, list[UUID]]:
    """The bundle of another agent: the server's newest, or the copy here of an agent that is on no server."""
    if mailbox.identity.id is None and (known := mailbox.pinned_keys.bundle(name, times.now(), max_age=None)):
        return known.bundle, list(known.revoked)
    links, revoked = _presented(session, mailbox, name, None)
    return links[-1].bundle, revoked or []


def _presented(
    session: CommandContext, mailbox: Mailbox, name: str, file: Path | None
) -> tuple[list[Link], list[UUID] | None]:
    """The bundles of NAME by a file or the server, with valid signatures but not trusted yet; and the keys that the
    server says are revoked, None if it was not asked."""
    from angelia.client.exchange import MOST_PAGES, BadAnswer
    from angelia.client.peer_keys import refuse_misnamed
    from angelia.envelope.bundles import check_bundle
    from angelia.keys.model import LinkDocument, parse_link, parse_links

    if file is not None:
        links = chain_in(file, name)
        check_bundle(links[-1].bundle)
        return links, None
    if mailbox.identity.id is None:
        raise not_known(name)
    client = session.as_agent(mailbox)
    answer = client.keys.bundle(name)
    link = parse_link(LinkDocument(bundle=answer.bundle, rotation_statement=answer.rotation_statement))
    refuse_misnamed(name, link.bundle)
    check_bundle(link.bundle)
    pin = mailbox.pinned_keys.pin(name)
    if pin is None or link.bundle.bundle_version <= pin.bundle_version + 1:
        return [link], list(answer.revoked)
    links = []
    for _ in range(MOST_PAGES):
        page = client.keys.bundles_since(name, links[-1].bundle.bundle_version if links else pin.bundle_version)
        links += parse_links(page.bundles)
        if not page.has_more or not page.bundles:
            return links or [link], list(answer.revoked)
    raise BadAnswer(f"the bundles of {name} did not end after {MOST_PAGES} pages")


def _compared(session: CommandContext, handle: str, found: str) -> bool:
    what = f"the keys {found} as those of {handle}"
    deed = Deed(verb="trust", doing="trusting", what=what, look="angelia agent show", where="this machine")
    try:
        return may(session, deed)
    except ConfirmationRequired as refused:
        raise ConfirmationRequired(
            f"nobody has compared the keys of {handle} yet, and there is no terminal to ask",
            hint=f"{handle} learns the fingerprint by `angelia agent show`; what it told you: --fingerprint F",
        ) from refused


def _follows(mailbox: Mailbox, links: list[Link], revoked: list[UUID] | None, before: Pin, *, told: bool) -> bool:
    """Follows the chain from the pin; returns False where it breaks and the user was told the new fingerprint."""
    from angelia.envelope.bundles import UntrustedBundle
    from angelia.mailbox import bundle_file

    found = links[-1].bundle.signer.fingerprint
    try:
        bundle_file.take(mailbox.pinned_keys, links, times.now(), revoked)
    except UntrustedBundle as refused:
        if told and before.fingerprint != found:
            return False
        if before.fingerprint != found:
            refused.hint = f"ask its owner by another way; if these keys are right: --fingerprint {found}"
        raise
    return True


def _own(mailbox: Mailbox) -> Link:
    link = mailbox.own_keys.newest()
    if link is None:
        raise KeyNotFound(
            f"{mailbox.identity.handle} has published no keys yet",
            hint=f"angelia key publish --as {mailbox.identity.name}",
        )
    return link


def _revocation(session: CommandContext, mailbox: Mailbox, what: str) -> Deed:
    where = "this machine" if mailbox.identity.id is None else session.url
    return Deed(verb="revoke", doing="revoking", what=what, look="angelia key show", where=where)


def _facts(bundle: Bundle, revoked: Collection[UUID] = ()) -> list[tuple[str, str]]:
    from angelia.envelope.times import moment as at

    pairs = [
        ("handle", bundle.agent_nhi),
        ("fingerprint", bundle.signer.fingerprint),
        ("bundle", f"v{bundle.bundle_version}, issued {full(at(bundle.issued_at))}, {ago(at(bundle.issued_at))} old"),
        ("expires", full(at(bundle.not_after))),
        ("seals with", ", ".join(_SUITES[suite] for suite in _mask(bundle))),
    ]
    pairs += [
        ("key", f"{entry.key.key_id}  {entry.key.kind.name.lower()}  {_status(entry, revoked)}")
        for entry in bundle.kem_keys
    ]
    return pairs


def _status(entry: KemEntry, revoked: Collection[UUID]) -> str:
    return "revoked" if entry.key.key_id in revoked else entry.status.name.lower()


def _state(
    bundle: Bundle, revoked: Collection[UUID] = (), pin: Pin | None = None, one_time_keys: int | None = None
) -> dict[str, object]:
    """What `--json` says of an agent's keys."""
    from angelia.envelope.times import moment as at
    from angelia.keys.model import TYPE_NAMES

    return {
        "handle": bundle.agent_nhi,
        "fingerprint": bundle.signer.fingerprint,
        "signer_id": bundle.signer.signer_id,
        "bundle_version": bundle.bundle_version,
        "bundle_id": bundle.hash.hex(),
        "issued_at": at(bundle.issued_at),
        "expires_at": at(bundle.not_after),
        "suites": _mask(bundle),
        "kem_keys": [
            {"key_id": entry.key.key_id, "key_type": TYPE_NAMES[entry.key.kind], "status": _status(entry, revoked)}
            for entry in bundle.kem_keys
        ],
        **({} if one_time_keys is None else {"one_time_keys": one_time_keys}),
        **({} if pin is None else {"trusted_by": pin.trusted_by, "pinned_at": pin.pinned_at}),
    }


def _mask(bundle: Bundle) -> list[int]:
    return [suite for suite in _SUITES if bundle.suites & 1 << suite - 1]


def _pinned(pin: Pin | None, bundle: Bundle) -> str:
    if pin is None:
        return "no"
    if pin.fingerprint != bundle.signer.fingerprint:
        return f"NOT these keys, but {pin.fingerprint}"
    how = {"first_use": "at first use", "rotation": "by a rotation", "operator": "by you"}[pin.trusted_by.value]
    return f"{how}, {full(pin.pinned_at)}"
