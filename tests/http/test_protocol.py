"""What happens before a request is one: heads that are too large, peers that are too slow."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from angelia.http import protocol
from angelia.http.protocol import BoundedProtocol

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
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(echo, http=BoundedProtocol, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
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
