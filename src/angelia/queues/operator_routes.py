"""Our own operations on queues over HTTP."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Protocol

import msgspec

from angelia.api import Answer, Call, Route
from angelia.errors import InvalidArgument, NotFound
from angelia.queues import operator_api as api
from angelia.queues.dead_letters import LetterFilter, QueueDeadLetters, error_pattern
from angelia.queues.listings import Listings, QueueOverview
from angelia.queues.messages import QueueMessages, ReadPlace


class LetterAct(Protocol):
    """What is done with chosen dead letters. Returns how many they were."""

    async def __call__(self, chosen: LetterFilter, now: datetime, *, by: str) -> int: ...


def routes(listings: Listings, messages: QueueMessages, letters: QueueDeadLetters) -> list[Route]:
    async def list_queues(call: Call) -> Answer:
        query = call.query(api.QueueListQuery)
        scope = (query.name, query.namespace, query.task)
        found = await listings.overviews(
            call.now,
            after=_parse(query.cursor),
            prefix=query.name,
            namespace=query.namespace,
            task=query.task,
            limit=query.and_one_more,
        )
        shown, following = query.cut(found, lambda one: _cursor(one.queue["name"]))
        total = await listings.count(*scope)
        body = api.QueueList(queues=[_summary(one) for one in shown], next=following, total=total)
        return Answer(body=body)

    async def show(call: Call) -> Answer:
        name = call.path("queue")
        found = await listings.overviews(call.now, name=name)
        if not found:
            raise NotFound("there is no such queue", hint="`angelia queue list` shows all")
        groups = [
            api.GroupSummary(
                name=one.name,
                mode=one.subscription_mode,
                lag=one.total_lag,
                lag_seconds=one.max_time_lag,
                members=one.members,
            )
            for one in await listings.groups(call.now, name)
        ]
        summary = msgspec.structs.asdict(_summary(found[0]))
        return Answer(body=api.QueueRecord(**summary, options=found[0].queue["options"], groups=groups))

    async def read(call: Call) -> Answer:
        name, query = call.path("queue"), call.query(api.ReadQuery)
        if query.newest is not None and query.after is None:
            found, place = await messages.newest(name, query.partition, min(query.newest, query.limit))
        else:
            place = ReadPlace() if query.after is None else ReadPlace.parse(query.after)
            found, place = await messages.read(name, query.partition, place, query.limit, query.wait)
        records = [
            api.ReadQueueMessage(
                id=one.message.id,
                transaction_id=one.message.transaction_id,
                trace_id=one.message.trace_id,
                partition=one.partition.name,
                partition_id=one.partition.partition_id,
                position=one.message.position,
                producer=one.message.producer,
                created_at=one.message.created_at,
                data=one.data,
            )
            for one in found
        ]
        return Answer(body=api.QueueMessageList(messages=records, next=place.text()))

    async def requeue(call: Call) -> Answer:
        return await done_with_letters(call, letters.requeue)

    async def purge(call: Call) -> Answer:
        return await done_with_letters(call, letters.purge)

    async def done_with_letters(call: Call, act: LetterAct) -> Answer:
        name = (await listings.existing(call.path("queue"))).name
        choice = call.json(api.LetterChoice) if call.body else api.LetterChoice()
        chosen = LetterFilter(
            queue=name,
            partition=choice.partition,
            group=choice.consumer_group,
            since=choice.since,
            until=choice.until,
            error=error_pattern(choice.error),
            transaction_id=choice.transaction_id,
        )
        if choice.dry_run:
            count = await letters.count(chosen)
        else:
            count = await act(chosen, call.now, by=call.caller.known_as)
        return Answer(body=api.LettersDone(count=count, left=await letters.count(LetterFilter(queue=name))))

    return [
        Route(api.LIST, list_queues),
        Route(api.SHOW, show),
        Route(api.READ, read),
        Route(api.REQUEUE, requeue),
        Route(api.PURGE, purge),
    ]


def _summary(one: QueueOverview) -> api.QueueSummary:
    names = ("name", "namespace", "task", "pending", "leased", "dead", "partitions", "created_at")
    return api.QueueSummary(
        **{name: one.queue[name] for name in names},
        state=one.state,
        in_per_second=one.in_per_second,
        out_per_second=one.out_per_second,
        lag_seconds=one.lag_seconds,
    )


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _parse(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        return base64.b64decode(cursor.encode("ascii"), b"-_", validate=True).decode()
    except ValueError as error:
        raise InvalidArgument("the cursor is not one that this list gave out") from error
