"""Where copies and shards of a message belong: rendezvous hashing, the number of copies, and the shape of a code."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

import msgspec
import xxhash

from angelia.grouplog.model.groups import MAX_NODES, GroupConfig

SMALLEST_SHAPE = 3  # nodes
SMALLEST_CODED = 4 << 10  # a smaller snapshot is stored whole: shards with their manifests would take more
_SEQ = struct.Struct("<Q")


def ranked(nodes: Iterable[bytes], group: bytes, sender: bytes, seq: int) -> list[bytes]:
    """The nodes of a message, the best first. Every device computes the same order alone, and a node that comes or goes
    moves only the messages for which it ranks."""
    message = group + sender + _SEQ.pack(seq)
    return sorted(nodes, key=lambda node: (-xxhash.xxh3_64_intdigest(node + message), node))


def copies(config: GroupConfig, level: int, nodes: int) -> int:
    """On how many nodes a message of a level is stored."""
    return min(nodes, max(config.min_copies, math.ceil(math.exp(level - config.depth) * nodes)))


class Shape(msgspec.Struct, frozen=True):
    """How many shards carry data, and how many there are."""

    data_shards: int
    total_shards: int

    @property
    def needed_receipts(self) -> int:
        """How many nodes must have confirmed their shard before anything is deleted."""
        return min(self.data_shards + 1, self.total_shards)


def shape(count: int, length: int) -> Shape | None:
    """The code of a snapshot on so many nodes; None if it is stored whole on each of them."""
    if count > MAX_NODES:
        raise ValueError(f"a snapshot has at most {MAX_NODES} shards")
    if count < SMALLEST_SHAPE or length < SMALLEST_CODED:
        return None
    return Shape(count - math.ceil(count / 3), count)
