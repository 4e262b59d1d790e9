"""Status and statistics of queues over HTTP, as Queen's clients ask for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from angelia.api import Answer, Call, Route
from angelia.errors import InvalidArgument
from angelia.queues import statistics_api as api
from angelia.queues.asked import QueryParameters
from angelia.queues.listings import Listings
from angelia.queues.listings_api import QueuesQuery
from angelia.queues.messages import MessageFilter, QueueMessages
from angelia.queues.model import parse_time
from angelia.queues.statistics import CountedSpan, Statistics

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_MOST = 1_000
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def routes(statistics: Statistics, listings: Listings, messages: QueueMessages) -> list[Route]:
    async def status(call: Call) -> Answer:
        return Answer(body=await statistics.status(_span(QueryParameters(call), call.now, _HOUR), call.now))

    async def queues(call: Call) -> Answer:
        asked = QueryParameters(call)
        query = QueuesQuery(namespace=asked.text("namespace"), task=asked.text("task"))
        limit, offset = _page(asked)
        return Answer(body=await statistics.queues(query, limit, offset, call.now))

    async def queue(call: Call) -> Answer:
        return Answer(body=await statistics.queue(call.path("queue"), call.now))

    async def queue_messages(call: Call) -> Answer:
        queue = await listings.existing(call.path("queue"))
        limit, offset = _page(QueryParameters(call), 50)
        chosen = MessageFilter(queue=queue.name, since=_BEGINNING, until=call.now + _DAY)
        found = await messages.page(chosen, limit, offset, call.now)
        names = api.ShortMessage.__struct_fields__
        return Answer(body=[api.ShortMessage(**{name: getattr(one, name) for name in names}) for one in found.messages])

    async def analytics(call: Call) -> Answer:
        asked = QueryParameters(call)
        span = _span(asked, call.now, _DAY)
        return Answer(body=await statistics.analytics(span, asked.text("interval") or "hour"))

    async def system_metrics(call: Call) -> Answer:
        return Answer(body=await statistics.system_metrics(_span(QueryParameters(call), call.now, _HOUR)))

    async def worker_metrics(call: Call) -> Answer:
        return Answer(body=await statistics.worker_metrics(_span(QueryParameters(call), call.now, _HOUR), call.now))

    async def queue_lag(call: Call) -> Answer:
        return Answer(body=await statistics.queue_lag(_span(QueryParameters(call), call.now, _HOUR)))

    async def queue_ops(call: Call) -> Answer:
        return Answer(body=await statistics.queue_ops(_span(QueryParameters(call), call.now, _HOUR)))

    async def retention(call: Call) -> Answer:
        asked = QueryParameters(call)
        return Answer(body=await statistics.retention(_span(asked, call.now, _DAY), *_page(asked)))

    async def postgres(call: Call) -> Answer:
        return Answer(body=await statistics.postgres(call.now))

    return [
        Route(api.STATUS, status),
        Route(api.STATUS_QUEUES, queues),
        Route(api.STATUS_QUEUE, queue),
        Route(api.STATUS_MESSAGES, queue_messages),
        Route(api.ANALYTICS, analytics),
        Route(api.SYSTEM_METRICS, system_metrics),
        Route(api.WORKER_METRICS, worker_metrics),
        Route(api.QUEUE_LAG, queue_lag),
        Route(api.QUEUE_OPS, queue_ops),
        Route(api.RETENTION, retention),
        Route(api.POSTGRES, postgres),
    ]


def _span(asked: QueryParameters, now: datetime, default: timedelta) -> CountedSpan:
    """The time span of a query, and the queues that it chooses."""
    to, from_ = asked.text("to"), asked.text("from")
    until = now if to is None else parse_time(to, "to")
    since = until - default if from_ is None else parse_time(from_, "from")
    if since > until:
        raise InvalidArgument("from is later than to")
    return CountedSpan(
        since=since,
        until=until,
        queue=asked.text("queue"),
        namespace=asked.text("namespace"),
        task=asked.text("task"),
    )


def _page(asked: QueryParameters, limit: int = 100) -> tuple[int, int]:
    return asked.number("limit", limit, 1, _MOST), asked.number("offset", 0)
