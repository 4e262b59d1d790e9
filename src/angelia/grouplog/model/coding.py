"""Reed-Solomon shards of a snapshot's ciphertext: systematic, over GF(2^8) with a Cauchy matrix (ISA-L).

The code finds no damage by itself: a flipped byte gives another object without an error. So each shard is checked
against the digest in the manifest before the decoder sees it, and the object afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from angelia.errors import BadEncoding, Unprocessable
from angelia.grouplog.model.placement import Shape

if TYPE_CHECKING:
    from pyeclib.ec_iface import ECDriver

CODE = "isa_l_rs_cauchy"
_HEADER = 80  # of liberasurecode, before each fragment


def shard_length(length: int, data_shards: int) -> int:
    return max(1, -(-length // data_shards))


def encode(ciphertext: bytes, shape: Shape) -> list[bytes]:
    """Returns the shards. The first ones are the ciphertext in slices, the last slice padded with zeros."""
    fragments = _driver(shape).encode(_padded(ciphertext, shape))
    return [fragment[_HEADER:] for fragment in fragments]


def decode(shards: Mapping[int, bytes], shape: Shape, length: int, digest: bytes) -> bytes:
    """Returns the object from enough shards, each checked before; BadEncoding if it is not the one of the digest."""
    if len(shards) < shape.data_shards:
        raise ValueError(f"{len(shards)} shards of {shape.data_shards} cannot be decoded")
    chosen = sorted(shards)[: shape.data_shards]  # data shards come first, and need no arithmetic
    if chosen == list(range(shape.data_shards)):
        found = b"".join(shards[index] for index in chosen)
    else:
        found = _run(_driver(shape).decode, [*_fragments(shards, chosen, shape)])
    found = found[:length]
    if len(found) != length or hashlib.sha256(found).digest() != digest:
        raise BadEncoding
    return found


def rebuilt(ciphertext: bytes, shape: Shape, index: int) -> bytes:
    """The shard of an index, made again from the object. The code is deterministic: it has the same bytes."""
    return encode(ciphertext, shape)[index]


def _padded(ciphertext: bytes, shape: Shape) -> bytes:
    size = shard_length(len(ciphertext), shape.data_shards) * shape.data_shards
    return ciphertext if len(ciphertext) == size else ciphertext.ljust(size, b"\0")


def _fragments(shards: Mapping[int, bytes], chosen: list[int], shape: Shape) -> Iterator[bytes]:
    headers = _headers(shape, len(shards[chosen[0]]))
    for index in chosen:
        yield headers[index] + shards[index]


@lru_cache(maxsize=64)
def _headers(shape: Shape, size: int) -> list[bytes]:
    """The library's headers, which shards are stored without. They depend on sizes and indexes only, so those of zeros
    serve; that takes less time than hashing the shards."""
    return [fragment[:_HEADER] for fragment in _driver(shape).encode(bytes(size * shape.data_shards))]


@lru_cache(maxsize=32)
def _driver(shape: Shape) -> ECDriver:
    try:
        # Imported here: it has no wheel for macOS, where all but the coding of shards works without it.
        from pyeclib.ec_iface import ECDriver
    except ImportError as error:
        raise Unprocessable("shards cannot be coded on this system", hint="pip install pyeclib") from error
    return ECDriver(k=shape.data_shards, m=shape.total_shards - shape.data_shards, ec_type=CODE)


def _run(decoder: Callable[[list[bytes]], bytes], fragments: list[bytes]) -> bytes:
    from pyeclib.ec_iface import ECDriverError

    try:
        return decoder(fragments)
    except ECDriverError as error:
        raise BadEncoding("the shards cannot be decoded") from error
