"""The passage to another process: what it lets through, in which pieces, and what it says when that process fails."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from angelia.api import Answer
from angelia.errors import AngeliaError, InvalidArgument, Starting, TooLarge, Unavailable
from angelia.grouplog.api import SUBSCRIBE
from angelia.grouplog.roster_guard import RosterGuard
from angelia.http.answer_head import SharedHead
from angelia.http.edge import Edge
from angelia.http.passage import Passage
from angelia.http.request import Clients, IncomingRequest
from probe_edge import listening

LIMIT = 1 << 20
ADDRESS = "192.0.2.7"  # of the caller
SECONDS = 10  # for what must happen at once
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection:
    """A connection of the passage, as the other process sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def head(self) -> tuple[str, list[tuple[str, str]]]:
        """The request line, and the headers in lower case."""
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = [line.partition(":") for line in lines[1:-2]]
        return lines[0], [(name.lower(), value.strip()) for name, _, value in fields]

    async def read(self, count: int) -> bytes:
        return await self._reader.readexactly(count)

    async def read_chunk(self) -> bytes:
        """A piece of a body of unknown length; nothing at its end."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def write(self, *parts: bytes) -> None:
        self._writer.writelines(parts)
        await self._writer.drain()

    async def has_ended(self) -> bool:
        """Waits until the passage closes the connection."""
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(1 << 16):
                    pass
        return True

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


Play = Callable[[Connection], Awaitable[Any]]


class Upstream:
    """The other process: plays what a test says on each connection. `connections` counts them."""

    def __init__(self, path: Path, play: Play) -> None:
        self._path = path
        self._play = play
        self.connections = 0
        self.played: asyncio.Queue[Any] = asyncio.Queue()  # what each play returned

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = Connection(reader, writer)
        try:
            self.played.put_nowait(await self._play(connection))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.played.put_nowait(error)
        finally:
            await connection.close()

    async def result(self) -> Any:
        """What the next play returns."""
        async with asyncio.timeout(SECONDS):
            return await self.played.get()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._serve, self._path)
        try:
            yield
        finally:
            server.close()
            self._path.unlink(missing_ok=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.sock"


@pytest.fixture
async def passage(path: Path) -> AsyncIterator[Passage]:
    passage = Passage(path)
    yield passage
    await passage.aclose()


async def forever() -> None:
    await asyncio.Event().wait()


def request(
    method: str = "GET",
    target: str = "/v1/groups/g/vector",
    headers: Iterable[tuple[str, str]] = (),
    body: AsyncIterator[bytes] | None = None,
) -> IncomingRequest:
    """A request as the edge has it, whose body comes when the test lets it."""
    path, _, query = target.partition("?")
    fields = [("host", "angelia.example"), *headers]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields],
        "client": (ADDRESS, 50000),
        "angelia.request_id": "the-request",
    }

    async def receive() -> dict[str, Any]:
        if body is None:
            await forever()
        assert body is not None, "only requests with a body are read"
        try:
            return {"type": "http.request", "body": await anext(body), "more_body": True}
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}

    return IncomingRequest(scope, receive, Clients(()), SharedHead({}))  # type: ignore[arg-type]


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def answering(data: bytes) -> Play:
    """Answers one request with these bytes. Its head is what is played."""

    async def play(connection: Connection) -> Any:
        head = await connection.head()
        await connection.write(data)
        return head

    return play


async def send(passage: Passage, sent: IncomingRequest, *, waits: bool = False) -> Answer:
    async with asyncio.timeout(SECONDS):
        return await passage.send(sent, LIMIT, waits=waits)


def stream_of(answer: Answer) -> Any:
    assert answer.stream is not None
    return answer.stream


# What is passed on of a request.


async def headers_that_arrive(path: Path, passage: Passage, *headers: tuple[str, str]) -> list[tuple[str, str]]:
    upstream = Upstream(path, answering(OK))
    async with upstream.listening():
        await send(passage, request(headers=headers))
        return (await upstream.result())[1]  # type: ignore[no-any-return]


async def test_method_path_and_query_arrive_as_they_were_signed(path: Path, passage: Passage) -> None:
    upstream = Upstream(path, answering(OK))
    target = "/v1/groups/a%2Fb%20c/import?source=%61b&before=0&&x"
    async with upstream.listening():
        await send(passage, request("DELETE", target))
        assert (await upstream.result())[0] == f"DELETE {target} HTTP/1.1"


async def test_what_the_signature_needs_arrives_unchanged(path: Path, passage: Passage) -> None:
    signed = [
        ("signature-input", 'sig=("@method" "@path");created=1;keyid="k"'),
        ("signature", "sig=:YWJj:"),
        ("content-digest", "sha-256=:YWJj:"),
        ("content-type", "application/vnd.angelia.frames"),
    ]
    arrived = await headers_that_arrive(path, passage, *signed)
    assert [field for field in arrived if field in signed] == signed
    assert [value for name, value in arrived if name == "host"] == ["angelia.example"]


@pytest.mark.parametrize(
    "name", ["connection", "keep-alive", "te", "upgrade", "expect", "proxy-connection", "proxy-authorization"]
)
async def test_headers_of_one_connection_stay_there(path: Path, passage: Passage, name: str) -> None:
    arrived = await headers_that_arrive(path, passage, (name, "a value of the caller"))
    assert "a value of the caller" not in [value for _, value in arrived]


@pytest.mark.parametrize("name", ["authorization", "cookie"])
async def test_tokens_are_for_this_process_alone(path: Path, passage: Passage, name: str) -> None:
    assert name not in dict(await headers_that_arrive(path, passage, (name, "secret")))


async def test_the_caller_and_the_request_are_named_by_this_process_whatever_the_caller_says(
    path: Path, passage: Passage
) -> None:
    arrived = await headers_that_arrive(
        path,
        passage,
        ("x-angelia-client", "203.0.113.9"),
        ("x-angelia-request-id", "forged"),
        ("x-angelia-anything", "forged"),
    )
    ours = [(name, value) for name, value in arrived if name.startswith("x-angelia-")]
    assert sorted(ours) == [("x-angelia-client", ADDRESS), ("x-angelia-request-id", "the-request")]


async def test_a_body_is_passed_on_piece_by_piece_before_its_end_has_come(path: Path, passage: Passage) -> None:
    first_has_arrived = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        await first_has_arrived.wait()
        yield b"second"

    async def play(connection: Connection) -> bytes:
        await connection.head()
        first = await connection.read(5)
        first_has_arrived.set()
        second = await connection.read(6)
        await connection.write(OK)
        return first + second

    upstream = Upstream(path, play)
    async with upstream.listening():
        answer = await send(passage, request("POST", headers=[("content-length", "11")], body=body()))
        assert (answer.status, await upstream.result()) == (200, b"firstsecond")


async def test_a_body_of_unknown_length_is_passed_on_in_chunks(path: Path, passage: Passage) -> None:
    async def play(connection: Connection) -> list[bytes]:
        await connection.head()
        found = [await connection.read_chunk() for _ in range(3)]
        await connection.write(OK)
        return found

    upstream = Upstream(path, play)
    async with upstream.listening():
        sent = request("POST", headers=[("transfer-encoding", "chunked")], body=pieces(b"one", b"two"))
        assert (await send(passage, sent)).status == 200
        assert await upstream.result() == [b"one", b"two", b""]


async def test_a_body_that_grows_over_its_limit_ends_the_request_on_both_sides(path: Path, passage: Passage) -> None:
    async def play(connection: Connection) -> bool:
        await connection.head()
        return await connection.has_ended()

    upstream = Upstream(path, play)
    async with upstream.listening():
        sent = request("POST", headers=[("transfer-encoding", "chunked")], body=pieces(bytes(LIMIT), b"one more"))
        with pytest.raises(TooLarge):
            await send(passage, sent)
        assert await upstream.result()


async def test_a_caller_that_leaves_in_the_middle_of_its_body_ends_the_request_on_both_sides(
    path: Path, passage: Passage
) -> None:
    async def play(connection: Connection) -> bool:
        await connection.head()
        return await connection.has_ended()

    upstream, sent = Upstream(path, play), request("POST", headers=[("content-length", "10")], body=pieces())
    arriving = [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return arriving.pop(0)

    sent._receive = receive  # type: ignore[assignment]
    async with upstream.listening():
        with pytest.raises(InvalidArgument):
            await send(passage, sent)
        assert await upstream.result()


async def test_an_answer_that_comes_before_the_body_was_read_is_passed_on(path: Path, passage: Passage) -> None:
    refusal = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno"
    upstream = Upstream(path, answering(refusal))
    sent = request("POST", headers=[("content-length", str(LIMIT))], body=pieces(*[bytes(1 << 16)] * 16))
    async with upstream.listening():
        answer = await send(passage, sent)
    assert (answer.status, answer.body) == (401, b"no")


# Answers.


async def test_a_short_answer_is_read_whole(path: Path, passage: Passage) -> None:
    async with Upstream(path, answering(OK)).listening():
        answer = await send(passage, request())
    assert (answer.status, answer.body, answer.content_type, answer.stream) == (200, b"ok", "text/plain", None)


async def test_only_the_headers_that_belong_to_an_answer_are_passed_back(path: Path, passage: Passage) -> None:
    said = (
        b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nServer: inner\r\nX-Request-Id: inner\r\nSet-Cookie: a=b\r\n"
        b"Connection: close\r\nAccess-Control-Allow-Origin: *\r\nContent-Type: application/problem+json\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )
    async with Upstream(path, answering(said)).listening():
        answer = await send(passage, request())
    assert (answer.status, answer.body, answer.content_type) == (429, b"{}", "application/problem+json")
    assert answer.headers == {"retry-after": "7"}


async def test_an_answer_without_a_body_is_whole(path: Path, passage: Passage) -> None:
    async with Upstream(path, answering(b"HTTP/1.1 204 No Content\r\n\r\n")).listening():
        answer = await send(passage, request("DELETE"))
    assert (answer.status, answer.body, answer.stream) == (204, b"", None)


@pytest.mark.parametrize("size", [64 << 10, (64 << 10) + 1, 3 << 20], ids=str)
async def test_an_answer_of_any_length_arrives_whole(path: Path, passage: Passage, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    said = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, body)
    async with Upstream(path, answering(said)).listening():
        answer = await send(passage, request())
        found = answer.body if answer.stream is None else b"".join([part async for part in answer.stream])
    assert found == body


async def test_a_stream_is_passed_back_piece_by_piece_before_its_end_has_come(path: Path, passage: Passage) -> None:
    first_was_read = asyncio.Event()

    async def play(connection: Connection) -> None:
        await connection.head()
        await connection.write(CHUNKED, chunk(b"first"))
        await first_was_read.wait()
        await connection.write(chunk(b"second"), chunk(b""))

    async with Upstream(path, play).listening(), asyncio.timeout(SECONDS):
        parts = stream_of(await send(passage, request(), waits=True))
        assert await anext(parts) == b"first"
        first_was_read.set()
        assert [part async for part in parts] == [b"second"]


async def test_an_answer_has_begun_before_its_first_piece_has_come(path: Path, passage: Passage) -> None:
    has_begun = asyncio.Event()

    async def play(connection: Connection) -> None:
        await connection.head()
        await connection.write(CHUNKED)
        await has_begun.wait()
        await connection.write(chunk(b"first"), chunk(b""))

    async with Upstream(path, play).listening(), asyncio.timeout(SECONDS):
        answer = await send(passage, request(), waits=True)
        assert answer.status == 200
        has_begun.set()
        assert [part async for part in stream_of(answer)] == [b"first"]


# Failures of the other process.


async def test_an_answer_that_breaks_off_is_unavailable(path: Path, passage: Passage) -> None:
    async with Upstream(path, answering(OK.replace(b"length: 2", b"length: 3"))).listening():
        with pytest.raises(Unavailable) as caught:
            await send(passage, request())
    assert not isinstance(caught.value, Starting)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-le", b"no HTTP at all\r\n\r\n"], ids=repr)
async def test_an_answer_without_a_whole_head_is_unavailable(path: Path, passage: Passage, said: bytes) -> None:
    async with Upstream(path, answering(said)).listening():
        with pytest.raises(Unavailable):
            await send(passage, request())


@pytest.mark.parametrize(
    "said",
    [CHUNKED + chunk(b"first"), b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\nfirst"],
    ids=["chunks", "length"],
)
async def test_a_stream_that_breaks_off_gives_what_came_and_then_an_error(
    path: Path, passage: Passage, said: bytes
) -> None:
    async with Upstream(path, answering(said)).listening(), asyncio.timeout(SECONDS):
        parts = stream_of(await send(passage, request(), waits=True))
        assert await anext(parts) == b"first"
        with pytest.raises(Unavailable):
            await anext(parts)


async def test_without_a_process_the_log_is_starting(path: Path, passage: Passage) -> None:
    with pytest.raises(Starting) as caught:
        await send(passage, request())
    assert caught.value.retry_after == 1


async def test_the_socket_of_a_process_that_is_gone_says_that_the_log_is_starting(path: Path, passage: Passage) -> None:
    left_behind = socket.socket(socket.AF_UNIX)
    left_behind.bind(str(path))
    left_behind.close()
    with pytest.raises(Starting):
        await send(passage, request())


async def test_a_process_that_came_back_is_reached_by_the_next_request(path: Path, passage: Passage) -> None:
    closed = asyncio.Event()

    async def first(connection: Connection) -> None:
        await connection.head()
        await connection.write(OK)
        await closed.wait()

    upstream = Upstream(path, first)
    async with upstream.listening():
        await send(passage, request())
        closed.set()
        await upstream.result()
    with pytest.raises(AngeliaError):
        await send(passage, request())
    async with Upstream(path, answering(OK)).listening():
        assert (await send(passage, request())).status == 200


async def test_requests_that_follow_each_other_share_a_connection(path: Path, passage: Passage) -> None:
    async def play(connection: Connection) -> None:
        for _ in range(5):
            await connection.head()
            await connection.write(OK)

    upstream = Upstream(path, play)
    async with upstream.listening():
        for _ in range(5):
            await send(passage, request())
    assert upstream.connections == 1


# Callers that go.


@asynccontextmanager
async def streaming(path: Path, *parts: bytes) -> AsyncIterator[Upstream]:
    """A process whose answer never ends by itself. It is played to the end when the passage has closed it."""

    async def play(connection: Connection) -> bool:
        await connection.head()
        await connection.write(CHUNKED, *map(chunk, parts))
        return await connection.has_ended()

    upstream = Upstream(path, play)
    async with upstream.listening():
        yield upstream


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "does not wait"])
async def test_a_stream_that_is_closed_before_its_first_piece_ends_on_the_other_side(
    path: Path, passage: Passage, waits: bool
) -> None:
    async with streaming(path) as upstream:
        await stream_of(await send(passage, request(), waits=waits)).aclose()
        assert await upstream.result()


async def test_a_stream_that_is_closed_in_its_middle_ends_on_the_other_side(path: Path, passage: Passage) -> None:
    async with streaming(path, b"first") as upstream:
        parts = stream_of(await send(passage, request(), waits=True))
        assert await anext(parts) == b"first"
        await parts.aclose()
        assert await upstream.result()


async def test_a_caller_that_goes_while_it_waits_for_the_next_piece_ends_the_other_side(
    path: Path, passage: Passage
) -> None:
    async with streaming(path, b"first") as upstream:
        parts = stream_of(await send(passage, request(), waits=True))
        await anext(parts)
        waiting = asyncio.ensure_future(anext(parts))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await parts.aclose()
        assert await upstream.result()


async def test_a_caller_that_goes_before_the_answer_ends_the_other_side(path: Path, passage: Passage) -> None:
    has_arrived = asyncio.Event()

    async def play(connection: Connection) -> bool:
        await connection.head()
        has_arrived.set()
        return await connection.has_ended()

    upstream = Upstream(path, play)
    async with upstream.listening():
        sending = asyncio.create_task(send(passage, request()))
        await has_arrived.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await upstream.result()


async def test_streams_that_are_open_hold_up_no_other_request(path: Path, passage: Passage) -> None:
    async def play(connection: Connection) -> None:
        line, _ = await connection.head()
        if "subscribe" not in line:
            await connection.write(OK)
            return
        await connection.write(CHUNKED)
        await connection.has_ended()

    async with Upstream(path, play).listening():
        open_streams = [
            stream_of(await send(passage, request("POST", "/v1/groups/g/subscribe"), waits=True)) for _ in range(100)
        ]
        assert (await send(passage, request())).status == 200
        for one in open_streams:
            await one.aclose()


# Behind the edge.


class OpenDoor(RosterGuard):
    """A guard that knows no callers: the other process does."""

    def __init__(self) -> None:
        pass


@asynccontextmanager
async def caller_of(passage: Passage) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A caller that has asked an edge for a stream of the other process."""
    edge = Edge([], OpenDoor(), open_mode=True, loopback=True, proxies=(), passed_on=[SUBSCRIBE], passage=passage)
    async with listening(edge) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/groups/g/subscribe HTTP/1.1\r\nhost: localhost:{port}\r\ncontent-length: 0\r\n\r\n"
        writer.write(head.encode())
        try:
            yield reader, writer
        finally:
            writer.close()


async def test_a_caller_that_hangs_up_before_the_first_piece_ends_the_other_side(path: Path, passage: Passage) -> None:
    async with streaming(path) as upstream, caller_of(passage) as (reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert await upstream.result()


async def test_a_caller_that_hangs_up_before_the_answer_begins_ends_the_other_side(
    path: Path, passage: Passage
) -> None:
    has_arrived, has_gone = asyncio.Event(), asyncio.Event()

    async def play(connection: Connection) -> bool:
        await connection.head()
        has_arrived.set()
        await has_gone.wait()
        await connection.write(CHUNKED)
        return await connection.has_ended()

    upstream = Upstream(path, play)
    async with upstream.listening(), caller_of(passage) as (_, writer):
        await has_arrived.wait()
        writer.close()
        await writer.wait_closed()
        has_gone.set()
        assert await upstream.result()


async def test_a_stream_that_breaks_off_is_not_ended_as_if_it_were_complete(path: Path, passage: Passage) -> None:
    said = answering(CHUNKED + chunk(b"first"))
    async with Upstream(path, said).listening(), caller_of(passage) as (reader, _), asyncio.timeout(SECONDS):
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == chunk(b"first")  # and no last chunk


async def test_a_stream_of_a_server_that_stops_ends_on_both_sides(path: Path, passage: Passage) -> None:
    edge = Edge([], OpenDoor(), open_mode=True, loopback=True, proxies=(), passed_on=[SUBSCRIBE], passage=passage)
    async with streaming(path, b"first") as upstream, listening(edge) as port, asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/groups/g/subscribe HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
        await reader.readuntil(b"first")
        edge.stop_waiting()
        assert await upstream.result()
        assert await reader.readuntil(b"0\r\n\r\n") == b"\r\n0\r\n\r\n"
        writer.close()


# Health.


async def test_a_process_that_says_so_is_healthy(path: Path, passage: Passage) -> None:
    upstream = Upstream(path, answering(OK))
    async with upstream.listening():
        await passage.check_health()
        assert (await upstream.result())[0] == "GET /health HTTP/1.1"


async def test_a_process_that_says_otherwise_or_nothing_is_not_healthy(path: Path, passage: Passage) -> None:
    with pytest.raises(Starting):
        await passage.check_health()
    for said in (OK.replace(b"200 OK", b"503 Down"), b""):
        async with Upstream(path, answering(said)).listening():
            with pytest.raises(Unavailable):
                await passage.check_health()
