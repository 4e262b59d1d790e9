"""Turns a server's refusal into the AngeliaError that its code names."""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import cast

import msgspec

from angelia import errors
from angelia.api import ItemProblem
from angelia.client.exchange import Response
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.errors import AngeliaError
from angelia.grouplog.model.frames import MEDIA as FRAMES


class Unreachable(AngeliaError, code="network"):
    """The server does not answer"""


class NotAngelia(Unreachable):
    """What answered is no Angelia server

    A proxy, a captive portal or another program: whatever its answer says, it says nothing about a message or an
    agent, and the server may be reached later."""

    status: int = 0


class ApiError(AngeliaError):
    """The server refused. Every instance is also of the family's class for its code, where there is one."""

    status: int = 0
    request_id: str | None = None


class _Problem(msgspec.Struct):
    """An RFC 9457 problem document, or the `{"error": text}` of the surfaces that have no codes."""

    title: str = ""
    detail: str = ""
    code: str = ""
    hint: str = ""
    request_id: str | None = None
    error: str = ""


_WORDS = {"type", "title", "status", "detail", *_Problem.__struct_fields__}

CODE_OF_STATUS = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "authorization_denied",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    422: "unprocessable",
    429: "rate_limited",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
}
# The root surface has no codes; these texts stand for what a signer must tell apart.
CODE_OF_TEXT = {
    "the request was signed too long ago": "stale",
    "the request was signed before the nonce memory began": "stale",
    "the request was signed later than now": "from_future",
    "nonce already used": "replay_rejected",
}
# Longer than a network takes, and than the whole seconds of a Date header hide.
NOTABLE_SKEW = 2.0
# A server may ask for a pause; it may not keep a client away for ever.
LONGEST_PAUSE = 3600
_V1 = "/v1/"
PROXIED = (502, 503, 504)
# The media types of Angelia's answers; a page of another program has another type, or none.
_MEDIA = frozenset({"application/json", "application/problem+json", "text/event-stream", MEDIA_TYPE, FRAMES})


def fault(response: Response, *, now: float) -> ApiError | NotAngelia:
    """Returns the error that a refusal stands for; `now` is this machine's time when it arrived."""
    parsed = _parsed(response)
    if parsed is None:
        return not_angelia(response)
    problem, members = parsed
    code = problem.code or CODE_OF_TEXT.get(problem.error) or CODE_OF_STATUS.get(response.status, "internal")
    message = problem.detail or problem.error or problem.title or _worded(response)
    hint = problem.hint
    if code in ("stale", "from_future") and (skew := clock_skew(response, now=now)) is not None:
        hint = _skew_hint(skew) if abs(skew) > NOTABLE_SKEW else hint
    error = _class_of(code)(message, hint=hint, retry_after=retry_after(response, now=now))
    error.status = response.status
    error.request_id = problem.request_id or response.headers.get("x-request-id")
    error.members = members
    return error


def item_fault(problem: ItemProblem) -> ApiError:
    """Returns the error of one item of a batch, whose others may have succeeded."""
    error = _class_of(problem.code)(problem.title, hint=problem.hint, retry_after=_bounded(problem.retry_after))
    error.members = dict(problem.members)
    return error


def retry_after(response: Response, *, now: float) -> int | None:
    """Returns how many seconds the server asks to wait, which it says as a number or as a date."""
    text = response.headers.get("retry-after", "")
    if text.isdecimal():
        return _bounded(int(text[:9]))
    at = _date(text)
    return None if at is None else _bounded(round(at - now))


def _bounded(seconds: int | None) -> int | None:
    return None if seconds is None else min(max(0, seconds), LONGEST_PAUSE)


def clock_skew(response: Response, *, now: float) -> float | None:
    """Returns how many seconds this machine's clock is ahead of the server's; negative if it is behind."""
    at = _date(response.headers.get("date", ""))
    return None if at is None else now - at


def is_ours(response: Response) -> bool:
    """Whether an answer that is no error may come from an Angelia server; its reader looks closer."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return not response.body or not kind or kind in _MEDIA


def not_angelia(response: Response) -> NotAngelia:
    """Returns the error for an answer of another program, whose text is not shown."""
    away = response.status in PROXIED
    hint = "a proxy answers for a server that is away" if away else "is that the server's address?"
    error = NotAngelia(
        f"{_worded(response)}: this is no Angelia server", hint=f"{hint}; --url or --context names another"
    )
    error.status = response.status
    return error


def _parsed(response: Response) -> tuple[_Problem, dict[str, object]] | None:
    """Returns what a refusal says, in the shape of its surface, and its members beyond those words, such as the bundle
    that comes with key_stale; None if it does not come from an Angelia server."""
    try:
        said = msgspec.json.decode(response.body, type=dict[str, object])
        problem = msgspec.convert(said, _Problem)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    of_v1 = response.path.startswith(_V1)
    if not (problem.code and problem.request_id if of_v1 else problem.error or problem.code):
        return None
    return problem, {name: value for name, value in said.items() if name not in _WORDS}


def _worded(response: Response) -> str:
    phrase = f" ({responses[response.status]})" if response.status in responses else ""
    return f"{response.method} {response.path} was answered with status {response.status}{phrase}"


def _skew_hint(skew: float) -> str:
    where = "ahead of" if skew > 0 else "behind"
    return f"this machine's clock is {abs(skew):.0f} s {where} the server's; run a time service"


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _class_of(code: str) -> type[ApiError]:
    return _FAMILY.get(code) or _made("ApiError", (ApiError,), code)


def _made(name: str, bases: tuple[type[AngeliaError], ...], code: str) -> type[ApiError]:
    return cast(type[ApiError], type(name, bases, {"code": code, "__module__": __name__}))


def _subclasses(of: type[AngeliaError]) -> Iterator[type[AngeliaError]]:
    for child in of.__subclasses__():
        yield child
        yield from _subclasses(child)


# `except NotFound` catches a server's not_found, and `except ApiError` whatever any server said.
_FAMILY: dict[str, type[ApiError]] = {
    cls.code: _made(cls.__name__, (ApiError, cls), cls.code)
    for cls in _subclasses(AngeliaError)
    if cls.__module__ == errors.__name__
}
