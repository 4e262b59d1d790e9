"""Ids that cannot be guessed, drawn from the kernel many at a time: a call of `os.urandom` takes 3 to 5 µs."""

from __future__ import annotations

import os

_BYTES, _DRAWN_TOGETHER = 16, 256
_ready: list[bytes] = []
os.register_at_fork(after_in_child=_ready.clear)


def random_id() -> bytes:
    """128 random bits, which no other call returns."""
    try:
        return _ready.pop()
    except IndexError:
        drawn = os.urandom(_DRAWN_TOGETHER * _BYTES)
        _ready.extend(drawn[at : at + _BYTES] for at in range(_BYTES, len(drawn), _BYTES))
        return drawn[:_BYTES]
