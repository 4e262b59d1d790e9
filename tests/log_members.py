"""Editions of groups whose members are mailboxes of a test."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.envelope.sealing import EpochKey
from angelia.grouplog.model.editions import EditionNode, GroupEdition, SentEdition, new_member
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
    """The first edition of a new group, of which the first mailbox is the owner."""
    group = secrets.token_bytes(32)
    members = [
        new_member(group, number, box.identity.handle, box.identity.pair.public.ed25519, admin=number == 1)
        for number, box in enumerate(boxes, 1)
    ]
    return GroupEdition(
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
        key_id=key.key_id,
    )


def share(edition: GroupEdition, key: EpochKey, owner: Mailbox, *others: Mailbox) -> None:
    """All have an edition: its owner made it, and the others were sent it."""
    owner.logs.publish(edition, key, NOW)
    for box in others:
        assert accept(box, sent(edition, key), owner)


def accept(box: Mailbox, mail: SentEdition, sender: Mailbox, now: datetime = NOW) -> bool:
    """A mailbox takes in an edition that another one sent. Returns whether it has another one now."""
    return box.logs.accept(mail, sender.identity.handle, sender.identity.pair.public.fingerprint, now)


def sent(edition: GroupEdition, key: EpochKey, *keys: tuple[int, EpochKey]) -> SentEdition:
    """An edition as mail brings it, with the keys of earlier epochs."""
    return SentEdition(edition, [*keys, (edition.epoch, key)])


def following(before: GroupEdition, key: EpochKey, **changes: object) -> GroupEdition:
    """The edition that the owner makes of another."""
    wanted: GroupEdition = msgspec.structs.replace(before, **changes)  # type: ignore[arg-type]
    return wanted.following(before, key)


def without(edition: GroupEdition, handle: str, key: EpochKey) -> GroupEdition:
    """The edition in which the owner removes a member."""
    gone = edition.member(handle)
    assert gone is not None
    members = tuple(one for one in edition.members if one is not gone)
    return following(edition, key, members=members, past=(*edition.past, gone), epoch=edition.epoch + 1)


def with_member(edition: GroupEdition, box: Mailbox, key: EpochKey) -> GroupEdition:
    """The edition in which the owner adds a member."""
    public, binding = box.identity.pair.public.ed25519, next(edition.next_bindings())
    new = new_member(edition.group, binding, box.identity.handle, public, admin=False)
    return following(edition, key, members=(*edition.members, new))
