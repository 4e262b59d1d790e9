"""Verbs that change queues and consumer groups: configure, replay, pause, resume, clear, delete."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.errors import Usage
from angelia.cli.flags import Needs
from angelia.cli.grammar import Noun
from angelia.cli.queue_access import (
    ACTS,
    LARGEST,
    a_name,
    about,
    caller,
    group_flag,
    length,
    milliseconds,
    name_argument,
    next_steps,
    partition_flag,
    shown_length,
    some_length,
    words,
)
from angelia.cli.queue_look import option_facts
from angelia.cli.tables import counted
from angelia.cli.times import full, parse_time
from angelia.errors import NotFound

if TYPE_CHECKING:
    from angelia.client import Client
    from angelia.client.queue_admin_calls import Place
    from angelia.client.queue_calls import QueueOptions
    from angelia.client.queue_verbs import BlockingQueues
    from angelia.queues.model import Options
    from angelia.queues.operator_api import QueueRecord

_NEVER = 1 << 62  # seconds, of a rule that is off
_COUNT, _NUMBER = click.IntRange(0, LARGEST), click.IntRange(-LARGEST, LARGEST)

verbs = Noun("queue", "")


@verbs.verb(example="angelia queue configure jobs --lease 10m --retries 5", needs=ACTS | Needs.YES)
@name_argument
@click.option("--lease", "lease_time", type=some_length, metavar="D", help="how long popped messages are leased (5m)")
@click.option("--retries", "retry_limit", type=_COUNT, metavar="N", help="deliveries after a failure (3)")
@click.option("--retry-delay", type=milliseconds, metavar="D", help="before each of these, such as 250ms or 1m (1s)")
@click.option("--priority", type=_NUMBER, metavar="N", help="higher first, if a pop may choose between queues (0)")
@click.option(
    "--delay", "delayed_processing", type=length, metavar="D", help="deliver messages so long after their push (off)"
)
@click.option("--window", "window_buffer", type=length, metavar="D", help="deliver when no push came for so long (off)")
@click.option("--max-size", type=_COUNT, metavar="N", help="refuse pushes beyond so many pending (0, off)")
@click.option(
    "--max-wait", "max_wait_time_seconds", type=length, metavar="D", help="skip messages that wait for longer (off)"
)
@click.option(
    "--keep", "retention_seconds", type=length, metavar="D", help="remove messages then, consumed or not (off)"
)
@click.option(
    "--keep-consumed", "completed_retention_seconds", type=length, metavar="D", help="remove consumed ones then (off)"
)
@click.option(
    "--keep-empty", "partition_retention_seconds", type=length, metavar="D", help="remove empty partitions then (off)"
)
@click.option("--archive", is_flag=True, help="archive messages before retention removes them")
@click.option("--no-archive", is_flag=True, help="remove them without that")
@click.option("--encrypt", is_flag=True, help="store payloads encrypted from now on")
@click.option("--no-encrypt", is_flag=True, help="store payloads plain from now on; encrypted ones stay readable")
@click.option("--namespace", type=words, metavar="N", help="its namespace: `pop --namespace` pops from several queues")
@click.option("--task", type=words, metavar="T", help="its task: `pop --task` likewise")
@partition_flag
def configure(
    session: CommandContext,
    /,
    name: str,
    archive: bool,
    no_archive: bool,
    encrypt: bool,
    no_encrypt: bool,
    namespace: str | None,
    task: str | None,
    partition: str | None,
    **given: int | None,
) -> None:
    """Make a queue, or change its options.

    Options that are not named stay as they are. D is a length of time such as 90s, 15m or 7d, or off.
    A shorter --keep, --keep-consumed or --max-wait removes messages, and asks first. --partition
    changes that partition alone."""
    if (archive and no_archive) or (encrypt and no_encrypt):
        raise Usage("a flag and its --no- exclude each other", hint="say one of them")
    options: QueueOptions = {n: value for n, value in given.items() if value is not None}  # type: ignore[assignment]
    if archive or no_archive:
        options["archive_enabled"] = archive
    if encrypt or no_encrypt:
        options["encryption_enabled"] = encrypt
    client = caller(session)
    with next_steps(name):
        present = _present(client, name)
        _set_retention(options, present)
        if not _may_change(session, name, options, present):
            return
        done = client.queues.configure(name, namespace=namespace, task=task, partition=partition, **options)
    facts = [("queue", done.name), *([("partition", partition)] if partition else [])]
    facts += [("namespace", done.namespace), ("task", done.task), *option_facts(done.options)]
    record = {"queue": done.name, "queueId": done.id, "namespace": done.namespace, "task": done.task}
    session.out.thing(record | {"options": done.options}, facts, quietly=done.name)


def _present(client: Client, name: str) -> Options | None:
    """The options of a queue; None if it does not exist."""
    from angelia.client.queue_calls import options_of

    try:
        return options_of(client.queues.show(name).options)
    except NotFound:
        return None


_RULES = ("retention_seconds", "completed_retention_seconds", "partition_retention_seconds")


def _set_retention(options: QueueOptions, present: Options | None) -> None:
    """Sets the switch of the retention rules to whether one of them is on."""
    if any(rule in options for rule in _RULES):
        on = present is not None and present.retention_enabled
        lengths = [options.get(rule, getattr(present, rule) if on else 0) for rule in _RULES]
        options["retention_enabled"] = any(lengths)
        for rule, kept in zip(_RULES, lengths, strict=True):
            options[rule] = kept  # type: ignore[literal-required]  # it would come into effect by the switch


def _may_change(session: CommandContext, name: str, options: QueueOptions, present: Options | None) -> bool:
    """Whether to change a queue: not in a dry run, and if messages vanish by it, only with a yes."""
    for rule, what in (
        ("retention_seconds", "the messages of {} that are older than {}"),
        ("completed_retention_seconds", "the messages of {} that were consumed and are older than {}"),
        ("max_wait_time_seconds", "the messages of {} that wait for longer than {}"),
    ):
        if present is None:
            break
        on = rule == "max_wait_time_seconds" or present.retention_enabled
        before = (getattr(present, rule) if on else 0) or _NEVER
        after = options.get(rule, before)
        assert isinstance(after, int), "all rules are lengths"
        if after and after < before:
            verb, doing = ("skip", "skipping") if rule == "max_wait_time_seconds" else ("remove", "removing")
            what = what.format(name, shown_length(after))
            return may(session, Deed(verb, doing, what, about("show", name)))
    if session.shared.dry_run:
        session.out.note(f"dry run: would configure {name} and remove no message; nothing done")
    return not session.shared.dry_run


def _place(text: str) -> Place:
    """The type of a flag that says where a consumer group goes."""
    if text in ("beginning", "end"):
        return text  # type: ignore[return-value]
    try:
        return parse_time(text, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is neither beginning nor end nor a time, such as 2h or 2026-11-15"
        ) from error


@verbs.verb(example="angelia queue replay jobs --group mailer --from 2h", needs=ACTS | Needs.YES)
@name_argument
@group_flag
@partition_flag
@click.option("--from", "place", type=_place, required=True, metavar="T", help="beginning, end, 2026-11-15, 2h")
def replay(session: CommandContext, name: str, group: str | None, partition: str | None, place: Place) -> None:
    """Move a consumer group to a time, the beginning or the end.

    It reads again what was pushed since then, or skips messages; the question says how many. Its
    leases end."""
    queues = caller(session).queues
    moved = f"{'the consumers without a group' if group is None else group} of {name}" + (
        f"/{partition}" if partition else ""
    )
    where = f"the {place}" if isinstance(place, str) else full(place)
    with next_steps(name):
        queue = queues.show(name)
        if group is not None:
            _check_group(queue, group)
        if partition is None:
            told = queues.seek(name, place, group=group, dry_run=True)
            effect = f"{told.read_again:,} read again, {told.skipped:,} skipped"
            what = f"{moved} to {where} ({effect})"
        else:
            _check_partition(queues, name, partition)
            what = f"{moved} to {where}"
        if not may(session, Deed("move", "moving", what, about("lag", name, group), for_good=False)):
            return
        done = queues.seek(name, place, group=group, partition=partition)
    effect = f"{counted(done.read_again, 'message')} read again, {done.skipped:,} skipped"
    session.out.done(done, f"moved {moved} to {where}: {effect}")


@verbs.verb(example="angelia queue pause", needs=ACTS)
@click.option(
    "--push", "pushes", is_flag=True, help="pause pushes: they are buffered, and stored after `resume --push`"
)
def pause(session: CommandContext, pushes: bool) -> None:
    """Pause all queues, for maintenance: pops return nothing.

    `queue resume` ends that. There is no pause of a single queue."""
    queues = caller(session).queues
    with next_steps(None):
        done = queues.pause_pushes() if pushes else queues.pause_pops()
    what = "pushes are buffered" if pushes else "pops return nothing"
    ends = "angelia queue resume --push" if pushes else "angelia queue resume"
    session.out.done(done, f"paused: {what}, in all queues")
    session.out.note(f"`{ends}` ends that")


@verbs.verb(example="angelia queue resume", needs=ACTS)
@click.option("--push", "pushes", is_flag=True, help="resume pushes: what was buffered is stored, in its order")
def resume(session: CommandContext, pushes: bool) -> None:
    """End the pause of all queues."""
    queues = caller(session).queues
    with next_steps(None):
        if not pushes:
            session.out.done(queues.resume_pops(), "resumed: pops return messages")
            return
        done = queues.resume_pushes()
    waits = f"; still to be stored: {counted(done.buffered_messages, 'message')}" if done.buffered_messages else ""
    session.out.done(done, f"resumed: pushes are stored at once{waits}")


@verbs.verb(example="angelia queue clear jobs", needs=ACTS | Needs.YES)
@name_argument
@partition_flag
def clear(session: CommandContext, name: str, partition: str | None) -> None:
    """Remove all messages of a queue or partition, for good.

    Its options and consumer groups stay."""
    queues = caller(session).queues
    place = f"{name}/{partition}" if partition else name
    with next_steps(name):
        queues.show(name)
        if partition is not None:
            _check_partition(queues, name, partition)
        found = [one for one in queues.partitions(name) if partition in (None, one.name)]
        count = sum(one.stats.total for one in found)
        what = f"{counted(count, 'message')} of {place}"
        if not may(session, Deed("remove", "removing", what, about("show", name), count, place)):
            return
        done = queues.clear(name, partition=partition)
    session.out.done(done, f"removed {counted(done.cleared, 'message')} of {place}")


@verbs.verb(example="angelia queue delete jobs", needs=ACTS | Needs.YES)
@name_argument
@click.option("--group", type=a_name, metavar="G", help="only this consumer group of the queue, with its dead letters")
def delete(session: CommandContext, name: str, group: str | None) -> None:
    """Delete a queue with all that it has, for good.

    With --group only that consumer group: a later pop by its name starts anew."""
    queues = caller(session).queues
    with next_steps(name):
        found = queues.show(name)
        if group is not None:
            _delete_group(session, queues, found, group)
            return
        total = sum(one.stats.total for one in queues.partitions(name))
        what = f"the queue {name} with {counted(total, 'message')} and {counted(found.dead, 'dead letter')}"
        if not may(session, Deed("delete", "deleting", what, about("show", name), total, name)):
            return
        done = queues.delete(name)
    session.out.done(done, f"deleted {what}")


def _delete_group(session: CommandContext, queues: BlockingQueues, queue: QueueRecord, group: str) -> None:
    _check_group(queue, group)
    letters = queues.dead_letters(queue.name, group=group, limit=1).total
    what = f"the consumer group {group} of {queue.name} with {counted(letters, 'dead letter')}"
    if may(session, Deed("delete", "deleting", what, about("groups", queue.name), letters, group)):
        session.out.done(queues.delete_group(group, queue.name), f"deleted {what}")


def _check_group(queue: QueueRecord, group: str) -> None:
    """Raises NotFound for a consumer group that never read a queue: to move it would make it, of a name mistyped."""
    if group not in {one.name for one in queue.groups}:
        raise NotFound(f"{queue.name} has no consumer group {group}", hint=about("groups", queue.name))


def _check_partition(queues: BlockingQueues, name: str, partition: str) -> None:
    if partition not in {one.name for one in queues.partitions(name)}:
        raise NotFound(f"{name} has no partition {partition}", hint=about("partitions", name))
