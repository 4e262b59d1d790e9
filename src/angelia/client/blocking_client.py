"""The client that blocks until the server answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Self, TypeVar

import httpx

from angelia.client.client_namespaces import ClientNamespaces, next_step
from angelia.client.exchange import Exchange, Response
from angelia.client.namespaces import Blocking
from angelia.client.transport import (
    Body,
    Branches,
    BranchOutcome,
    Line,
    Observer,
    Outcome,
    Pause,
    Signer,
    Step,
    connecting,
    described,
    origin,
    origin_of,
)
from angelia.errors import AngeliaError

if TYPE_CHECKING:
    from angelia.client.mail_verbs import BlockingMail
    from angelia.client.queue_verbs import BlockingQueues
    from angelia.client.room_verbs import BlockingRooms

T = TypeVar("T")


class Client(ClientNamespaces[Blocking]):
    """Speaks to one server as one agent, with one token, or anonymously, and blocks until it answers."""

    def __init__(
        self,
        url: str,
        identity: Signer | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        observer: Observer | None = None,
    ) -> None:
        self._line = Line(origin(url), identity, token, timeout, observer)
        self._http = httpx.Client(**connecting(url))
        self._others: dict[str, httpx.Client] = {}  # for servers that an exchange names itself
        self._stepping = threading.Lock()
        super().__init__(self.run)

    @cached_property
    def mail(self) -> BlockingMail:
        from angelia.client.mail_verbs import BlockingMail

        return BlockingMail(self)

    @cached_property
    def rooms(self) -> BlockingRooms:
        from angelia.client.room_verbs import BlockingRooms

        return BlockingRooms(self)

    @cached_property
    def queues(self) -> BlockingQueues:
        from angelia.client.queue_verbs import BlockingQueues

        return BlockingQueues(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends loops over queues, and closes the connections."""
        if "queues" in vars(self):
            self.queues.close()
        for http in (self._http, *self._others.values()):
            http.close()

    def run(self, exchange: Exchange[T]) -> T:
        """Takes an exchange to its end and returns its answer; the verbs of the namespaces do this with theirs."""
        steps, outcome = self._line.run(exchange), None
        while not isinstance(step := next_step(steps, outcome), StopIteration):
            outcome = self._take(step)
        answer: T = step.value
        return answer

    def _branch(self, steps: Generator[Step, Outcome, Response]) -> BranchOutcome:
        outcome: Outcome = None
        try:
            while True:
                with self._stepping:  # two branches do not sign at once
                    step = next_step(steps, outcome)
                if isinstance(step, StopIteration):
                    answer: Response = step.value
                    return answer
                outcome = self._take(step)
        except (AngeliaError, OSError) as error:
            return error

    def _http_to(self, url: str) -> httpx.Client:
        if url.startswith(self._line.url + "/"):
            return self._http
        server = origin_of(url)
        if server not in self._others:
            self._others[server] = httpx.Client(**connecting(server))
        return self._others[server]

    def _take(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        if isinstance(step, Branches):
            with ThreadPoolExecutor(len(step.branches), thread_name_prefix="angelia-client") as threads:
                return tuple(threads.map(self._branch, step.branches))
        body = Body(step)
        try:
            with self._http_to(step.url).stream(**step.arguments) as answer:
                for chunk in answer.iter_bytes():
                    if (problem := body.take(chunk)) is not None:
                        return problem
                return body.response(answer)
        except httpx.RequestError as error:
            return described(error, timeout=step.allowed)
