"""What happens before a request is one: heads that are too large, peers that are too slow."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from angelia.http import protocol
from angelia.http.protocol import WHOLE_ANSWER, BoundedProtocol

LARGE = 8 << 20


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    answer = b"x" * LARGE if scope["path"] == "/large" else b"%d" % len(body)
    headers = [(b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serving(echo, BoundedProtocol) as port:
        yield port


class Noting(BoundedProtocol):
    """Notes what is written to the socket, write by write."""

    writes: ClassVar[list[bytes]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _Noted(transport)  # type: ignore[assignment]


class _Noted:
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        Noting.writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


async def whole(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers as a whole what came in the body, or as much as the path says."""
    body, more = b"", scope["method"] == "POST"
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if scope["path"] != "/":
        body = b"x" * int(scope["path"][1:])
    await scope["extensions"][WHOLE_ANSWER](200, b"content-length: %d\r\n" % len(body), body)


@asynccontextmanager
async def serving(
    app: ASGIApp, kind: type[BoundedProtocol], listener: socket.socket | None = None
) -> AsyncIterator[int]:
    listener = listener or socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=kind, ws="none", lifespan="off", log_config=None))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    yield listener.getsockname()[1]
    server.should_exit = True
    await running


async def ask(port: int, data: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    return int(answer[9:12]), answer


async def test_an_ordinary_request_passes_with_a_large_body_and_pipelined_neighbours(port: int) -> None:
    body = b"y" * 300_000
    post = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    last = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    _, answer = await ask(port, post + post + last)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.count(b"300000") == 2


async def test_a_request_whose_sender_reset_the_connection_before_it_was_accepted_is_not_served() -> None:
    served: list[object] = []

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        served.append(scope["client"])
        await echo(scope, receive, send)

    listener = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(listener.getsockname()) as hidden:  # its address cannot be asked for any more
        hidden.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        hidden.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    async with serving(noting, BoundedProtocol, listener) as port:
        assert (await ask(port, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))[0] == 200
    assert len(served) == 1
    assert served[0] is not None


@pytest.mark.parametrize(
    "head",
    [
        b"x-long: " + b"a" * 40_000 + b"\r\n\r\n",
        b"".join(b"x-%d: 1\r\n" % n for n in range(101)) + b"\r\n",
        b"".join(b"x-%d: %s\r\n" % (n, b"a" * 1000) for n in range(40)) + b"\r\n",
    ],
)
async def test_a_head_that_is_too_large_is_refused(port: int, head: bytes) -> None:
    status, answer = await ask(port, b"GET / HTTP/1.1\r\nhost: x\r\n" + head)
    assert status == 431
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": "the request's head is too large"}
    assert b"x-content-type-options: nosniff" in answer


@pytest.mark.parametrize("length", [40_000, 120_000])
async def test_a_request_target_counts_as_part_of_the_head(port: int, length: int) -> None:
    status, _ = await ask(port, b"GET /?" + b"a" * length + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert status == 431


async def test_a_header_without_an_end_is_refused_while_it_arrives(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nx-endless: ")
    sent = 0
    while not reader.at_eof() and sent < 2_000_000:
        writer.write(b"a" * 10_000)
        sent += 10_000
        try:
            await writer.drain()
            await asyncio.wait_for(reader.readuntil(b"431"), 0.01)
            break
        except TimeoutError:
            continue
        except (ConnectionError, asyncio.IncompleteReadError):
            break
    assert sent < 600_000
    writer.close()


async def test_what_is_no_request_is_answered_in_json(port: int) -> None:
    status, answer = await ask(port, b"\x16\x03\x01 nonsense\r\n\r\n")
    assert status == 400
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": "this is no HTTP request"}


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost:", b"\r\n"])
async def test_a_silent_or_half_sent_request_is_hung_up_on(port: int, sent: bytes, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(-1), 5) == b""
    writer.close()


async def test_a_kept_connection_is_hung_up_on_when_the_next_head_stalls(port: int, monkeypatch) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n0")
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    writer.write(b"GET / HTTP/1.1\r\n")
    assert await asyncio.wait_for(reader.read(-1), 5) == b""
    writer.close()


async def test_a_peer_that_does_not_read_its_answer_is_hung_up_on(port: int, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.2)
    hung_up, connection_lost = asyncio.Event(), BoundedProtocol.connection_lost

    def noted(connection: BoundedProtocol, error: Exception | None) -> None:
        connection_lost(connection, error)
        hung_up.set()

    monkeypatch.setattr(BoundedProtocol, "connection_lost", noted)
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.connect(("127.0.0.1", port))
    lazy.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.wait_for(hung_up.wait(), 10)
    lazy.settimeout(5)
    received = await asyncio.to_thread(_read_all, lazy)
    assert received < LARGE


def _read_all(connection: socket.socket) -> int:
    total = 0
    try:
        while data := connection.recv(1 << 16):
            total += len(data)
    except ConnectionResetError:
        pass
    return total


# Answers as a whole.


async def test_head_and_body_are_one_write_and_a_large_body_is_not_copied() -> None:
    async with serving(whole, Noting) as port:
        Noting.writes.clear()
        _, answer = await ask(port, b"GET /5 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert Noting.writes == [answer]
        assert answer.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
        assert answer.endswith(b"content-length: 5\r\nconnection: close\r\n\r\nxxxxx")
        Noting.writes.clear()
        _, answer = await ask(port, b"GET /%d HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % LARGE)
        assert [len(part) for part in Noting.writes[1:]] == [LARGE]
        assert answer == b"".join(Noting.writes)


async def test_whole_answers_keep_a_connection_and_the_order_of_pipelined_requests() -> None:
    async with serving(whole, BoundedProtocol) as port:
        requests = b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % n for n in (3, 70_000, 1))
        last = b"GET /2 HTTP/1.0\r\nhost: x\r\n\r\n"
        _, answer = await ask(port, requests + last)
        lengths = [int(part.split(b"\r\n")[0]) for part in answer.split(b"content-length: ")[1:]]
        assert lengths == [3, 70_000, 1, 2]
        assert answer.count(b"connection: close") == 1


async def test_a_whole_answer_to_one_that_expects_to_be_asked_for_its_body() -> None:
    async with serving(whole, BoundedProtocol) as port:
        head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\nconnection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert (await asyncio.wait_for(reader.read(-1), 5)).endswith(b"\r\n\r\nbody")
        writer.close()


async def test_a_whole_answer_to_a_peer_that_has_gone_is_dropped() -> None:
    gone = asyncio.Event()
    ended: list[str] = []

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await scope["extensions"][WHOLE_ANSWER](200, b"content-length: 0\r\n", b"")
        ended.append("quietly")
        gone.set()

    async with serving(late, Noting) as port:
        Noting.writes.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await writer.drain()
        writer.close()
        await asyncio.wait_for(gone.wait(), 5)
    assert (ended, Noting.writes) == (["quietly"], [])


# Connections that are kept.


async def test_an_idle_connection_is_closed_and_one_that_was_used_is_looked_at_again(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        await reader.readexactly(1)
    (kept,) = [one for one in gc.get_objects() if isinstance(one, BoundedProtocol) and not one.transport.is_closing()]
    timer, now = kept._idle_timer, kept.loop.time()
    assert timer is not None, "one timer, whatever the number of requests"
    kept._idle_since = now - 1
    kept._check_idle()  # as the timer does, in the middle of a later pause
    assert kept._idle_timer is not None
    assert kept._idle_timer.when() == pytest.approx(now - 1 + kept.timeout_keep_alive, abs=0.1)
    kept._idle_since = None
    kept._check_idle()  # during a request
    assert (kept._idle_timer, kept.transport.is_closing()) == (None, False)
    kept._idle_since = now - kept.timeout_keep_alive
    kept._check_idle()
    assert await asyncio.wait_for(reader.read(-1), 5) == b""
    writer.close()


@pytest.mark.parametrize("fields", [b"x: 1\r\n" * 102, b"x: %s\r\n" % (b"a" * 1000) * 40])
async def test_a_head_of_too_much_is_refused_before_its_end_also_in_one_piece(port: int, fields: bytes) -> None:
    status, _ = await ask(port, b"GET / HTTP/1.1\r\nhost: x\r\n" + fields)
    assert status == 431


async def test_trailers_are_no_part_of_the_head_and_few(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    writer.write(b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 20)
    async with asyncio.timeout(10):
        await reader.read()  # until the server closes the connection
    writer.close()
