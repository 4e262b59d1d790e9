"""Groups and who is in them: an admin makes each edition, brings the nodes to it, and sends it to the members.

What a crash or an absent node leaves undone is done by `settle`, and by whatever this agent does with its groups next.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import msgspec

from angelia.api import Operation
from angelia.client import clock, peer_keys
from angelia.client.exchange import BadAnswer, Exchange, Request, Response, together
from angelia.client.log_editions import EditionMail, collect_editions, take_editions, tell
from angelia.client.operation_requests import request_for
from angelia.client.transport import origin
from angelia.envelope.json_form import from_text, to_text
from angelia.envelope.sealing import EpochKey
from angelia.errors import (
    AlreadyExists,
    AngeliaError,
    Conflict,
    Denied,
    EpochConflict,
    InvalidArgument,
    NoGroup,
    NotFound,
)
from angelia.grouplog import api
from angelia.grouplog.model.documents import (
    EntryDocument,
    GroupDocument,
    NewGroup,
    NewNodes,
    NewRoster,
    NodeDocument,
)
from angelia.grouplog.model.edition_merge import needs_new_key
from angelia.grouplog.model.editions import EditionMember, EditionNode, GroupEdition, counted_on, new_member
from angelia.grouplog.model.ids import base58, parse_group
from angelia.mailbox import log_replica
from angelia.mailbox.mailbox import Mailbox

_GROUP_BYTES = 32
_AGAIN = timedelta(minutes=10)  # until what could not be reached is tried again by itself
_RACES = 5  # to create a group, and to bring its roster and nodes up to date, takes three


@dataclass(frozen=True, slots=True)
class LogNode:
    """A spool node by its address. Outside open mode a node asks for its token where a group is created."""

    url: str
    token: str | None = field(default=None, repr=False)


class _NodeName(msgspec.Struct):
    """What is read of a node's answer: a server says more about its key than a node of its own."""

    id: str


@dataclass(frozen=True, slots=True)
class Settled:
    """A group whose newest edition was brought to nodes and members. `behind` are the nodes that could not be brought
    to it, and `untold` the members that could not be reached, each with the reason; `settle` tries them again."""

    edition: GroupEdition
    behind: dict[bytes, AngeliaError]
    told: EditionMail

    @property
    def untold(self) -> dict[str, AngeliaError]:
        return self.told.failed


def create_log(
    mailbox: Mailbox,
    name: str,
    *,
    nodes: Sequence[str | LogNode],
    members: Iterable[str] = (),
    min_copies: int | None = None,
    depth: int = 2,
    quota_bytes: int = 2 << 30,
) -> Exchange[Settled]:
    """Creates a group on these nodes, with these agents as members besides this one, its admin. They find it among
    their groups once they have fetched their mail. By default each update is kept on two nodes."""
    if any(one.name == name for one in mailbox.logs.editions()):
        raise AlreadyExists(f"you have a group {name} already", hint="angelia log list")
    found = yield from _identified(nodes)
    group = os.urandom(_GROUP_BYTES)
    keys = yield from _signing_keys(mailbox, [mailbox.identity.handle, *members])
    listed = [new_member(group, binding, *one, admin=binding == 1) for binding, one in enumerate(keys.items(), 1)]
    edition = GroupEdition(
        group=group,
        name=name,
        number=1,
        depth=depth,
        min_copies=min(2, len(found)) if min_copies is None else min_copies,
        quota_bytes=quota_bytes,
        members=tuple(listed),
        past=(),
        nodes=tuple(found),
        epoch=1,
    )
    key = EpochKey.generate()
    edition = msgspec.structs.replace(edition, author=listed[0].sender, key_id=key.key_id)
    edition = mailbox.logs.granted(edition, None).checked()
    mailbox.logs.publish(edition, key, clock.now())
    log_replica.make_first(mailbox.logs, edition)
    return (yield from _settled(mailbox, edition, _tokens(nodes)))


def settle(mailbox: Mailbox, name: str, *, nodes: Sequence[LogNode] = (), again: bool = False) -> Exchange[Settled]:
    """Brings nodes and members to the newest edition of a group: after a crash, or when some could not be reached.
    Members' new keys are taken over. `nodes` may bring tokens. With `again` the edition is also sent to members that
    were sent it before."""
    if again:
        mailbox.logs.note_untold(mailbox.logs.find(name))
    return (yield from _changed(mailbox, name, lambda edition: edition, _tokens(nodes)))


def settle_open(mailbox: Mailbox) -> Exchange[None]:
    """Goes on with all groups whose nodes or members this agent, an admin, has not brought to the newest edition. What
    cannot be done now is tried again later."""
    mailbox.own_keys.refresh()
    for gid in mailbox.logs.unsettled(clock.now()):
        edition = mailbox.logs.edition(parse_group(gid))
        if edition is None or not _is_admin(mailbox, edition):
            mailbox.logs.nothing_to_settle(parse_group(gid))
            continue
        mailbox.logs.settle_at(edition, clock.now() + _AGAIN)  # if it fails
        with contextlib.suppress(AngeliaError):
            if _is_to_be_granted(mailbox, edition):
                yield from settle(mailbox, gid)
            else:
                yield from _settled(mailbox, edition, {}, edition)


def _is_to_be_granted(mailbox: Mailbox, edition: GroupEdition) -> bool:
    """Whether this agent, as the owner, has to say who the admins are: one has a new key, or it never said so."""
    own, grant = mailbox.own_keys.identity, edition.grant
    if edition.owner.handle != own.handle:
        return False
    if grant is None or grant.owner.public_key != own.pair.public.ed25519:
        return True
    keys = {one.sender: one.public_key for one in edition.members}
    return any(keys[one.sender] != one.public_key for one in grant.admins)


def add_members(mailbox: Mailbox, name: str, handles: Sequence[str], *, admin: bool = False) -> Exchange[Settled]:
    """Adds members, or makes members admins. They read what was written before from a snapshot: see `compact`."""
    edition = mailbox.logs.find(name)
    keys = yield from _signing_keys(mailbox, [one for one in handles if admin or edition.member(one) is None])

    def change(edition: GroupEdition) -> GroupEdition:
        listed = [
            new_member(edition.group, edition.new_binding(handle), handle, key, admin=False)
            for handle, key in keys.items()
            if edition.member(handle) is None  # the other admin may have added it
        ]
        members = [
            msgspec.structs.replace(one.with_key(keys[one.handle]), admin=one.admin or admin)
            if one.handle in keys
            else one
            for one in (*edition.members, *listed)
        ]
        return msgspec.structs.replace(edition, members=tuple(members))

    return (yield from _changed(mailbox, name, change))


def remove_members(mailbox: Mailbox, name: str, handles: Sequence[str]) -> Exchange[Settled]:
    """Removes members. Nodes serve them nothing any more, and what is written from now on is sealed under a new key. Of
    their own messages those count that this device has by now, so `sync` first."""

    def change(edition: GroupEdition) -> GroupEdition:
        for handle in handles:
            if edition.member(handle) is None:
                raise NotFound(f"{handle} is no member of {edition.name}", hint=f"angelia log members {edition.name}")
        members = tuple(one for one in edition.members if one.handle not in handles)
        gone = [
            msgspec.structs.replace(
                one, admin=False, until=log_replica.highest_received(mailbox.logs, edition, one.sender)
            )
            for one in edition.members
            if one.handle in handles
        ]
        return msgspec.structs.replace(edition, members=members, past=(*edition.past, *gone))

    return (yield from _changed(mailbox, name, change))


def replace_nodes(mailbox: Mailbox, name: str, nodes: Sequence[str | LogNode]) -> Exchange[Settled]:
    """Replaces the nodes of a group. `repair` by each member then brings what is on nodes that left to the new ones."""
    found = yield from _identified(nodes)
    return (
        yield from _changed(
            mailbox, name, lambda edition: msgspec.structs.replace(edition, nodes=tuple(found)), _tokens(nodes)
        )
    )


def drop_log(mailbox: Mailbox, name: str) -> Exchange[dict[bytes, AngeliaError]]:
    """Drops a group with all its messages on all nodes, for good, and forgets it here. Returns the nodes that still
    have it, each with the reason: then it stays known here, so that this can be done again."""
    edition = mailbox.logs.find(name)
    _check_admin(mailbox, edition)
    requests = [node_call(api.DROP, node, base58(edition.group)) for node in edition.nodes]
    answers = yield from together(requests)
    failed = {
        node.id: answer
        for node, answer in zip(edition.nodes, answers, strict=True)
        if isinstance(answer, AngeliaError) and answer.code not in ("group_dropped", "no_group")
    }
    if not failed:
        mailbox.logs.forget(edition.group)
    return failed


def forget_log(mailbox: Mailbox, name: str) -> Exchange[GroupEdition]:
    """Forgets a group on this device, with its keys and its state; nodes and other members keep it. The next edition
    that an admin sends makes this agent a member again."""
    yield from ()
    edition = mailbox.logs.find(name)
    mailbox.logs.forget(edition.group)
    return edition


def find_log(mailbox: Mailbox, name: str) -> Exchange[GroupEdition]:
    """Returns a group of this agent; if it is not known here yet, the mail is looked through for it."""
    take_editions(mailbox)
    try:
        return mailbox.logs.find(name)
    except NoGroup:
        yield from collect_editions(mailbox)
    return mailbox.logs.find(name)


def list_logs(mailbox: Mailbox) -> Exchange[list[GroupEdition]]:
    """Returns the groups of this agent, with those that its mail brings."""
    yield from collect_editions(mailbox)
    yield from settle_open(mailbox)
    return mailbox.logs.editions()


def _changed(
    mailbox: Mailbox,
    name: str,
    change: Callable[[GroupEdition], GroupEdition],
    tokens: dict[str, str] | None = None,
) -> Exchange[Settled]:
    """Makes the next edition if anything changes, and brings nodes and members to it."""
    mailbox.own_keys.refresh()  # the pair signs the edition, and may have been rotated since
    with contextlib.suppress(AngeliaError):
        yield from collect_editions(mailbox)  # another admin may have changed it
    for _ in range(_RACES):
        before = mailbox.logs.find(name)
        _check_admin(mailbox, before)
        keys = yield from _present_keys(mailbox, before)
        members = tuple(one.with_key(keys.get(one.sender, one.public_key)) for one in before.members)
        wanted = change(msgspec.structs.replace(before, members=members))
        if mailbox.logs.granted(wanted, before, keys) != before:
            try:
                wanted = publish_next(mailbox, before, wanted, keys)
            except EpochConflict:
                continue
        return (yield from _settled(mailbox, wanted, tokens or {}, before))
    raise EpochConflict("other admins change the group faster than this agent can", hint="try again")


def publish_next(
    mailbox: Mailbox, before: GroupEdition, wanted: GroupEdition, verified: Mapping[bytes, bytes] = MappingProxyType({})
) -> GroupEdition:
    """Makes an edition that follows another, under a new key if a member went or has another one. Returns it as it is
    stored; EpochConflict if another came in between."""
    key = EpochKey.generate() if (renews := needs_new_key(before, wanted)) else mailbox.logs.key(before)
    wanted = msgspec.structs.replace(wanted, epoch=counted_on(before.epoch) if renews else before.epoch)
    wanted = wanted.following(before, mailbox.logs.me(before).sender, key)
    made = mailbox.logs.granted(wanted, before, verified).checked()
    mailbox.logs.publish(made, key, clock.now())
    return made


def _settled(
    mailbox: Mailbox, edition: GroupEdition, tokens: dict[str, str], before: GroupEdition | None = None
) -> Exchange[Settled]:
    # Nodes first: a removed member reads nothing more, before the others hear of it.
    behind: dict[bytes, AngeliaError] = {}
    nodes = {node.id: node for node in (*(() if before is None else before.nodes), *edition.nodes)}
    for node in nodes.values():
        try:
            yield from _bring(edition, node, tokens.get(origin(node.url)))
        except AngeliaError as error:
            behind[node.id] = error
    if before is None and len(behind) == len(edition.nodes):
        mailbox.logs.forget(edition.group)
        raise next(iter(behind.values()))
    told = yield from tell(mailbox, edition)
    later = clock.now() + _AGAIN if behind or told.failed else None
    mailbox.logs.settle_at(edition, later)
    return Settled(edition, behind, told)


def _bring(edition: GroupEdition, node: EditionNode, token: str | None) -> Exchange[None]:
    """Brings one node to an edition, whatever it has now."""
    for _ in range(_RACES):
        (answer,) = yield from together([node_call(api.SHOW, node, base58(edition.group))])
        if isinstance(answer, AngeliaError) and answer.code == "no_group":
            yield from _ask(node_call(api.CREATE, node, body=_new_group(edition), token=token))
            continue
        if not isinstance(answer, Response):
            raise answer
        shown = answer.read(GroupDocument)
        try:
            if (yield from _bring_roster(edition, node, shown)) and (yield from _bring_nodes(edition, node, shown)):
                return
        except EpochConflict:
            continue  # another admin was faster; look again
    raise Conflict("the node's roster changes faster than it can be brought up to date", hint="try again")


def _bring_roster(edition: GroupEdition, node: EditionNode, shown: GroupDocument) -> Exchange[bool]:
    """Returns whether the node has the roster; else it was changed, and is to be looked at again."""
    body = new_roster(edition, shown)
    if body is None:
        return True
    yield from _ask(node_call(api.ROSTER, node, base58(edition.group), body=body))
    return False


def new_roster(edition: GroupEdition, shown: GroupDocument) -> NewRoster | None:
    """What brings the roster of a node to that of an edition; None if it is the same."""
    there = {one.binding: (one.public_key, one.admin) for one in shown.roster}
    wanted = {one.binding: (to_text(one.public_key), one.admin) for one in edition.members}
    known = {one.binding for one in (*shown.roster, *shown.past)}
    unknown_past = [one for one in edition.past if one.binding not in known]
    if there == wanted and not unknown_past:
        return None
    roster = [_entry(one) for one in edition.members]
    return NewRoster(epoch=shown.roster_epoch, roster=roster, past=[_entry(one) for one in unknown_past])


def _bring_nodes(edition: GroupEdition, node: EditionNode, shown: GroupDocument) -> Exchange[bool]:
    wanted = [NodeDocument.of(one.node) for one in edition.nodes]
    if shown.nodes == wanted:
        return True
    body = NewNodes(epoch=shown.node_epoch, nodes=wanted)
    yield from _ask(node_call(api.NODES, node, base58(edition.group), body=body))
    return False


def _new_group(edition: GroupEdition) -> NewGroup:
    return NewGroup(
        group=base58(edition.group),
        roster=[_entry(one) for one in edition.members],
        past=[_entry(one) for one in edition.past],
        nodes=[NodeDocument.of(one.node) for one in edition.nodes],
        config=edition.config,
    )


def _entry(member: EditionMember) -> EntryDocument:
    return EntryDocument(
        binding=member.binding,
        public_key=to_text(member.public_key),
        admin=member.admin,
        former_keys=[to_text(key) for key in member.public_keys[1:]],
    )


def node_call(operation: Operation[Any], node: EditionNode, *segments: object, **how: Any) -> Request:
    return request_for(operation, *segments, url=origin(node.url), tries=2, **how)


def _ask(request: Request) -> Exchange[Response]:
    (answer,) = yield from together([request])
    if not isinstance(answer, Response):
        raise answer
    return answer


def _identified(nodes: Sequence[str | LogNode]) -> Exchange[list[EditionNode]]:
    """Asks nodes for their ids. The id is believed from now on: receipts of a node have to be signed by it."""
    urls = [origin(one.url if isinstance(one, LogNode) else one) for one in nodes]
    if len(set(urls)) < len(urls) or not urls:
        raise InvalidArgument("a group has one or more nodes, each with an address of its own")
    answers = yield from together([request_for(api.NODE, url=url, tries=2) for url in urls])
    ids = list[bytes]()
    for answer in answers:
        if not isinstance(answer, Response):
            raise answer
        ids.append(from_text(answer.read(_NodeName).id))
    if len(set(ids)) < len(ids) or any(len(id_) != _GROUP_BYTES for id_ in ids):
        raise BadAnswer("two of these addresses are of the same node, or one is of none")
    return [EditionNode(id_, url) for id_, url in zip(ids, urls, strict=True)]


def _tokens(nodes: Sequence[str | LogNode]) -> dict[str, str]:
    return {origin(one.url): one.token for one in nodes if isinstance(one, LogNode) and one.token is not None}


def _signing_keys(mailbox: Mailbox, handles: Iterable[str]) -> Exchange[dict[str, bytes]]:
    keys: dict[str, bytes] = {}
    for handle in handles:
        keys[handle] = yield from _signing_key(mailbox, handle)
    return keys


def _signing_key(mailbox: Mailbox, handle: str) -> Exchange[bytes]:
    if handle == mailbox.identity.handle:
        return mailbox.own_keys.identity.pair.public.ed25519
    pin = mailbox.pinned_keys.pin(handle)
    if pin is not None:
        yield from peer_keys.catch_up(mailbox, pin)  # it may have been rotated just now
    known, _ = yield from peer_keys.find_keys(mailbox, handle)
    return known.bundle.signer.ed25519


def _present_keys(mailbox: Mailbox, edition: GroupEdition) -> Exchange[dict[bytes, bytes]]:
    """The present keys of members, as far as they can be asked for now. The owner tells of its next key itself."""
    keys: dict[bytes, bytes] = {}
    for member in edition.members:
        if member is edition.owner and member.handle != mailbox.identity.handle:
            continue
        with contextlib.suppress(AngeliaError):
            keys[member.sender] = yield from _signing_key(mailbox, member.handle)
    return keys


def _check_admin(mailbox: Mailbox, edition: GroupEdition) -> None:
    if not _is_admin(mailbox, edition):
        admins = ", ".join(edition.admins[:3])
        raise Denied(f"only an admin changes {edition.name}", hint=f"its admins are {admins}")


def _is_admin(mailbox: Mailbox, edition: GroupEdition) -> bool:
    me = edition.member(mailbox.identity.handle)
    return me is not None and me.admin
