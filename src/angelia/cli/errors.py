"""How a failure ends: one sentence, one hint, and an exit code that says of what kind it was."""

from __future__ import annotations

import errno
import sys
from typing import TextIO

import click

from angelia.cli.escaping import escape_json, escape_line
from angelia.cli.output import Manner
from angelia.errors import AngeliaError

INTERRUPTED, PIPE_CLOSED = 130, 141
FAILURE, USAGE, TAMPERED, REPLAYED, NOT_ALLOWED, EXPIRED, NETWORK, NOT_FOUND = range(1, 9)

_EXIT_CODES = {
    USAGE: "usage confirmation_required ambiguous_id bad_setting",
    TAMPERED: (
        "signature_verification_failed open_failed corrupt_record audit_broken untrusted_bundle invalid_key_format"
    ),
    REPLAYED: "replay_rejected",
    NOT_ALLOWED: "unauthenticated authorization_denied not_member suite_refused key_revoked wrong_recipient",
    EXPIRED: "message_expired clock_skew stale from_future lease_lost",
    NETWORK: "network unavailable deadline_exceeded",
    NOT_FOUND: "not_found key_not_found no_group offset_gone",
}
EXIT_OF_CODE = {code: exit_ for exit_, codes in _EXIT_CODES.items() for code in codes.split()}


class Usage(AngeliaError):
    """The command was not said as its grammar wants it"""

    code = "usage"


class AmbiguousId(AngeliaError):
    """Several ids begin like this"""

    code = "ambiguous_id"


class ConfirmationRequired(AngeliaError):
    """This destroys something and needs a yes"""

    code = "confirmation_required"


class SystemFailure(AngeliaError):
    """The operating system refused"""

    code = "system"


class DiskFull(SystemFailure):
    """No space is left"""

    code = "disk_full"


def exit_code(error: AngeliaError) -> int:
    """The one table of exit codes; what it does not know is a plain failure."""
    if getattr(error, "status", None) in (502, 503, 504):
        return NETWORK
    return EXIT_OF_CODE.get(error.code, FAILURE)


def report(error: AngeliaError, manner: Manner, stream: TextIO | None = None) -> int:
    """Say what went wrong, and give the exit code."""
    stream = stream or sys.stderr
    exit_ = exit_code(error)
    request_id = getattr(error, "request_id", None)
    if manner.json:
        import msgspec

        said = {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "exit": exit_,
            "request_id": request_id,
        }
        stream.write(escape_json(msgspec.json.encode(said).decode()) + "\n")
        return exit_
    stream.write(f"error: {escape_line(error.message)} ({escape_line(error.code)})\n")
    if error.hint and not manner.quiet:
        stream.write(f"hint: {escape_line(error.hint)}\n")
    if request_id and manner.verbose:
        stream.write(f"request {escape_line(request_id)}\n")
    return exit_


def of_system(error: OSError) -> AngeliaError:
    """A refusal of the operating system in our words."""
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else SystemFailure
    what = f"{error.filename}: " if error.filename else ""
    return kind(f"{what}{error.strerror or error}")


def of_click(error: click.ClickException) -> AngeliaError:
    """What click found wrong with a command, in our words."""
    context = getattr(error, "ctx", None)
    path = "angelia" if context is None else context.command_path
    hint = f"`{path} --help` shows how it is said"
    match error:
        case click.NoSuchOption():
            message = f"`{path}` has no flag {error.option_name}"
            hint = f"did you mean {error.possibilities[0]}?" if error.possibilities else hint
        case click.MissingParameter():
            message = f"`{path}` needs {_named(error.param, context)}"
            example = getattr(context.command, "example", "") if context else ""
            hint = f"as in `{example}`" if example else hint
        case click.BadParameter():
            message = f"{_named(error.param, context)}: {error.message.rstrip('.')}"
        case click.BadOptionUsage() if "requires" in error.message:
            message = f"{error.option_name} needs a value"
        case click.BadOptionUsage():
            message = f"{error.option_name} takes no value"
        case _:
            message = error.format_message().rstrip(".")
    return Usage(message, hint=hint)


def _named(parameter: click.Parameter | None, context: click.Context | None) -> str:
    if parameter is None:
        return "an argument"
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name if context is None else parameter.make_metavar(context)
