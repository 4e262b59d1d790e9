"""Editions of groups whose members are mailboxes of a test."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.envelope.sealing import EpochKey
from angelia.grouplog.model.editions import EditionNode, GroupEdition, SentEdition, SignedEdition, new_member
from angelia.mailbox.mailbox import Mailbox

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def node_of(number: int) -> EditionNode:
    key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    return EditionNode(key.public_key().public_bytes_raw(), f"http://node{number}.example")


def first_edition(
    name: str,
    boxes: Sequence[Mailbox],
    nodes: Sequence[EditionNode] = (),
    *,
    key: EpochKey,
    min_copies: int = 1,
    depth: int = 2,
) -> GroupEdition:
    """The first edition of a new group, of which the first mailbox is the admin."""
    group = secrets.token_bytes(32)
    members = [
        new_member(group, number, box.identity.handle, box.identity.pair.public.ed25519, admin=number == 1)
        for number, box in enumerate(boxes, 1)
    ]
    edition = GroupEdition(
        group=group,
        name=name,
        number=1,
        depth=depth,
        min_copies=min_copies,
        quota_bytes=1 << 30,
        members=tuple(members),
        past=(),
        nodes=tuple(nodes) or (node_of(1),),
        epoch=1,
        author=members[0].sender,
        key_id=key.key_id,
    )
    return boxes[0].logs.granted(edition, None)


def share(edition: GroupEdition, key: EpochKey, author: Mailbox, *others: Mailbox) -> None:
    """All have an edition: its author made it, and the others were sent it."""
    author.logs.publish(edition, key, NOW)
    for box in others:
        assert box.logs.accept(sent(edition, author, key), author.identity.handle, NOW)


def sent(edition: GroupEdition, signer: Mailbox, key: EpochKey, *keys: tuple[int, EpochKey]) -> SentEdition:
    """An edition as mail brings it, with the keys of earlier epochs."""
    return SentEdition(SignedEdition.of(edition, signer.logs.sign), [*keys, (edition.epoch, key)])


def following(before: GroupEdition, author: Mailbox, key: EpochKey, **changes: object) -> GroupEdition:
    """The edition that an admin makes of another."""
    own = before.member(author.identity.handle)
    assert own is not None
    wanted: GroupEdition = msgspec.structs.replace(before, **changes)  # type: ignore[arg-type]
    return author.logs.granted(wanted.following(before, own.sender, key), before)


def without(edition: GroupEdition, handle: str, author: Mailbox, key: EpochKey) -> GroupEdition:
    """The edition in which an admin removes a member."""
    gone = edition.member(handle)
    assert gone is not None
    members = tuple(one for one in edition.members if one is not gone)
    past = (*edition.past, msgspec.structs.replace(gone, admin=False))
    return following(edition, author, key, members=members, past=past, epoch=edition.epoch + 1)


def with_member(
    edition: GroupEdition, box: Mailbox, author: Mailbox, key: EpochKey, *, admin: bool = False
) -> GroupEdition:
    """The edition in which an admin adds a member."""
    public = box.identity.pair.public.ed25519
    handle = box.identity.handle
    new = new_member(edition.group, edition.new_binding(handle), handle, public, admin=admin)
    return following(edition, author, key, members=(*edition.members, new))
