"""Web processes that share a listener share its connections, and one that cannot accept any tries again."""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
from collections.abc import Callable, Coroutine, Iterator

import pytest
import uvloop

from angelia.http import acceptor
from angelia.http.acceptor import Acceptor


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.no_delay = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


def on_uvloop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Runs a test on the event loop of a web process."""

    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        uvloop.run(test(**fixtures))

    return run


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


@on_uvloop
async def test_every_connection_gets_a_protocol_and_sends_small_packets_at_once(listener: socket.socket) -> None:
    made: list[Echo] = []

    def protocol() -> Echo:
        made.append(Echo())
        return made[-1]

    accepting = Acceptor(listener, protocol)
    assert await asyncio.gather(*(echoed(listener) for _ in range(20))) == [b"hello"] * 20
    assert [bool(one.no_delay) for one in made] == [True] * 20
    await accepting.close()


@on_uvloop
async def test_of_connections_that_wait_only_a_few_are_taken_in_one_turn(listener: socket.socket) -> None:
    waiting = [socket.create_connection(listener.getsockname()) for _ in range(10)]
    accepting = Acceptor(listener, Echo)
    accepting._accept()
    assert len(accepting._opening) == acceptor._AT_ONCE
    await accepting.close()
    for one in waiting:
        one.close()


@on_uvloop
async def test_after_close_the_connections_are_left_to_others(listener: socket.socket) -> None:
    made: list[Echo] = []
    closed = Acceptor(listener, lambda: made.append(Echo()) or made[-1])  # type: ignore[func-returns-value]
    await closed.close()
    with listener.dup() as same:
        other = Acceptor(same, Echo)
        assert await echoed(listener) == b"hello"
        await other.close()
    assert made == []


@on_uvloop
async def test_what_was_accepted_before_the_close_has_its_protocol_after_it(listener: socket.socket) -> None:
    made: list[Echo] = []
    waiting = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    accepting = Acceptor(listener, lambda: made.append(Echo()) or made[-1])  # type: ignore[func-returns-value]
    accepting._accept()
    await accepting.close()
    assert [hasattr(one, "transport") for one in made] == [True] * 3
    for one in waiting:
        one.close()


@on_uvloop
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
        await accepting.close()


@on_uvloop
async def test_a_client_that_went_away_before_it_was_accepted_is_no_error(listener: socket.socket) -> None:
    accepting = Acceptor(listener, Echo)
    for _ in range(3):
        with socket.create_connection(listener.getsockname()) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closed by a reset
    assert await echoed(listener) == b"hello"
    await accepting.close()
