"""The client that blocks until the server answers."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Self, TypeVar

import httpx

from angelia.client.client_namespaces import ClientNamespaces, next_step
from angelia.client.exchange import Exchange
from angelia.client.namespaces import Blocking
from angelia.client.transport import Body, Line, Observer, Outcome, Pause, Signer, Step, connecting, described, origin

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
        self._http.close()

    def run(self, exchange: Exchange[T]) -> T:
        """Takes an exchange to its end and returns its answer; the verbs of the namespaces do this with theirs."""
        steps, outcome = self._line.run(exchange), None
        while not isinstance(step := next_step(steps, outcome), StopIteration):
            outcome = self._take(step)
        answer: T = step.value
        return answer

    def _take(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        body = Body(step)
        try:
            with self._http.stream(**step.arguments) as answer:
                for chunk in answer.iter_bytes():
                    if (problem := body.take(chunk)) is not None:
                        return problem
                return body.response(answer)
        except httpx.RequestError as error:
            return described(error, timeout=step.allowed)
