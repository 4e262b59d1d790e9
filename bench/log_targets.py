"""Whether a figure of the group log meets its target, and how busy the machine was meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from harness import Result, compared


def at_most(result: Result, ratio: float) -> Result:
    return _judged(result, f"at most {_fraction(ratio)}", result.ratio <= ratio)


def at_least(result: Result, ratio: float) -> Result:
    return _judged(result, f"at least {ratio:g}", result.ratio >= ratio)


def compared_small(
    what: str, ours: Sequence[float], peer: Sequence[float], shown: Callable[[float], str], note: str = ""
) -> Result:
    """As `compared`, where we need a small part of the peer: the range has fractions instead of hundredths."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    spread = f"{_fraction(min(ratios))} to {_fraction(max(ratios))}"
    return replace(compared(what, ours, peer, shown, note), spread=spread)


def with_load(results: list[Result]) -> list[Result]:
    """Adds the load average of the last minute to the notes; the benchmark itself is a part of it."""
    load = os.getloadavg()[0]
    return [replace(one, note="; ".join(filter(None, (one.note, f"load {load:.1f}")))) for one in results]


def _judged(result: Result, target: str, holds: bool) -> Result:
    told = f"target {target}, is {_fraction(result.ratio)}: {'holds' if holds else 'MISSED'}"
    return replace(result, note=f"{told}; {result.note}")


def _fraction(ratio: float) -> str:
    return f"1/{1 / ratio:,.0f}" if ratio < 0.2 else f"{ratio:.3g}"
