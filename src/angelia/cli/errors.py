"""Reports of errors: one sentence, one hint, and an exit code for each kind."""

from __future__ import annotations

import difflib
import errno
import re
import sys
from collections.abc import Iterable
from typing import TextIO

import click

from angelia.cli.escaping import escape_json, escape_line
from angelia.cli.output import Manner
from angelia.errors import AngeliaError, DiskFull

INTERRUPTED, PIPE_CLOSED = 130, 141
FAILURE, USAGE, TAMPERED, REPLAYED, NOT_ALLOWED, EXPIRED, NETWORK, NOT_FOUND = range(1, 9)

_EXIT_CODES = {
    USAGE: "usage confirmation_required ambiguous_id bad_setting",
    TAMPERED: (
        "signature_verification_failed open_failed corrupt_record audit_broken log_faults untrusted_bundle "
        "untrusted_roster invalid_key_format"
    ),
    REPLAYED: "replay_rejected",
    NOT_ALLOWED: "unauthenticated authorization_denied not_member suite_refused key_revoked wrong_recipient",
    EXPIRED: "message_expired clock_skew stale from_future lease_lost",
    NETWORK: "network unavailable deadline_exceeded bad_answer seal_stands",
    NOT_FOUND: "not_found key_not_found no_group offset_gone",
}
# OpenSSL's words for the answer of a server that speaks no TLS.
_PLAIN_HTTP = re.compile(r"(https://\S+) .*(?:wrong.version.number|record.layer.failure)", re.IGNORECASE)
EXIT_OF_CODE = {code: exit_ for exit_, codes in _EXIT_CODES.items() for code in codes.split()}


class Usage(AngeliaError, code="usage"):
    """The command was not said as its grammar wants it"""


class ConfirmationRequired(AngeliaError, code="confirmation_required"):
    """This destroys something and needs a yes"""


class SystemFailure(AngeliaError, code="system"):
    """The operating system refused"""


def exit_code(error: AngeliaError) -> int:
    """The exit code of an error; 1 for a code that the table does not have."""
    if getattr(error, "status", None) in (502, 503, 504):
        return NETWORK
    return EXIT_OF_CODE.get(error.code, FAILURE)


def one_of(codes: set[int]) -> int:
    """One exit code for several: theirs if they are the same, 1 if not, 0 for none."""
    return next(iter(codes)) if len(codes) == 1 else min(len(codes), FAILURE)


def report(error: AngeliaError, manner: Manner, stream: TextIO | None = None) -> int:
    """Prints an error; returns its exit code."""
    stream = stream or sys.stderr
    message, hint = _in_our_words(error)
    exit_ = exit_code(error)
    request_id = getattr(error, "request_id", None)
    if manner.json:
        import msgspec

        said = {"code": error.code, "message": message, "hint": hint, "exit": exit_, "request_id": request_id}
        stream.write(escape_json(msgspec.json.encode(said).decode()) + "\n")
        return exit_
    stream.write(f"error: {escape_line(message)} ({escape_line(error.code)})\n")
    if hint and not manner.quiet:
        stream.write(f"hint: {escape_line(hint)}\n")
    if request_id and manner.verbose:
        stream.write(f"request {escape_line(request_id)}\n")
    return exit_


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is nearest, if one is near; the dashes of flags are not compared."""
    bare = {one.lstrip("-"): one for one in known}
    near = difflib.get_close_matches(word.lstrip("-"), bare, n=1)
    return bare[near[0]] if near else None


def of_system(error: OSError) -> AngeliaError:
    """The AngeliaError for an error of the operating system."""
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else SystemFailure
    what = f"{error.filename}: " if error.filename else ""
    return kind(f"{what}{error.strerror or error}")


def of_click(error: click.ClickException) -> AngeliaError:
    """The Usage error for what click found wrong with a command."""
    context = getattr(error, "ctx", None)
    path = "angelia" if context is None else context.command_path
    hint = f"`{path} --help` lists what it takes"
    match error:
        case click.NoSuchOption():
            message = f"`{path}` has no flag {error.option_name}"
            near = nearest(error.option_name, error.possibilities or ())
            hint = f"did you mean {near}?" if near else hint
        case click.MissingParameter():
            message = f"`{path}` needs {_named(error.param, context)}"
            example = getattr(context.command, "example", "") if context else ""
            hint = f"as in `{example}`" if example else hint
        case click.BadParameter():
            message = f"{_named(error.param, context)}: {_accepted(error.param) or error.message.rstrip('.')}"
        case click.BadOptionUsage() if "requires" in error.message:
            message = f"{error.option_name} needs a value"
        case click.BadOptionUsage():
            message = f"{error.option_name} takes no value"
        case _:
            message = error.format_message().rstrip(".")
    return Usage(message, hint=hint)


def _in_our_words(error: AngeliaError) -> tuple[str, str]:
    """Message and hint, put clearly where they come from a library."""
    if error.code == "network" and (found := _PLAIN_HTTP.match(error.message)):
        return f"{found[1]} speaks http, not https", f"--url http{found[1].removeprefix('https')}"
    return error.message, error.hint


def _accepted(parameter: click.Parameter | None) -> str:
    """What a number parameter takes, in words instead of click's symbols."""
    match parameter.type if parameter else None:
        case click.IntRange() as whole:
            return f"a whole number from {whole.min or 0:,}" + ("" if whole.max is None else f" to {whole.max:,}")
        case click.FloatRange() as number:
            return f"a number above {number.min:g}, up to {number.max:g}"
    return ""


def _named(parameter: click.Parameter | None, context: click.Context | None) -> str:
    if parameter is None:
        return "an argument"
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name if context is None else parameter.make_metavar(context)
