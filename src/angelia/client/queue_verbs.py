"""The verbs of queues, and the loops over their messages, which each client has in its own way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

from angelia.client import queue_admin_calls, queue_calls, queue_reading, queue_transactions
from angelia.client.namespaces import Awaited, Batches, Blocking, Iteration, Mode, Namespace, Verb
from angelia.client.operation_requests import asking, naming, plain
from angelia.client.queue_messages import QueueMessage
from angelia.queues import admin_api as admin
from angelia.queues import listings_api as listings
from angelia.queues import messages_api
from angelia.queues import operator_api as operator
from angelia.queues import statistics_api as statistics

if TYPE_CHECKING:
    import asyncio
    import threading

    from angelia.client.async_client import AsyncClient
    from angelia.client.blocking_client import Client
    from angelia.client.queue_consumer import ConsumeOptions, Handler
    from angelia.client.queue_loops import AsyncLoops, BlockingHandler, BlockingLoops


class QueueVerbs(Namespace[Mode]):
    """Queues of ordered partitions, which the server can read. Each consumer group gets every message; consumers that
    name none share one."""

    push = Verb(queue_calls.push)
    push_many = Verb(queue_calls.push_many)
    pop = Verb(queue_calls.pop)
    ack = Verb(queue_calls.ack)
    nack = Verb(queue_calls.nack)
    retry = Verb(queue_calls.retry)
    dead_letter = Verb(queue_calls.dead_letter)
    extend = Verb(queue_calls.extend)
    commit = Verb(queue_transactions.commit)
    configure = Verb(queue_calls.configure)
    messages = Verb(queue_reading.read_messages)
    list = Verb(asking(operator.LIST, operator.QueueListQuery))
    show = Verb(naming(operator.SHOW))
    dead_letters = Verb(queue_admin_calls.dead_letters)
    requeue_dead_letters = Verb(queue_admin_calls.requeue_dead_letters)
    purge_dead_letters = Verb(queue_admin_calls.purge_dead_letters)
    groups = Verb(queue_admin_calls.groups)
    group = Verb(naming(listings.GROUP))
    lagging = Verb(asking(listings.LAGGING, listings.LaggingQuery))
    seek = Verb(queue_admin_calls.seek)
    delete_group = Verb(queue_admin_calls.delete_group)
    subscribe_from = Verb(queue_admin_calls.subscribe_from)
    delete = Verb(naming(admin.DELETE_QUEUE))
    clear = Verb(queue_admin_calls.clear)
    overview = Verb(plain(listings.OVERVIEW))
    partitions = Verb(queue_admin_calls.partitions)
    namespaces = Verb(plain(listings.NAMESPACES))
    tasks = Verb(plain(listings.TASKS))
    depth = Verb(queue_admin_calls.depth)
    maintenance = Verb(plain(admin.MAINTENANCE))
    pause_pops = Verb(queue_admin_calls.pause_pops)
    resume_pops = Verb(queue_admin_calls.resume_pops)
    pause_pushes = Verb(queue_admin_calls.pause_pushes)
    resume_pushes = Verb(queue_admin_calls.resume_pushes)
    find = Verb(asking(messages_api.MESSAGES, messages_api.MessagesQuery))
    message = Verb(queue_admin_calls.message)
    delete_message = Verb(queue_admin_calls.delete_message)
    give_up = Verb(queue_admin_calls.give_up)
    trace = Verb(queue_admin_calls.trace)
    traces = Verb(queue_admin_calls.traces)
    traces_named = Verb(queue_admin_calls.traces_named)
    trace_names = Verb(asking(messages_api.TRACE_NAMES, admin.OffsetQuery))
    refresh = Verb(plain(admin.REFRESH))
    buffers = Verb(plain(admin.BUFFERS))
    status = Verb(asking(statistics.STATUS, statistics.SpanQuery))
    analytics = Verb(asking(statistics.ANALYTICS, statistics.AnalyticsQuery))
    waiting_times = Verb(asking(statistics.QUEUE_LAG, statistics.SpanQuery))
    activity = Verb(asking(statistics.QUEUE_OPS, statistics.SpanQuery))
    retention_history = Verb(asking(statistics.RETENTION, statistics.RetentionQuery))
    worker_metrics = Verb(asking(statistics.WORKER_METRICS, statistics.SpanQuery))
    system_metrics = Verb(asking(statistics.SYSTEM_METRICS, statistics.SpanQuery))
    postgres_stats = Verb(plain(statistics.POSTGRES))

    @Iteration
    def tail(
        self, queue: str, *, partition: str | None = None, newest: int = 0, after: str | None = None
    ) -> Batches[QueueMessage]:
        """Yields messages as they are pushed, without end and without consuming them: after so many of the `newest`, or
        after the `next` of a page of `messages`. A server that is away is waited for."""
        from angelia.client.queue_tail import QueueTail

        return QueueTail(queue, partition, newest, after)


class BlockingQueues(QueueVerbs[Blocking]):
    """Queues, with loops over their messages."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.run)
        self._client = client

    @cached_property
    def loops(self) -> BlockingLoops:
        from angelia.client.queue_loops import BlockingLoops

        return BlockingLoops(self._client._line)

    def consume(
        self, queue: str | None = None, **options: Unpack[ConsumeOptions]
    ) -> Generator[QueueMessage, None, None]:
        """Yields messages as they come, without end. Leases are extended meanwhile, and a server that is away is waited
        for.

        A message is completed when the loop asks for the next one. When the loop is left, the last message is given
        back and delivered again, unless the loop has settled it with `ack` or another verb."""
        from angelia.client.queue_consumer import Wanted

        return self.loops.each(Wanted(queue, **options))

    def serve(
        self,
        queue: str | None,
        handler: BlockingHandler,
        *,
        concurrency: int = 8,
        grace: float = 30.0,
        stop: threading.Event | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> None:
        """Has messages handled until Ctrl-C, or until `stop` is set: so many partitions at a time, in as many threads,
        and the messages of each in their order. Leases are extended meanwhile, and a server that is away is waited for.

        A message is completed when the handler returns. It failed if the handler raises, with the text of the
        exception. To stop, handlers have `grace` seconds to finish, and what waits is given back."""
        from angelia.client.queue_consumer import Wanted

        self.loops.serve(Wanted(queue, **options), handler, concurrency, grace, stop)

    def close(self) -> None:
        """Ends all loops of this client."""
        if "loops" in vars(self):
            self.loops.close()


class AsyncQueues(QueueVerbs[Awaited]):
    """Queues, with loops over their messages."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client.run)
        self._client = client

    @cached_property
    def loops(self) -> AsyncLoops:
        from angelia.client.queue_loops import AsyncLoops

        return AsyncLoops(self._client.run)

    def consume(
        self, queue: str | None = None, **options: Unpack[ConsumeOptions]
    ) -> AsyncGenerator[QueueMessage, None]:
        """Yields messages as they come, without end. Leases are extended meanwhile, and a server that is away is waited
        for.

        A message is completed when the loop asks for the next one. When the loop is left, the last message is given
        back and delivered again, unless the loop has settled it with `ack` or another verb."""
        from angelia.client.queue_consumer import Wanted

        return self.loops.each(Wanted(queue, **options))

    async def serve(
        self,
        queue: str | None,
        handler: Handler,
        *,
        concurrency: int = 8,
        grace: float = 30.0,
        stop: asyncio.Event | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> None:
        """Has messages handled until it is cancelled, or until `stop` is set: so many partitions at a time, and the
        messages of each in their order. Leases are extended meanwhile, and a server that is away is waited for.

        A message is completed when the handler returns. It failed if the handler raises, with the text of the
        exception. To stop, handlers have `grace` seconds to finish, and what waits is given back."""
        from angelia.client.queue_consumer import Wanted

        await self.loops.serve(Wanted(queue, **options), handler, concurrency, grace, stop)

    async def close(self) -> None:
        """Ends all loops of this client."""
        if "loops" in vars(self):
            await self.loops.close()
