"""Pages of lists: their query, their cursors, and the strict form of ids."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec

from angelia.errors import InvalidArgument

T = TypeVar("T")

PageSize = Annotated[int, msgspec.Meta(ge=1, le=1000, description="How many entries a page has at the most")]
Cursor = Annotated[str, msgspec.Meta(description="Where to go on: the `next` of the page before")]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list."""

    cursor: Cursor | None = None
    limit: PageSize = 50

    @property
    def and_one_more(self) -> int:
        """How many rows to read: one more than the page has, to know whether another page follows."""
        return self.limit + 1

    def cut(self, found: Sequence[T], cursor_of: Callable[[T], str]) -> tuple[list[T], str | None]:
        """Returns the rows of this page, and the cursor of the next page, if there is one."""
        shown = list(found[: self.limit])
        return shown, cursor_of(shown[-1]) if len(found) > self.limit else None


def cursor_after(at: datetime, id: UUID) -> str:
    """The cursor of a list ordered by time and id; opaque to callers."""
    return base64.urlsafe_b64encode(f"{at.isoformat()} {id}".encode()).decode()


def parse_cursor(text: str | None) -> tuple[datetime, UUID] | None:
    """The time and id in a cursor of `cursor_after`; None for None."""
    if text is None:
        return None
    try:
        at, id = base64.urlsafe_b64decode(text.encode("ascii")).decode().split(" ")  # noqa: A001 - it is an id
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None:
            raise ValueError
        return moment, UUID(id)
    except ValueError as error:
        raise InvalidArgument("the cursor is not one that this list gave out") from error


def uuid_of(text: str, otherwise: str) -> UUID:
    """Parses an id: lower case, with dashes. Any other spelling is refused with the text `otherwise`."""
    if _UUID.fullmatch(text) is None:
        raise InvalidArgument(otherwise)
    return UUID(text)
