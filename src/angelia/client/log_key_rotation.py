"""The signing key of the owner of group logs is replaced: nodes hear of the next key while the present one still signs.

Afterwards this agent could not prove to a node that it is the owner. Members hear of the key by mail, as of any
edition. The key of another member is brought up to date by the owner, with `settle`.
"""

from __future__ import annotations

import contextlib

import msgspec

from angelia.client.exchange import Exchange, Response, together
from angelia.client.log_membership import new_roster, node_call, publish_next
from angelia.errors import AngeliaError, EpochConflict, NotMember
from angelia.grouplog import api
from angelia.grouplog.model.documents import GroupDocument
from angelia.grouplog.model.editions import EditionNode, GroupEdition
from angelia.grouplog.model.ids import base58
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.notices import NoticeKind


def announce_next_key(mailbox: Mailbox) -> Exchange[None]:
    """Names the key of a pending rotation to the nodes of all groups of this agent's own."""
    pending = mailbox.key_rotation.pending()
    if pending is None or not pending.plan.signer:
        return
    with mailbox.own_keys.signing_as_next():
        following = mailbox.own_keys.signer.pair.public.ed25519
    handle = mailbox.identity.handle
    for edition in mailbox.logs.editions():
        own = edition.member(handle)
        if own is None:
            continue
        if edition.owner is not own:
            told = f"the group {edition.name} knows this agent's old key"
            told = f"{told}; {edition.owner.handle} runs angelia log members {edition.name} --refresh"
            mailbox.notices.tell(NoticeKind.WARNING, told)
            continue
        try:
            wanted = _with_next_key(mailbox, base58(edition.group), following)
        except AngeliaError as error:  # the rotation itself must not wait for that
            told = f"the group {edition.name} could not be told this agent's new key: {error.message}"
            mailbox.notices.tell(NoticeKind.WARNING, f"{told}; `angelia log members {edition.name} --refresh` does so")
            continue
        for node in edition.nodes:
            try:
                yield from _announce(wanted, node)
            except AngeliaError as error:
                told = f"{node.url} was not told this agent's new key for the group {edition.name}: {error.message}"
                mailbox.notices.tell(
                    NoticeKind.WARNING, f"{told}; `angelia log nodes {edition.name}` puts another node in its place"
                )


def _with_next_key(mailbox: Mailbox, group: str, following: bytes) -> GroupEdition:
    """Returns the newest edition, in which this agent has its next key."""
    while True:
        edition = mailbox.logs.find(group)
        own = mailbox.logs.me(edition)
        if own.public_key == following:
            return edition
        members = tuple(one.with_key(following) if one is own else one for one in edition.members)
        with contextlib.suppress(EpochConflict):  # another process was faster
            return publish_next(mailbox, edition, msgspec.structs.replace(edition, members=members))


def _announce(edition: GroupEdition, node: EditionNode) -> Exchange[None]:
    gid = base58(edition.group)
    (answer,) = yield from together([node_call(api.SHOW, node, gid)])
    if isinstance(answer, AngeliaError) and answer.code == NotMember.code:
        return  # it has the next key already, so the present one is no member's
    if not isinstance(answer, Response):
        raise answer
    change = new_roster(edition, answer.read(GroupDocument))
    if change is not None:
        (answer,) = yield from together([node_call(api.ROSTER, node, gid, body=change)])
        if not isinstance(answer, Response):
            raise answer
