"""Carries an exchange over an unreliable network: sign, send, judge, retry. Without input or output.

A driver takes the steps that `Line.run` yields (send this, pause so long) and reports what came of each.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, TypeVarTuple
from urllib.request import getproxies
from uuid import UUID

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia import __version__
from angelia.api import http_signature
from angelia.client.api_errors import (
    NOTABLE_SKEW,
    PROXIED,
    ApiError,
    NotAngelia,
    Unreachable,
    clock_skew,
    fault,
    is_ours,
    not_angelia,
    retry_after,
)
from angelia.client.exchange import TRIES as TRIES
from angelia.client.exchange import Credential, Exchange, Fan, Gathered, Request, Response, driven
from angelia.errors import AngeliaError, InvalidArgument, Stale, Unauthenticated
from angelia.mailbox.mailbox import Mailbox

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FIRST_PAUSE = 0.2
# Signatures carry whole seconds, so one made in the second of the nonce memory's birth is still too old.
PAUSE_AFTER_STALE = 1.0
# More than any answer has: a page of mail is about 8 MiB.
LONGEST_ANSWER = 64 << 20
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(rb"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_.])?|[0-9a-f:]*:[0-9a-f:.]*")


class Signer(Protocol):
    """What signs requests: a `Mailbox`, an `Identity`, or any other object with a key and its key_id."""

    @property
    def key(self) -> Ed25519PrivateKey: ...
    @property
    def key_id(self) -> UUID: ...


class Aside(Protocol):
    """Runs work on a thread beside the event loop: files, SQLite and signatures."""

    def __call__(self, work: Callable[[*Ts], T], /, *args: *Ts) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class Send:
    """Step: send this, and report a Response or a Failed."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    timeout: float
    allowed: float  # what the whole exchange may take, with its other tries

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of httpx."""
        sent = {"method": self.method, "url": self.url, "headers": self.headers, "content": self.body}
        return {**sent, "timeout": self.timeout}


@dataclass(frozen=True, slots=True)
class Pause:
    """Step: wait so long, and report None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Branches:
    """Step: take all of these to their ends at once, and report a response or an error for each."""

    branches: tuple[Generator[Step, Outcome, Response], ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """Report: the network failed, in these words."""

    why: str


@dataclass(frozen=True, slots=True)
class Trip:
    """One attempt as an observer sees it; no header, no body, nothing secret."""

    method: str
    path: str
    seconds: float
    status: int | None
    request_id: str | None
    failure: str | None


Step: TypeAlias = "Send | Pause | Branches"
BranchOutcome: TypeAlias = Response | AngeliaError | OSError
Outcome: TypeAlias = Response | Failed | tuple[BranchOutcome, ...] | None
Observer: TypeAlias = Callable[[Trip], None]


def origin(url: str) -> str:
    """Returns a server's URL in its one spelling: scheme, host and port, nothing else."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidArgument(f"{url} is no URL: {error}") from error
    if parsed.scheme not in _DEFAULT_PORTS or _HOST.fullmatch(parsed.raw_host) is None:
        raise InvalidArgument(f"{url} is no server's URL", hint="write it as http://localhost:8080")
    if parsed.userinfo or parsed.raw_path not in (b"", b"/") or parsed.fragment:
        raise InvalidArgument("a server's URL has no user, path or query", hint="write it as https://angelia.example")
    host = parsed.raw_host.decode("ascii")
    host = f"[{host}]" if ":" in host else host
    port = "" if parsed.port in (None, _DEFAULT_PORTS[parsed.scheme]) else f":{parsed.port}"
    return f"{parsed.scheme}://{host}{port}"


def origin_of(url: str) -> str:
    """Returns the scheme, host and port of a URL."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}"


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine, where no proxy can help and no stranger listens."""
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def connecting(url: str) -> dict[str, Any]:
    """Returns the arguments of httpx's clients for a server: no proxy to this machine, and TLS where there may be some.

    By default a client loads all certificate authorities, which takes longer than a request. A connection without TLS
    gets a context that trusts none of them."""
    here = is_loopback(url)
    plain = httpx.URL(url).scheme == "http" and (here or not getproxies())  # a proxy may be reached by TLS
    return {"trust_env": not here, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True}


@dataclass(frozen=True, slots=True)
class Line:
    """One server, and the credentials to speak to it with."""

    url: str
    signer: Signer | None = None
    token: str | None = None
    timeout: float = 30.0
    observer: Observer | None = None
    clock: Callable[[], float] = time.time
    stopwatch: Callable[[], float] = time.monotonic

    def run(self, call: Exchange[T]) -> Generator[Step, Outcome, T]:
        """Takes an exchange to its end and returns its answer; a failure is thrown into it, so that it may recover."""
        return driven(call, self._send)

    def _send(self, request: Request) -> Generator[Step, Outcome, Response]:
        if isinstance(request, Fan):
            outcomes = yield Branches(tuple(map(self._send, request.requests)))
            assert isinstance(outcomes, tuple), "a driver answers Branches with what came of each"
            return Gathered("", "", 200, {}, b"", outcomes)
        if request.after:
            yield Pause(request.after)
        deadline = self.stopwatch() + self.timeout + request.waits
        attempt = 1
        while True:
            began = self.stopwatch()
            outcome = yield self.prepared(request, timeout=max(0.001, deadline - began))
            assert isinstance(outcome, Response | Failed), "a driver answers Send with one of these"
            self._observe(request, outcome, self.stopwatch() - began)
            pause = self._pause_before_next(request, outcome, attempt)
            if pause is None or attempt == request.tries or self.stopwatch() + pause >= deadline:
                return self._settled(request, outcome)
            yield Pause(pause)
            attempt += 1

    def prepared(self, request: Request, *, timeout: float) -> Send:
        """Returns one attempt, signed: each needs a signature of its own."""
        # What is signed is what httpx will send, byte for byte, whatever it thinks of quoting.
        target = request.path + (f"?{request.query}" if request.query else "")
        url = httpx.URL((request.url or self.url) + target)
        headers = {"accept": request.accept, "user-agent": f"angelia/{__version__}"}
        if request.body:
            headers["content-type"] = request.content_type
        if request.room_key is not None:
            headers[http_signature.ROOM_KEY] = request.room_key
        headers |= self._proof(request, url)
        return Send(request.method, str(url), headers, request.body, timeout, self.timeout + request.waits)

    def _proof(self, request: Request, url: httpx.URL) -> dict[str, str]:
        """Returns the headers that prove the caller; made anew for every attempt, since a nonce works once."""
        signer = self._signer_of(request)
        if isinstance(signer, Mailbox):
            signer.own_keys.refresh()  # another process may have rotated the pair; it costs one stat
        if signer is None:
            return _bearer(None if request.credential is Credential.NONE else self._token_for(request))
        raw_path, _, raw_query = url.raw_path.decode("ascii").partition("?")
        target = http_signature.Target(
            method=request.method,
            authority=url.netloc.decode("ascii").lower(),
            path=raw_path,
            query=raw_query,
            content_digest=http_signature.digest(request.body),
            room_key=request.room_key,
        )
        created, nonce = int(self.clock()), secrets.token_urlsafe(18)
        signed = http_signature.sign(signer.key, signer.key_id, target, created=created, nonce=nonce)
        return signed | _bearer(request.token)

    def _signer_of(self, request: Request) -> Signer | None:
        """Returns the signer of a request; None if a token stands for the caller, or the request has no credential."""
        shows_token = self._token_for(request) is not None and request.credential is Credential.OPERATOR
        return None if shows_token or request.credential is Credential.NONE else self.signer

    def _token_for(self, request: Request) -> str | None:
        """The client's token is for its own server only."""
        return self.token if request.url is None else None

    def refusal(self, request: Request, response: Response) -> ApiError | NotAngelia:
        """Returns the error that a refusal stands for. A server can only say that it does not know a key; the signer
        may know that a newer pair takes its place."""
        error, signer = fault(response, now=self.clock()), self._signer_of(request)
        if (
            error.code == Unauthenticated.code
            and isinstance(signer, Mailbox)
            and signer.key_rotation.awaits_next_pair()
        ):
            goes_on = f"angelia key publish --as {signer.identity.name}"
            error.hint = f"this agent's next signing pair may have taken its place; to go on with that: {goes_on}"
        return error

    def _pause_before_next(self, request: Request, outcome: Response | Failed, attempt: int) -> float | None:
        """Returns how long to wait before a retry, or None if there is none."""
        backoff = FIRST_PAUSE * (1 << (attempt - 1)) * (1 + secrets.randbelow(1000) / 1000)
        if isinstance(outcome, Failed):
            return backoff if request.idempotent else None
        if outcome.status in request.accepts:
            return None
        if outcome.status == 401 and isinstance(fault(outcome, now=self.clock()), Stale):
            # Refused before anything was done, so signing again is right even where repeating is not.
            skew = clock_skew(outcome, now=self.clock()) or 0.0
            return PAUSE_AFTER_STALE if abs(skew) <= NOTABLE_SKEW else None
        if outcome.status in PROXIED and request.idempotent:
            return max(backoff, retry_after(outcome, now=self.clock()) or 0)
        return None

    def _settled(self, request: Request, outcome: Response | Failed) -> Response:
        if isinstance(outcome, Failed):
            doubt = "" if request.idempotent else "; whether the request was carried out is not known"
            url = request.url or self.url
            if request.url is not None:
                raise Unreachable(f"{url} {outcome.why}{doubt}", hint="is that node up, and is this its address?")
            hint = "`angelia serve` starts a server here" if is_loopback(url) else "is that the server's address?"
            raise Unreachable(f"{url} {outcome.why}{doubt}", hint=f"{hint}; --url or --context names another")
        if outcome.status >= 300 and outcome.status not in request.accepts:
            raise self.refusal(request, outcome)
        if not is_ours(outcome):
            raise not_angelia(outcome)
        return outcome

    def _observe(self, request: Request, outcome: Response | Failed, seconds: float) -> None:
        if self.observer is None:
            return
        answered = outcome if isinstance(outcome, Response) else None
        self.observer(
            Trip(
                method=request.method,
                path=request.path,
                seconds=seconds,
                status=answered.status if answered else None,
                request_id=answered.headers.get("x-request-id") if answered else None,
                failure=outcome.why if isinstance(outcome, Failed) else None,
            )
        )


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


class Body:
    """The body of an answer as it comes: one that does not end, or comes too slowly, is no answer."""

    def __init__(self, step: Send) -> None:
        self._method = step.method
        self._deadline = time.monotonic() + step.timeout
        self._chunks: list[bytes] = []
        self._size = 0

    def take(self, chunk: bytes) -> Failed | None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > LONGEST_ANSWER:
            return Failed(f"answered with more than {LONGEST_ANSWER >> 20} MiB")
        if time.monotonic() > self._deadline:
            return Failed("did not end its answer in time")
        return None

    def response(self, answer: httpx.Response) -> Response:
        """Returns the answer with its body, which has ended."""
        path, body = answer.request.url.path, b"".join(self._chunks)
        return Response(self._method, path, answer.status_code, answer.headers, body)


def described(error: httpx.RequestError, *, timeout: float) -> Failed:
    """Returns a failure of the network in plain words."""
    if isinstance(error, httpx.TimeoutException):
        return Failed(f"did not answer within {timeout:.3g} s")
    if isinstance(error, httpx.ConnectError):
        return Failed(f"cannot be reached ({_root_cause(error)})")
    return Failed(f"broke off the conversation ({_root_cause(error)})")


def _root_cause(error: BaseException) -> str:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return reason or type(error).__name__
