"""The gain of group commit with 64 concurrent writers; every write is durable before it is answered.

Both sides register the same number of agents with the same SQL on the same embedded PostgreSQL. The peer commits every
write on its own, over as many connections as a worker's pool has.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from angelia.agents.model import Registration
from angelia.agents.service import RegistrationOutcome, register_batch
from angelia.envelope.ids import KeyType, key_id
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger
from harness import Result, compared, interleaved, rate, stores

WRITERS = 64


def main(*, quick: bool) -> list[Result]:
    count, rounds = (1_500, 5) if quick else (6_000, 9)
    with stores() as (url, _):
        single, grouped = interleaved(
            rounds, lambda: asyncio.run(_single(url, count)), lambda: asyncio.run(_grouped(url, count))
        )
    note = f"higher is better; {WRITERS} writers, each write durable"
    return [compared("group commit / one commit a write", grouped, single, rate, note)]


async def _grouped(url: str, count: int) -> float:
    ledger = await Ledger.open(url)
    commits: GroupCommit[Registration, RegistrationOutcome] = GroupCommit(ledger.transaction, register_batch)
    rate = await _writers(count, commits.submit)
    await ledger.close()
    return rate


async def _single(url: str, count: int) -> float:
    ledger = await Ledger.open(url)

    async def write(item: Registration) -> object:
        async with ledger.transaction() as tx:
            return await register_batch(tx, [item])

    rate = await _writers(count, write)
    await ledger.close()
    return rate


async def _writers(count: int, write: Callable[[Registration], Awaitable[object]]) -> float:
    items = iter([_registration() for _ in range(count)])
    await write(_registration())

    async def writer() -> None:
        for item in items:
            await write(item)

    began = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    return count / (time.perf_counter() - began)


def _registration() -> Registration:
    public = os.urandom(32)
    return Registration(uuid.uuid4(), public, key_id(KeyType.ED25519, public), "", "", datetime.now(UTC))
