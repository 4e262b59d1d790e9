"""`angelia doctor`: what works on this machine, and what does not."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import FAILURE
from angelia.cli.escaping import escape_line
from angelia.cli.grammar import VerbCommand
from angelia.cli.tables import Paint, counted

if TYPE_CHECKING:
    from angelia.doctor import Diagnosis

WIDTH = 100
STATE = 6  # the widest state word and its gap


@click.command(cls=VerbCommand, example="angelia doctor")
def command(session: CommandContext) -> int:
    """Look at everything that a server needs here. Exit 1 when something fails, 0 on warnings."""
    from angelia import doctor

    findings = asyncio.run(doctor.examine(session.loaded))
    if session.shared.json:
        session.out.records(findings)
    else:
        session.out.painted(lines(findings, session.out.paint, each=session.shared.verbose))
    return FAILURE if any(finding.state == "fail" for finding in findings) else 0


def lines(findings: Sequence[Diagnosis], paint: Paint, *, each: bool) -> Iterator[str]:
    """Names what is well in one line, or with `each` in a line each; everything else has its hint."""
    well = [f for f in findings if f.state == "ok"]
    shown = [f for f in findings if each or f.state != "ok"]
    if well and not each:
        first, *more = textwrap.wrap(", ".join(escape_line(f.name) for f in well), WIDTH - STATE)
        yield f"{paint.state('ok')}    {first}"
        yield from (" " * STATE + line for line in more)
    widest = max((len(f.name) for f in shown), default=0)
    for finding in shown:
        blank = " " * (STATE - len(finding.state))
        said = f"{escape_line(finding.name):<{widest}}  {escape_line(finding.detail)}".rstrip()
        yield f"{paint.state(finding.state)}{blank}{said}"
        if finding.hint:
            yield f"{' ' * (STATE + widest + 2)}hint: {escape_line(finding.hint)}"
    warned, failed = (sum(f.state == state for f in findings) for state in ("warn", "fail"))
    aside = "" if each or not well else " (-v shows each)"
    yield f"{len(well)} ok{aside}, {counted(warned, 'warning')}, {counted(failed, 'failure')}"
