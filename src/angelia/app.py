"""The application: the list of slices, in the order in which they build on each other, behind one edge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol

from starlette.types import Receive, Scope, Send

from angelia.agents.slice import AgentsSlice
from angelia.api import AgentRow, Route, Tick, clock
from angelia.audit.slice import AuditSlice
from angelia.channels.slice import ChannelsSlice
from angelia.grouplog.api import OPERATIONS as GROUP_LOG
from angelia.guard.model import parse_networks
from angelia.guard.rate_limiter import RateLimiter
from angelia.guard.service import Guard
from angelia.guard.slice import GuardSlice
from angelia.http import documents, lifespan
from angelia.http.edge import Edge
from angelia.http.passage import Passage
from angelia.keys import master_key
from angelia.keys.field_encryption import Fields
from angelia.keys.node_key import NodeIdentity
from angelia.keys.slice import KeysSlice
from angelia.mail.slice import MailSlice
from angelia.monitoring.slice import MonitoringSlice
from angelia.policy.slice import PolicySlice
from angelia.queues.slice import QueuesSlice
from angelia.rooms.slice import RoomsSlice
from angelia.runs.slice import RunsSlice
from angelia.settings import Loaded, Settings
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.open_stores import Stores
from angelia.ticker import Ticker


class Slice(Protocol):
    """What the application asks of a slice."""

    def routes(self) -> list[Route]: ...
    def ticks(self) -> list[Tick]: ...
    async def close(self) -> None: ...


class Slices:
    """The slices of one process. Each may use those above it."""

    def __init__(self, stores: Stores, loaded: Loaded, fields: Fields, node: NodeIdentity, worker: int = 0) -> None:
        settings = loaded.settings
        self.audit = AuditSlice(stores, node.signed)
        self.agents = AgentsSlice(stores, settings, meet=self._meet)
        self.guard = GuardSlice(stores, self.agents)
        self.policy = PolicySlice(stores)
        self.keys = KeysSlice(stores, fields, node, self.agents, self.policy)
        self.mail = MailSlice(stores, settings, self.audit, self.agents, self.policy, self.keys)
        self.channels = ChannelsSlice(stores, settings, self.audit, self.agents, self.policy, self.keys)
        self.rooms = RoomsSlice(stores, settings, self.agents)
        self.queues = QueuesSlice(stores, settings, self.keys, worker)
        self.runs = RunsSlice(stores, self.audit, self.mail, self.rooms, self.queues)
        self.monitoring = MonitoringSlice(stores, loaded, worker)

    def __iter__(self) -> Iterator[Slice]:
        return iter(vars(self).values())

    @classmethod
    @asynccontextmanager
    async def opened(cls, stores: Stores, loaded: Loaded, node: NodeIdentity, worker: int = 0) -> AsyncIterator[Slices]:
        """The slices on open stores; closed at the end, those that build on others first."""
        fields = Fields(master_key.load(master_key_file(loaded.settings)))
        slices = cls(stores, loaded, fields, node, worker)
        async with AsyncExitStack() as closing:
            for one in slices:
                closing.push_async_callback(one.close)
            yield slices

    async def _meet(self, name: str, agent: AgentRow, now: datetime) -> None:
        """Raises Denied for agents that the rules hide from an agent, unless one has sent it a direct message."""
        if not await self.rooms.dms.has_from(agent, name):
            await self.keys.keys.meet(name, agent, now)

    def edge(self, stores: Stores, settings: Settings, spool: Passage, *, open_mode: bool) -> Edge:
        """Returns the edge, which takes a request through the guard to the routes of all slices; those of the group log
        are passed on to the spool."""
        routes = [route for one in self for route in one.routes()]
        routes += documents.routes([*(route.operation for route in routes), *GROUP_LOG])
        rules = {rule.name: rule for route in routes if (rule := route.operation.rule) is not None}
        guard = Guard(
            agents=self.agents.agents,
            tokens=self.guard.tokens,
            limiter=RateLimiter(stores.hot, stores.wake, self.guard.blocks, settings, rules),
            settings=settings,
            open_mode=open_mode,
        )
        proxies = parse_networks("trusted_proxies", settings.trusted_proxies)
        return Edge(
            routes,
            guard,
            open_mode=open_mode,
            loopback=settings.loopback,
            proxies=proxies,
            passed_on=GROUP_LOG,
            passage=spool,
        )


class Application:
    """The ASGI application of one worker: opens the slices when the server starts, closes them when it stops, and hands
    requests to the edge."""

    def __init__(self, loaded: Loaded, *, open_mode: bool, worker: int, node: NodeIdentity) -> None:
        self._loaded = loaded
        self._node = node
        self._open_mode = open_mode
        self._worker = worker
        self._edge: Edge | None = None
        self._stores: Stores | None = None

    def stop_waiting(self) -> None:
        """Called before the server stops: long polls answer now."""
        if self._stores is not None:
            self._stores.wake.stop()
        if self._edge is not None:
            self._edge.stop_waiting()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan.follow(receive, send, self.running())
        else:
            assert self._edge is not None, "requests come after startup"
            await self._edge(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with (
            Stores.opened(self._loaded) as stores,
            Slices.opened(stores, self._loaded, self._node, self._worker) as slices,
            aclosing(spool_passage(self._loaded.settings)) as spool,
        ):
            self._stores = stores
            slices.monitoring.watch("log", spool.check_health)
            self._edge = slices.edge(stores, self._loaded.settings, spool, open_mode=self._open_mode)
            await slices.guard.blocks.refresh(clock())
            async with Ticker(stores.ledger, [tick for one in slices for tick in one.ticks()]):
                yield


def spool_passage(settings: Settings) -> Passage:
    """The way to the spool process of this server."""
    return Passage(DataDir(settings.data_dir).spool_socket)


def master_key_file(settings: Settings) -> Path:
    return settings.master_key_file or DataDir(settings.data_dir).master_key
