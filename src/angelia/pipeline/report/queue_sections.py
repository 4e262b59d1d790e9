"""The sections of the report about queues."""

from __future__ import annotations

from collections.abc import Iterator

from angelia.pipeline.analytics.histogram import SHARES
from angelia.pipeline.report import formatting
from angelia.pipeline.report.markup import chart, html_table
from angelia.pipeline.report.queue_charts import (
    queue_encryption,
    queue_losses,
    queue_messages,
    queue_storage,
    queue_waits,
)
from angelia.pipeline.report.queue_figures import QueueFigures

_COUNTED = (
    '<p class="muted">Queues are counted while a server runs, and reported when a day is over. Each consumer group'
    " completes a message once.</p>"
)
_ESTIMATED = '<p class="muted">Percentiles are estimated within classes of waiting times.</p>'


def sections(queues: QueueFigures) -> Iterator[str]:
    """The sections; none if nothing was counted of queues."""
    if not queues.days:
        return
    yield chart(queues, queue_messages, _messages_title, _messages_table)
    if queues.total("popped"):
        yield chart(queues, queue_waits, _waits_title, _waits_table)
    if queues.total("dead") or queues.total("evicted"):
        yield chart(queues, queue_losses, _losses_title, _losses_table)
    if queues.total("removed"):
        yield chart(queues, queue_storage, _storage_title, _storage_table)
    if queues.total("stored") or queues.days[-1].all_queues:
        yield chart(queues, queue_encryption, _encryption_title, _encryption_table)
    yield _top(queues)


def _messages_title(queues: QueueFigures) -> str:
    most = max(queues.days, key=lambda day: day.pushed)
    return (
        f"{queues.total('pushed'):,} messages were pushed to queues in {len(queues.days)} days, and"
        f" {queues.total('completed'):,} completed; the most on {most.day}: {most.pushed:,}"
    )


def _messages_table(queues: QueueFigures) -> str:
    days = (
        [f"{day.day}", *(f"{getattr(day, name):,}" for name in ("pushed", "popped", "completed", "failed", "queues"))]
        for day in queues.days
    )
    columns = ["day", "pushed", "delivered", "completed", "failed", "queues"]
    hours = (
        [f"{hour.day} {hour.hour:02}:00", f"{hour.pushed:,}", f"{hour.popped:,}", f"{hour.evicted:,}"]
        for hour in queues.busiest
    )
    return (
        html_table("Messages of queues a day", columns, days)
        + html_table("The busiest hours", ["hour", "pushed", "delivered", "evicted"], hours)
        + _COUNTED
    )


def _waits_title(queues: QueueFigures) -> str:
    p50, p95, p99 = (formatting.duration(one) for one in queues.waits)
    return f"Half of the messages of queues were delivered within {p50}, 95 % within {p95}, 99 % within {p99}"


def _waits_table(queues: QueueFigures) -> str:
    rows = ([f"{day.day}", *map(formatting.duration, day.waits)] for day in queues.days)
    table = html_table("Time from push to delivery", ["day", *SHARES], rows)
    if any(day.evicted for day in queues.days):
        late = ([f"{day.day}", *map(formatting.duration, day.evicted_waits)] for day in queues.days if day.evicted)
        table += html_table("Time from push to eviction", ["day", *SHARES], late)
    return table + _ESTIMATED


def _losses_title(queues: QueueFigures) -> str:
    pushed, dead, evicted = (queues.total(name) for name in ("pushed", "dead", "evicted"))
    return (
        f"{dead:,} messages became dead letters ({formatting.share(dead, pushed)} of those pushed),"
        f" {evicted:,} were evicted ({formatting.share(evicted, pushed)})"
    )


def _losses_table(queues: QueueFigures) -> str:
    rows = (
        [f"{day.day}", f"{day.dead:,}", formatting.share(day.dead, day.pushed), f"{day.evicted:,}",
         formatting.share(day.evicted, day.pushed)]
        for day in queues.days
    )  # fmt: skip
    columns = ["day", "dead letters", "of those pushed", "evicted", "of those pushed"]
    return html_table("Dead letters and evictions a day", columns, rows)


def _storage_title(queues: QueueFigures) -> str:
    gone, size = queues.total("removed"), formatting.size(queues.total("reclaimed_bytes"))
    return f"Retention removed {gone:,} messages and dead letters of queues, about {size}"


def _storage_table(queues: QueueFigures) -> str:
    rows = ([f"{day.day}", f"{day.removed:,}", formatting.size(day.reclaimed_bytes)] for day in queues.days)
    return html_table("What retention removed a day", ["day", "messages and dead letters", "about"], rows)


def _encryption_title(queues: QueueFigures) -> str:
    last = queues.days[-1]
    share = formatting.share(queues.total("encrypted"), queues.total("stored"))
    return (
        f"{last.encrypted_queues:,} of {last.all_queues:,} queues encrypt their messages;"
        f" {share} of the messages are encrypted"
    )


def _encryption_table(queues: QueueFigures) -> str:
    rows = (
        [
            f"{day.day}",
            formatting.share(day.encrypted, day.stored),
            formatting.share(day.encrypted_queues, day.all_queues),
        ]
        for day in queues.days
    )
    return html_table("Share that is encrypted", ["day", "messages", "queues"], rows)


def _top(queues: QueueFigures) -> str:
    pushed = queues.total("pushed")
    title = (
        f"The busiest queue has {formatting.share(queues.top[0].pushed, pushed)} of the messages"
        if queues.top and pushed
        else "Nothing was pushed to a queue"
    )
    rows = (
        [
            "deleted" if one.name is None else formatting.foreign(one.name),
            f"{one.pushed:,}",
            formatting.share(one.pushed, pushed),
            f"{one.completed:,}",
            f"{one.dead:,}",
            f"{one.evicted:,}",
        ]
        for one in queues.top
    )
    columns = ["queue", "pushed", "share", "completed", "dead letters", "evicted"]
    return f"<section><h2>{title}</h2>{html_table('Queues with the most messages', columns, rows)}</section>"
