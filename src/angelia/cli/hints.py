"""Completes commands inside hints and notes, so that they work when pasted: same server, same agent."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable

import click

# In backticks, or bare up to the next clause.
_COMMAND = re.compile(r"""`(?P<quoted>angelia [a-z][^`]*)`|(?P<bare>\bangelia [a-z](?:[^;,`"')\n]|"[^"]*"|'[^']*')*)""")
# A command for another agent, on its own machine.
_ANOTHERS = re.compile(r"\b(?:runs|by|for) $")
_REDIRECTION = re.compile(r" [<>|] ")
_WITH_ARGUMENT = 3  # words: noun, verb and what it acts on

Said = Callable[[], Iterable[tuple[str, str]]]


def aimed(text: str, root: click.Command, said: Said) -> str:
    """The text, with the flags that named server and agent added to each command in it that takes them."""

    def aim(found: re.Match[str]) -> str:
        quoted = found["quoted"]
        if quoted and _ANOTHERS.search(text[: found.start()]):
            return found[0]
        whole = quoted or found["bare"]
        cut = _REDIRECTION.search(whole)
        end = cut.start() if cut else len(whole.rstrip())
        takes = _flags_of(whole[:end], root)
        more = [f"{flag} {shlex.quote(value)}" for flag, value in (said() if takes else ()) if flag in takes]
        command = " ".join([whole[:end], *more]) + whole[end:]
        return f"`{command}`" if quoted else command

    return _COMMAND.sub(aim, text)


def _flags_of(command: str, root: click.Command) -> set[str]:
    """The flags that a command takes and does not have yet; none if it is no command of ours."""
    try:
        words = shlex.split(command)[1:]
    except ValueError:  # it ends in the middle of a quotation
        return set()
    verb: click.Command | None = root
    for word in words:
        if isinstance(verb, click.Group):
            verb = verb.get_command(click.Context(verb), word)
    if verb is None or isinstance(verb, click.Group):
        return set()
    if any(p.required for p in verb.params if isinstance(p, click.Argument)) and len(words) < _WITH_ARGUMENT:
        return set()  # the name of a verb, to be read and not to be pasted
    return {flag for parameter in verb.params for flag in parameter.opts if flag not in words}
