"""One agent's rows among those of others: some in the ledger, some in the archive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import asyncpg

import queue_rows
from angelia.pipeline.jobs.archive_audit import archive_audit
from angelia.pipeline.jobs.archive_queues import archive_queues
from angelia.pipeline.jobs.archive_receipts import archive_receipts
from angelia.pipeline.jobs.archive_rooms import archive_rooms
from angelia.pipeline.jobs.archive_sessions import IDLE, archive_sessions
from angelia.pipeline.jobs.job_context import JobContext
from angelia.settings import Settings
from audit_chains import chained
from receipt_rows import NOW, OLD, fill
from room_rows import EXPIRED, agent, made, posted, sent
from schedule_rows import scheduled

AGENT = "alice-1"
# How many rows concern the agent: receipts as sender or recipient, events, sessions, its messages in rooms and those
# from and to it, and what it pushed to queues.
IN_ARCHIVE = {
    "delivery_receipts": 11, "audit_events": 8, "sessions": 1, "rooms": 3, "queue_messages": 2,
    "queue_dead_letters": 1,
}  # fmt: skip
IN_LEDGER = {
    "delivery_receipts": 9, "audit_events": 4, "sessions": 1, "rooms": 2, "direct_messages": 2, "queue_messages": 3,
    "queue_dead_letters": 1, "queue_traces": 0, "queue_buffered": 0,
}  # fmt: skip
YOUNG = NOW - timedelta(days=2)


async def known(work: Callable[..., JobContext], database_url: str, data_dir: Path) -> JobContext:
    """Fills ledger and archive. Returns the context for jobs over both."""
    settings = Settings(data_dir=data_dir)
    await fill(database_url, OLD, 70)
    await _name(database_url)
    await scheduled(database_url, 3, NOW - IDLE - timedelta(days=1), prefix="alice")
    await chained(database_url, data_dir, NOW - timedelta(days=40), 20)
    await chained(database_url, data_dir, YOUNG, 20)
    await talked(database_url)
    archive_receipts(work())
    archive_sessions(work())
    archive_rooms(work())
    await queued(database_url)
    archive_queues(work())
    archive_audit(work(settings=settings))
    await fill(database_url, YOUNG.date(), 63)
    await _name(database_url)
    await scheduled(database_url, 2, YOUNG, prefix="alice")
    return work(settings=settings)


async def talked(database_url: str) -> None:
    """Has the agent and another one write in a room and to each other; the older messages have expired."""
    alice, other, room = (
        await agent(database_url, AGENT),
        await agent(database_url, "other"),
        await made(database_url, "talk"),
    )
    [first, *_] = await posted(database_url, room, ["alicemark one", "alicemark two"], author=alice)
    await posted(
        database_url, room, ["alicemark three"], EXPIRED + timedelta(days=-1), author=alice, parent=first, depth=1
    )
    await posted(database_url, room, ["othermark one"], author=other, parent=first, depth=1)
    await posted(database_url, room, ["alicemark four", "alicemark five"], NOW, author=alice)
    await posted(database_url, room, ["othermark two"], NOW, author=other)
    await sent(database_url, alice, other, "alicemark sealed")
    await sent(database_url, other, alice, "sealed to alicemark")
    await sent(database_url, other, other, "othermark sealed")


async def queued(database_url: str) -> None:
    """Has the agent and another one push to a queue; the older messages and dead letters are past their retention."""
    await queue_rows.made(database_url, "orders", retryLimit=0)
    for at in (queue_rows.EXPIRED, NOW):
        await queue_rows.pushed(database_url, "orders", [f"alicemark {at}", f"alicemark too {at}"], at, producer=AGENT)
        await queue_rows.pushed(database_url, "orders", [f"othermark {at}"], at, producer="other")
        await queue_rows.consumed(database_url, "orders", 1, at, status="failed")
        await queue_rows.consumed(database_url, "orders", 2, at)
    await queue_rows.pushed(database_url, "orders", ["alicemark waits"], NOW, producer=AGENT)
    await queue_rows.retained(database_url)


async def _name(database_url: str) -> None:
    """Makes the agent one of the senders, and the recipient of one message of the older day."""
    connection = await asyncpg.connect(database_url)
    await connection.execute("UPDATE delivery_receipts SET sender_nhi = $1 WHERE sender_nhi = 'sender-3'", AGENT)
    await connection.execute(
        """UPDATE delivery_receipts SET recipient_nhi = $1,
             bucket = get_byte(sha256(convert_to($1::varchar, 'UTF8')), 0) WHERE recipient_nhi = 'recipient-70'""",
        AGENT,
    )
    await connection.close()
