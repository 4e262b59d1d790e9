"""An edge in front of probe routes that show what reached them: on real stores, in process or on a loopback port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import httpx
import msgspec
import uvicorn
from starlette.types import ASGIApp

from angelia.agents.service import Agents
from angelia.api import Access, Answer, Call, Moment, PageSize, Per, Route, Rule
from angelia.errors import Conflict
from angelia.guard.blocks import AddressBlocks
from angelia.guard.service import Guard
from angelia.guard.tokens import Tokens
from angelia.http.protocol import BoundedProtocol
from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from edge_setup import edge_of, limiter_of, route
from http_agents import HOST

ADDRESS = "192.0.2.7"  # of the caller
ONCE = Rule("once", 1, 60_000, Per.ADDRESS)
SECRET_OF_THE_HANDLER = "what-only-the-handler-knows"
PAGE = b"<!doctype html><title>probe</title><p>a page of this server</p>"
PAGE_CSP = "default-src 'none'; connect-src 'self'"


@dataclass(frozen=True)
class RawAnswer:
    """An answer as an ASGI server would send it."""

    status: int
    headers: dict[str, str]
    body: bytes


@asynccontextmanager
async def listening(application: ASGIApp, listener: socket.socket | None = None) -> AsyncIterator[int]:
    """Serves on a loopback port, or on a socket that listens, with the HTTP protocol of the real server."""
    if listener is None:
        # Protocol TCP by name: only then asyncio turns Nagle's algorithm off for connections.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
    config = uvicorn.Config(
        application, http=BoundedProtocol, ws="none", lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    # The socket listens already, so clients need not wait for the server: their connections queue.
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1] if listener.family == socket.AF_INET else 0
    finally:
        server.should_exit = True
        await serving


class Letter(msgspec.Struct):
    """A body to send."""

    text: str = ""


class Question(msgspec.Struct):
    """A query to send."""

    word: str = ""
    limit: PageSize = 10
    since: Moment | None = None


class Doorway:
    """Probe routes of each surface behind a guard; `executed` holds the calls that the guard let through."""

    def __init__(
        self, ledger: Ledger, hot: HotTier, settings: Settings, *, open_mode: bool, more: Sequence[Route] = ()
    ) -> None:
        self.executed: list[Call] = []
        self.agents = Agents(ledger)
        self.tokens = Tokens(ledger, self.agents)
        self.wake = Wake(hot)
        self.blocks = AddressBlocks(ledger, hot, self.wake)
        anyone, run = Access.ANYONE, self._run
        routes = [
            route("GET", "/probe", run, anyone),
            route("POST", "/probe", run, anyone),
            route("GET", "/probe/{name}", self._echo, anyone),
            route("POST", "/narrow", run, anyone, body_limit=10),
            route("GET", "/once", run, anyone, rule=ONCE),
            route("GET", "/once/signed", run, Access.AGENT, rule=ONCE),
            route("GET", "/signed", run, Access.AGENT),
            route("GET", "/conflict", self._conflict, anyone),
            route("GET", "/broken", self._break, anyone),
            route("GET", "/page", self._page, anyone, media="text/html", page=True),
            route("GET", "/v1/probe", run, anyone),
            route("POST", "/v1/probe", run, anyone),
            route("GET", "/v1/probe/{name}", self._echo, anyone),
            route("GET", "/v1/signed", run, Access.AGENT),
            route("GET", "/v1/admin", run, Access.ADMIN),
            route("GET", "/unspeakable", self._misspeak, anyone),
            route("GET", "/v1/broken", self._break, anyone),
            route("POST", "/api/v1/probe", run, Access.WRITE, open_locally=True),
            route("GET", "/api/v1/pop", run, Access.WRITE, open_locally=True),
            route("POST", "/api/v1/anyone", run, anyone),
            route("POST", "/streams/v1/anyone", run, anyone),
            route("POST", "/json", self._read, anyone),
            route("POST", "/v1/json", self._read, anyone),
            route("GET", "/v1/query", self._ask, anyone),
            *more,
        ]
        limiter = limiter_of(routes, hot, self.wake, self.blocks, settings)
        guard = Guard(agents=self.agents, tokens=self.tokens, limiter=limiter, settings=settings, open_mode=open_mode)
        self.edge = edge_of(routes, guard, settings, open_mode=open_mode)
        transport = httpx.ASGITransport(self.edge, client=(ADDRESS, 50000))
        self.client = httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}")

    async def send(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]] = (("host", HOST),),
        chunks: Iterable[bytes] = (),
        *,
        end: bool = True,
    ) -> RawAnswer:
        """Sends one request as an ASGI server does. Without an `end`, the client stops in the middle of the body."""
        target, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": target,
            "raw_path": target.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
            "client": (ADDRESS, 50000),
        }
        arriving = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        if end:
            arriving.append({"type": "http.request", "body": b"", "more_body": False})
        sent: list[dict[str, object]] = []

        async def receive() -> dict[str, object]:
            if not arriving:
                await asyncio.Event().wait()
            return arriving.pop(0)

        async def record(message: dict[str, object]) -> None:
            sent.append(message)

        await self.edge(scope, receive, record)  # type: ignore[arg-type]
        start, body = sent
        named = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}  # type: ignore[attr-defined]
        return RawAnswer(start["status"], named, body["body"])  # type: ignore[arg-type]

    def listening(self) -> AbstractAsyncContextManager[int]:
        return listening(self.edge)

    async def _run(self, call: Call) -> Answer:
        self.executed.append(call)
        return Answer(body={"bytes": len(call.body)})

    async def _echo(self, call: Call) -> Answer:
        return Answer(body={"name": call.path("name")})

    async def _read(self, call: Call) -> Answer:
        return Answer(body=call.json(Letter))

    async def _ask(self, call: Call) -> Answer:
        return Answer(body=call.query(Question))

    async def _page(self, call: Call) -> Answer:
        return Answer(body=PAGE, headers={"content-security-policy": PAGE_CSP}, content_type="text/html")

    async def _conflict(self, call: Call) -> Answer:
        raise Conflict("it does not fit")

    async def _misspeak(self, call: Call) -> Answer:
        return Answer(body={"half a character": "\ud800"})

    async def _break(self, call: Call) -> Answer:
        raise RuntimeError(SECRET_OF_THE_HANDLER)
