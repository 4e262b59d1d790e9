"""One more web process of a running server, whose application has three routes more: their handlers do nothing.

Everything else is `angelia.worker` as the server starts it: it reads the same handover from stdin, serves all routes,
runs its background work, logs to stderr and writes metric files. So a request to one of these routes costs what the
edge and the guard cost, and nothing else.
"""

from __future__ import annotations

from typing import Any

from angelia import app, worker
from angelia.api import NOTHING, Access, Answer, Call, Operation, Per, Route, Rule, Tick

# Counted as all requests of agents are, but never reached.
RULE = Rule("empty", 1_000_000_000, 60_000, Per.AGENT)
OPERATIONS = (
    Operation("empty", "GET", "/v1/empty/anyone", Access.ANYONE, "Nothing, for anyone", NOTHING),
    Operation("empty", "GET", "/v1/empty/agent", Access.AGENT, "Nothing, for agents", NOTHING, rule=RULE),
    Operation("empty", "GET", "/v1/empty/open", Access.READ, "Nothing, open locally", NOTHING, open_locally=True),
)


class EmptySlice:
    """A slice without a store."""

    def routes(self) -> list[Route]:
        return [Route(operation, _nothing) for operation in OPERATIONS]

    def ticks(self) -> list[Tick]:
        return []

    async def close(self) -> None:
        pass


class SlicesWithEmpty(app.Slices):
    """The slices of a web process, and the empty one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.empty = EmptySlice()


async def _nothing(call: Call) -> Answer:
    return Answer(body=b"{}")


if __name__ == "__main__":
    app.Slices = SlicesWithEmpty  # type: ignore[assignment,misc]
    worker.main()
