"""Where the words of a message come from: the argument, or stdin."""

from __future__ import annotations

import sys

from angelia.cli.errors import Usage
from angelia.cli.session import Session

MOST = (1 << 20) + 1


def read_body(session: Session, given: str | None) -> bytes:
    """The bytes of a message; `-` or nothing means stdin."""
    if given is not None and given != "-":
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise Usage("the message is not UTF-8 text", hint="pass bytes through stdin") from error
    if sys.stdin.isatty():
        session.out.note("type the message, Ctrl-D ends it")
    return sys.stdin.buffer.read(MOST)
