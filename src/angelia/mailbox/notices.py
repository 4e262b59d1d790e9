"""What an agent's owner should be told although nothing failed: first contact, old keys, a clock that went back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class NoticeKind(StrEnum):
    """What a notice is about."""

    WARNING = "warning"
    FIRST_CONTACT = "first_contact"
    KEYS_SETTLED = "keys_settled"  # a rotation that was cut short is finished
    FALLBACK = "fallback"  # sealed to the static key, because no one-time key was to be had


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell, in one line."""

    kind: NoticeKind
    text: str


class Notices:
    """Each notice is told once: to the listener as it comes, or to the next that takes them."""

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
        """From now on the listener hears each notice at once; those that wait, now."""
        self._listener = listener
        for notice in self.take():
            listener(notice)
