"""Confirmation before something is destroyed: a person is asked once, a script must give --yes."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import ConfirmationRequired
from angelia.cli.escaping import escape_line
from angelia.errors import AngeliaError

MANY = 1_000


class Declined(AngeliaError, code="declined"):
    """Nothing was done"""


@dataclass(frozen=True, slots=True)
class Deed:
    """What is about to be destroyed. For a whole thing, or very many, the person types its name or the number."""

    verb: str  # "purge"
    doing: str  # "purging"
    what: str  # "3 dead letters of orders"
    look: str  # the command that shows it first
    count: int = 1
    whole: str | None = None  # the name of the queue, room or group that would be gone
    where: str | None = None  # when it is not the server that the session talks to
    briefly: str | None = None  # what, in a refusal whose hint names the rest
    for_good: bool = True  # it cannot be undone


def may(session: CommandContext, deed: Deed) -> bool:
    """Whether to go on: False for a dry run; an error if neither --yes nor a person agrees."""
    if session.shared.dry_run:
        session.out.note(f"dry run: would {deed.verb} {deed.what} at {deed.where or session.url}; nothing done")
        return False
    require_terminal(session, deed)
    if not session.shared.yes and not _agreed(session, deed):
        raise Declined("nothing was done")
    return True


def require_terminal(session: CommandContext, deed: Deed) -> None:
    """Raises ConfirmationRequired where a person would have to be asked, and there is no terminal to ask."""
    asked = not (session.shared.yes or session.shared.dry_run)
    if asked and not (sys.stdin.isatty() and session.out.stderr.isatty()):
        raise ConfirmationRequired(
            f"{deed.doing} {deed.briefly or deed.what} needs a yes, and there is no terminal to ask",
            hint=f"look first with `{deed.look}`, then add --yes",
        )


def _agreed(session: CommandContext, deed: Deed) -> bool:
    for_good = ", for good" if deed.for_good else ""
    question = f"{deed.verb.capitalize()} {deed.what} at {deed.where or session.url}{for_good}?"
    name = deed.whole or (str(deed.count) if deed.count > MANY else None)
    wanted = "[y/N]" if name is None else f"Type {name} to go on:"
    session.out.prompt(escape_line(f"{question} {wanted} "))
    answer = sys.stdin.readline().strip()
    return answer.lower() in ("y", "yes") if name is None else answer == name
