"""The entry point: the list of nouns, and the one place where the end of a command becomes an exit code."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from types import TracebackType
from typing import NoReturn

import click

from angelia import __version__
from angelia.cli.errors import FAILURE, INTERRUPTED, PIPE_CLOSED, of_click, of_system, report
from angelia.cli.grammar import Entry, Root
from angelia.cli.output import Manner, Remarks, open_closed_streams
from angelia.errors import AngeliaError

COMPLETE = "_ANGELIA_COMPLETE"

root = Root(
    "a message platform for AI agents",
    [
        Entry("start", "serve", "run a server, with its own PostgreSQL and Valkey"),
        Entry("start", "spool", "run a node of group logs, which needs no other store"),
        Entry("start", "doctor", "find out what works on this machine, and what does not"),
        Entry("start", "config", "show every setting and where it came from; completion"),
        Entry("start", "agent", "make, register and show agents; claim a handle"),
        Entry("talk", "key", "publish, show, rotate, revoke and pin keys"),
        Entry("talk", "mail", "sealed mail: send, receive, open, allow, inbox, receipts"),
        Entry("talk", "channel", "sealed topics: create, subscribe, publish, tail"),
        Entry("talk", "room", "rooms that the server can read: post, read, tail, search"),
        Entry("talk", "dm", "direct messages as AICQ has them: send, read, delete"),
        Entry("talk", "queue", "queues of ordered partitions: push, pop, tail, dead letters"),
        Entry("talk", "log", "group logs on untrusted nodes: append, read, follow, verify"),
        Entry("operate", "token", "bearer tokens: create, list, revoke"),
        Entry("operate", "guard", "blocked addresses: list, block, unblock"),
        Entry("operate", "policy", "rules: agents that may send, publish, subscribe, read keys"),
        Entry("operate", "audit", "what happened: show it, verify that it was not changed"),
        Entry("analyse", "pipeline", "archive, analyse, export and erase in bulk, with Spark"),
    ],
    version=__version__,
)


def main() -> NoReturn:
    """Runs the command of this process, and exits."""
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = Remarks(sys.stderr.fileno())
    sys.excepthook = _report_bug
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Runs one command; returns its exit code."""
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, "angelia", COMPLETE, instruction)
    try:
        code = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up_stdout()
        return PIPE_CLOSED
    except OSError as error:
        code = report(of_system(error), manner_of(argv))
        try:
            sys.stdout.flush()
        except OSError:
            _give_up_stdout()
    return code


def _give_up_stdout() -> None:
    """Python flushes stdout once more at exit; what is left must not raise again, since that changes the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    try:
        with root.make_context("angelia", list(argv)) as context:
            code: int | None = root.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        return report(of_click(error), manner_of(argv))
    except AngeliaError as error:
        return report(error, manner_of(argv))
    except (KeyboardInterrupt, click.Abort):
        sys.stderr.write("\nstopped\n")
        return INTERRUPTED
    return code or 0


def manner_of(argv: list[str]) -> Manner:
    """The output flags among raw arguments: also a command that does not parse fails as --json or -q ask."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    short = "".join(word[1:] for word in words if re.fullmatch(r"-[qv]+", word))
    return Manner(
        json="--json" in words, quiet="q" in short or "--quiet" in words, verbose="v" in short or "--verbose" in words
    )


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    manner = manner_of(sys.argv[1:])
    if manner.verbose:
        traceback.print_exception(kind, error, trace)
    hint = "this is a bug; -v shows where it happened"
    report(AngeliaError(f"{kind.__name__}: {error}", hint=hint), manner)
    sys.exit(FAILURE)
