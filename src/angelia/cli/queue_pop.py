"""`angelia queue pop` and `ack`: take messages, and say how the work on them ended."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Unpack

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.escaping import escape_json
from angelia.cli.grammar import Noun
from angelia.cli.queue_access import (
    ACTS,
    NO_GROUP,
    a_name,
    an_id,
    caller,
    group_flag,
    json_text,
    lines_of_stdin,
    message_record,
    next_steps,
    partition_flag,
    queue_names,
    start,
    words,
)
from angelia.cli.tables import counted
from angelia.cli.times import age
from angelia.errors import AngeliaError, NotFound

if TYPE_CHECKING:
    from angelia.client import Client, QueueMessage, SettledMessage
    from angelia.client.queue_calls import PopOptions, Start
    from angelia.client.queue_messages import ClaimedMessages

_AT_ONCE = 1_000
_LINES = "as `angelia queue pop NAME --json` prints them"
_WAIT = 20.0  # seconds of one request
_SOON, _PAUSE = 0.5, 1.0  # an answer without messages that comes so soon is not asked for again at once

verbs = Noun("queue", "")


@verbs.verb(example="angelia queue pop jobs --ack", needs=ACTS)
@click.argument("name", type=a_name, metavar="[NAME]", required=False, shell_complete=queue_names)
@group_flag
@partition_flag
@click.option("--namespace", type=a_name, metavar="N", help="of all queues of this namespace; no NAME")
@click.option("--task", type=a_name, metavar="T", help="of all queues of this task; no NAME")
@click.option("-n", "--limit", "most", type=click.IntRange(1, 10_000), default=1, metavar="N", help="so many (1)")
@click.option("--partitions", type=click.IntRange(1, 1000), default=1, metavar="N", help="of so many partitions (1)")
@click.option(
    "--wait", is_flag=False, flag_value="", metavar="[S]", help="wait so many seconds; without S until some come"
)
@click.option(
    "--start", "begins", type=start, metavar="T", help="a new consumer group begins at: all, new, a time (all)"
)
@click.option("--ack", is_flag=True, help="acknowledge them when they are printed")
@click.option("--require", "must", is_flag=True, help="no message is an error (exit 8)")
def pop(
    session: CommandContext,
    name: str | None,
    group: str | None,
    partition: str | None,
    namespace: str | None,
    task: str | None,
    most: int,
    partitions: int,
    wait: str | None,
    begins: Start | None,
    ack: bool,
    must: bool,
) -> None:
    """Take messages and print their payloads, a line each. To look without taking: `queue tail`.

    Without --ack they are leased: other consumers of the group do not get them, and unless they are
    acknowledged in time they are delivered again."""
    if name is None and namespace is None and task is None:
        raise Usage(
            "`angelia queue pop` needs NAME, --namespace or --task", hint="as in `angelia queue pop jobs --ack`"
        )
    if name is not None and (namespace or task):
        raise Usage("NAME and --namespace or --task both say which queues", hint="say one of them")
    client = caller(session)
    with next_steps(name):
        found = _claimed(
            client,
            name,
            _seconds(wait),
            partition=partition,
            group=group,
            batch=most,
            partitions=partitions,
            start=begins,
            namespace=namespace,
            task=task,
        )
        if not found.messages:
            _say_why_nothing_came(session, client, name, must)
            return
        _print(session, found.messages)
        if ack:
            client.queues.ack(found.messages)
            session.out.note(f"acknowledged {len(found.messages):,}")
        elif not session.shared.json:
            _say_how_to_ack(session, found)


def _seconds(wait: str | None) -> float:
    """How long to wait; without a number as long as it takes."""
    if wait is None:
        return 0.0
    try:
        seconds = float(wait or "inf")
    except ValueError:
        seconds = -1.0
    if seconds >= 0:
        return seconds
    raise Usage(f"--wait: {wait!r} is no number of seconds", hint="without S it waits until some come")


def _claimed(client: Client, name: str | None, seconds: float, **options: Unpack[PopOptions]) -> ClaimedMessages:
    """Claims messages. A long wait takes several requests."""
    from angelia.client.queue_calls import claim

    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        left = max(0.0, deadline - began)
        options["wait"] = min(left, _WAIT)
        found = client.run(claim(name, **options))
        if found.messages or left <= 0:
            return found
        if time.monotonic() - began < _SOON:  # pops are paused, or the server is stopping
            time.sleep(min(left, _PAUSE))


def _say_why_nothing_came(session: CommandContext, client: Client, name: str | None, must: bool) -> None:
    """Prints that there was no message, and why as far as the caller may see; with `must` that is an error."""
    nothing, hint = f"nothing to deliver{f' in {name}' if name else ''}", ""
    if must or not session.shared.quiet:
        try:
            if client.queues.maintenance().pop_maintenance_mode:
                nothing, hint = f"{nothing}: pops are paused in all queues", "`angelia queue resume` ends that"
            elif name is not None:
                client.queues.messages(name, limit=1)
        except NotFound:
            nothing, hint = f"{nothing}: there is no such queue yet", "angelia queue list"
        except AngeliaError:
            pass
    if must:
        raise NotFound(nothing, hint=hint or "--wait waits for messages")
    session.out.note(nothing)
    if hint:
        session.out.note(f"hint: {hint}")


def _print(session: CommandContext, messages: Sequence[QueueMessage]) -> None:
    if session.shared.json:
        session.out.records(map(message_record, messages))
    else:
        session.out.painted(escape_json(json_text(one.payload)) for one in messages)
    session.out.stdout.flush()  # before they are acknowledged


def _say_how_to_ack(session: CommandContext, found: ClaimedMessages) -> None:
    lasts = f" for {age(timedelta(seconds=found.lease_seconds))}" if found.lease_seconds else ""
    if len(found.messages) > 1:
        session.out.note(f"leased{lasts}; with --json it prints what `angelia queue ack --lines` reads")
        return
    [one] = found.messages
    group = "" if one.group in ("", NO_GROUP) else f" --group {shlex.quote(one.group)}"
    which = f"{shlex.quote(one.transaction_id)} --partition-id {one.partition_id} --lease {one.lease_id}{group}"
    session.out.note(f"leased{lasts}; `angelia queue ack {which}` acknowledges it, else it is delivered again")


@verbs.verb(example="angelia queue pop jobs -n 10 --json | angelia queue ack --lines", needs=ACTS)
@click.argument("transaction_id", type=an_id, metavar="[ID]", required=False)
@click.option(
    "--partition-id", type=words, metavar="UUID", help="the id of its partition, as `queue pop --json` prints it"
)
@click.option("--lease", type=words, metavar="UUID", help="the lease under which it was popped")
@group_flag
@click.option("--lines", is_flag=True, help="acknowledge the messages of stdin, as `queue pop --json` prints them")
@click.option("--failed", is_flag=True, help="it failed: deliver it again, or make it a dead letter after too many")
@click.option("--retry", is_flag=True, help="give it back: deliver it again, without counting a failure")
@click.option("--dead", is_flag=True, help="make it a dead letter at once")
@click.option("--error", metavar="TEXT", help="with --failed and --dead: why")
def ack(
    session: CommandContext,
    transaction_id: str | None,
    partition_id: str | None,
    lease: str | None,
    group: str | None,
    lines: bool,
    failed: bool,
    retry: bool,
    dead: bool,
    error: str | None,
) -> None:
    """Say how the work on popped messages ended; completed by default.

    ID is a message's transactionId."""
    if failed + retry + dead > 1:
        raise Usage("--failed, --retry and --dead exclude each other", hint="say one of them")
    if error is not None and not (failed or dead):
        raise Usage("--error goes with --failed or --dead")
    if lines == (transaction_id is not None) or lines == (partition_id is not None):
        raise Usage(
            "`angelia queue ack` needs ID and --partition-id, or --lines",
            hint="`angelia queue pop jobs --json` prints both; its lines go into `angelia queue ack --lines`",
        )
    queues = caller(session).queues

    def settle(some: list[QueueMessage]) -> list[SettledMessage]:
        if failed:
            return queues.nack(some, error)
        if dead:
            return queues.dead_letter(some, error)
        return queues.retry(some) if retry else queues.ack(some)

    messages = (
        (_read(number, line, group) for number, line in lines_of_stdin(session))
        if lines
        else iter([_message(transaction_id or "", partition_id or "", lease or "", group or "")])
    )
    done = died = 0
    with _which_message():
        while some := list(islice(messages, _AT_ONCE)):
            settled = settle(some)
            done, died = done + len(settled), died + sum(one.dead_letter for one in settled)
            if session.shared.json:
                session.out.records(map(_settled_record, settled))
    if not session.shared.json and not session.shared.quiet:
        word = "gave up" if dead else "failed" if failed else "gave back" if retry else "acknowledged"
        session.out.line(f"{word} {done:,}" + (f"; {counted(died, 'dead letter')}" if died else ""))


@contextmanager
def _which_message() -> Iterator[None]:
    """Adds the hint where the names of a message are found."""
    with next_steps(None):
        try:
            yield
        except NotFound as error:
            error.hint = "ID, --partition-id, --lease and --group are as `angelia queue pop NAME --json` printed them"
            raise


def _settled_record(settled: SettledMessage) -> dict[str, object]:
    return {
        "transactionId": settled.transaction_id,
        "success": True,
        "leaseReleased": settled.lease_released,
        "dlq": settled.dead_letter,
    }


def _read(number: int, line: bytes, group: str | None) -> QueueMessage:
    """A message as `queue pop --json` prints it."""
    import msgspec

    try:
        said = msgspec.json.decode(line, type=dict[str, object])
        if missing := [name for name in ("transactionId", "partitionId") if not said.get(name)]:
            raise Usage(f"line {number:,} is no message: it has no {missing[0]}", hint=_LINES)
        ids = [said.get(name) or "" for name in ("transactionId", "partitionId", "leaseId", "consumerGroup")]
        return _message(*msgspec.convert([*ids[:3], group or ids[3]], tuple[str, str, str, str]))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Usage(f"line {number:,} is no message: {error}", hint=_LINES) from error


def _message(transaction_id: str, partition_id: str, lease: str, group: str) -> QueueMessage:
    import msgspec

    from angelia.client import QueueMessage

    return QueueMessage(
        id="",
        transaction_id=transaction_id,
        queue="",
        partition="",
        partition_id=partition_id,
        created_at=datetime.now(UTC),
        payload=msgspec.Raw(b"null"),
        lease_id=lease,
        group=group,
    )
