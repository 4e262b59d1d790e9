"""How the verbs of queues reach the server, what their flags take, and messages as they come and go."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from angelia.cli import lean_httpx
from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.flags import Needs
from angelia.cli.times import parse_duration, parse_time
from angelia.errors import AngeliaError, NotFound, TooLarge, Unauthenticated

if TYPE_CHECKING:
    import msgspec

    from angelia.client import Client
    from angelia.client.queue_calls import Start
    from angelia.client.queue_messages import QueueMessage

NO_GROUP = "__QUEUE_MODE__"  # the consumer group of those that name none
ACTS = Needs.SERVER | Needs.AGENT | Needs.OPERATOR
LONGEST_NAME, LONGEST_ID, LARGEST = 255, 1000, (1 << 31) - 1  # characters, characters, and of any number
_COMPLETION_SECONDS = 0.3
_MILLISECONDS = re.compile(r"(\d{1,10})ms", re.ASCII)


def caller(session: CommandContext) -> Client:
    """A client as the agent that --as or a setting names, else with a token that is found. Without one a server on this
    machine may be open; any other takes the agent's signature."""
    if session.named_identity is not None:
        return session.as_agent()
    if session.token is not None:
        return session.as_operator()
    lean_httpx.load()
    from angelia.client.transport import is_loopback

    return session.as_anyone() if is_loopback(session.url) else session.as_agent()


@contextmanager
def next_steps(name: str | None) -> Iterator[None]:
    """Adds the hint for what the server answers about a queue: these routes have no hints of their own."""
    try:
        yield
    except Unauthenticated as error:
        error.hint = error.hint or "--as HANDLE signs; --token-file F or ANGELIA_TOKEN shows a token"
        raise
    except TooLarge as error:
        error.hint = error.hint or "a push has at most 32 MiB; what is larger is better stored elsewhere"
        raise
    except NotFound as error:
        if name is not None and error.message in ("Queue not found", "there is no such queue"):
            raise NotFound(f"there is no queue {name}", hint="angelia queue list") from error
        error.hint = error.hint or "angelia queue list"
        raise


def about(verb: str, name: str, group: str | None = None) -> str:
    """The command for a queue, as hints name it: a name may have blanks."""
    of_group = ["--group", group] if group else []
    return shlex.join(["angelia", "queue", *verb.split(), name, *of_group])


def queue_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The queues of the server, for shell completion; none if it does not answer at once."""
    from angelia import settings

    try:
        loaded = settings.load().settings
        lean_httpx.load()
        from angelia.client import Client
        from angelia.client.opening import server_url

        url = server_url(loaded.data_dir, ctx.params.get("url") or loaded.url)
        with Client(url, token=loaded.token, timeout=_COMPLETION_SECONDS) as client:
            names = [one.name for one in client.queues.list(name=incomplete, limit=1000).queues]
    except (AngeliaError, OSError):
        return []
    return [CompletionItem(name) for name in names]


def words(text: str) -> str:
    """The type of a flag that takes any text; what a shell passes may be none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter("it is not UTF-8 text") from error
    return text


def a_name(text: str) -> str:
    """The type of the names of queues, partitions, consumer groups, namespaces and tasks."""
    return _bounded(text, LONGEST_NAME, "a name")


def an_id(text: str) -> str:
    """The type of ids that producers choose."""
    return _bounded(text, LONGEST_ID, "an id")


def _bounded(text: str, most: int, what: str) -> str:
    if not 1 <= len(words(text)) <= most:
        raise click.BadParameter(f"{what} has 1 to {most:,} characters")
    return text


name_argument = click.argument("name", type=a_name, metavar="NAME", shell_complete=queue_names)
group_flag = click.option("--group", type=a_name, metavar="G", help="the consumer group (one for all that name none)")
partition_flag = click.option("--partition", type=a_name, metavar="P", help="only this partition")


def start(text: str) -> Start:
    """The type of a flag that says where a new consumer group begins."""
    if text in ("all", "new"):
        return text  # type: ignore[return-value]
    try:
        return parse_time(text, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither all nor new nor a time, such as 2026-11-15 or 15m") from error


def some_length(text: str) -> int:
    """The type of a flag that takes a length of time in seconds, 1s or longer."""
    try:
        seconds = int(parse_duration(text).total_seconds())
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if seconds < 1:
        raise click.BadParameter(f"{text} is shorter than 1s")
    return _at_most(seconds, text, "68 years")


def length(text: str) -> int:
    """The type of a flag that takes a length of time in seconds, 0 or off for none."""
    return 0 if text in ("0", "0s", "off") else some_length(text)


def milliseconds(text: str) -> int:
    """The type of a flag that takes a length of time in milliseconds, such as 250ms or 5s."""
    found = _MILLISECONDS.fullmatch(text.strip())
    return _at_most(int(found[1]) if found else length(text) * 1000, text, "24 days")


def _at_most(number: int, text: str, most: str) -> int:
    if number > LARGEST:
        raise click.BadParameter(f"{text} is longer than {most}")
    return number


def json_text(raw: msgspec.Raw | bytes) -> str:
    """A payload on one line, as it was written but for blanks."""
    import msgspec

    return msgspec.json.format(bytes(raw), indent=-1).decode()


def checked_json(text: bytes, where: str = "") -> msgspec.Raw:
    """A payload that is sent as it was written; raises Usage if it is no JSON."""
    import msgspec

    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "a text is a JSON string, in quotes of its own; --text sends it as it is"
        raise Usage(f"{where or 'the message'} is no JSON: {_fault(text, error)}", hint=hint) from error
    return msgspec.Raw(text.strip())


def _fault(text: bytes, error: Exception) -> str:
    """What is wrong with JSON, in a few words."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if not text.strip():
        return "it is empty"
    said = str(error).removeprefix("JSON is malformed: ")
    return "it ends too early" if said == "Input data was truncated" else said


def lines_of_stdin(session: CommandContext) -> Iterator[tuple[int, bytes]]:
    """The lines of stdin that are not empty, with their numbers."""
    if sys.stdin.isatty():
        session.out.note("type one JSON value a line, Ctrl-D ends it")
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            yield number, line


def message_record(message: QueueMessage) -> dict[str, object]:
    """What `--json` says of a message: the members of the HTTP answer."""
    return {
        "id": message.id,
        "transactionId": message.transaction_id,
        "traceId": message.trace_id,
        "data": one_line(message.payload),
        "producerSub": message.producer,
        "createdAt": f"{message.created_at:%Y-%m-%dT%H:%M:%S.%f}Z",
        "partitionId": message.partition_id,
        "partition": message.partition,
        "leaseId": message.lease_id,
        "consumerGroup": message.group,
        "queue": message.queue,
    }


def one_line(payload: msgspec.Raw) -> msgspec.Raw:
    """A payload without line breaks, since a record has one line."""
    import msgspec

    return msgspec.Raw(json_text(payload).encode())


def shown_length(seconds: int) -> str:
    """A length of time as the flags take it; `off` for none."""
    from angelia.cli.times import duration

    return duration(timedelta(seconds=seconds)) if seconds else "off"
