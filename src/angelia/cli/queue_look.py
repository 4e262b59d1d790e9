"""Verbs that look at queues and change nothing: list, show, tail, read, groups, lag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.escaping import escape_json, escape_line
from angelia.cli.flags import PAGE, Needs
from angelia.cli.grammar import Noun
from angelia.cli.paging import ago, pages_of, server_pages, short, show_list
from angelia.cli.queue_access import (
    ACTS,
    NO_GROUP,
    a_name,
    about,
    caller,
    group_flag,
    json_text,
    name_argument,
    next_steps,
    one_line,
    partition_flag,
    queue_names,
    shown_length,
    words,
)
from angelia.cli.tables import GAP, Column, counted
from angelia.cli.times import age, full
from angelia.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from angelia.client import QueueMessage
    from angelia.client.queue_verbs import BlockingQueues
    from angelia.queues.listings_api import GroupEntry, GroupPartition, PartitionEntry
    from angelia.queues.operator_api import QueueRecord, QueueSummary

_FIRST = """angelia queue push jobs '{"task":"resize"}'"""

verbs = Noun("queue", "")


@verbs.verb(name="list", example="angelia queue list", needs=ACTS | Needs.PAGES)
@click.argument("prefix", type=words, metavar="[PREFIX]", required=False, shell_complete=queue_names)
@click.option("--namespace", type=a_name, metavar="N", help="only of this namespace")
@click.option("--task", type=a_name, metavar="T", help="only of this task")
def list_(session: CommandContext, prefix: str | None, namespace: str | None, task: str | None) -> None:
    """List queues by name, with their states.

    STATE is ok; behind: the oldest message waits for over 60 s, and no fewer come in than go out;
    stuck: messages wait, and none was settled for 5 min; or paused. IN/S and OUT/S are about the
    last minute or two, LAG is the age of the oldest message that waits."""
    columns: list[Column[QueueSummary]] = [
        Column("NAME", lambda q: q.name, long=True),
        Column("STATE", lambda q: q.state),
        Column("PENDING", lambda q: f"{q.pending:,}", right=True),
        Column("LEASED", lambda q: f"{q.leased:,}", right=True),
        Column("DEAD", lambda q: f"{q.dead:,}", right=True),
        Column("IN/S", lambda q: f"{q.in_per_second:,.1f}", right=True),
        Column("OUT/S", lambda q: f"{q.out_per_second:,.1f}", right=True),
        Column("LAG", lambda q: age(timedelta(seconds=q.lag_seconds)), right=True),
        Column("PARTITIONS", lambda q: f"{q.partitions:,}", right=True),
    ]
    query = {"name": prefix, "namespace": namespace, "task": task}
    fetch = server_pages(caller(session).queues.list, lambda page: page.queues, **query)
    nothing, hint = ("no such queues", "angelia queue list") if any(query.values()) else ("no queues yet", _FIRST)
    with next_steps(None):
        show_list(session, fetch, columns, nothing=nothing, hint=hint)


@verbs.verb(example="angelia queue show jobs", needs=ACTS)
@name_argument
def show(session: CommandContext, name: str) -> None:
    """Show a queue: its state, options and consumer groups."""
    with next_steps(name):
        found = caller(session).queues.show(name)
    session.out.thing(found, queue_facts(found), quietly=found.name)


@verbs.verb(example="angelia queue partitions jobs", needs=ACTS | Needs.PAGES)
@name_argument
def partitions(session: CommandContext, name: str) -> None:
    """List the partitions of a queue, with what each has."""
    columns: list[Column[PartitionEntry]] = [
        Column("PARTITION", lambda p: p.name, long=True),
        Column("MESSAGES", lambda p: f"{p.stats.total:,}", right=True),
        Column("PENDING", lambda p: f"{p.stats.pending:,}", right=True),
        Column("LEASED", lambda p: f"{p.stats.processing:,}", right=True),
        Column("DEAD", lambda p: f"{p.stats.dead_letter:,}", right=True),
        Column("EVICTED", lambda p: f"{p.stats.evicted:,}", right=True),
        Column("OLDEST", lambda p: _since(p.oldest_message), right=True),
        Column("NEWEST", lambda p: _since(p.newest_message), right=True),
    ]
    queues = caller(session).queues
    with next_steps(name):
        queues.show(name)  # an unknown queue is an error, and no empty table
        found = queues.partitions(name)
    show_list(session, pages_of(found), columns, nothing=f"no partitions of {name}", hint=_FIRST)


def queue_facts(queue: QueueRecord) -> list[tuple[str, str]]:
    """What `show` says of a queue."""
    from angelia.client.queue_calls import options_of

    rates = f"{queue.in_per_second:,.1f}/s in, {queue.out_per_second:,.1f}/s out, over the last minute or two"
    options = options_of(queue.options)
    dead = counted(queue.dead, "dead letter")
    return [
        ("queue", queue.name),
        ("state", queue.state),
        ("messages", f"{queue.pending:,} pending, {queue.leased:,} leased, {dead}"),
        ("rates", rates),
        ("lag", f"{age(timedelta(seconds=queue.lag_seconds))}: the oldest message that waits"),
        ("partitions", f"{queue.partitions:,}"),
        ("namespace", queue.namespace),
        ("task", queue.task),
        *option_facts(options),
        *[("group", f"{_group(one.name) or '-'}: {one.lag:,} behind, {_lag(one.lag_seconds)}") for one in queue.groups],
        ("created", full(queue.created_at)),
    ]


def option_facts(options: Any) -> list[tuple[str, str]]:
    """The options of a queue that have an effect."""
    if not options.retention_enabled:
        kept = "for ever"
    else:
        rules = (
            ("messages", options.retention_seconds),
            ("consumed ones", options.completed_retention_seconds),
            ("empty partitions", options.partition_retention_seconds),
        )
        kept = ", ".join(f"{what} for {shown_length(length)}" for what, length in rules if length) or "for ever"
    delay = timedelta(milliseconds=options.retry_delay)
    again = f"{options.retry_delay:,} ms" if delay.microseconds else shown_length(options.retry_delay // 1000)
    return [
        ("lease", shown_length(options.lease_time or 60)),
        ("retries", f"{options.retry_limit:,}" + (f", each after {again}" if options.retry_delay else "")),
        ("priority", f"{options.priority}"),
        ("delay", shown_length(options.delayed_processing)),
        ("window", shown_length(options.window_buffer)),
        ("max size", f"{options.max_size:,}" if options.max_size else "off"),
        ("max wait", shown_length(options.max_wait_time_seconds)),
        ("kept", kept),
        ("archive", "yes" if options.archive_enabled else "no"),
        ("encrypted", "yes" if options.encryption_enabled else "no"),
    ]


# Messages.


@verbs.verb(example="angelia queue tail jobs -n 5", needs=ACTS)
@name_argument
@partition_flag
@click.option("-n", "--limit", "most", type=click.IntRange(0, 1000), default=10, metavar="N", help="begin with (10)")
@click.option("-f", "--follow", is_flag=True, expose_value=False, help="go on until Ctrl-C, as it always does")
def tail(session: CommandContext, name: str, partition: str | None, most: int) -> None:
    """Print the newest messages, then what is pushed, until Ctrl-C.

    A line has time, id, partition and payload. Consumers do not notice: nothing is leased, and no
    cursor moves."""
    queues = caller(session).queues
    with next_steps(name):
        queues.messages(name, limit=1)  # a wrong URL is an error; only a server that was there is waited for
        for message in queues.tail(name, partition=partition, newest=most):
            _print(session, [message])


@verbs.verb(example="angelia queue read jobs -n 20", needs=ACTS | Needs.PAGES)
@name_argument
@partition_flag
def read(session: CommandContext, name: str, partition: str | None) -> None:
    """Print the messages that a queue keeps, the oldest first.

    They may be consumed or not. A line has time, id, partition and payload. Consumers do not notice:
    nothing is leased, and no cursor moves."""
    shared, queues = session.shared, caller(session).queues
    after, count = shared.cursor, 0
    place = f"{name}/{partition}" if partition else name
    with next_steps(name), _cursor_of(name, after):
        while True:
            page = queues.messages(name, partition=partition, after=after, limit=shared.limit or PAGE)
            _print(session, page.messages)
            count += len(page.messages)
            more = len(page.messages) == (shared.limit or PAGE)
            after = page.next
            if not more or not shared.all_pages:
                break
        if count == 0:
            if shared.require:
                raise NotFound(f"no messages in {place}", hint=about("show", name))
            session.out.note(f"no messages in {place}")
        elif more and queues.messages(name, partition=partition, after=after, limit=1).messages:
            session.out.note(f"{count:,} shown; --all or --cursor {after}")


@contextmanager
def _cursor_of(name: str, cursor: str | None) -> Iterator[None]:
    """Turns the refusal of a cursor into one that names the flag."""
    try:
        yield
    except InvalidArgument as error:
        if cursor is None or "`after`" not in error.message:
            raise
        raise Usage(f"--cursor: {cursor!r} is no cursor of this list", hint=about("read", name)) from error


def _print(session: CommandContext, messages: Iterable[QueueMessage]) -> None:
    for one in messages:
        if session.shared.json:
            session.out.records([_record(one)])
        else:
            place = (_time(one.created_at), short(one.id), escape_line(one.partition))
            session.out.painted([GAP.join((*place, escape_json(json_text(one.payload))))])
    session.out.stdout.flush()


def _record(message: QueueMessage) -> dict[str, object]:
    """What `--json` says of a message that is only read."""
    return {
        "id": message.id,
        "transaction_id": message.transaction_id,
        "trace_id": message.trace_id,
        "queue": message.queue,
        "partition": message.partition,
        "partition_id": message.partition_id,
        "producer": message.producer,
        "created_at": message.created_at,
        "data": one_line(message.payload),
    }


def _time(at: datetime) -> str:
    """The time of day of a message of today, else its date too."""
    text = full(at)
    return text[11:] if at.date() == datetime.now(UTC).date() else text


# Consumer groups.


@verbs.verb(example="angelia queue groups jobs", needs=ACTS | Needs.PAGES)
@click.argument("name", type=a_name, metavar="[NAME]", required=False, shell_complete=queue_names)
def groups(session: CommandContext, name: str | None) -> None:
    """List consumer groups, and how far each is behind.

    STATE is stable; lagging: a message waits for over 5 min; or dead: it has consumed
    nothing and holds no lease. MEMBERS is how many consumers hold a lease.
    The group `-` is that of consumers that name none."""
    columns: list[Column[GroupEntry]] = [
        Column("GROUP", lambda g: _group(g.name), long=True),
        Column("QUEUE", lambda g: g.queue_name, long=True),
        Column("STATE", lambda g: g.state.lower()),
        Column("BEHIND", lambda g: f"{g.total_lag:,}", right=True),
        Column("LAG", lambda g: _lag(g.max_time_lag), right=True),
        Column("PARTITIONS", lambda g: f"{g.partitions_with_lag:,}", right=True),
        Column("MEMBERS", lambda g: f"{g.members:,}", right=True),
        Column("SINCE", lambda g: _since(g.subscription_created_at), right=True),
    ]
    queues = caller(session).queues
    with next_steps(name):
        if name is not None:
            queues.show(name)
        found = queues.groups(name)
    hint = about("pop", name or "jobs", "mailer")
    show_list(session, pages_of(found), columns, nothing="no consumer groups yet", hint=hint)


@verbs.verb(example="angelia queue lag jobs --group mailer", needs=ACTS | Needs.PAGES)
@name_argument
@group_flag
def lag(session: CommandContext, name: str, group: str | None) -> None:
    """List partitions, and how far a consumer group is in each.

    LEASED BY is the consumer that has it leased now."""
    columns: list[Column[GroupPartition]] = [
        Column("PARTITION", lambda p: p.partition, long=True),
        Column("BEHIND", lambda p: f"{p.offset_lag:,}", right=True),
        Column("LAG", lambda p: _lag(p.time_lag_seconds), right=True),
        Column("CONSUMED", lambda p: f"{p.total_consumed:,}", right=True),
        Column("LAST", lambda p: _since(p.last_consumed_at), right=True),
        Column("LEASED BY", lambda p: (p.worker_id or "?") if p.lease_active else "", long=True),
    ]
    queues = caller(session).queues
    with next_steps(name):
        queues.show(name)
        found = sorted(_partitions(queues, name, group or NO_GROUP), key=lambda p: -p.time_lag_seconds)
    nothing = f"no consumer has read {name}" + (f" as {group}" if group else "")
    show_list(session, pages_of(found), columns, nothing=nothing, hint=about("groups", name))


def _partitions(queues: BlockingQueues, name: str, group: str) -> list[GroupPartition]:
    """How far a consumer group is in a queue; empty if it has never read it."""
    try:
        by_queue = queues.group(group)
    except NotFound:
        return []
    return by_queue[name].partitions if name in by_queue else []


def _group(name: str) -> str:
    return "" if name == NO_GROUP else name


def _lag(seconds: int) -> str:
    return age(timedelta(seconds=seconds))


def _since(stamp: str | None) -> str:
    """How long ago a time of the wire was."""
    return "" if stamp is None else ago(datetime.fromisoformat(stamp))
