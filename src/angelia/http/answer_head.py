"""The head of an answer. Headers that all answers of a kind share are encoded once."""

from __future__ import annotations

import re
from collections.abc import Mapping

_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class SharedHead:
    """Headers that many answers have in common, as they are and as bytes."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)
        self._lines = _lines(headers)

    def with_own(self, own: Mapping[str, str]) -> dict[str, str]:
        """All headers of an answer; its own win."""
        return {**self._headers, **own}

    def lines_with_own(self, own: Mapping[str, str]) -> bytes:
        """The same as lines of HTTP/1.1."""
        if self._headers.keys().isdisjoint(own):
            return self._lines + _lines(own)
        return _lines(self.with_own(own))


def check(headers: Mapping[str, str]) -> None:
    """ValueError if a value is not one line of Latin-1. Names are always ours."""
    values = "".join(headers.values())
    if _UNSAFE.search(values):
        raise ValueError("a header holds a control character")
    values.encode("latin-1")


def raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI has them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("latin-1")
