"""What the verbs that send a message share: their flags, and where the words of a message come from."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.times import age
from angelia.errors import InvalidArgument

if TYPE_CHECKING:
    from angelia.mailbox.drafts import MessageOptions

MOST = 1 << 20
_PRIORITIES = ("low", "normal", "high", "critical")
_COMPRESSIONS = ("none", "gzip", "zstd")

priority_flag = click.option(
    "--priority", type=click.Choice(_PRIORITIES), default="normal", metavar="P", help=", ".join(_PRIORITIES)
)
pad_flag = click.option("--pad", is_flag=True, help="blur the length (Padmé: by at most 12 %)")
compress_flag = click.option(
    "--compress", type=click.Choice(_COMPRESSIONS), default="none", metavar="C",
    help="gzip or zstd (none): the length may tell about the content",
)  # fmt: skip


def message_options(
    session: CommandContext, ttl: timedelta | None, priority: str, pad: bool, compress: str, correlation_id: UUID | None
) -> MessageOptions:
    """What the flags say, as the SDK takes it; raises Usage for a life that is longer than the setting allows."""
    from angelia.envelope.wire import Compression, Priority

    options: MessageOptions = {
        "priority": Priority(_PRIORITIES.index(priority)),
        "compression": Compression(_COMPRESSIONS.index(compress)),
        "padme": pad,
        "correlation_id": correlation_id,
    }
    if ttl is not None:
        longest = timedelta(seconds=session.settings.max_ttl_seconds)
        if ttl > longest:
            raise Usage(
                f"--ttl: a message lives for {age(longest)} at most",
                hint="the setting max_ttl_seconds says so, here and on the server",
            )
        options["ttl_seconds"] = int(ttl.total_seconds())
    return options


def read_body(session: CommandContext, given: str | None) -> bytes:
    """The bytes of a message; `-` or nothing means stdin."""
    if given is not None and given != "-":
        _warn_of_file_name(session, given)
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


def read_text(session: CommandContext, given: str | None) -> str:
    """The text of a message that must be text; what comes from stdin is without the line break at its end."""
    try:
        text = read_body(session, given).decode()
    except UnicodeDecodeError as error:
        raise Usage("the message is not UTF-8 text", hint="sealed mail takes bytes: angelia mail send NAME") from error
    return text if given not in (None, "-") else text.removesuffix("\n")


def _warn_of_file_name(session: CommandContext, given: str) -> None:
    """Says how to send a file's content: its name is sent as text like any other, which is seldom meant."""
    if not os.path.isfile(given):  # noqa: PTH113  a text is often no path at all
        return
    context = click.get_current_context()
    to = next(str(context.params[p.name]) for p in context.command.params if isinstance(p, click.Argument) and p.name)
    command = shlex.join([*context.command_path.split(), to])
    session.out.note(f"{given!r} is sent as text; the content of that file: `{command} < {shlex.quote(given)}`")
