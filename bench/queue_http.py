"""Load for queues over HTTP: producers and consumers on connections of their own, with the routes that clients of Queen
MQ use. Requests that need no answer of the server are made before the clock starts."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from angelia.runtime_file import Runtime
from fleet import Line
from queue_load import Load
from queue_peers import payloads


class _Popped(msgspec.Struct, rename="camel"):
    transaction_id: str
    partition_id: str
    lease_id: str


class _Delivery(msgspec.Struct):
    messages: list[_Popped]


_delivery = msgspec.json.Decoder(_Delivery)


@dataclass(frozen=True)
class QueueUrl:
    """A queue of a running server, with so many partitions. A request goes to one of them, the next to the next."""

    runtime: Runtime
    name: str
    partitions: Iterator[str]

    @classmethod
    async def made(cls, runtime: Runtime, partitions: int, **options: object) -> QueueUrl:
        name = f"bench-{uuid.uuid4()}"
        made = cls(runtime, name, itertools.cycle([f"p{number}" for number in range(partitions)]))
        line = await Line.open(runtime)
        body = msgspec.json.encode({"queue": name, "options": options})
        status, answer = await line.ask(made.post("/api/v1/configure", body))
        assert status == 200, answer
        line.writer.close()
        return made

    def pushes(self, load: Load) -> Iterator[bytes]:
        """Requests that push so many messages in batches."""
        made = payloads(load.count)
        batches = [made[at : at + load.batch] for at in range(0, load.count, load.batch)]
        return iter([self.push([(str(uuid.uuid4()), one) for one in batch]) for batch in batches])

    def push(self, messages: Sequence[tuple[str, bytes]]) -> bytes:
        """A request that pushes messages to the next partition."""
        partition = next(self.partitions)
        items = [
            b'{"queue":"%s","partition":"%s","payload":%s,"transactionId":"%s"}'
            % (self.name.encode(), partition.encode(), payload, transaction_id.encode())
            for transaction_id, payload in messages
        ]
        return self.post("/api/v1/push", b'{"items":[%s]}' % b",".join(items))

    def pop(self, batch: int, query: str = "") -> bytes:
        host = self.runtime.url.removeprefix("http://")
        return f"GET /api/v1/pop/queue/{self.name}?batch={batch}{query} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()

    def ack(self, delivery: bytes) -> tuple[list[str], bytes]:
        """The transaction ids of an answer, and a request that acknowledges all of them."""
        found = _delivery.decode(delivery).messages
        acks = [
            {"transactionId": one.transaction_id, "partitionId": one.partition_id, "leaseId": one.lease_id}
            for one in found
        ]
        request = self.post("/api/v1/ack/batch", msgspec.json.encode({"acknowledgments": acks}))
        return [one.transaction_id for one in found], request

    def post(self, path: str, body: bytes) -> bytes:
        host = self.runtime.url.removeprefix("http://")
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        return head.encode() + body


async def ask(line: Line, request: bytes) -> tuple[int, bytes]:
    """As `Line.ask`, also for answers without a body."""
    line.writer.write(request)
    head = await line.reader.readuntil(b"\r\n\r\n")
    _, told, rest = head.lower().partition(b"content-length:")
    length = int(rest.partition(b"\r\n")[0]) if told else 0
    return int(head[9:12]), await line.reader.readexactly(length)


async def push_http(queue: QueueUrl, load: Load) -> float:
    """Pushes in batches, over as many connections as there are callers. Returns the rate of messages."""
    requests = queue.pushes(load)
    lines = [await Line.open(queue.runtime) for _ in range(load.callers)]

    async def producer(line: Line) -> None:
        for request in requests:
            status, body = await ask(line, request)
            assert status == 201, body
            assert body.count(b'"queued"') == load.batch, body

    began = time.perf_counter()
    await asyncio.gather(*map(producer, lines))
    took = time.perf_counter() - began
    for line in lines:
        line.writer.close()
    return load.count / took


async def take_http(queue: QueueUrl, load: Load) -> float:
    """Pops and acknowledges in batches until all messages are gone. Returns the rate of messages."""
    lines = [await Line.open(queue.runtime) for _ in range(load.callers)]
    request, left = queue.pop(load.batch), [load.count]

    async def consumer(line: Line) -> None:
        while left[0] > 0:
            status, body = await ask(line, request)
            if status == 204:
                await asyncio.sleep(0.001)
                continue
            assert status == 200, body
            ids, acks = queue.ack(body)
            status, body = await ask(line, acks)
            assert status == 200, body
            assert body.count(b'"success":true') == len(ids), body
            left[0] -= len(ids)

    began = time.perf_counter()
    async with asyncio.timeout(300):
        await asyncio.gather(*map(consumer, lines))
    took = time.perf_counter() - began
    assert left == [0]
    for line in lines:
        line.writer.close()
    return load.count / took


async def wait_paced(queue: QueueUrl, consumers: int, count: int, a_second: int) -> list[float]:
    """Pushes single messages at a steady pace, while consumers wait for them, acknowledge and wait again. Returns the
    seconds from the first byte of a push to the answer of the pop that had it, sorted."""
    lines = [await Line.open(queue.runtime) for _ in range(consumers)]
    idle: list[Line] = []
    waiting = queue.pop(1, "&wait=true&timeout=30000")
    ids = [str(uuid.uuid4()) for _ in range(count)]
    requests = [queue.push([message]) for message in zip(ids, payloads(count), strict=True)]
    left, latencies, arrived = dict[str, float](), list[float](), asyncio.Event()

    async def consumer(line: Line) -> None:
        while True:
            status, body = await ask(line, waiting)
            now = time.perf_counter()
            assert status == 200, body
            (key,), acks = queue.ack(body)
            latencies.append(now - left[key])
            status, body = await ask(line, acks)
            assert status == 200, body
            assert b'"success":true' in body, body
            if len(latencies) == count:
                arrived.set()

    async def producer(request: bytes) -> None:
        line = idle.pop() if idle else await Line.open(queue.runtime)
        status, body = await ask(line, request)
        assert status == 201, body
        idle.append(line)

    waiters = [asyncio.create_task(consumer(line)) for line in lines]
    asked = []
    began = time.perf_counter()
    for number, (key, request) in enumerate(zip(ids, requests, strict=True)):
        await asyncio.sleep(max(0.0, began + number / a_second - time.perf_counter()))
        left[key] = time.perf_counter()
        asked.append(asyncio.create_task(producer(request)))
    async with asyncio.timeout(30):
        await asyncio.gather(*asked)
        await arrived.wait()
    for waiter in waiters:
        waiter.cancel()
    for line in (*lines, *idle):
        line.writer.close()
    return sorted(latencies)
