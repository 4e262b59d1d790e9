"""Operations on queues for operators over HTTP, as Queen's clients send them."""

from __future__ import annotations

from angelia.api import Answer, Call, Route
from angelia.errors import InvalidArgument, NotFound
from angelia.queues import admin_api as api
from angelia.queues import listings_api
from angelia.queues.asked import QueryParameters
from angelia.queues.groups import ConsumerGroups
from angelia.queues.listings import Listings
from angelia.queues.maintenance_modes import Maintenance, MaintenanceState
from angelia.queues.model import QUEUE_MODE, parse_time
from angelia.queues.stamps import stamp, stamp_or_none


def routes(listings: Listings, groups: ConsumerGroups, maintenance: Maintenance, worker: int) -> list[Route]:
    return [
        *_listing_routes(listings),
        *_group_routes(listings, groups),
        *_queue_routes(listings, groups),
        *_maintenance_routes(maintenance, worker),
    ]


def _listing_routes(listings: Listings) -> list[Route]:
    async def queues(call: Call) -> Answer:
        asked = QueryParameters(call)
        query = listings_api.QueuesQuery(
            search=asked.text("search"),
            namespace=asked.text("namespace"),
            task=asked.text("task"),
            limit=_limit(asked),
            offset=asked.number("offset", 0),
        )
        return Answer(body=await listings.queues(query, call.now))

    async def queue(call: Call) -> Answer:
        return Answer(body=await listings.queue(call.path("queue"), call.now))

    async def depth(call: Call) -> Answer:
        return Answer(body=await listings.depth(call.path("queue"), QueryParameters(call).text("group") or QUEUE_MODE))

    async def partitions(call: Call) -> Answer:
        asked = QueryParameters(call)
        query = listings_api.PartitionsQuery(
            queue=asked.text("queue"), limit=_limit(asked), offset=asked.number("offset", 0)
        )
        return Answer(body=await listings.partitions(query, call.now))

    async def namespaces(call: Call) -> Answer:
        return Answer(body=await listings.namespaces(call.now))

    async def tasks(call: Call) -> Answer:
        return Answer(body=await listings.tasks(call.now))

    async def overview(call: Call) -> Answer:
        return Answer(body=await listings.overview(call.now))

    async def refresh(call: Call) -> Answer:
        await listings.refresh(call.now)
        return Answer(body=api.RefreshedStats(success=True, timestamp=stamp(call.now)))

    return [
        Route(listings_api.QUEUES, queues),
        Route(listings_api.QUEUE, queue),
        Route(listings_api.DEPTH, depth),
        Route(listings_api.PARTITIONS, partitions),
        Route(listings_api.NAMESPACES, namespaces),
        Route(listings_api.TASKS, tasks),
        Route(listings_api.OVERVIEW, overview),
        Route(api.REFRESH, refresh),
    ]


def _group_routes(listings: Listings, groups: ConsumerGroups) -> list[Route]:
    async def list_groups(call: Call) -> Answer:
        return Answer(body=await listings.groups(call.now))

    async def lagging(call: Call) -> Answer:
        return Answer(body=await listings.lagging(QueryParameters(call).number("minLagSeconds", 3600), call.now))

    async def group(call: Call) -> Answer:
        name = call.path("group")
        found = await listings.group(name, call.now)
        if not found and not await listings.group_exists(name):  # else its queues have no partitions
            raise NotFound("Consumer group not found")
        return Answer(body=found)

    async def delete(call: Call) -> Answer:
        return await _delete(call, None)

    async def delete_of_queue(call: Call) -> Answer:
        return await _delete(call, (await listings.existing(call.path("queue"))).name)

    async def _delete(call: Call, queue: str | None) -> Answer:
        name, asked = call.path("group"), QueryParameters(call)
        forget = asked.text("deleteMetadata") is None or asked.flag("deleteMetadata")
        act = groups.delete if forget else groups.restart
        done = await act(name, queue, call.now, by=call.caller.known_as)
        return Answer(
            body=api.DeletedGroupAnswer(
                success=True,
                consumer_group=name,
                queue_name=queue,
                deleted_partitions=done.partitions,
                deleted_dead_letters=done.dead_letters,
                metadata_deleted=forget,
            )
        )

    async def subscription(call: Call) -> Answer:
        name = call.path("group")
        from_at = parse_time(call.json(api.SubscriptionBody).subscription_timestamp, "subscriptionTimestamp")
        count = await groups.set_subscription(name, from_at, call.now, by=call.caller.known_as)
        if not count:
            raise NotFound("Consumer group not found")
        return Answer(
            body=api.SubscriptionAnswer(
                success=True, consumer_group=name, new_timestamp=stamp(from_at), rows_updated=count
            )
        )

    async def seek(call: Call) -> Answer:
        name, queue, body = call.path("group"), call.path("queue"), call.json(api.SeekBody)
        if not body.to_end and body.timestamp is None:
            raise InvalidArgument("toEnd or timestamp is required")
        to = None if body.to_end or body.timestamp is None else parse_time(body.timestamp, "timestamp")
        if body.dry_run:
            moved = await groups.count_seek(name, queue, to)
        else:
            moved = await groups.seek(name, queue, to, call.now, by=call.caller.known_as)
        return Answer(
            body=api.SeekAnswer(
                success=True,
                consumer_group=name,
                queue_name=queue,
                seek_to_end=to is None,
                target_timestamp=stamp_or_none(to),
                partitions_updated=0 if body.dry_run else moved.partitions,
                read_again=moved.again,
                skipped=moved.skipped,
            )
        )

    async def seek_partition(call: Call) -> Answer:
        name, queue, partition = call.path("group"), call.path("queue"), call.path("partition")
        body = call.json(api.PartitionSeekBody)
        if body.to_end is False and body.timestamp is None:
            raise InvalidArgument("toEnd is false and there is no timestamp", hint="give one, or leave toEnd out")
        to = None if body.to_end or body.timestamp is None else parse_time(body.timestamp, "timestamp")
        moved = await groups.seek(name, queue, to, call.now, partition=partition, by=call.caller.known_as)
        return Answer(
            body=api.PartitionSeekAnswer(
                success=True,
                consumer_group=name,
                queue_name=queue,
                partition_name=partition,
                updated=moved.partitions > 0,
                cursor_moved_to=moved.position,
                read_again=moved.again,
                skipped=moved.skipped,
            )
        )

    return [
        Route(listings_api.GROUPS, list_groups),
        Route(listings_api.LAGGING, lagging),
        Route(listings_api.GROUP, group),
        Route(api.DELETE_GROUP, delete),
        Route(api.DELETE_GROUP_OF_QUEUE, delete_of_queue),
        Route(api.SUBSCRIPTION, subscription),
        Route(api.SEEK, seek),
        Route(api.SEEK_PARTITION, seek_partition),
    ]


def _queue_routes(listings: Listings, groups: ConsumerGroups) -> list[Route]:
    async def delete(call: Call) -> Answer:
        name = call.path("queue")
        existed = await groups.delete_queue(name, call.now, by=call.caller.known_as)
        return Answer(body=api.DeletedQueue(deleted=True, queue=name, existed=existed))

    async def clear(call: Call) -> Answer:
        name = call.path("queue")
        cleared = await groups.clear(name, QueryParameters(call).text("partition"), call.now, by=call.caller.known_as)
        return Answer(body=api.ClearedQueue(cleared=cleared, queue=name))

    return [Route(api.DELETE_QUEUE, delete), Route(api.CLEAR, clear)]


def _maintenance_routes(maintenance: Maintenance, worker: int) -> list[Route]:
    async def show(call: Call) -> Answer:
        return Answer(body=_pushes(await maintenance.state()))

    async def switch(call: Call) -> Answer:
        enabled = call.json(api.SwitchBody).enabled
        act = maintenance.pause_pushes if enabled else maintenance.resume_pushes
        return Answer(body=_pushes(await act(call.now, by=call.caller.known_as)))

    async def show_pops(call: Call) -> Answer:
        return Answer(body=_pops(await maintenance.state()))

    async def switch_pops(call: Call) -> Answer:
        enabled = call.json(api.SwitchBody).enabled
        act = maintenance.pause_pops if enabled else maintenance.resume_pops
        return Answer(body=_pops(await act(call.now, by=call.caller.known_as)))

    async def buffers(call: Call) -> Answer:
        # An answer means that the ledger is there: without it, this is 503.
        counts = (await maintenance.state()).buffered
        return Answer(
            body=api.BufferAnswer(pending=counts.pending, failed=counts.failed, db_healthy=True, worker=worker)
        )

    return [
        Route(api.MAINTENANCE, show),
        Route(api.SET_MAINTENANCE, switch),
        Route(api.POP_MAINTENANCE, show_pops),
        Route(api.SET_POP_MAINTENANCE, switch_pops),
        Route(api.BUFFERS, buffers),
    ]


def _pushes(state: MaintenanceState) -> api.MaintenanceAnswer:
    modes, waiting = state.modes, state.buffered.pending + state.buffered.failed
    if modes.push_paused:
        message = f"pushes are buffered; {waiting:,} messages wait"
    elif waiting:
        message = f"pushes are taken; {waiting:,} buffered messages wait, and pushes behind them too"
    else:
        message = "pushes are taken"
    return api.MaintenanceAnswer(
        maintenance_mode=modes.push_paused,
        pop_maintenance_mode=modes.pop_paused,
        buffered_messages=waiting,
        buffer_healthy=state.buffered.failed == 0,
        message=message,
    )


def _pops(state: MaintenanceState) -> api.PopMaintenanceAnswer:
    paused = state.modes.pop_paused
    message = "pops return nothing" if paused else "pops return messages"
    return api.PopMaintenanceAnswer(pop_maintenance_mode=paused, message=message)


def _limit(asked: QueryParameters) -> int | None:
    """How many entries are asked for; None for all."""
    return asked.number("limit", 0) or None
