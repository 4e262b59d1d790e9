"""`angelia queue push`: one message, or the lines of stdin."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.grammar import Noun
from angelia.cli.message_body import read_body
from angelia.cli.progress import ProgressBar
from angelia.cli.queue_access import (
    ACTS,
    a_name,
    about,
    an_id,
    caller,
    checked_json,
    lines_of_stdin,
    name_argument,
    next_steps,
)
from angelia.cli.tables import counted
from angelia.errors import AngeliaError, NotFound, TooLarge

if TYPE_CHECKING:
    import msgspec

    from angelia.client import Client, PushedMessage

_AT_ONCE = 1_000
_LONGEST = 32 << 20  # bytes of a request

verbs = Noun("queue", "")


@verbs.verb(example="""angelia queue push jobs '{"task":"resize","id":7}'""", needs=ACTS)
@name_argument
@click.argument("body", metavar="[JSON]", required=False)
@click.option("--partition", type=a_name, metavar="P", help="its partition, whose messages stay in order (Default)")
@click.option(
    "--id", "transaction_id", type=an_id, metavar="ID", help="an id of yours: a second message with it is a duplicate"
)
@click.option("--trace-id", type=an_id, metavar="ID", help="a trace that it belongs to")
@click.option("--text", "is_text", is_flag=True, help="push the text as a JSON string")
@click.option("--lines", is_flag=True, help="push each line of stdin: NDJSON, or with --text any text")
def push(
    session: CommandContext,
    name: str,
    body: str | None,
    partition: str | None,
    transaction_id: str | None,
    trace_id: str | None,
    is_text: bool,
    lines: bool,
) -> None:
    """Push a message: any JSON, as an argument or from stdin. A queue that does not exist is made."""
    if lines and (body is not None or transaction_id is not None):
        raise Usage("--lines reads the messages from stdin", hint=f"{about('push', name)} --lines < messages.ndjson")
    client = caller(session)
    with next_steps(name):
        if lines:
            _push_lines(session, client, name, partition, is_text)
            return
        payload = _payload(_body(session, body), is_text, from_stdin=body in (None, "-"))
        is_new = not session.shared.quiet and not session.shared.json and _is_new(client, name)
        pushed = client.queues.push(
            name, payload, partition=partition, transaction_id=transaction_id, trace_id=trace_id
        )
    place = f"{name}/{partition or 'Default'}"
    said = {
        "queued": f"queued in {place}{' (new queue)' if is_new else ''}",
        "duplicate": f"duplicate: {place} has a message with this id already",
        "buffered": f"buffered for {place}: pushes are paused, and it is stored when they are resumed",
    }[pushed.status]
    id_ = pushed.id or pushed.transaction_id
    session.out.done(_pushed_record(pushed), said, id_, quietly=id_)


def _body(session: CommandContext, given: str | None) -> bytes:
    """The bytes of a message; `-` or nothing means stdin."""
    if given not in (None, "-"):
        return read_body(session, given)
    if sys.stdin.isatty():
        session.out.note("type the message, Ctrl-D ends it")
    body = sys.stdin.buffer.read(_LONGEST + 1)
    if len(body) > _LONGEST:
        raise TooLarge("a push has at most 32 MiB, and stdin has more", hint="--lines pushes each line by itself")
    return body


def _push_lines(session: CommandContext, client: Client, name: str, partition: str | None, is_text: bool) -> None:
    """Pushes the lines of stdin, a portion at a time; what was pushed before an error stays."""
    done = 0
    lines = lines_of_stdin(session)
    payloads = (_payload(line, is_text, from_stdin=True, where=f"line {number:,}") for number, line in lines)
    try:
        with ProgressBar(session.out, "pushing", "messages") as progress:
            for some in _portions(payloads):
                pushed = client.queues.push_many(name, some, partition=partition)
                done += len(pushed)
                progress.advance(len(pushed))
                if session.shared.json:
                    session.out.records(map(_pushed_record, pushed))
                elif session.shared.quiet:
                    for one in pushed:
                        session.out.line(one.id or one.transaction_id)
    except AngeliaError as error:
        done += len(taken) if isinstance(taken := error.members.get("pushed"), list) else 0
        if done:
            error.hint = f"{counted(done, 'message')} before it {'is' if done == 1 else 'are'} pushed" + (
                f"; {error.hint}" if error.hint else ""
            )
        raise
    except KeyboardInterrupt:
        session.out.note(f"\n{counted(done, 'message')} pushed to {name}")
        raise
    if not session.shared.json and not session.shared.quiet:
        session.out.line(f"queued {counted(done, 'message')} in {name}/{partition or 'Default'}")


def _portions(payloads: Iterator[msgspec.Raw]) -> Iterator[list[msgspec.Raw]]:
    """Messages in portions. The first ones are small, so that a slow pipe does not wait for a thousand lines. Before a
    line that is wrong come all those before it."""
    size = 1
    while True:
        some = list[Any]()
        try:
            for payload in islice(payloads, size):
                some.append(payload)
        except Usage:
            if some:
                yield some
            raise
        if not some:
            return
        yield some
        size = min(2 * size, _AT_ONCE)


def _payload(body: bytes, is_text: bool, *, from_stdin: bool, where: str = "") -> msgspec.Raw:
    import msgspec

    if not is_text:
        return checked_json(body, where)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Usage(f"{where or 'the message'} is not UTF-8 text") from error
    return msgspec.Raw(msgspec.json.encode(text.removesuffix("\n") if from_stdin else text))


def _is_new(client: Client, name: str) -> bool:
    """Whether a queue does not exist yet, as far as the caller may see."""
    try:
        client.queues.messages(name, limit=1)
    except NotFound:
        return True
    except AngeliaError:
        return False
    return False


def _pushed_record(pushed: PushedMessage) -> dict[str, object]:
    return {
        "status": pushed.status,
        "transaction_id": pushed.transaction_id,
        "message_id": pushed.id,
        "partition_id": pushed.partition_id,
        "trace_id": pushed.trace_id,
        "queueName": pushed.queue,
    }
