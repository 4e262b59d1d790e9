"""Lists in pages, ids by their beginning, and the cells that most tables have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Generic, Protocol, TypeVar

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.flags import PAGE
from angelia.cli.tables import Column
from angelia.cli.times import age
from angelia.errors import AmbiguousId, AngeliaError, NotFound

T = TypeVar("T")
SHORT_ID, SHORTEST_PREFIX = 12, 8
_SEARCH_PAGE, _MOST_PAGES, _MOST_EMPTY, _LONGEST_TABLE = 200, 1_000, 100, 1_000_000


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows, the cursor of the next page, and the number of all rows if the server counted them."""

    rows: list[T]
    next: str | None
    total: int | None = None


class ServerPage(Protocol):
    """An answer of the server that is one page of a list."""

    @property
    def next(self) -> str | None: ...


A = TypeVar("A", bound=ServerPage)
Fetch = Callable[[str | None, int], Page[T]]


def show_list(
    session: CommandContext, fetch: Fetch[T], columns: Sequence[Column[T]], *, nothing: str, hint: str
) -> None:
    """Prints one page, or with --all every page; a note on stderr says if there are more, or none."""
    shared, out = session.shared, session.out
    rows, streamed = list[T](), 0
    for page in _pages(fetch, shared.cursor, shared.limit or PAGE):
        rows += page.rows
        if not shared.all_pages or not page.next:
            break
        if shared.json:  # page by page, so that a long list needs no memory
            out.records(rows)
            rows, streamed = [], streamed + len(rows)
        elif len(rows) > _LONGEST_TABLE:
            raise _endless(f"the list goes on after {len(rows):,} rows", "--json prints it as it comes")
    if not rows and not streamed:
        if shared.require:
            raise NotFound(nothing, hint=hint)
        out.note(nothing)
        out.note(f"hint: {hint}")
    out.rows(rows, columns)
    if page.next:
        counted = "" if page.total is None else f" of {page.total:,}"
        out.note(f"{len(rows):,}{counted} shown; --all or --cursor {page.next}")


def pages_of(rows: list[T]) -> Fetch[T]:
    """The pages of a list that is in memory; its cursor is a number."""

    def fetch(cursor: str | None, limit: int) -> Page[T]:
        if cursor is not None and not cursor.isdecimal():
            raise Usage(f"{cursor!r} is no cursor of this list")
        start = int(cursor or 0)
        end = start + limit
        return Page(rows[start:end], str(end) if end < len(rows) else None, len(rows))

    return fetch


def server_pages(verb: Callable[..., A], rows: Callable[[A], list[T]], **query: object) -> Fetch[T]:
    """The pages of a list that the server has: `verb` of the SDK fetches one, and `rows` are the list in its answer."""

    def fetch(cursor: str | None, limit: int) -> Page[T]:
        answer = verb(**query, cursor=cursor, limit=limit)
        return Page(rows(answer), answer.next, getattr(answer, "total", None))

    return fetch


def every(fetch: Fetch[T]) -> Iterable[T]:
    """All rows, page after page; raises BadAnswer for a list that is too long to be searched."""
    for page in islice(_pages(fetch, None, _SEARCH_PAGE), _MOST_PAGES):
        yield from page.rows
        if page.next is None:
            return
    raise _endless(f"the list goes on after {_MOST_PAGES:,} pages", "name the thing by its whole id")


def _pages(fetch: Fetch[T], cursor: str | None, limit: int) -> Iterator[Page[T]]:
    """Page after page; raises BadAnswer if the server's cursors lead nowhere."""
    empty = 0
    while True:
        page = fetch(cursor, limit)
        yield page
        if page.next is None:
            return
        empty = 0 if page.rows else empty + 1  # some pages are: rows that the agent may not see are left out
        if page.next == cursor or empty > _MOST_EMPTY:
            raise _endless("the server's pages do not come to an end", "is this an Angelia server?")
        cursor = page.next


def _endless(message: str, hint: str) -> AngeliaError:
    from angelia.client import BadAnswer

    return BadAnswer(message, hint=hint)


def full_id(given: str, known: Iterable[str], what: str, look: str) -> str:
    """The one id that begins with `given`; raises if none or several do. `look` is the command that lists them."""
    if len(given) < SHORTEST_PREFIX:
        raise Usage(f"{given!r} is too short for an id", hint=f"{SHORTEST_PREFIX} characters or more; see `{look}`")
    found = [id_ for id_ in known if id_.startswith(given.lower())]
    if not found:
        raise NotFound(f"there is no {what} {given}", hint=f"see `{look}`")
    if len(found) > 1 and given.lower() not in found:
        raise AmbiguousId(f"{len(found)} {what}s begin with {given}", hint=f"they are {', '.join(found[:3])}")
    return given.lower() if given.lower() in found else found[0]


def short(id_: object) -> str:
    """An id as tables show it."""
    return str(id_)[:SHORT_ID]


def ago(at: datetime | None) -> str:
    """How long ago; empty for None."""
    return "" if at is None else age(datetime.now(UTC) - at)


def until(at: datetime | None) -> str:
    """How long from now, or `over`; empty for None."""
    if at is None:
        return ""
    now = datetime.now(UTC)
    return "over" if at <= now else f"in {age(at - now)}"
