"""Reed-Solomon shards of one MiB, with all digests of a manifest: made from an object, and an object from shards after
as many data shards are lost as may be.

The peers are pyeclib alone, pyeclib with the same digests, and one SHA-256 of the object.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Sequence

from pyeclib.ec_iface import ECDriver

from angelia.grouplog.model import coding
from angelia.grouplog.model.placement import Shape
from harness import Result, compared
from log_targets import with_load

SHAPES = (Shape(3, 5), Shape(8, 12))
OBJECT = random.Random(1).randbytes(1 << 20)


def main(*, quick: bool) -> list[Result]:
    rounds, codings = (5, 20) if quick else (9, 50)
    return with_load([line for shape in SHAPES for line in _coding(shape, rounds, codings)])


def _coding(shape: Shape, rounds: int, codings: int) -> list[Result]:
    lost = shape.total_shards - shape.data_shards
    driver = ECDriver(k=shape.data_shards, m=lost, ec_type=coding.CODE)
    shards, digest = coding.encode(OBJECT, shape), hashlib.sha256(OBJECT).digest()
    fragments = driver.encode(OBJECT.ljust(len(shards[0]) * shape.data_shards, b"\0"))[lost:]
    digests = [hashlib.sha256(shard).digest() for shard in shards]
    kept = {index: shards[index] for index in range(lost, shape.total_shards)}
    chosen = sorted(kept)[: shape.data_shards]

    def decode() -> None:
        checked = {index: kept[index] for index in chosen if hashlib.sha256(kept[index]).digest() == digests[index]}
        assert len(coding.decode(checked, shape, len(OBJECT), digest)) == len(OBJECT)

    def hash_shards(those: Sequence[bytes]) -> None:
        for shard in those:
            hashlib.sha256(shard).digest()

    def hash_object() -> None:
        hashlib.sha256(OBJECT).digest()

    def encode() -> None:
        hash_shards(coding.encode(OBJECT, shape))
        hash_object()

    steps: dict[str, Callable[[], object]] = {
        "encode": encode,
        "decode": decode,
        "encode alone": lambda: driver.encode(OBJECT),
        "decode alone": lambda: driver.decode(fragments[: shape.data_shards]),
        "hash": hash_object,
        "hash shards": lambda: hash_shards(shards),
        "hash chosen": lambda: hash_shards([shards[index] for index in chosen]),
    }
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            speeds[name].append(codings / _took(step, codings))
    results = []
    for name, hashed in (("encode", "hash shards"), ("decode", "hash chosen")):
        parts = zip(speeds[f"{name} alone"], speeds["hash"], speeds[hashed], strict=True)
        sums = [1 / sum(1 / part for part in three) for three in parts]
        what = f"k={shape.data_shards} n={shape.total_shards} {name} with digests"
        note = "higher is better" if name == "encode" else f"higher is better; {lost} data shards lost"
        for peer, beside in (
            ("pyeclib alone", speeds[f"{name} alone"]),
            ("pyeclib and digests", sums),
            ("SHA-256 of the object", speeds["hash"]),
        ):
            results.append(compared(f"{what} / {peer}", speeds[name], beside, _mebibytes, note))
    return results


def _took(step: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        step()
    return time.perf_counter() - began


def _mebibytes(value: float) -> str:
    return f"{value:,.0f} MiB/s"
