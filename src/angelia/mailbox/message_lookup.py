"""How messages of the inbox and the outbox are looked up: page by page, and by the beginning of their ids."""

from __future__ import annotations

import re

from angelia.errors import AmbiguousId, InvalidArgument, NotFound
from angelia.mailbox.database import MailboxDatabase, T

PAGE = 50
SHORTEST_PREFIX = 8
_PREFIX = re.compile(r"\A[0-9a-f]{8,64}\Z")


def by_prefix(database: MailboxDatabase, kind: type[T], statement: str, prefix: str) -> T:
    """Returns the message whose replay key begins with a prefix of 8 or more characters."""
    if _PREFIX.match(prefix) is None:
        raise InvalidArgument(
            f"{prefix[:70]!r} is not the beginning of a message's id",
            hint=f"{SHORTEST_PREFIX} to 64 characters 0-9 a-f",
        )
    found = database.records(kind, statement, prefix, prefix + "~")
    if not found:
        box = statement.partition("_")[0]
        raise NotFound(f"there is no message {prefix} in the {box}", hint=f"`angelia mail {box}` lists them")
    if len(found) > 1:
        raise AmbiguousId(f"more than one message begins with {prefix}", hint="say more of it")
    return found[0]
