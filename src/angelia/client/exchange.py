"""What a call says and hears, without any input or output: requests, responses, and the shape of a call."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from angelia.errors import AngeliaError

T = TypeVar("T")
JSON = "application/json"
# A server whose pages do not end is not listened to for ever.
MOST_PAGES = 100


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


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one request."""

    method: str
    path: str
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def read(self, kind: type[T]) -> T:
        """The JSON body as a record."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadAnswer(
                f"the answer to {self.method} {self.path} cannot be read: {error}",
                hint="is this an Angelia server, and of the same version?",
            ) from error

    def nothing(self) -> None:
        """The answer to what is only done: 204, and no word. Anything else does not come from an Angelia server."""
        if self.status != 204 or self.body:
            raise BadAnswer(
                f"{self.method} {self.path} was answered with status {self.status}, and not as an Angelia server does",
                hint="is this an Angelia server, and of the same version?",
            )


# One verb of the API: it yields requests, is sent responses, and returns its answer.
Exchange: TypeAlias = Generator[Request, Response, T]


def path(*segments: str) -> str:
    """A path of segments that may hold any character."""
    return "/" + "/".join(quote(segment, safe="") for segment in segments)


def query(**values: str | int | None) -> str:
    """A query string of the values that were given; `from_` is how one writes `from`."""
    return query_string({name.rstrip("_"): value for name, value in values.items() if value is not None})


def query_string(values: Mapping[str, object]) -> str:
    words = {True: "true", False: "false"}
    given = [(name, words[value] if isinstance(value, bool) else value) for name, value in values.items()]
    return urlencode(given, quote_via=quote)


def document(**values: object) -> bytes:
    """A JSON body of the values that were given."""
    return msgspec.json.encode({name: value for name, value in values.items() if value is not None})
