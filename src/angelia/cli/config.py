"""`angelia config`: the settings, and shell completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.flags import Needs
from angelia.cli.grammar import Noun
from angelia.cli.tables import Column

if TYPE_CHECKING:
    from angelia.monitoring.api import SettingLine
    from angelia.settings import EffectiveSetting

command = Noun("config", "show every setting and where it came from; completion")


@command.verb(example="angelia config show", needs=Needs.SERVER | Needs.OPERATOR)
@click.option("--server", is_flag=True, help="those of the running server, not of this shell")
def show(session: CommandContext, server: bool) -> None:
    """Show each setting and where it came from; secrets are masked. -v adds what each is for."""
    lines: list[EffectiveSetting | SettingLine] = []
    lines += session.as_operator().server.settings().settings if server else session.loaded.shown()
    columns: list[Column[EffectiveSetting | SettingLine]] = [
        Column("NAME", lambda s: s.name),
        Column("VALUE", lambda s: s.value, long=True),
        Column("FROM", lambda s: s.origin, long=True),
    ]
    if session.shared.verbose:
        columns.append(Column("ABOUT", lambda s: s.about, long=True))
    session.out.rows(lines, columns)


@command.verb(example='eval "$(angelia config completion bash)"')
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(session: CommandContext, shell: str) -> None:
    """Print the completion of a shell: bash, zsh or fish.

    bash and zsh evaluate it in their rc file; fish reads it with `| source`."""
    from click.shell_completion import get_completion_class

    from angelia.cli.main import COMPLETE, root

    made = get_completion_class(shell)
    assert made is not None, "click has one for each of these"
    session.out.text(made(root, {}, "angelia", COMPLETE).source())
