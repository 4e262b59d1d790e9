"""Requests, responses, and exchanges that are made of them, without any input or output."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias, TypeVar

import msgspec

from angelia.api import JSON
from angelia.errors import AngeliaError

S = TypeVar("S")
T = TypeVar("T")
Y = TypeVar("Y")
# A server whose pages do not end is not listened to for ever.
MOST_PAGES = 100
TRIES = 3


class BadAnswer(AngeliaError, code="bad_answer"):
    """The server's answer is not what this version expects"""


class Credential(Enum):
    """Which credential a request prefers when the client holds both."""

    AGENT = "agent"  # the agent's signature, else the token
    OPERATOR = "operator"  # the token, else the agent's signature
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request of a call; an idempotent one does no more when it is sent twice."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    idempotent: bool = True
    credential: Credential = Credential.AGENT
    accepts: tuple[int, ...] = ()  # statuses of 400 and above that are an answer, not an error
    room_key: str | None = None
    content_type: str = JSON  # of the body
    accept: str = JSON  # of the answer
    waits: float = 0.0  # how long the server was asked to take before it answers
    after: float = 0.0  # how long to wait before it is sent
    url: str | None = None  # of another server than the client's
    tries: int = TRIES
    token: str | None = field(default=None, repr=False)  # shown besides the signature, where a server asks for both


@dataclass(frozen=True, slots=True)
class Fan(Request):
    """Several requests at once, each to a server of its own."""

    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one request."""

    method: str
    path: str
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def read(self, kind: type[T]) -> T:
        """Returns the JSON body as a record."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadAnswer(
                f"the answer to {self.method} {self.path} cannot be read: {error}",
                hint="is this an Angelia server, and of the same version?",
            ) from error

    def nothing(self) -> None:
        """Checks the answer of an operation that returns nothing: 204 without a body, or it is no Angelia server."""
        if self.status != 204 or self.body:
            raise BadAnswer(
                f"{self.method} {self.path} was answered with status {self.status}, and not as an Angelia server does",
                hint="is this an Angelia server, and of the same version?",
            )


@dataclass(frozen=True, slots=True)
class Gathered(Response):
    """What came of the requests of a `Fan`, in their order."""

    outcomes: tuple[Response | AngeliaError | OSError, ...] = ()


# One verb of the API: it yields requests, is sent responses, and returns its answer.
Exchange: TypeAlias = Generator[Request, Response, T]


def together(requests: Sequence[Request]) -> Exchange[Sequence[Response | AngeliaError | OSError]]:
    """Sends several requests at once, and returns for each its answer or its error."""
    if not requests:
        return ()
    gathered = yield Fan("", "", requests=tuple(requests))
    assert isinstance(gathered, Gathered), "a Fan is answered with what came of its requests"
    return gathered.outcomes


def driven(call: Exchange[T], send: Callable[[Request], Generator[Y, S, Response]]) -> Generator[Y, S, T]:
    """Takes an exchange to its end and returns its answer. `send` carries out each request; its failure is thrown into
    the exchange, which may recover."""
    try:
        request = next(call)
        while True:
            try:
                response = yield from send(request)
            except (AngeliaError, OSError) as error:  # the server's, the network's, or of the key file
                request = call.throw(error)
            else:
                request = call.send(response)
    except StopIteration as done:
        answer: T = done.value
        return answer
