"""Where the words of a message come from: the argument, or stdin."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import timedelta

import click

from angelia.cli.command_context import Session
from angelia.cli.errors import Usage
from angelia.cli.times import age
from angelia.errors import InvalidArgument

MOST = 1 << 20
PAD = "blur the length (Padmé: by at most 12 %)"


def read_body(session: Session, given: str | None) -> bytes:
    """The bytes of a message; `-` or nothing means stdin."""
    if given is not None and given != "-":
        _notice_file(session, given)
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise Usage("the message is not UTF-8 text", hint="pass bytes through stdin") from error
    if sys.stdin.isatty():
        session.out.note("type the message, Ctrl-D ends it")
    body = sys.stdin.buffer.read(MOST + 1)
    if len(body) > MOST:
        raise InvalidArgument(f"a message has at most {MOST:,} bytes, and stdin has more", hint="send it in parts")
    return body


def _notice_file(session: Session, given: str) -> None:
    """The name of a file is sent as a text like any other, which is seldom what its writer meant."""
    if not os.path.isfile(given):  # noqa: PTH113  a text is often no path at all
        return
    context = click.get_current_context()
    to = next(str(context.params[p.name]) for p in context.command.params if isinstance(p, click.Argument) and p.name)
    command = shlex.join([*context.command_path.split(), to])
    session.out.note(f"{given!r} is sent as text; the content of that file: `{command} < {shlex.quote(given)}`")


def longest_life(session: Session, ttl: timedelta | None) -> None:
    """Refuse a life that is longer than the setting allows."""
    longest = timedelta(seconds=session.settings.max_ttl_seconds)
    if ttl is not None and ttl > longest:
        raise Usage(
            f"--ttl: a message lives for {age(longest)} at most",
            hint="the setting max_ttl_seconds says so, here and on the server",
        )
