"""The query of a request as Queen's clients mean it: an integer that cannot be read is its default."""

from __future__ import annotations

from urllib.parse import parse_qsl

from angelia.api import Call


class QueryParameters:
    """The parameters of a query. Of one that is repeated, the last counts; an empty one counts as absent."""

    def __init__(self, call: Call) -> None:
        raw = call.raw_query
        self._given = dict(parse_qsl(raw.encode("latin-1").decode("utf-8", "replace"))) if raw else {}

    def text(self, name: str) -> str | None:
        return self._given.get(name)

    def number(self, name: str, default: int, least: int = 0, most: int = (1 << 31) - 1) -> int:
        """A whole number, brought between its bounds."""
        given = self._given.get(name, "")
        digits = given.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
            return default
        return min(max(int(given), least), most)

    def flag(self, name: str) -> bool:
        return self._given.get(name) in ("true", "1")
