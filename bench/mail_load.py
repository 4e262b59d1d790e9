"""Load for mail: agents that send, listen, poll and acknowledge. Envelopes, receipts and requests are made before the
clock starts, wherever they do not need an answer of the server."""

from __future__ import annotations

import asyncio
import hashlib
import random
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from angelia.envelope import json_form
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.receipts import Receipt, ReceiptStatus, receipt_document, sign_receipt
from angelia.envelope.wire import Envelope
from angelia.mail.api import RECORD_HEAD
from angelia.runtime_file import Runtime
from fleet import Line, Member

SENDERS, RECIPIENTS, BATCH = 64, 16, 64
BODY = random.Random(1).randbytes(1024)
JSON = "application/json"
_record = struct.Struct(RECORD_HEAD)
_length = struct.Struct(">I")


@dataclass(frozen=True)
class Post:
    """A sealed message, and the receipt that its recipient will acknowledge it with."""

    sender: Member
    recipient: Member
    envelope: Envelope
    receipt: bytes

    @classmethod
    def made(cls, sender: Member, recipient: Member) -> Post:
        envelope = sender.seal(recipient, BODY)
        return cls(sender, recipient, envelope, receipt(recipient, envelope))

    @property
    def key(self) -> str:
        return self.envelope.replay_key

    def request(self, url: str) -> bytes:
        return self.sender.request(url, "POST", "/v1/messages", self.envelope.wire, MEDIA_TYPE)

    def acknowledgement(self, url: str, token: str) -> bytes:
        content = _acks([_ack(self.key, token, self.receipt)])
        return self.recipient.request(url, "POST", "/v1/messages/acknowledge", content)


def posts(senders: Sequence[Member], recipients: Sequence[Member], count: int) -> list[Post]:
    """Returns messages from each sender in turn to each recipient in turn."""
    return [Post.made(senders[n % len(senders)], recipients[n % len(recipients)]) for n in range(count)]


def receipt(member: Member, envelope: Envelope) -> bytes:
    """Returns a signed receipt as JSON."""
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


def batch_request(url: str, sender: Member, envelopes: Sequence[Envelope], content_type: str) -> bytes:
    """Returns a request that sends a batch, in JSON or in the binary form: before each envelope stands its length."""
    if content_type == JSON:
        content = b'{"messages":[' + b",".join(json_form.encode(one) for one in envelopes) + b"]}"
    else:
        content = b"".join(_length.pack(len(one.wire)) + one.wire for one in envelopes)
    return sender.request(url, "POST", "/v1/messages/batch", content, content_type)


async def send_all(runtime: Runtime, requests: Sequence[Sequence[bytes]], messages: int) -> float:
    """Sends each sequence of requests over a connection of its own, one at a time. Returns the rate of messages."""
    lines = [await Line.open(runtime) for _ in requests]

    async def sender(line: Line, mine: Sequence[bytes]) -> None:
        for request in mine:
            status, body = await line.ask(request)
            assert status in (200, 201), body
            assert b'"problem"' not in body, body

    began = time.perf_counter()
    await asyncio.gather(*(sender(line, mine) for line, mine in zip(lines, requests, strict=True)))
    rate = messages / (time.perf_counter() - began)
    for line in lines:
        line.writer.close()
    return rate


async def receive_all(runtime: Runtime, recipients: Sequence[Member], receipts: dict[str, bytes]) -> float:
    """Polls and acknowledges, a hundred messages at a time, until there are none. Returns the rate.

    A message without a receipt is acknowledged without one."""

    async def recipient(member: Member) -> int:
        line, got = await Line.open(runtime), 0
        while acks := [_ack(key, token, receipts.get(key)) for key, token in await poll(line, runtime, member)]:
            status, body = await line.ask(member.request(runtime.url, "POST", "/v1/messages/acknowledge", _acks(acks)))
            assert status == 200, body
            assert b'"problem"' not in body, body
            got += len(acks)
        line.writer.close()
        return got

    began = time.perf_counter()
    got = sum(await asyncio.gather(*(recipient(member) for member in recipients)))
    assert got >= len(receipts), f"{got} of {len(receipts)} arrived"
    return got / (time.perf_counter() - began)


async def poll(line: Line, runtime: Runtime, member: Member) -> list[tuple[str, str]]:
    """Leases up to a hundred messages. Returns their replay keys and lease tokens."""
    request = member.request(runtime.url, "GET", "/v1/messages?max_messages=100", accept=MEDIA_TYPE)
    status, body = await line.ask(request)
    assert status == 200, body
    return list(_records(body))


class Stream:
    """A recipient's open stream."""

    def __init__(self, line: Line) -> None:
        self._line = line

    @classmethod
    async def open(cls, runtime: Runtime, recipient: Member) -> Stream:
        line = await Line.open(runtime)
        line.writer.write(recipient.request(runtime.url, "GET", "/v1/messages/stream"))
        await line.reader.readuntil(b"still here\n\n")
        return cls(line)

    async def next(self) -> tuple[str, str]:
        """Returns the replay key and the lease token of the next message."""
        while True:
            event = await self._line.reader.readuntil(b"\n\n")
            if b"event: message" in event:
                return event.split(b'"replay_key":"')[1][:64].decode(), event.split(b"id: ")[1][:64].decode()

    def close(self) -> None:
        self._line.writer.close()


class Lines:
    """Connections that are used again; a request that finds none idle opens one more."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._idle: list[Line] = []

    async def ask(self, request: bytes) -> None:
        line = self._idle.pop() if self._idle else await Line.open(self.runtime)
        status, body = await line.ask(request)
        assert status in (200, 201), body
        assert b'"problem"' not in body, body
        self._idle.append(line)


async def stream_paced(lines: Lines, stream: Stream, sent: Sequence[Post], a_second: int) -> list[float]:
    """Sends at a steady pace, and acknowledges each message when it arrives on the stream. Returns the seconds from the
    first byte of a send to its event, sorted; returns after the last acknowledgment is answered."""
    known, left = {post.key: post for post in sent}, dict[str, float]()
    latencies: list[float] = []
    url = lines.runtime.url
    requests = [post.request(url) for post in sent]

    async def listen() -> None:
        acks = []
        while len(latencies) < len(sent):
            key, token = await stream.next()
            latencies.append(time.perf_counter() - left[key])
            acks.append(asyncio.create_task(lines.ask(known[key].acknowledgement(url, token))))
        await asyncio.gather(*acks)

    listening = asyncio.create_task(listen())
    asked = []
    began = time.perf_counter()
    for number, (post, request) in enumerate(zip(sent, requests, strict=True)):
        await asyncio.sleep(max(0.0, began + number / a_second - time.perf_counter()))
        left[post.key] = time.perf_counter()
        asked.append(asyncio.create_task(lines.ask(request)))
    async with asyncio.timeout(30):
        await asyncio.gather(*asked, listening)
    return sorted(latencies)


def _ack(key: str, token: str, signed: bytes | None) -> bytes:
    ending = b"" if signed is None else b',"receipt":' + signed
    return b'{"replay_key":"%s","lease_token":"%s"%s}' % (key.encode(), token.encode(), ending)


def _acks(acks: Sequence[bytes]) -> bytes:
    return b'{"acks":[' + b",".join(acks) + b"]}"


def _records(body: bytes) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(body):
        _, token, length = _record.unpack_from(body, at)
        at += _record.size + length
        yield hashlib.sha256(body[at - length : at]).hexdigest(), token.hex()
