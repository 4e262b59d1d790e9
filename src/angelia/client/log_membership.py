"""Groups and who is in them: the owner makes each edition, brings the nodes to it, and sends it to the members.

What a crash or an absent node leaves undone is done by `settle`, and by whatever this agent does with its groups next.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
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
from angelia.grouplog.model.editions import EditionMember, EditionNode, GroupEdition, new_member
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
    """Creates a group on these nodes, with these agents as members besides this one, its owner. They find it among
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
    edition = msgspec.structs.replace(edition, key_id=key.key_id).checked()
    mailbox.logs.publish(edition, key, clock.now())
    log_replica.make_first(mailbox.logs, edition)
    return (yield from _settled(mailbox, edition, _tokens(nodes)))


def settle(mailbox: Mailbox, name: str, *, nodes: Sequence[LogNode] = (), again: bool = False) -> Exchange[Settled]:
    """Brings nodes and members to the newest edition of a group: after a crash, or when some could not be reached.
    Members' new keys are taken over. `nodes` may bring tokens. With `again` the edition is also sent to members that
    were sent it before."""
    edition = mailbox.logs.find(name)
    _check_owner(mailbox, edition)
    if again:
        mailbox.logs.note_untold(edition)
    return (yield from _changed(mailbox, name, lambda edition: edition, _tokens(nodes)))


def settle_open(mailbox: Mailbox) -> Exchange[None]:
    """Goes on with all groups whose nodes or members this agent, the owner, has not brought to the newest edition. What
    cannot be done now is tried again later."""
    for gid in mailbox.logs.unsettled(clock.now()):
        edition = mailbox.logs.edition(parse_group(gid))
        if edition is None or edition.owner.handle != mailbox.identity.handle:
            mailbox.logs.nothing_to_settle(parse_group(gid))
            continue
        mailbox.logs.settle_at(edition, clock.now() + _AGAIN)  # if it fails
        with contextlib.suppress(AngeliaError):
            if edition.key_id is None:  # from before groups had one owner
                edition = publish_next(mailbox, edition, edition)
            yield from _settled(mailbox, edition, {}, edition)


def add_members(mailbox: Mailbox, name: str, handles: Sequence[str]) -> Exchange[Settled]:
    """Adds members. They read what was written before from a snapshot: see `compact`."""
    edition = mailbox.logs.find(name)
    keys = yield from _signing_keys(mailbox, [one for one in handles if edition.member(one) is None])

    def change(edition: GroupEdition) -> GroupEdition:
        missing = [(handle, key) for handle, key in keys.items() if edition.member(handle) is None]
        listed = [
            new_member(edition.group, binding, handle, key, admin=False)
            for binding, (handle, key) in zip(edition.next_bindings(), missing, strict=False)
        ]
        return msgspec.structs.replace(edition, members=(*edition.members, *listed))

    return (yield from _changed(mailbox, name, change))


def remove_members(mailbox: Mailbox, name: str, handles: Sequence[str]) -> Exchange[Settled]:
    """Removes members. Nodes serve them nothing any more, and what is written from now on is sealed under a new key. Of
    their own messages those count that this device has by now, so `sync` first."""

    def change(edition: GroupEdition) -> GroupEdition:
        for handle in handles:
            if edition.member(handle) is None:
                raise NotFound(f"{handle} is no member of {edition.name}", hint=f"angelia log members {edition.name}")
            if handle == edition.owner.handle:
                raise Conflict(f"you made the group {edition.name}, and stay its member", hint="angelia log drop")
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
    _check_owner(mailbox, edition)
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
    that the owner sends makes this agent a member again."""
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
    for _ in range(_RACES):
        before = mailbox.logs.find(name)
        _check_owner(mailbox, before)
        wanted = change((yield from _with_present_keys(mailbox, before)))
        if wanted != before or before.key_id is None:
            try:
                wanted = publish_next(mailbox, before, wanted)
            except EpochConflict:
                continue
        return (yield from _settled(mailbox, wanted, tokens or {}, before))
    raise EpochConflict("other processes change the group faster than this one can", hint="try again")


def publish_next(mailbox: Mailbox, before: GroupEdition, wanted: GroupEdition) -> GroupEdition:
    """Makes an edition that follows another, and returns it; EpochConflict if another came in between. The epoch has a
    new key if a member went or has another signing key: the holder of the old one may have the epoch's key as well."""
    keys = {one.sender: one.public_key for one in wanted.members}
    renews = any(keys.get(one.sender) != one.public_key for one in before.members)
    key = EpochKey.generate() if renews else mailbox.logs.key(before)
    made = msgspec.structs.replace(wanted, epoch=before.epoch + renews).following(before, key).checked()
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
            continue  # another process was faster; look again
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


def _with_present_keys(mailbox: Mailbox, edition: GroupEdition) -> Exchange[GroupEdition]:
    """Returns an edition with the present keys of its members, as far as they can be asked for now."""
    members = list[EditionMember]()
    for member in edition.members:
        try:
            members.append(member.with_key((yield from _signing_key(mailbox, member.handle))))
        except AngeliaError:
            members.append(member)
    return msgspec.structs.replace(edition, members=tuple(members))


def _check_owner(mailbox: Mailbox, edition: GroupEdition) -> None:
    if edition.owner.handle != mailbox.identity.handle:
        raise Denied(
            f"only {edition.owner.handle}, which made {edition.name}, changes it", hint=f"ask {edition.owner.handle}"
        )
