"""The one grammar: `angelia NOUN VERB [NAME] [flags]`, with flags anywhere after the noun.

An unknown word is answered with the nearest known one, and each verb's help opens with an example.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import click
from click.shell_completion import CompletionItem

from angelia.cli import flags
from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage, nearest
from angelia.cli.flags import Needs
from angelia.cli.hints import aimed
from angelia.cli.output import Output
from angelia.errors import AngeliaError

P = ParamSpec("P")
# A verb returns its exit code; None is 0.
Action = Callable[Concatenate[CommandContext, P], int | None]

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_WIDTH = 80
# Names of verbs in other programs, and ours: the hint names the first of these that the noun has.
_SYNONYMS = {
    "read": ("open", "tail", "show"),
    "list": ("inbox", "blocks", "show", "status"),
    "ls": ("list", "inbox", "blocks", "show", "status"),
    "get": ("receive", "pop", "show", "tail"),
    "fetch": ("receive", "pop", "show"),
    "watch": ("receive --wait", "tail -f"),
    "follow": ("receive --wait", "tail -f", "subscribe"),
    "wait": ("receive --wait", "tail -f"),
    "post": ("publish", "send", "push"),
    "add": ("create", "new", "allow", "block"),
    "create": ("new", "add", "configure"),
    "new": ("create", "add", "configure"),
    "delete": ("remove", "revoke", "unblock"),
    "remove": ("delete", "revoke", "unblock", "deny"),
    "rm": ("delete", "remove", "revoke", "unblock"),
    "join": ("subscribe", "register"),
    "leave": ("unsubscribe",),
}


class VerbCommand(click.Command):
    """One command. Its function gets a CommandContext made from the shared flags, then its own parameters."""

    def __init__(self, name: str | None, *, example: str = "", needs: Needs = Needs.NOTHING, **rest: Any) -> None:
        super().__init__(name, context_settings={**_SETTINGS, "allow_extra_args": True}, **rest)
        self.example = example
        self.own = list(self.params)
        self.shared = flags.options(needs)
        self.params = [*self.own, *self.shared]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser leaves it out
            raise
        if rest and not ctx.resilient_parsing:
            raise Usage(f"`{ctx.command_path}` takes no argument {rest[0]!r}", hint=f"as in `{self.example}`")
        return rest

    def invoke(self, ctx: click.Context) -> int | None:
        shared = flags.take(ctx.params)
        if self.callback is None:
            return None
        with closing(CommandContext(shared, Output(shared))) as session:
            session.out.aim = lambda text: aimed(text, ctx.find_root().command, lambda: session.said)
            named = [ctx.params[p.name] for p in self.own if isinstance(p, click.Argument) and p.name]
            try:
                code: int | None = ctx.invoke(self.callback, session, **ctx.params)
            except AngeliaError as error:
                session.explain(error, named)
                error.hint = session.out.aim(error.hint)
                raise
        return code

    def get_help(self, ctx: click.Context) -> str:
        arguments = [p.make_metavar(ctx) for p in self.own if isinstance(p, click.Argument)]
        usage = " ".join([ctx.command_path, *arguments, "[flags]"])
        parts = [f"example: {self.example}", inspect.cleandoc(self.help or ""), f"usage: {usage}"]
        parts += _described("flags", self.own)
        parts += _described("shared flags", self.shared)
        return "\n\n".join(part for part in parts if part)

    def get_short_help_str(self, limit: int = 60) -> str:
        return re.split(r"\.\s|\n", (self.help or "").strip())[0].rstrip(".")


class Noun(click.Group):
    """A group of verbs about one kind of thing."""

    def __init__(self, name: str, about: str) -> None:
        super().__init__(name, help=about, context_settings=_SETTINGS, no_args_is_help=False)

    def verb(
        self, *, example: str, needs: Needs = Needs.NOTHING, name: str | None = None
    ) -> Callable[[Action[P]], click.Command]:
        """Makes a function one of this noun's verbs; click's own decorators declare its parameters."""
        return self.command(name, cls=VerbCommand, example=example, needs=needs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = self._verb_position(ctx, args)
        if at is not None:
            args = [args[at], *args[:at], *args[at + 1 :]]
        elif not ctx.resilient_parsing:
            if args and not set(args) & set(_SETTINGS["help_option_names"]):
                raise Usage(f"`{ctx.command_path}` needs a verb", hint=f"one of {', '.join(self.commands)}")
            click.echo(self.get_help(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in self.commands and not ctx.resilient_parsing:
            message = f"`{ctx.command_path}` has no verb {word!r}"
            for meant in _SYNONYMS.get(word, ()):
                if meant.partition(" ")[0] in self.commands:
                    raise Usage(message, hint=f"did you mean `{ctx.command_path} {meant}`?")
            raise unknown(message, word, ctx, self.commands)
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        lines = _columns([(name, verb.get_short_help_str()) for name, verb in self.commands.items()])
        return "\n\n".join(
            (
                f"{ctx.command_path}: {self.help}",
                f"usage: {ctx.command_path} VERB [NAME] [flags]",
                "\n".join(lines),
                f"`{ctx.command_path} VERB --help` opens with an example.",
            )
        )

    def all_options(self) -> Iterator[click.Option]:
        """Every option of every verb. An option that takes a value does so in all verbs."""
        for command in self.commands.values():
            if isinstance(command, Noun):
                yield from command.all_options()
            else:
                yield from (p for p in command.params if isinstance(p, click.Option))

    def _verb_position(self, ctx: click.Context, args: list[str]) -> int | None:
        """The index of the verb, which flags and their values may precede."""
        takes_value = {name: not option.is_flag for option in self.all_options() for name in option.opts}
        takes_value |= dict.fromkeys(_SETTINGS["help_option_names"], False)
        at = 0
        while at < len(args):
            word = args[at]
            if not word.startswith("-") or word == "-":
                return at
            flag = word.partition("=")[0] if word.startswith("--") else word[:2]
            if flag not in takes_value:
                if ctx.resilient_parsing:
                    return None
                raise unknown(f"`{ctx.command_path}` has no flag {flag}", flag, ctx, takes_value)
            value_follows = word == flag and takes_value[flag]
            at += 2 if value_follows else 1
        return None


@dataclass(frozen=True, slots=True)
class Entry:
    """A noun, known without loading its module."""

    group: str
    name: str
    about: str


class Root(click.Group):
    """All nouns. Each is in the module of its name, which is loaded when the noun is used."""

    def __init__(self, about: str, entries: Iterable[Entry], version: str) -> None:
        super().__init__("angelia", help=about, context_settings=_SETTINGS, no_args_is_help=False)
        self._entries = {entry.name: entry for entry in entries}
        self._version = version

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._entries:
            return None
        command: click.Command = importlib.import_module(f"angelia.cli.{cmd_name}").command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            if args == ["--version"]:
                click.echo(f"angelia {self._version}")
                ctx.exit()
            if not args or args[0] in _SETTINGS["help_option_names"]:
                click.echo(self.get_help(ctx))
                ctx.exit()
            if args[0].startswith("-"):
                raise Usage("flags stand after the noun", hint=f"angelia NOUN VERB {args[0]}")
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        command = self.get_command(ctx, args[0])
        if command is None and not ctx.resilient_parsing:
            raise unknown(f"there is no `angelia {args[0]}`", args[0], ctx, self._entries)
        return args[0] if command else None, command, args[1:]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(e.name, help=e.about) for e in self._entries.values() if e.name.startswith(incomplete)]

    def get_help(self, ctx: click.Context) -> str:
        groups = {entry.group for entry in self._entries.values()}
        margin, widest = max(map(len, groups)), max(map(len, self._entries))
        lines, last = [f"angelia NOUN VERB [NAME] [flags]: {self.help} ({self._version})", ""], ""
        for entry in self._entries.values():
            group = "" if entry.group == last else entry.group
            lines.append(f"{group:<{margin}}  {entry.name:<{widest}}  {entry.about}")
            last = entry.group
        lines += ["", "`angelia NOUN --help` lists the verbs; a verb's --help opens with an example."]
        lines += ["shell completion: `angelia config completion bash|zsh|fish`"]
        return "\n".join(lines)


def unknown(message: str, word: str, ctx: click.Context, known: Iterable[str]) -> Usage:
    """The error for an unknown word, with the nearest known one as its hint."""
    near = nearest(word, known)
    if near is None:
        return Usage(message, hint=f"`{ctx.command_path} --help` lists them")
    meant = near if near.startswith("-") else f"`{ctx.command_path} {near}`"
    return Usage(message, hint=f"did you mean {meant}?")


def _described(title: str, parameters: Iterable[click.Parameter | None]) -> list[str]:
    rows = [(_flag(p), p.help or "") for p in parameters if isinstance(p, click.Option)]
    return ["\n".join([title, *_columns(rows)])] if rows else []


def _flag(option: click.Option) -> str:
    shown = ", ".join(sorted(option.opts, key=len))
    value = "" if option.is_flag else f" {option.metavar or (option.name or '').upper()}"
    return shown + value


def _columns(rows: list[tuple[str, str]]) -> Iterator[str]:
    widest = max(len(word) for word, _ in rows)
    for word, text in rows:
        first, *more = textwrap.wrap(text, _WIDTH - widest - 4) or [""]
        yield f"  {word:<{widest}}  {first}".rstrip()
        yield from (" " * (widest + 4) + line for line in more)
