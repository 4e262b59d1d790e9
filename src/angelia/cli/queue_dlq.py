"""`angelia queue dlq`: dead letters, on which consumer groups gave up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.errors import Usage
from angelia.cli.flags import Needs
from angelia.cli.grammar import Noun
from angelia.cli.paging import SHORTEST_PREFIX, Page, ago, every, short, show_list
from angelia.cli.queue_access import (
    ACTS,
    NO_GROUP,
    a_name,
    about,
    caller,
    json_text,
    name_argument,
    next_steps,
    one_line,
    words,
)
from angelia.cli.tables import Column, counted
from angelia.cli.times import full
from angelia.errors import AmbiguousId, NotFound

if TYPE_CHECKING:
    from angelia.client.queue_admin_calls import LetterOptions, QueueDeadLetter
    from angelia.client.queue_verbs import BlockingQueues

F = TypeVar("F", bound=Callable[..., Any])

command = Noun("dlq", "dead letters: list, show, requeue, purge")


def _filters(verb: F) -> F:
    """The flags that choose dead letters, besides --since and --until, which are about the failure."""
    verb = click.option("--error", type=words, metavar="GLOB", help='only errors like this, such as "timeout*"')(verb)
    verb = click.option("--partition", type=a_name, metavar="P", help="only of this partition")(verb)
    return click.option("--group", type=a_name, metavar="G", help="only of this consumer group")(verb)


@command.verb(name="list", example="angelia queue dlq list orders", needs=ACTS | Needs.PAGES | Needs.PERIOD)
@click.argument("name", type=a_name, metavar="[NAME]", required=False)
@_filters
def list_(
    session: CommandContext, name: str | None, group: str | None, partition: str | None, error: str | None
) -> None:
    """List dead letters of a queue, or of all, the newest first."""
    columns: list[Column[QueueDeadLetter]] = [
        Column("ID", lambda d: short(d.id)),
        Column("QUEUE", lambda d: d.queue, long=True),
        Column("PARTITION", lambda d: d.partition, long=True),
        Column("GROUP", lambda d: "" if d.group == NO_GROUP else d.group, long=True),
        Column("RETRIES", lambda d: f"{d.retries:,}", right=True),
        Column("FAILED", lambda d: ago(d.failed_at), right=True),
        Column("ERROR", lambda d: d.error, long=True),
    ]
    if name is not None:
        del columns[1]
    queues = caller(session).queues

    def fetch(cursor: str | None, limit: int) -> Page[Any]:
        if cursor is not None and not cursor.isdecimal():
            raise Usage(f"{cursor!r} is no cursor of this list", hint=_look(name))
        begin = int(cursor or 0)
        page = queues.dead_letters(
            name,
            group=group,
            partition=partition,
            error=error,
            since=session.shared.since,
            until=session.shared.until,
            limit=limit,
            offset=begin,
        )
        end = begin + len(page.letters)
        rows = [_record(one) for one in page.letters] if session.shared.json else page.letters
        return Page(rows, str(end) if end < page.total and page.letters else None, page.total)

    with next_steps(name):
        if name is not None:
            queues.show(name)
        of = f" of {name}" if name else ""
        chosen = group or partition or error or session.shared.since or session.shared.until
        none = f"no dead letters{of}" + (" that these flags choose" if chosen else "")
        others = "angelia queue list" if name is None else about("show", name)
        show_list(session, fetch, columns, nothing=none, hint=_look(name) if chosen else others)


@command.verb(example="angelia queue dlq show orders 01a1e0d9-c2d", needs=ACTS)
@name_argument
@click.argument("id_", metavar="ID")
@click.option("--group", type=a_name, metavar="G", help="only of this consumer group")
def show(session: CommandContext, name: str, id_: str, group: str | None) -> None:
    """Show a dead letter with its payload.

    ID is its id or the beginning of it, or its transactionId."""
    queues = caller(session).queues
    with next_steps(name):
        queues.show(name)
        found = _found(queues, name, id_, group)
    facts = [
        ("id", found.id),
        ("transaction id", found.transaction_id),
        ("queue", f"{found.queue}/{found.partition}"),
        ("group", "" if found.group == NO_GROUP else found.group),
        ("error", found.error),
        ("retries", f"{found.retries:,}"),
        ("producer", found.producer or ""),
        ("pushed", full(found.created_at)),
        ("failed", full(found.failed_at)),
        ("payload", json_text(found.payload)),
    ]
    session.out.thing(_record(found), facts, quietly=found.id)


@command.verb(example='angelia queue dlq requeue orders --error "timeout*"', needs=ACTS | Needs.PERIOD)
@name_argument
@click.argument("id_", metavar="[ID]", required=False)
@_filters
@click.option("--dry-run", "only_count", is_flag=True, help="say how many, and do nothing")
def requeue(
    session: CommandContext,
    name: str,
    id_: str | None,
    group: str | None,
    partition: str | None,
    error: str | None,
    only_count: bool,
) -> None:
    """Put dead letters back: one, those that flags choose, or all.

    Each goes to the end of its partition, for its consumer group alone."""
    queues = caller(session).queues
    chosen = _chosen(session, group, partition, error)
    with next_steps(name):
        queues.show(name)
        if id_ is not None:
            _only(chosen, _found(queues, name, id_, group))
        done = queues.requeue_dead_letters(name, dry_run=only_count, **chosen)
    what = f"{counted(done.count, 'dead letter')} of {name}"
    if done.count == 0:
        session.out.done(done, f"no dead letters of {name} to requeue")
    elif only_count:
        session.out.note(f"dry run: would requeue {what}; nothing done")
    else:
        session.out.done(done, f"requeued {what} ({done.left:,} left)")


@command.verb(example='angelia queue dlq purge orders --error "timeout*"', needs=ACTS | Needs.PERIOD | Needs.YES)
@name_argument
@click.argument("id_", metavar="[ID]", required=False)
@_filters
def purge(
    session: CommandContext, name: str, id_: str | None, group: str | None, partition: str | None, error: str | None
) -> None:
    """Delete dead letters for good: one, those that flags choose, or all."""
    queues = caller(session).queues
    chosen = _chosen(session, group, partition, error)
    with next_steps(name):
        queues.show(name)
        if id_ is not None:
            _only(chosen, _found(queues, name, id_, group))
        count = queues.purge_dead_letters(name, dry_run=True, **chosen).count
        if count == 0:
            session.out.done({"count": 0}, f"no dead letters of {name} to purge")
            return
        letters = counted(count, "dead letter")
        deed = Deed("purge", "purging", f"{letters} of {name}", _look(name), count, briefly=letters)
        if not may(session, deed):
            return
        done = queues.purge_dead_letters(name, **chosen)
    session.out.done(done, f"purged {counted(done.count, 'dead letter')} of {name} ({done.left:,} left)")


def _chosen(session: CommandContext, group: str | None, partition: str | None, error: str | None) -> LetterOptions:
    shared = session.shared
    return {
        "group": group,
        "partition": partition,
        "error": error,
        "since": shared.since,
        "until": shared.until,
    }


def _only(chosen: LetterOptions, letter: QueueDeadLetter) -> None:
    """Narrows a choice to one dead letter."""
    chosen["transaction_id"] = letter.transaction_id
    chosen["partition"], chosen["group"] = letter.partition, letter.group


def _found(queues: BlockingQueues, name: str, id_: str, group: str | None) -> QueueDeadLetter:
    """The one dead letter with this id or transactionId, or whose id begins like this."""

    def fetch(cursor: str | None, limit: int) -> Page[QueueDeadLetter]:
        begin = int(cursor or 0)
        page = queues.dead_letters(name, group=group, limit=limit, offset=begin)
        end = begin + len(page.letters)
        return Page(page.letters, str(end) if end < page.total and page.letters else None)

    is_prefix = len(id_) >= SHORTEST_PREFIX
    found = [
        one
        for one in every(fetch)
        if one.transaction_id == id_ or one.id == id_ or (is_prefix and one.id.startswith(id_.lower()))
    ]
    if not found:
        raise NotFound(f"there is no dead letter {id_} of {name}", hint=_look(name))
    if len(found) > 1:
        hint = f"`{_look(name)} --json` has their whole ids; --group says of which consumer group"
        raise AmbiguousId(f"{len(found)} dead letters of {name} begin with {id_}", hint=hint)
    return found[0]


def _look(name: str | None) -> str:
    return "angelia queue dlq list" if name is None else about("dlq list", name)


def _record(letter: QueueDeadLetter) -> dict[str, object]:
    """What `--json` says of a dead letter: the members of the HTTP answer."""
    return {
        "id": letter.id,
        "transactionId": letter.transaction_id,
        "traceId": letter.trace_id,
        "partitionId": letter.partition_id,
        "queue": letter.queue,
        "partition": letter.partition,
        "consumerGroup": letter.group,
        "errorMessage": letter.error,
        "retryCount": letter.retries,
        "data": one_line(letter.payload),
        "producerSub": letter.producer,
        "createdAt": _stamp(letter.created_at),
        "failedAt": _stamp(letter.failed_at),
    }


def _stamp(at: datetime) -> str:
    """A time as these routes write it."""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"
