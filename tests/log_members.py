"""Editions of groups whose members are mailboxes of a test."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.grouplog.model.editions import EditionNode, GroupEdition, new_member
from angelia.mailbox.mailbox import Mailbox


def node_of(number: int) -> EditionNode:
    key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    return EditionNode(key.public_key().public_bytes_raw(), f"http://node{number}.example")


def first_edition(
    name: str, boxes: Sequence[Mailbox], nodes: Sequence[EditionNode] = (), *, min_copies: int = 1, depth: int = 2
) -> GroupEdition:
    """The first edition of a new group, of which the first mailbox is the admin."""
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
    )
