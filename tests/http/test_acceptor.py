"""Web processes that share a listener share its connections, and one that cannot accept any tries again."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator

import pytest

from angelia.http import acceptor
from angelia.http.acceptor import Acceptor


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.no_delay = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener


async def echoed(listener: socket.socket) -> bytes:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"hello")
    async with asyncio.timeout(5):
        answer = await reader.readexactly(5)
    writer.close()
    return answer


async def test_every_connection_gets_a_protocol_and_sends_small_packets_at_once(listener: socket.socket) -> None:
    made: list[Echo] = []

    def protocol() -> Echo:
        made.append(Echo())
        return made[-1]

    accepting = Acceptor(listener, protocol)
    assert await asyncio.gather(*(echoed(listener) for _ in range(20))) == [b"hello"] * 20
    assert [bool(one.no_delay) for one in made] == [True] * 20
    accepting.close()


async def test_of_connections_that_wait_only_a_few_are_taken_in_one_turn(listener: socket.socket) -> None:
    waiting = [socket.create_connection(listener.getsockname()) for _ in range(10)]
    accepting = Acceptor(listener, Echo)
    accepting._accept()
    assert len(accepting._opening) == acceptor._AT_ONCE
    accepting.close()
    for one in waiting:
        one.close()


async def test_after_close_the_connections_are_left_to_others(listener: socket.socket) -> None:
    Acceptor(listener, Echo).close()
    waiting = asyncio.create_task(echoed(listener))
    await asyncio.sleep(0)
    other = Acceptor(listener, Echo)
    assert await waiting == b"hello"
    other.close()


async def test_a_process_without_descriptors_pauses_and_goes_on(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exhausted(socket.socket):
        """A listener whose first tries find no free descriptor."""

        tries = 0

        def accept(self) -> tuple[socket.socket, object]:
            Exhausted.tries += 1
            if Exhausted.tries <= 2:
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    monkeypatch.setattr(acceptor, "_PAUSE_SECONDS", 0.01)
    with Exhausted(fileno=listener.dup().detach()) as exhausted:
        accepting = Acceptor(exhausted, Echo)
        assert await echoed(listener) == b"hello"
        assert Exhausted.tries >= 3
        accepting.close()


async def test_a_client_that_went_away_before_it_was_accepted_is_no_error(listener: socket.socket) -> None:
    accepting = Acceptor(listener, Echo)
    for _ in range(3):
        with socket.create_connection(listener.getsockname()) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closed by a reset
    assert await echoed(listener) == b"hello"
    accepting.close()
