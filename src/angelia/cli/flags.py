"""The flags that verbs share. Each verb says what it needs, and gets the flags for that."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import Flag, auto
from typing import Any
from uuid import UUID

import click
from click.shell_completion import CompletionItem

from angelia.cli.output import Manner
from angelia.cli.times import parse_duration, parse_time
from angelia.errors import AngeliaError, InvalidArgument

PAGE = 50
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(days=3650)


class Needs(Flag):
    """What a verb needs, and so which of the shared flags it takes."""

    NOTHING = 0
    SERVER = auto()
    AGENT = auto()
    OPERATOR = auto()
    PAGES = auto()
    PERIOD = auto()
    YES = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFlags(Manner):
    """The values of the shared flags; those that a verb does not take keep their defaults."""

    url: str | None = None
    context: str | None = None
    timeout: float = 30.0
    identity: str | None = None
    token_file: str | None = None
    limit: int | None = None
    cursor: str | None = None
    all_pages: bool = False
    require: bool = False
    since: datetime | None = None
    until: datetime | None = None
    yes: bool = False
    dry_run: bool = False


def moment(text: str) -> datetime:
    """The type of a flag that takes a date, an RFC 3339 time, an age, or now."""
    try:
        return parse_time(text, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def span(text: str) -> timedelta:
    """The type of a flag that takes a length of time, such as 15m or 7d."""
    try:
        length = parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not _SHORTEST <= length <= _LONGEST:
        raise click.BadParameter(f"{text} is not between 1s and 3650d")
    return length


def seconds(text: str) -> int:
    """The type of a flag that takes a length of time, for what counts it in seconds."""
    return int(span(text).total_seconds())


def message_uuid(text: str) -> UUID:
    """The type of a flag that takes a message's UUID."""
    try:
        return UUID(text)
    except ValueError as error:
        where = "message_id, as --json shows it; the short id of a list is none"
        raise click.BadParameter(f"{text!r} is no UUID ({where})") from error


def handle(text: str) -> str:
    """The type of a handle that an agent may claim."""
    from angelia.agents.model import check_handle
    from angelia.envelope.ids import valid_handle

    if not valid_handle(text):
        raise click.BadParameter(f"{text!r} is no handle: a-z 0-9 . _ -, a letter or digit at both ends, no '..'")
    try:
        return check_handle(text)
    except InvalidArgument as error:
        raise click.BadParameter(error.message) from error


def address(text: str) -> str:
    """The type of an IP address, in its canonical form."""
    from angelia.guard.model import parse_address

    try:
        return str(parse_address(text))
    except InvalidArgument as error:
        raise click.BadParameter(error.message) from error


def local_agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The agents of this machine, for shell completion; none when they cannot be read."""
    from angelia import settings
    from angelia.mailbox import agent_names

    try:
        names = agent_names.names(settings.load().settings.home)
    except (AngeliaError, OSError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def options(needs: Needs) -> list[click.Option]:
    """The shared options of a verb, in the order of its help."""
    return [option for need, shared in _OPTIONS.items() if need in needs for option in shared]


def take(params: dict[str, Any]) -> SharedFlags:
    """Moves the shared flags out of a command's parameters."""
    return SharedFlags(**{f.name: params.pop(f.name) for f in fields(SharedFlags) if f.name in params})


_SIGNER = "which agent of this machine signs"
_SECONDS = click.FloatRange(0, 3600, min_open=True)
_FILE = click.Path(exists=True, dir_okay=False)
_WHEN = click.Choice(["auto", "always", "never"])
_OPTIONS = {
    Needs.PAGES: (
        click.Option(["-n", "--limit"], metavar="N", type=click.IntRange(1, 1000), help=f"page size ({PAGE})"),
        click.Option(["--cursor"], metavar="C", help="the page after this one"),
        click.Option(["--all", "all_pages"], is_flag=True, help="all pages"),
        click.Option(["--require"], is_flag=True, help="an empty list is an error (exit 8)"),
    ),
    Needs.PERIOD: (
        click.Option(["--since"], metavar="T", type=moment, help="from then on: 2026-11-15, RFC 3339, 15m"),
        click.Option(["--until"], metavar="T", type=moment, help="before then: the same, '2h ago', now"),
    ),
    Needs.YES: (
        click.Option(["--yes"], is_flag=True, help="do it without asking"),
        click.Option(["--dry-run"], is_flag=True, help="say what would be done, do nothing"),
    ),
    Needs.AGENT: (click.Option(["--as", "identity"], metavar="HANDLE", shell_complete=local_agents, help=_SIGNER),),
    Needs.OPERATOR: (click.Option(["--token-file"], metavar="F", type=_FILE, help="file with the operator's token"),),
    Needs.SERVER: (
        click.Option(["--url"], metavar="URL", help="the server"),
        click.Option(["--context"], metavar="NAME", help="the server of that name in angelia.toml"),
        click.Option(["--timeout"], metavar="S", type=_SECONDS, default=30.0, help="seconds to wait for it (30)"),
    ),
    Needs.NOTHING: (  # contained in every other
        click.Option(["--json"], is_flag=True, help="one JSON object per line"),
        click.Option(["-q", "--quiet"], is_flag=True, help="no hints; of something new only its id"),
        click.Option(["-v", "--verbose"], is_flag=True, help="requests and timings on stderr"),
        click.Option(["--color"], metavar="WHEN", type=_WHEN, default="auto", help="auto, always or never"),
    ),
}
