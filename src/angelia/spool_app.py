"""The application of a spool process: the group log behind an edge and a guard of its own, without other stores."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from starlette.types import Message, Receive, Scope, Send

from angelia import metrics
from angelia.api import clock
from angelia.api.request_verifier import RequestVerifier
from angelia.errors import AngeliaError
from angelia.grouplog import routes
from angelia.grouplog.append_rate import AppendRate
from angelia.grouplog.maintenance import Scrub, SpoolMaintenance
from angelia.grouplog.roster_guard import RosterGuard
from angelia.grouplog.service import GroupLog
from angelia.grouplog.spool import Spool
from angelia.guard.model import parse_networks
from angelia.http import lifespan
from angelia.http.edge import Edge
from angelia.http.passage import CLIENT, REQUEST_ID
from angelia.http.protocol import WHOLE_ANSWER, BoundedProtocol
from angelia.keys.node_key import NodeKey
from angelia.monitoring.routes import health_routes, metrics_route
from angelia.settings import Settings
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.private_files import make_private_directory
from angelia.stores.system_user import SystemUser

OBSERVE_SECONDS = 10.0
_MOST_STREAMS = 1_000  # of one member at one address, in all its groups
log = structlog.get_logger(__name__)


class SpoolProtocol(BoundedProtocol):
    """Counts connections."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        metrics.LOG_CONNECTIONS.labels("opened").inc()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        metrics.LOG_CONNECTIONS.labels("closed").inc()
        super().connection_lost(exc)


class SpoolApplication:
    """The ASGI application of a spool. Behind a web process, which is the only one that reaches its socket, it takes
    the caller's address and the request's id from headers."""

    def __init__(
        self, settings: Settings, node: NodeKey, *, open_mode: bool, token: str | None, behind_web: bool
    ) -> None:
        """`token` is asked for where a group is created; None behind a web process, which asks for one itself."""
        self._settings = settings
        self._node = node
        self._open_mode = open_mode
        self._token = token
        self._behind_web = behind_web
        self._edge: Edge | None = None
        self._spool: Spool | None = None
        self.failure: AngeliaError | None = None  # why it could not start
        self.wants_restart = False

    def stop_waiting(self) -> None:
        """Called before the server stops: streams end now."""
        if self._spool is not None:
            self._spool.subscriptions.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan.follow(receive, send, self.running())
            return
        assert self._edge is not None, "requests come after startup"
        if self._behind_web:
            _introduce(scope)
        await self._edge(scope, *_counted(scope, receive, send))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        settings = self._settings
        directory = DataDir(settings.data_dir).spool
        make_private_directory(directory, SystemUser.ourselves())
        async with AsyncExitStack() as stack:
            try:
                spool = await stack.enter_async_context(Spool.opened(directory))
            except AngeliaError as error:
                self.failure = error
                raise
            maintenance = SpoolMaintenance(spool)
            rate = AppendRate(settings.log_append_rate, settings.log_append_burst)
            service = GroupLog(spool, maintenance, self._node.public_key, self._node.sign, rate)
            self._spool, self._edge = spool, self._edge_of(spool, service)
            work = [maintenance.run(), Scrub(spool, clock).run(), _observe(spool), self._start_again(spool)]
            tasks = [asyncio.create_task(one) for one in work]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _start_again(self, spool: Spool) -> None:
        """Ends the server after a write that had no room: it is started again, with the room of the reserve."""
        await spool.must_reopen.wait()
        log.warning("a write had no room: the log is opened anew, and takes deletions")
        self.wants_restart = True
        os.kill(os.getpid(), signal.SIGTERM)

    def _edge_of(self, spool: Spool, service: GroupLog) -> Edge:
        settings = self._settings
        verifier = RequestVerifier(
            public_url=settings.public_url,
            host=settings.host,
            port=settings.port,
            loopback=settings.loopback,
            past_seconds=settings.signature_past_seconds,
            ahead_seconds=settings.signature_ahead_seconds,
        )
        return Edge(
            [
                *routes.routes(service, self._node.public_key),
                *health_routes({"log": spool.check}, spool.reserve.shown, worker=0),
                metrics_route(open_to_all=settings.open_metrics or self._open_mode),
            ],
            RosterGuard(spool.groups, verifier, self._token),
            open_mode=self._open_mode,
            loopback=settings.loopback,
            proxies=parse_networks("trusted_proxies", settings.trusted_proxies),
            most_waits=_MOST_STREAMS,
            counts=not self._behind_web,
        )


async def _observe(spool: Spool) -> None:
    """Sets what is measured rather than counted, until it is cancelled."""
    while True:
        metrics.LOG_SUBSCRIBERS.set(len(spool.subscriptions))
        metrics.LOG_LONGEST_QUEUE.set(spool.subscriptions.longest_queue)
        for family, size in (await spool.read(spool.sizes)).items():
            metrics.LOG_BYTES.labels(family).set(size)
        await asyncio.sleep(OBSERVE_SECONDS)


def _introduce(scope: Scope) -> None:
    """Takes what the web process says of the caller from the headers."""
    said = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (CLIENT, REQUEST_ID)}
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name not in said]
    if CLIENT in said:
        scope["client"] = (said[CLIENT], 0)
    scope["angelia.request_id"] = said.get(REQUEST_ID)


def _counted(scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Counts the bytes of bodies."""
    came, went = metrics.LOG_TRAFFIC.labels("in"), metrics.LOG_TRAFFIC.labels("out")

    async def receiving() -> Message:
        message = await receive()
        came.inc(len(message.get("body", b"")))
        return message

    async def sending(message: Message) -> None:
        went.inc(len(message.get("body", b"")))
        await send(message)

    extensions = scope.get("extensions", {})
    if WHOLE_ANSWER in extensions:
        whole = extensions[WHOLE_ANSWER]

        async def sending_whole(status: int, lines: bytes, body: bytes) -> None:
            went.inc(len(body))
            await whole(status, lines, body)

        scope["extensions"] = {**extensions, WHOLE_ANSWER: sending_whole}
    return receiving, sending
