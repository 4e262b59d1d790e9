"""Fan-out: one message is published, and 1,000 subscribers get it, each in a long poll.

Measured from the publisher's request to the last subscriber's answer. The peer is the least that the ledger must do for
as many readers: the same row selected 1,000 times, over as many connections as a web process has.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from uuid import UUID

import asyncpg
import msgspec

from angelia.envelope import sealing
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.sealing import EpochKey, Letter
from angelia.runtime_file import Runtime
from fleet import Line, Member, enroll
from harness import Result
from served import server

SUBSCRIBERS, CONNECTIONS = 1_000, 10
BODY = bytes(1024)


def main(*, quick: bool) -> list[Result]:
    rounds = 3 if quick else 10
    with server() as served:
        runtime = served.runtime
        owner, *subscribers = enroll(runtime, ["owner", *(f"subscriber-{n}" for n in range(SUBSCRIBERS))])
        ours, bare = asyncio.run(_measure(runtime, owner, subscribers, rounds))
    return [
        Result(
            f"fan-out to {SUBSCRIBERS:,} / bare reads of the row",
            f"{SUBSCRIBERS / ours:,.0f} /s",
            f"{SUBSCRIBERS / bare:,.0f} /s",
            bare / ours,
            f"higher is better; the last had it after {ours * 1e3:,.0f} ms",
        )
    ]


async def _measure(runtime: Runtime, owner: Member, subscribers: list[Member], rounds: int) -> tuple[float, float]:
    key = EpochKey.generate()
    line = await Line.open(runtime)
    made = await _post(line, runtime, owner, "/v1/channels", {"channel_name": "news", "policy": "open"})
    channel = UUID(made["channel_id"])
    base = f"/v1/channels/{channel}"
    await _post(line, runtime, owner, f"{base}/epoch", {"epoch": 1, "epoch_key_id": key.key_id})
    lines = [await Line.open(runtime) for _ in subscribers]
    for at in range(0, SUBSCRIBERS, 50):
        together = zip(lines[at : at + 50], subscribers[at : at + 50], strict=True)
        await asyncio.gather(
            *(_post(one, runtime, member, f"/v1/channels/{channel}/subscribe", {}) for one, member in together)
        )
    ours, bare = [], []
    for offset in range(rounds):
        bare.append(await _bare(runtime, channel, offset)) if offset else None
        ours.append(await _fan_out(runtime, owner, subscribers, line, lines, channel, key, offset))
    return statistics.median(ours), statistics.median(bare)


async def _fan_out(
    runtime: Runtime,
    owner: Member,
    subscribers: list[Member],
    line: Line,
    lines: list[Line],
    channel: UUID,
    key: EpochKey,
    offset: int,
) -> float:
    target = f"/v1/channels/{channel}/messages?after_offset={offset}&wait_timeout_seconds=30"

    async def wait(one: Line, subscriber: Member) -> None:
        status, body = await one.ask(subscriber.request(runtime.url, "GET", target))
        assert status == 200, body
        assert len(msgspec.json.decode(body)["messages"]) == 1, body

    waiting = [asyncio.create_task(wait(one, member)) for one, member in zip(lines, subscribers, strict=True)]
    await asyncio.sleep(8)  # until all long polls wait
    assert not any(task.done() for task in waiting), "nothing is there yet"
    post = Letter(
        channel_id=channel, key=key, body=BODY, message_id=uuid.uuid4(), created_at=time.time_ns() // 1_000_000
    )
    envelope = sealing.seal(post, owner.handle, owner.pair)
    request = owner.request(runtime.url, "POST", f"/v1/channels/{channel}/publish", envelope.wire, MEDIA_TYPE)
    began = time.perf_counter()
    status, body = await line.ask(request)
    assert status == 201, body
    await asyncio.gather(*waiting)
    return time.perf_counter() - began


async def _bare(runtime: Runtime, channel: UUID, offset: int) -> float:
    pool = await asyncpg.create_pool(runtime.database_url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    statement = "SELECT wire FROM channel_messages WHERE channel_id = $1 AND channel_offset > $2 LIMIT 10"
    began = time.perf_counter()
    await asyncio.gather(*(pool.fetch(statement, channel, offset - 1) for _ in range(SUBSCRIBERS)))
    took = time.perf_counter() - began
    await pool.close()
    return took


async def _post(line: Line, runtime: Runtime, member: Member, target: str, body: object) -> dict[str, str]:
    status, told = await line.ask(member.request(runtime.url, "POST", target, msgspec.json.encode(body)))
    assert status in (200, 201, 204), told
    answer: dict[str, str] = msgspec.json.decode(told) if told else {}
    return answer
