"""Notices to an agent's owner when nothing failed: first contact, old keys, a clock that went back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class NoticeKind(StrEnum):
    """What a notice is about."""

    WARNING = "warning"
    FIRST_CONTACT = "first_contact"
    KEYS_SETTLED = "keys_settled"  # an interrupted rotation is finished
    FALLBACK = "fallback"  # sealed to the static key, because no one-time key was available


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice, in one line."""

    kind: NoticeKind
    text: str


class Notices:
    """Delivers each notice once: to the listener as it comes, or to the next caller of `take`."""

    def __init__(self) -> None:
        self._waiting: list[Notice] = []
        self._listener: Callable[[Notice], None] | None = None

    def tell(self, kind: NoticeKind, text: str) -> None:
        notice = Notice(kind, text)
        if self._listener is not None:
            self._listener(notice)
        elif notice not in self._waiting:
            self._waiting.append(notice)

    def take(self) -> list[Notice]:
        taken, self._waiting = self._waiting, []
        return taken

    def listen(self, listener: Callable[[Notice], None]) -> None:
        """Calls the listener with the notices that wait, and with each new one at once."""
        self._listener = listener
        for notice in self.take():
            listener(notice)
