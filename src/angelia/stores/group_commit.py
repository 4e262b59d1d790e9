"""Group commit: concurrent work of one kind shares a ledger transaction, and each caller gets its own result.

While one batch is being committed, the next one gathers. So no caller waits for a timer, and under load one fsync
serves all callers that came meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from angelia.errors import AngeliaError, Unavailable
from angelia.stores.ledger import Tx

Item = TypeVar("Item")
Result = TypeVar("Result")
Opened = Callable[[], AbstractAsyncContextManager[Tx]]
Batch = Callable[[Tx, Sequence[Item]], Awaitable[Sequence[Result | AngeliaError]]]


class GroupCommit(Generic[Item, Result]):
    """One kind of work. `batch` is set-based and returns a result or an error for each item. It runs in what `opened`
    gives: a transaction, or a connection for a single statement or for reads (`Ledger`)."""

    def __init__(
        self,
        opened: Opened,
        batch: Batch[Item, Result],
        *,
        most: int = 256,
        weight: Callable[[Item], int] = lambda _: 0,
        most_weight: int = 0,
    ) -> None:
        """A batch has at most so many items, and weighs at most `most_weight`, unless a single item weighs more."""
        self._opened = opened
        self._batch = batch
        self._most = most
        self._weight = weight
        self._most_weight = most_weight
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._committer: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """Returns after the commit that holds this item. A cancelled caller's item may still be committed."""
        return await self._enter(item)

    async def submit_all(self, items: Sequence[Item]) -> list[Result | Exception]:
        """The same for several items, which stay in their order. Returns for each what `submit` would return or
        raise."""
        waiting = [self._enter(item) for item in items]
        results: list[Result | Exception] = []
        try:
            for mine in waiting:
                try:
                    results.append(await mine)
                except Exception as error:  # noqa: BLE001 - each item's fault is its own
                    results.append(error)
        finally:
            for mine in waiting[len(results) :]:  # the caller left; it reads no more results
                mine.cancel()
        return results

    async def close(self) -> None:
        """Returns after everything that waits was committed."""
        if self._committer is not None:
            await self._committer

    def _enter(self, item: Item) -> asyncio.Future[Result]:
        mine: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, mine))
        if self._committer is None or self._committer.done():
            self._committer = asyncio.create_task(self._commit_waiting())
        return mine

    async def _commit_waiting(self) -> None:
        while self._waiting:
            alive = [(item, mine) for item, mine in self._taken() if not mine.cancelled()]
            if alive:
                await self._commit(alive)

    def _taken(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        taken = [self._waiting.popleft()]
        left = self._most_weight - self._weight(taken[0][0])
        while self._waiting and len(taken) < self._most and (left := left - self._weight(self._waiting[0][0])) >= 0:
            taken.append(self._waiting.popleft())
        return taken

    async def _commit(self, batch: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            async with self._opened() as tx:
                results = await self._batch(tx, [item for item, _ in batch])
                # Inside, so that a transaction whose results do not fit the items rolls back and can be tried again.
                outcomes = list(zip(batch, results, strict=True))
        except Unavailable as error:
            # The commit may have happened or not: a second try here could write twice, so the caller decides.
            for _, mine in batch:
                _settle(mine, error)
        except Exception as error:  # noqa: BLE001 - one item's fault must not fail its neighbours
            if len(batch) == 1:
                _settle(batch[0][1], error)
                return
            for single in batch:
                await self._commit([single])
        else:
            for (_, mine), result in outcomes:
                _settle(mine, result)


def _settle(waiting: asyncio.Future[Result], outcome: Result | Exception) -> None:
    """Gives a caller its result or its exception; a cancelled caller gets neither."""
    if waiting.done():
        return
    if isinstance(outcome, Exception):
        waiting.set_exception(outcome)
    else:
        waiting.set_result(outcome)
