"""Prints messages of rooms and inboxes as lines, one for each, with the names of their authors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from angelia.cli.command_context import CommandContext
from angelia.cli.escaping import escape_line, width
from angelia.cli.paging import ago, short
from angelia.cli.room_access import Identified
from angelia.cli.tables import GAP
from angelia.cli.times import age, full
from angelia.errors import AngeliaError, RateLimited

if TYPE_CHECKING:
    from angelia.agents.api import AgentProfile
    from angelia.client import Client
    from angelia.client.room_calls import RoomEvent
    from angelia.rooms.api import MessageRecord, RoomRecord

M = TypeVar("M", bound=Identified)
_SHORT_AGENT, _DEEPEST, _REMEMBERED = 8, 20, 10_000
PATIENCE = 3600.0  # seconds in all that a list of many pages waits for rate limits
_PAUSE = 60.0  # seconds, after a name could not be had
_TWO_DAYS, _HOUR = 172_800, 3_600
# Gives the messages before a time, and whether there are more.
Older = Callable[[int | None, int], tuple[Sequence[M], bool]]


class AuthorNames:
    """The names of agents, as the server says them: the handle, which is one agent's for ever. Any agent may take any
    other name, so that stands with the beginning of the agent's id."""

    def __init__(self, session: CommandContext, client: Client) -> None:
        self._note, self._client = session.out.note, client
        self._known: dict[UUID, AgentProfile] = {}
        self._failed: dict[UUID, tuple[float, AngeliaError]] = {}
        self._limit: RateLimited | None = None

    def of(self, agent: UUID) -> str:
        """How a line calls an agent: by its handle, its name with the beginning of its id, or that alone."""
        if handle := self.handle(agent):
            return handle
        known = self._known.get(agent)
        name = " ".join(known.name.split()) if known else ""  # blanks could pass for the next column
        return f"{name} ({str(agent)[:_SHORT_AGENT]})" if name else short(agent)

    def handle(self, agent: UUID) -> str | None:
        from angelia.envelope.ids import valid_handle

        try:
            handle = self.profile(agent).handle
        except AngeliaError:  # a name is not worth an error
            return None
        return handle if handle and valid_handle(handle) else None

    def profile(self, agent: UUID) -> AgentProfile:
        """The profile of an agent, asked for once; raises what the server answered. After its first refusal for the
        rate limit the server is asked no more."""
        if agent in self._known:
            return self._known[agent]
        if self._limit is not None:
            raise self._limit
        again, error = self._failed.get(agent, (0.0, None))
        if error is not None and time.monotonic() < again:
            raise error
        try:
            self._known[agent] = self._asked(agent)
        except RateLimited as refusal:
            self._limit = refusal
            self._note("names are left out from here on: the server's rate limit is reached")
            raise
        except AngeliaError as failure:
            self._failed[agent] = (time.monotonic() + _PAUSE, failure)
            raise
        return self._known[agent]

    def _asked(self, agent: UUID) -> AgentProfile:
        from angelia.client import BadAnswer

        profile = self._client.agents.profile(agent)
        if profile.id != agent:
            raise BadAnswer(f"asked for {agent}, the server answered with {profile.id}")
        return profile


class MessageLines:
    """Prints messages, and deletions of messages that were printed."""

    def __init__(self, session: CommandContext, client: Client) -> None:
        self._out, self._json = session.out, session.shared.json
        self.names = AuthorNames(session, client)
        self._widest = 0
        self._printed: deque[str] = deque(maxlen=_REMEMBERED)

    def print(self, events: Sequence[RoomEvent]) -> None:
        """Prints the events of a room in their order."""
        from angelia.rooms.api import MessageRecord

        self.widen([one.from_ for one in events if isinstance(one, MessageRecord)])
        for one in events:
            if isinstance(one, MessageRecord):
                self._print_message(one)
            elif self._json:
                self._out.records([{"id": one.id, "ts": one.ts, "deleted": True}])
            elif one.id in self._printed:
                self._line(one.ts, one.id, "-", "(deleted)")
        self._out.stdout.flush()

    def print_line(self, record: object, ts: int, id_: str, author: UUID, text: str) -> None:
        """Prints one message of another kind, with its author's handle in its record, null if there is none."""
        if self._json:
            import msgspec

            self._out.records([msgspec.to_builtins(record) | {"author": self.names.handle(author)}])
        else:
            self.widen([author])
            self._line(ts, id_, self.names.of(author), text)

    def _print_message(self, one: MessageRecord) -> None:
        if one.depth is not None:
            text = "  " * min(one.depth, _DEEPEST) + one.body
        else:
            text = f"> {short(one.pid)}{GAP}{one.body}" if one.pid else one.body
        self._printed.append(one.id)
        self.print_line(one, one.ts, one.id, one.from_, text)

    def widen(self, authors: Sequence[UUID]) -> None:
        """Makes the column of authors wide enough for these."""
        if not self._json:
            self._widest = max([self._widest, *(width(escape_line(self.names.of(one))) for one in authors)])

    def _line(self, ts: int, id_: str, author: str, text: str) -> None:
        name = escape_line(author)
        name += " " * (self._widest - width(name))
        self._out.painted([GAP.join((_time(ts), escape_line(short(id_)), name, escape_line(text)))])


def newest(older: Older[M], most: int | None, before: int | None = None) -> tuple[list[M], int | None]:
    """The newest `most` messages before a time, or all of them, in their order; and the time to go on before, if there
    are more."""
    found = list[M]()
    while most is None or len(found) < most:
        page, more = older(before, 200 if most is None else most - len(found))
        found += page
        if not more or not page or (before is not None and page[-1].ts >= before):
            return found[::-1], None
        before = page[-1].ts
    return found[::-1], before


def room_facts(room: RoomRecord, names: AuthorNames) -> list[tuple[str, str]]:
    return [
        ("room", room.name),
        ("id", str(room.id)),
        ("access", "private: those that know its key" if room.is_private else "public"),
        ("messages", f"{room.message_count:,} ever posted, {room.deletions:,} deleted"),
        ("last", f"{ago(room.last_active)} ago" if room.message_count else "-"),
        ("kept for", kept(room.retention_seconds)),
        ("archive", "yes" if room.archive else "no"),
        ("created", f"{full(room.created_at)}{f' by {names.of(room.created_by)}' if room.created_by else ''}"),
    ]


def kept(seconds: int) -> str:
    """How long messages are kept, as a table shows it: a day is 24h."""
    if _HOUR <= seconds < _TWO_DAYS and seconds % _HOUR == 0:
        return f"{seconds // _HOUR}h"
    return age(timedelta(seconds=seconds))


def at(ts: int) -> datetime:
    """The time of a message; a server may send any number."""
    try:
        return datetime.fromtimestamp(ts / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def _time(ts: int) -> str:
    """The time of day of a message of today, else its date too."""
    when = at(ts)
    text = full(when)
    return text[11:] if when.date() == datetime.now(UTC).date() else text
