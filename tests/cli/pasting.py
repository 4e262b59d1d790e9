"""Takes the commands out of hints, as a reader would, and says whether the grammar takes them."""

from __future__ import annotations

import re
import shlex

import click

from angelia.cli.errors import Usage
from angelia.cli.main import root

_COMMANDS = re.compile(r"""`(angelia [a-z][^`]*)`|\b(angelia [a-z](?:[^;,`"')\n]|"[^"]*"|'[^']*')*)""")


def commands_in(text: str) -> list[str]:
    """Each command that a text offers: in backticks, or bare up to the next clause; without what a shell does to it."""
    found = [quoted or bare for quoted, bare in _COMMANDS.findall(text)]
    return [re.split(r" [<>|] ", command)[0].strip() for command in found]


def refused(command: str) -> str:
    """Why the grammar does not take a command; empty if it does. Values may be anything: they are often examples."""
    context = click.Context(root, info_name="angelia")
    try:
        words = shlex.split(command)[1:]
        name, verb, rest = root.resolve_command(context, words)
        while isinstance(verb, click.Group):
            context = click.Context(verb, parent=context, info_name=name)
            if not rest:
                return ""  # a noun, which lists its verbs
            name, verb, rest = verb.resolve_command(context, rest)
        assert verb is not None
        verb.make_context(name, rest, parent=context)
    except click.MissingParameter as error:
        return "" if len(words) <= 2 else f"{command}: {error.format_message()}"  # a verb's name, in a sentence
    except click.BadParameter:
        return ""
    except click.exceptions.Exit:
        return ""  # --help
    except (Usage, click.ClickException, ValueError) as error:
        return f"{command}: {error}"
    return ""
