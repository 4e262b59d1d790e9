"""Exchanges made from declared operations: the request from their records, the answer decoded as they say."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from angelia.api import NOTHING, Access, Operation
from angelia.client.exchange import Credential, Exchange, Request, Response

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R", bound=msgspec.Struct)

_CREDENTIALS = {Access.ANYONE: Credential.NONE, Access.ADMIN: Credential.OPERATOR}


def ask(
    operation: Operation[A],
    *segments: object,
    query: msgspec.Struct | None = None,
    body: msgspec.Struct | bytes = b"",
    **how: Any,
) -> Exchange[A]:
    """Sends one request and returns its answer. `segments` fill the path's parameters; `how` sets what a declaration
    cannot know, such as the credential that is preferred."""
    response = yield request_for(operation, *segments, query=query, body=body, **how)
    return answer_of(operation, response)


def request_for(
    operation: Operation[Any],
    *segments: object,
    query: msgspec.Struct | None = None,
    body: msgspec.Struct | bytes = b"",
    **how: Any,
) -> Request:
    """Returns the request of an operation; members of a record that have their default are left out."""
    given = iter(segments)
    parts = (quote(str(next(given)), safe="") if part.startswith("{") else part for part in operation.path.split("/"))
    return Request(
        method=operation.method,
        path="/".join(parts),
        query="" if query is None else _query_string(query),
        body=body if isinstance(body, bytes) else msgspec.json.encode(_given(body)),
        **{
            "idempotent": operation.repeatable,
            "credential": _CREDENTIALS.get(operation.access, Credential.AGENT),
            "accepts": tuple(status for status in operation.statuses if status >= 400),
            **how,
        },
    )


def credential_for(named: str | None) -> Credential:
    """Returns the preferred credential: the agent's own, or the operator's if another agent is named."""
    return Credential.AGENT if named is None else Credential.OPERATOR


def answer_of(operation: Operation[A], response: Response) -> A:
    if operation.answer is NOTHING:
        response.nothing()
        return cast(A, None)
    return response.read(operation.answer)


def plain(operation: Operation[A]) -> Callable[[], Exchange[A]]:
    """Returns the verb of an operation without parameters."""
    return _documented(lambda: ask(operation), operation)


def naming(operation: Operation[A]) -> Callable[[object], Exchange[A]]:
    """Returns the verb of an operation on one thing, which the path names."""
    return _documented(lambda name: ask(operation, name), operation)


def asking(operation: Operation[A], record: Callable[P, R]) -> Callable[P, Exchange[A]]:
    """Returns the verb of an operation that takes a record as query or body; its arguments are the record's members."""

    def verb(*args: P.args, **kwargs: P.kwargs) -> Exchange[A]:
        return _taking(operation, record(*args, **kwargs))

    verb.__signature__ = inspect.signature(record)  # type: ignore[attr-defined]
    return _documented(verb, operation)


def naming_and_asking(operation: Operation[A], record: Callable[P, R]) -> Callable[Concatenate[object, P], Exchange[A]]:
    """Returns the verb of an operation on one thing, which also takes a record."""

    def verb(name: object, /, *args: P.args, **kwargs: P.kwargs) -> Exchange[A]:
        return _taking(operation, record(*args, **kwargs), name)

    named = inspect.Parameter("name", inspect.Parameter.POSITIONAL_ONLY)
    verb.__signature__ = inspect.Signature([named, *inspect.signature(record).parameters.values()])  # type: ignore[attr-defined]
    return _documented(verb, operation)


def _taking(operation: Operation[A], record: msgspec.Struct, *segments: object) -> Exchange[A]:
    if isinstance(record, operation.query or ()):
        return ask(operation, *segments, query=record)
    return ask(operation, *segments, body=record)


def _given(record: msgspec.Struct) -> dict[str, Any]:
    """Returns the members of a record that are neither null nor their default."""
    members = {}
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        if value is not None and value is not msgspec.UNSET and value != field.default:
            members[field.encode_name] = value
    return members


def _query_string(record: msgspec.Struct) -> str:
    words = {True: "true", False: "false"}
    given = msgspec.to_builtins(_given(record)).items()
    return urlencode([(name, words[v] if isinstance(v, bool) else v) for name, v in given], quote_via=quote)


def _documented(verb: Callable[P, Exchange[A]], operation: Operation[A]) -> Callable[P, Exchange[A]]:
    operators = " For operators." if operation.access is Access.ADMIN else ""
    verb.__doc__ = f"{operation.about}.{operators}"
    return verb
