"""`angelia key`: an agent's own keys, and whose keys it believes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click
import msgspec

from angelia.cli.confirm import Deed, may
from angelia.cli.errors import Usage
from angelia.cli.flags import Needs, moment
from angelia.cli.grammar import Noun
from angelia.cli.output import Output
from angelia.cli.paging import full_id
from angelia.cli.session import Session
from angelia.cli.times import full
from angelia.errors import AngeliaError, Conflict, KeyNotFound, NotFound

if TYPE_CHECKING:
    from angelia.client import Client
    from angelia.envelope.bundles import Bundle, Link
    from angelia.mailbox.box import Mailbox
    from angelia.mailbox.trust import Pin

FACTS = 11
_SUITES = {1: "ML-KEM-768", 2: "X-Wing", 4: "channels"}
_file = click.Path(path_type=Path, dir_okay=False)

command = Noun("key", "publish, show, rotate, revoke and pin keys")


class KeyState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What `--json` says of an agent's keys."""

    handle: str
    fingerprint: str
    signer_id: str
    bundle_version: int
    bundle_id: str
    issued_at: datetime
    expires_at: datetime
    suites: list[int]
    kem_keys: list[dict[str, str]]
    one_time_keys: int | None = None
    trusted_by: str | None = None
    pinned_at: datetime | None = None


@command.verb(example="angelia key publish --as alice", needs=Needs.SERVER | Needs.AGENT)
@click.option("--out", type=_file, metavar="FILE", help="write the bundles to a file to hand over; needs no server")
def publish(session: Session, out: Path | None) -> None:
    """Publish the agent's keys, so that others can seal messages to it.

    Saying it again does no harm: it tops up one-time keys, and renews a bundle that is about to expire."""
    mailbox = session.mailbox
    if out is not None:
        _hand_over(session, mailbox, out)
        return
    client = session.as_agent(mailbox)
    done = client.publish_keys(mailbox)
    text = f"v{done.bundle_version} published, {done.prekeys_uploaded} one-time keys"
    pairs = [("bundle", text), ("fingerprint", mailbox.identity.pair.public.fingerprint)]
    state = _state(_own(mailbox).bundle, one_time_keys=done.prekeys_uploaded)
    session.out.thing(state, pairs, quietly=done.bundle_id, least=FACTS)


@command.verb(example="angelia key show bob", needs=Needs.SERVER | Needs.AGENT)
@click.argument("name", metavar="[NAME]", required=False)
def show(session: Session, name: str | None) -> None:
    """Show keys: the agent's own, or those of NAME and whether they are believed."""
    mailbox = session.mailbox
    if name is None or name == mailbox.identity.handle:
        _show_own(session, mailbox)
        return
    from angelia.keys.model import parse_bundle

    answer = session.as_agent(mailbox).bundle(name)
    bundle, pin = parse_bundle(answer.bundle), mailbox.trust.pin(answer.bundle.agent_nhi)
    state = _state(bundle)
    if pin is not None:
        state.trusted_by, state.pinned_at = pin.trusted_by.value, pin.pinned_at
    pairs = [*_facts(bundle), ("pinned", _pinned(pin, bundle))]
    if answer.revoked:
        pairs.append(("revoked", ", ".join(map(str, answer.revoked))))
    session.out.thing(state, pairs, quietly=state.fingerprint, least=FACTS)
    if pin is None:
        session.out.note(f"next: compare the fingerprint with its owner, then `angelia key pin {bundle.agent_nhi}`")


@command.verb(example="angelia key rotate --as alice", needs=Needs.SERVER | Needs.AGENT | Needs.YES)
@click.option("--signer", is_flag=True, help="also make a new signing pair; others follow by its statement")
@click.option("--emergency", is_flag=True, help="the keys may be stolen: revoke them at once, without grace")
@click.option("--why", metavar="TEXT", help="with --emergency: the reason, for the audit")
@click.option("--stolen-since", type=moment, metavar="T", help="with --emergency: since when they may be stolen")
@click.option("--out", type=_file, metavar="FILE", help="write the bundles to a file to hand over; needs no server")
def rotate(
    session: Session, signer: bool, emergency: bool, why: str | None, stolen_since: datetime | None, out: Path | None
) -> None:
    """Replace the agent's keys. The old ones open mail that is still under way, for a week."""
    mailbox = session.mailbox
    if emergency != bool(why):
        raise Usage("--emergency and --why go together", hint='angelia key rotate --emergency --why "laptop lost"')
    if emergency and not may(session, _emergency(mailbox)):
        return
    if session.shared.dry_run:
        raise Usage("--dry-run goes with --emergency; nothing else is destroyed here")
    if out is not None:
        link = mailbox.own.begin_rotation(_now(), signer=signer, emergency=emergency)
        mailbox.own.finish_rotation(_now())
        _hand_over(session, mailbox, out)
        return
    client = session.as_agent(mailbox)
    if emergency:
        done = client.emergency_rotate_keys(mailbox, why=str(why), compromised_since=stolen_since)
    else:
        done = client.rotate_keys(mailbox, signer=signer)
    link = _own(mailbox)
    pairs = [
        ("bundle", f"v{done.bundle_version} published, {done.prekeys_uploaded} one-time keys"),
        ("old keys", "revoked" if emergency else "open what is under way for 7d 1h 5m more"),
        ("fingerprint", link.bundle.signer.fingerprint + (" (new)" if link.statement else "")),
    ]
    state = _state(link.bundle, one_time_keys=done.prekeys_uploaded)
    session.out.thing(state, pairs, quietly=done.bundle_id, least=FACTS)


@command.verb(example="angelia key revoke 31e6bc41-7ce --as alice", needs=Needs.SERVER | Needs.AGENT | Needs.YES)
@click.argument("key_id", metavar="KEY")
def revoke(session: Session, key_id: str) -> None:
    """Withdraw a replaced key before its week is over. KEY is an id of `angelia key show`, or its beginning."""
    from angelia.envelope.bundles import Listed

    mailbox = session.mailbox
    entries = {str(entry.key.key_id): entry for entry in _own(mailbox).bundle.kem_keys}
    chosen = full_id(key_id, entries, "key", "angelia key show")
    if entries[chosen].status is Listed.ACTIVE:
        raise Conflict(
            "this is the active key: without it nothing could be sealed to the agent",
            hint='replace it: angelia key rotate --emergency --why "…"',
        )
    what = f"the key {chosen[:12]}; mail still sealed to it cannot be opened any more"
    if not may(session, Deed(verb="revoke", doing="revoking", what=what, look="angelia key show")):
        return
    record = session.as_agent(mailbox).revoke_key(UUID(chosen))
    mailbox.own.destroy(UUID(chosen))
    session.out.done(record, f"revoked {chosen}, and destroyed its private half here")


@command.verb(example="angelia key pin bob --as alice", needs=Needs.SERVER | Needs.AGENT | Needs.YES)
@click.argument("name", metavar="NAME")
@click.argument("file", metavar="[FILE]", required=False, type=_file)
@click.option("--fingerprint", metavar="F", help="what its owner told you; it must be the same")
def pin(session: Session, name: str, file: Path | None, fingerprint: str | None) -> None:
    """Believe the keys of NAME, because you compared their fingerprint.

    The keys come from the server, or from a FILE that NAME made with `angelia key publish --out`."""
    mailbox = session.mailbox
    link, revoked = _presented(session, mailbox, name, file)
    found = link.bundle.signer.fingerprint
    if fingerprint is not None and fingerprint != found:
        from angelia.envelope.bundles import UntrustedBundle

        raise UntrustedBundle(
            f"the keys of {name} have the fingerprint {found}, not the one that you gave",
            hint="do not use them; ask their owner by another way",
        )
    before = mailbox.trust.pin(link.bundle.agent_nhi)
    known = before is not None and before.fingerprint == found
    if fingerprint is None and not known:
        look, where = f"angelia key show {name}", "this machine"
        what = f"the keys {found} as those of {name}"
        if not may(session, Deed(verb="trust", doing="trusting", what=what, look=look, where=where)):
            return
    pinned = mailbox.trust.trust(link, _now(), revoked)
    state = _state(link.bundle)
    state.trusted_by, state.pinned_at = pinned.trusted_by.value, pinned.pinned_at
    session.out.done(state, f"pinned {pinned.nhi}: {pinned.fingerprint}")


def publish_first(client: Client, mailbox: Mailbox) -> list[tuple[str, str]]:
    """Publish a new agent's keys; the facts to show."""
    done = client.publish_keys(mailbox)
    return [
        ("bundle", f"v{done.bundle_version} published, {done.prekeys_uploaded} one-time keys"),
        ("fingerprint", mailbox.identity.pair.public.fingerprint),
    ]


def write_out(out: Output, path: Path, content: bytes, what: str) -> None:
    """Write a file to hand over; one that is there is not overwritten."""
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError as error:
        raise Conflict(f"{path} is there already, and is not overwritten", hint="choose another name") from error
    out.note(f"{what} in {path}, {len(content):,} bytes")


def _hand_over(session: Session, mailbox: Mailbox, out: Path) -> None:
    from angelia.mailbox import bundle_file

    if mailbox.own.newest() is None:
        mailbox.own.first_bundle(_now())
        mailbox.own.finish_rotation(_now())
    link = _own(mailbox)
    write_out(session.out, out, bundle_file.encode(mailbox.own.chain()), "key bundles")
    pairs = [("bundle", f"v{link.bundle.bundle_version}"), ("fingerprint", link.bundle.signer.fingerprint)]
    session.out.thing(_state(link.bundle), pairs, quietly=str(out), least=FACTS)
    session.out.note(f"next: who gets the file runs `angelia key pin {link.bundle.agent_nhi} {out.name}`")


def _show_own(session: Session, mailbox: Mailbox) -> None:
    link = _own(mailbox)
    left = _one_time_keys_left(session, mailbox)
    pairs = _facts(link.bundle)
    pairs.append(("one-time", "not known: no server has them" if left is None else f"{left} keys unused"))
    if mailbox.own.pending() is not None:
        pairs.append(("rotation", "under way; `angelia key publish` finishes it"))
    session.out.thing(
        _state(link.bundle, one_time_keys=left), pairs, quietly=link.bundle.signer.fingerprint, least=FACTS
    )


def _one_time_keys_left(session: Session, mailbox: Mailbox) -> int | None:
    if mailbox.identity.id is None:
        return None
    try:
        return session.as_agent(mailbox).count_one_time_keys()
    except AngeliaError as error:
        session.out.detail(f"one-time keys: {error.message}")
        return None


def _presented(session: Session, mailbox: Mailbox, name: str, file: Path | None) -> tuple[Link, list[UUID]]:
    from angelia.envelope.bundles import check_bundle
    from angelia.keys.model import LinkDocument, parse_link
    from angelia.mailbox import bundle_file

    if file is not None:
        link = bundle_file.read(file)[-1]
        if link.bundle.agent_nhi != name:
            raise NotFound(f"{file} holds the keys of {link.bundle.agent_nhi}, not of {name}")
        check_bundle(link.bundle)
        return link, []
    answer = session.as_agent(mailbox).bundle(name)
    link = parse_link(LinkDocument(bundle=answer.bundle, rotation_statement=answer.rotation_statement))
    check_bundle(link.bundle)
    return link, list(answer.revoked)


def _own(mailbox: Mailbox) -> Link:
    link = mailbox.own.newest()
    if link is None:
        raise KeyNotFound(
            f"{mailbox.identity.handle} has published no keys yet",
            hint=f"angelia key publish --as {mailbox.identity.name}",
        )
    return link


def _emergency(mailbox: Mailbox) -> Deed:
    what = f"all keys of {mailbox.identity.handle}; mail still sealed to them cannot be opened any more"
    return Deed(verb="revoke", doing="revoking", what=what, look="angelia key show")


def _facts(bundle: Bundle) -> list[tuple[str, str]]:
    from angelia.keys.model import moment as at

    pairs = [
        ("handle", bundle.agent_nhi),
        ("fingerprint", bundle.signer.fingerprint),
        ("bundle", f"v{bundle.bundle_version}, issued {full(at(bundle.issued_at))}"),
        ("expires", full(at(bundle.expires_at))),
        ("seals with", ", ".join(_SUITES[suite] for suite in _mask(bundle))),
    ]
    pairs += [
        ("key", f"{entry.key.key_id}  {entry.key.kind.name.lower()}  {entry.status.name.lower()}")
        for entry in bundle.kem_keys
    ]
    return pairs


def _state(bundle: Bundle, one_time_keys: int | None = None) -> KeyState:
    from angelia.keys.model import TYPE_NAMES
    from angelia.keys.model import moment as at

    return KeyState(
        handle=bundle.agent_nhi,
        fingerprint=bundle.signer.fingerprint,
        signer_id=str(bundle.signer.signer_id),
        bundle_version=bundle.bundle_version,
        bundle_id=bundle.hash.hex(),
        issued_at=at(bundle.issued_at),
        expires_at=at(bundle.expires_at),
        suites=_mask(bundle),
        kem_keys=[
            {
                "key_id": str(entry.key.key_id),
                "key_type": TYPE_NAMES[entry.key.kind],
                "status": entry.status.name.lower(),
            }
            for entry in bundle.kem_keys
        ],
        one_time_keys=one_time_keys,
    )


def _mask(bundle: Bundle) -> list[int]:
    return [suite for suite in _SUITES if bundle.suites & 1 << suite - 1]


def _pinned(pin: Pin | None, bundle: Bundle) -> str:
    if pin is None:
        return "no"
    if pin.signer.signer_id != bundle.signer.signer_id:
        return f"NOT these keys, but {pin.fingerprint}"
    how = {"first_use": "at first use", "rotation": "by a rotation", "operator": "by you"}[pin.trusted_by.value]
    return f"{how}, {full(pin.pinned_at)}"


def _now() -> datetime:
    return datetime.now(UTC)
