"""Mail through the whole server, compared with a bare insert of the same durability and with verification alone.

64 senders, each on a connection of its own, send signed requests with envelopes of 1 KiB messages; 16 recipients poll a
hundred at a time and acknowledge with signed receipts. Envelopes, receipts and requests are made before the clock
starts. The bare insert writes the same envelope rows, one durable transaction each, from 64 writers over as many
connections as a web process has; the server has a web process for each core. Latency is the time from the first byte of
a send to its event on the recipient's stream, at 100 messages a second. It is compared with one fdatasync on the same
disk, and with one bare durable insert at the same rate.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import statistics
import struct
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import msgspec

from angelia.envelope import sealing
from angelia.envelope.ids import bucket_of
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.receipts import Receipt, ReceiptStatus, receipt_document, sign_receipt
from angelia.envelope.wire import Envelope
from angelia.runtime_file import Runtime
from fleet import Line, Member, enroll, server
from harness import Result, interleaved

SENDERS, RECIPIENTS, CONNECTIONS = 64, 16, 10
A_SECOND = 100
WORKERS = os.cpu_count() or 1
BODY = random.Random(1).randbytes(1024)
_record = struct.Struct(">I32sI")
_INSERT = """
INSERT INTO envelopes (bucket, recipient_nhi, mref, sender_nhi, message_id, replay_key, key_id, sender_key_id, priority,
  created_at, accepted_at, queued_at, expires_at, wire, wire_bytes)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1, $9, $9, $9, $10, $11::bytea, octet_length($11::bytea))
"""


def main(*, quick: bool) -> list[Result]:
    count, rounds, seconds = (1_024, 3, 5) if quick else (4_096, 5, 20)
    with server(WORKERS) as (runtime, data_dir):
        senders = enroll(runtime, [f"sender-{n}" for n in range(SENDERS)])
        recipients = enroll(runtime, [f"recipient-{n}" for n in range(RECIPIENTS)])
        receives: list[float] = []

        def sent_and_received() -> float:
            envelopes = [senders[n % SENDERS].seal(recipients[n % RECIPIENTS], BODY) for n in range(count)]
            receipts = {
                envelope.replay_key: _receipt(recipients[n % RECIPIENTS], envelope)
                for n, envelope in enumerate(envelopes)
            }
            rate = asyncio.run(_send_all(runtime, senders, envelopes))
            receives.append(asyncio.run(_receive_all(runtime, recipients, receipts)))
            return rate

        sent_and_received()
        receives.clear()
        bare, sends = interleaved(rounds, lambda: asyncio.run(_insert_all(runtime, count)), sent_and_received)
        received = statistics.median(receives)
        verified = _verifications(senders[0], recipients[0])
        sync = _fdatasync(data_dir)
        alone = asyncio.run(_paced_inserts(runtime, seconds))
        latencies = asyncio.run(_latencies(runtime, senders[0], recipients[0], seconds))
        p50, p99 = statistics.median(latencies), latencies[int(len(latencies) * 0.99)]
    sent, took = f"{sends:,.0f} /s", f"{received:,.0f} /s"
    inserted, disk = f"{bare:,.0f} /s", f"{sync * 1e3:.2f} ms"
    paced = f"lower is better; {A_SECOND} a second"
    return [
        Result(
            "durable sends / bare insert",
            sent,
            inserted,
            sends / bare,
            f"higher is better; {SENDERS} senders, {WORKERS} web processes",
        ),
        Result("receives / bare insert", took, inserted, received / bare, "higher is better; signed receipts"),
        Result(
            "durable sends / verification alone", sent, f"{verified:,.0f} /s", sends / verified, "one core verifies"
        ),
        Result("send to delivery p50 / fdatasync p50", f"{p50 * 1e3:.1f} ms", disk, p50 / sync, paced),
        Result("send to delivery p99 / fdatasync p50", f"{p99 * 1e3:.1f} ms", disk, p99 / sync, paced),
        Result(
            "send to delivery p50 / bare insert p50", f"{p50 * 1e3:.1f} ms", f"{alone * 1e3:.1f} ms", p50 / alone, paced
        ),
    ]


async def _insert_all(runtime: Runtime, count: int) -> float:
    pool = await asyncpg.create_pool(runtime.database_url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    rows = iter([_row() for _ in range(count)])

    async def writer() -> None:
        for row in rows:
            await pool.execute(_INSERT, *row)

    began = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(SENDERS)))
    rate = count / (time.perf_counter() - began)
    await pool.execute("DELETE FROM envelopes WHERE recipient_nhi = 'nobody'")
    await pool.close()
    return rate


async def _paced_inserts(runtime: Runtime, seconds: int) -> float:
    connection = await asyncpg.connect(runtime.database_url)
    began, times = time.perf_counter(), []
    for number in range(A_SECOND * seconds):
        await asyncio.sleep(max(0.0, began + number / A_SECOND - time.perf_counter()))
        row, start = _row(), time.perf_counter()
        await connection.execute(_INSERT, *row)
        times.append(time.perf_counter() - start)
    await connection.execute("DELETE FROM envelopes WHERE recipient_nhi = 'nobody'")
    await connection.close()
    return statistics.median(times)


def _row() -> tuple[object, ...]:
    now = datetime.now(UTC)
    ids = (uuid.uuid4(), os.urandom(32), uuid.uuid4(), uuid.uuid4())
    start, end = now, now + timedelta(days=7)
    return bucket_of("nobody"), "nobody", os.urandom(16), "bench", *ids, start, end, os.urandom(5_660)


async def _send_all(runtime: Runtime, senders: list[Member], envelopes: list[Envelope]) -> float:
    requests = [
        [
            sender.request(runtime.url, "POST", "/v1/messages", envelope.wire, MEDIA_TYPE)
            for envelope in envelopes[at::SENDERS]
        ]
        for at, sender in enumerate(senders)
    ]
    lines = [await Line.open(runtime) for _ in senders]

    async def sender(line: Line, mine: list[bytes]) -> None:
        for request in mine:
            status, body = await line.ask(request)
            assert status == 201, body

    began = time.perf_counter()
    await asyncio.gather(*(sender(line, mine) for line, mine in zip(lines, requests, strict=True)))
    rate = len(envelopes) / (time.perf_counter() - began)
    for line in lines:
        line.writer.close()
    return rate


async def _receive_all(runtime: Runtime, recipients: list[Member], receipts: dict[str, bytes]) -> float:
    async def recipient(member: Member) -> int:
        line, got = await Line.open(runtime), 0
        while True:
            poll = member.request(runtime.url, "GET", "/v1/messages?max_messages=100", accept=MEDIA_TYPE)
            status, body = await line.ask(poll)
            assert status == 200, body
            acks = [
                b'{"replay_key":"%s","lease_token":"%s","receipt":%s}' % (key.encode(), token.encode(), receipts[key])
                for key, token in _records(body)
            ]
            if not acks:
                line.writer.close()
                return got
            content = b'{"acks":[' + b",".join(acks) + b"]}"
            status, body = await line.ask(member.request(runtime.url, "POST", "/v1/messages/acknowledge", content))
            assert status == 200, body
            assert b'"problem"' not in body, body
            got += len(acks)

    began = time.perf_counter()
    got = sum(await asyncio.gather(*(recipient(member) for member in recipients)))
    assert got == len(receipts), f"{got} of {len(receipts)} arrived"
    return got / (time.perf_counter() - began)


def _records(body: bytes) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(body):
        _, token, length = _record.unpack_from(body, at)
        at += _record.size + length
        yield hashlib.sha256(body[at - length : at]).hexdigest(), token.hex()


def _receipt(member: Member, envelope: Envelope) -> bytes:
    header = envelope.header
    unsigned = Receipt(
        status=ReceiptStatus.DELIVERED,
        replay_key=envelope.replay_key,
        message_id=header.message_id,
        sender_nhi=header.sender_nhi,
        recipient_nhi=member.handle,
        time_ms=time.time_ns() // 1_000_000,
        signer_id=member.pair.public.signer_id,
    )
    return msgspec.json.encode(receipt_document(sign_receipt(unsigned, member.pair)))


def _verifications(sender: Member, recipient: Member) -> float:
    envelope, many = sender.seal(recipient, BODY), 400
    began = time.perf_counter()
    for _ in range(many):
        sealing.verify(envelope, sender.pair.public)
    return many / (time.perf_counter() - began)


def _fdatasync(directory: Path) -> float:
    path, times = directory / "probe", []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for _ in range(300):
        os.write(descriptor, bytes(8192))
        began = time.perf_counter()
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - began)
    os.close(descriptor)
    path.unlink()
    return statistics.median(times)


async def _latencies(runtime: Runtime, sender: Member, recipient: Member, seconds: int) -> list[float]:
    """Returns the latencies, sorted. Every message is acknowledged on arrival, as a recipient does."""
    envelopes = [sender.seal(recipient, BODY) for _ in range(A_SECOND * seconds)]
    left: dict[str, float] = {}
    latencies: list[float] = []
    stream, lines = await Line.open(runtime), asyncio.LifoQueue[Line]()
    stream.writer.write(recipient.request(runtime.url, "GET", "/v1/messages/stream"))
    await stream.reader.readuntil(b"still here\n\n")

    async def ask(member: Member, target: str, body: bytes, content_type: str = "application/json") -> None:
        line = lines.get_nowait() if not lines.empty() else await Line.open(runtime)
        status, told = await line.ask(member.request(runtime.url, "POST", target, body, content_type))
        assert status in (200, 201), told
        lines.put_nowait(line)

    async def listen() -> None:
        acks = []
        while len(latencies) < len(envelopes):
            event = await stream.reader.readuntil(b"\n\n")
            if b"event: message" not in event:
                continue
            arrived = time.perf_counter()
            token = event.split(b"id: ")[1][:64].decode()
            key = event.split(b'"replay_key":"')[1][:64].decode()
            latencies.append(arrived - left[key])
            body = msgspec.json.encode({"acks": [{"replay_key": key, "lease_token": token}]})
            acks.append(asyncio.create_task(ask(recipient, "/v1/messages/acknowledge", body)))
        await asyncio.gather(*acks)

    listening = asyncio.create_task(listen())
    began = time.perf_counter()
    posts = []
    for number, envelope in enumerate(envelopes):
        await asyncio.sleep(max(0.0, began + number / A_SECOND - time.perf_counter()))
        left[envelope.replay_key] = time.perf_counter()
        posts.append(asyncio.create_task(ask(sender, "/v1/messages", envelope.wire, MEDIA_TYPE)))
    await asyncio.gather(*posts)
    async with asyncio.timeout(30):
        await listening
    return sorted(latencies)
