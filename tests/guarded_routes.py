"""A guard in front of a few routes of each kind."""

from __future__ import annotations

import httpx

from angelia.agents import routes as agent_routes
from angelia.agents.service import Agents
from angelia.api import Access, Answer, Call, Per, Rule
from angelia.guard import routes as guard_routes
from angelia.guard.blocks import AddressBlocks
from angelia.guard.service import Guard
from angelia.guard.tokens import Tokens
from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from angelia.stores.wake import Wake
from edge_setup import edge_of, limiter_of, route
from http_agents import HOST, Agent

PER_AGENT = Rule("posts", 3, 60_000, Per.AGENT)
PER_ADDRESS = Rule("looks", 3, 60_000, Per.ADDRESS)


class Gate:
    """A server with test routes, one of each kind; `executed` holds the calls that the guard let through."""

    def __init__(self, ledger: Ledger, hot: HotTier, settings: Settings, *, open_mode: bool) -> None:
        self.executed: list[Call] = []
        self.hot = hot
        self.agents = Agents(ledger)
        self.tokens = Tokens(ledger, self.agents)
        self.wake = Wake(hot)
        self.blocks = AddressBlocks(ledger, hot, self.wake)
        routes = [
            route("GET", "/signed", self._run, Access.AGENT),
            route("DELETE", "/signed", self._run, Access.AGENT),
            route("POST", "/signed", self._run, Access.AGENT),
            route("GET", "/v1/signed", self._run, Access.AGENT),
            route("POST", "/v1/signed", self._run, Access.AGENT),
            route("POST", "/v1/signed/{name}", self._run, Access.AGENT),
            route("POST", "/v1/own", self._run, Access.SIGNED),
            route("GET", "/v1/limited", self._run, Access.AGENT, rule=PER_AGENT),
            route("GET", "/looks", self._run, Access.ANYONE, rule=PER_ADDRESS),
            route("GET", "/other", self._run, Access.ANYONE),
            route("POST", "/api/v1/work", self._run, Access.WRITE, open_locally=True),
            route("GET", "/v1/reading", self._run, Access.READ),
            route("GET", "/v1/admin", self._run, Access.ADMIN),
            *agent_routes.routes(self.agents, show_email=False),
            *guard_routes.routes(self.tokens, self.blocks),
        ]
        limiter = limiter_of(routes, hot, self.wake, self.blocks, settings)
        self.guard = Guard(
            agents=self.agents, tokens=self.tokens, limiter=limiter, settings=settings, open_mode=open_mode
        )
        self.edge = edge_of(routes, self.guard, settings, open_mode=open_mode)
        self.client = self.client_from("127.0.0.1")

    def client_from(self, address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.edge, client=(address, 50000))
        return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}")

    async def agent(self) -> Agent:
        agent = Agent()
        answer = await self.client.post("/register", json={"public_key": agent.public_text})
        agent.id = answer.json()["id"]
        return agent

    async def send(self, agent: Agent, method: str, url: str, body: bytes = b"", **how: object) -> httpx.Response:
        headers = agent.signed(method, url, body, **how)  # type: ignore[arg-type]
        return await self.client.request(method, url, content=body, headers=headers)

    async def _run(self, call: Call) -> Answer:
        self.executed.append(call)
        return Answer(body={"caller": call.caller.known_as, "role": call.caller.role.label})
