"""Turns a server's refusal into the AngeliaError that its code names."""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import cast

import msgspec

from angelia import errors
from angelia.client.wire import Response
from angelia.errors import AngeliaError
from angelia.mail.model import ItemProblem


class Unreachable(AngeliaError):
    """The server does not answer"""

    code = "network"


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


def fault(response: Response, *, now: float) -> ApiError:
    """The error that a refusal stands for; `now` is our clock when it arrived."""
    problem = _parsed(response)
    code = problem.code or CODE_OF_TEXT.get(problem.error) or CODE_OF_STATUS.get(response.status, "internal")
    message = problem.detail or problem.error or problem.title or _worded(response)
    hint = problem.hint
    if code in ("stale", "from_future") and (skew := clock_skew(response, now=now)) is not None:
        hint = _skew_hint(skew) if abs(skew) > NOTABLE_SKEW else hint
    error = _class_of(code)(message, hint=hint, retry_after=retry_after(response, now=now))
    error.status = response.status
    error.request_id = problem.request_id or response.headers.get("x-request-id")
    error.members = _members(response)
    return error


def item_fault(problem: ItemProblem) -> ApiError:
    """The error of one of several things, where the others may have gone well."""
    error = _class_of(problem.code)(problem.title, hint=problem.hint, retry_after=problem.retry_after)
    error.members = dict(problem.members)
    return error


def retry_after(response: Response, *, now: float) -> int | None:
    """How many seconds the server asks us to wait: given as a number or as a date."""
    text = response.headers.get("retry-after", "")
    if text.isdecimal():
        return int(text)
    at = _date(text)
    return None if at is None else max(0, round(at - now))


def clock_skew(response: Response, *, now: float) -> float | None:
    """How far our clock is ahead of the server's, in seconds; negative when behind."""
    at = _date(response.headers.get("date", ""))
    return None if at is None else now - at


def _parsed(response: Response) -> _Problem:
    try:
        return msgspec.json.decode(response.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Problem()  # a proxy's page; its words are not ours to show


def _members(response: Response) -> dict[str, object]:
    """What a problem document says beyond its words, such as the bundle that comes with key_stale."""
    try:
        said = msgspec.json.decode(response.body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {name: value for name, value in said.items() if name not in _WORDS}


def _worded(response: Response) -> str:
    known = response.status in {status.value for status in HTTPStatus}
    phrase = f" ({HTTPStatus(response.status).phrase})" if known else ""
    return f"{response.method} {response.path} was answered with status {response.status}{phrase}"


def _skew_hint(skew: float) -> str:
    where = "ahead of" if skew > 0 else "behind"
    return f"this machine's clock is {abs(skew):.0f} s {where} the server's; run a time service"


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None


def _class_of(code: str) -> type[ApiError]:
    family = _FAMILY.get(code)
    if family is not None:
        return family
    return cast(type[ApiError], type("ApiError", (ApiError,), {"code": code, "__module__": __name__}))


def _subclasses(of: type[AngeliaError]) -> Iterator[type[AngeliaError]]:
    for child in of.__subclasses__():
        yield child
        yield from _subclasses(child)


# `except NotFound` catches a server's not_found, and `except ApiError` whatever any server said.
_FAMILY: dict[str, type[ApiError]] = {
    cls.code: cast(type[ApiError], type(cls.__name__, (ApiError, cls), {"code": cls.code, "__module__": __name__}))
    for cls in _subclasses(AngeliaError)
    if cls.__module__ == errors.__name__
}
