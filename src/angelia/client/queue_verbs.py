"""The verbs of queues, and the loops over their messages, which each client has in its own way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

from angelia.client import queue_calls, queue_transactions
from angelia.client.namespaces import Awaited, Blocking, Mode, Namespace, Verb
from angelia.client.queue_messages import QueueMessage

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
