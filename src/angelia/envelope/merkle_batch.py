"""One pair of signatures over up to 256 envelopes: a Merkle tree (RFC 9162, section 2.1) whose root is signed.

Each envelope carries its path, so that any verifier can check it without the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from angelia.envelope.signing import Signatures

MOST_LEAVES = 256
REMEMBERED_MS = 300_000
_MOST_ROOTS = 4096


@dataclass(frozen=True, slots=True)
class MerkleProof:
    """An envelope's place in its batch, and the siblings from its leaf upwards; a promoted node has none."""

    index: int
    count: int
    path: tuple[bytes, ...]


def leaf(message: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + message).digest()


def depth(index: int, count: int) -> int:
    """Returns how many siblings a path has: an odd node at the end of its level has none there."""
    siblings = 0
    while count > 1:
        siblings += index ^ 1 < count
        index, count = index >> 1, count + 1 >> 1
    return siblings


def tree(leaves: Sequence[bytes]) -> tuple[bytes, list[tuple[bytes, ...]]]:
    """Returns the root, and each leaf's path to it."""
    paths: list[list[bytes]] = [[] for _ in leaves]
    level = list(leaves)
    height = 0
    while len(level) > 1:
        for index, path in enumerate(paths):
            beside = index >> height ^ 1
            if beside < len(level):
                path.append(level[beside])
        above = [_node(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        level = above + level[len(above) * 2 :]
        height += 1
    return level[0], [tuple(path) for path in paths]


def root_of(leaf: bytes, proof: MerkleProof) -> bytes:
    """Returns the root that a leaf and its path lead to."""
    node, index, count, siblings = leaf, proof.index, proof.count, iter(proof.path)
    while count > 1:
        if index ^ 1 < count:
            sibling = next(siblings)
            node = _node(sibling, node) if index & 1 else _node(node, sibling)
        index, count = index >> 1, count + 1 >> 1
    return node


def signed_root(count: int, root: bytes) -> bytes:
    """Returns the bytes that the two signatures of a batch cover, after their label."""
    return count.to_bytes(2, "big") + root


class VerifiedRoots:
    """Roots whose signatures were verified in the last five minutes; other members of the batch need only their path.

    Signer, count, root and both signatures must all match: with fewer, other bytes could pass as this batch.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[UUID, int, bytes, Signatures], int] = {}

    def has(self, signer: UUID, count: int, root: bytes, signatures: Signatures, now_ms: int) -> bool:
        at = self._seen.get((signer, count, root, signatures))
        return at is not None and 0 <= now_ms - at <= REMEMBERED_MS

    def add(self, signer: UUID, count: int, root: bytes, signatures: Signatures, now_ms: int) -> None:
        if len(self._seen) >= _MOST_ROOTS:
            self._seen.clear()
        self._seen[signer, count, root, signatures] = now_ms


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
