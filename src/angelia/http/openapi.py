"""The OpenAPI 3.1 document, made from the declared operations alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from angelia import __version__
from angelia.api import EVENT_STREAM, JSON, NOTHING, Access, Operation, Per, Rule, Surface
from angelia.http.answers import ErrorText, ProblemDocument

_BYTES = {"type": "string", "format": "binary"}
_REF = "#/components/schemas/{name}"
_CALLERS = {
    Access.ANYONE: "Anyone may call it, without a credential.",
    Access.SIGNED: "An agent signs it with its own key; a token does not do.",
    Access.AGENT: "For an agent: by its signature, or by a token that is bound to it.",
    Access.READ: "For agents, and for tokens that may read.",
    Access.WRITE: "For agents, and for tokens that may write.",
    Access.ADMIN: "For operators, by an admin token.",
}
_WINDOWS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


def document(operations: Sequence[Operation[Any]]) -> dict[str, Any]:
    """Returns the OpenAPI document of these operations."""
    kinds: list[Any] = [ProblemDocument, ErrorText]
    for operation in operations:
        kinds += [kind for kind in (operation.body, *_records(operation)) if kind is not None]
    unique = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    by_kind = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Angelia",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "signature": {
                    "type": "http",
                    "scheme": "Signature",
                    "description": "HTTP Message Signature (RFC 9421), Ed25519; the profile is in /docs",
                },
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _described(operation: Operation[Any], schemas: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "tags": [operation.tag],
        "summary": operation.about,
        "description": _description(operation),
        "operationId": _operation_id(operation),
        "parameters": [
            {"name": name, "in": "path", "required": True, "description": about, "schema": {"type": "string"}}
            for name, about in operation.parameters.items()
        ]
        + [
            {"name": name, "in": "header", "required": False, "description": about, "schema": {"type": "string"}}
            for name, about in operation.headers.items()
        ],
        "responses": _successes(operation, schemas) | _errors(operation, schemas),
    }
    if operation.query is not None:
        described["parameters"] += _query_parameters(operation.query)
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {
                media: {"schema": schemas[operation.body] if media == JSON else _BYTES} for media in operation.reads
            },
        }
    if operation.access is not Access.ANYONE:
        admin = operation.access is Access.ADMIN
        described["security"] = [{"bearer": []}] if admin else [{"signature": []}, {"bearer": []}]
    return described


def _description(operation: Operation[Any]) -> str:
    """What the operation does, its callers, its rate limit and its body limit."""
    sentences = [f"{operation.about}.", _CALLERS[operation.access]]
    if operation.rule is not None:
        sentences.append(_limit(operation.rule))
    if operation.body is not None:
        sentences.append(f"The body has at most {operation.limit:,} bytes.")
    return " ".join(sentences)


def _limit(rule: Rule) -> str:
    length, unit = next(window for window in _WINDOWS if rule.window_ms % window[0] == 0)
    span = unit if rule.window_ms == length else f"{rule.window_ms // length} {unit}s"
    whose = "address" if rule.per is Per.ADDRESS else "agent"
    return f"At most {rule.limit:,} requests per {span} and {whose}, unless the operator sets `limits.{rule.name}`."


def _operation_id(operation: Operation[Any]) -> str:
    words = re.findall(r"\w+", operation.path)
    return "_".join([operation.method.lower(), *words]) if words else f"{operation.method.lower()}_root"


def _successes(operation: Operation[Any], schemas: dict[Any, Any]) -> dict[str, Any]:
    empty = {"description": "Done; no body"}
    answer = empty if operation.answer is NOTHING and operation.media is None else _answer(operation, schemas)
    return {str(s): answer for s in operation.statuses} | {str(s): empty for s in operation.empty}


def _answer(operation: Operation[Any], schemas: dict[Any, Any]) -> dict[str, Any]:
    if operation.media is not None:
        about = "A stream of events" if operation.media == EVENT_STREAM else "A document"
        return {"description": about, "content": {operation.media: {}}}
    first, *others = records = _records(operation)
    schema = {"anyOf": [schemas[one] for one in records]} if others else schemas[first]
    also = [one for one in operation.or_else if isinstance(one, str)]
    return {
        "description": (first.__doc__ or first.__name__).splitlines()[0],
        "content": {JSON: {"schema": schema}} | {media: {"schema": _BYTES} for media in also},
    }


def _errors(operation: Operation[Any], schemas: dict[Any, Any]) -> dict[str, Any]:
    """The responses for each error status that the edge, the guard or the service may answer with."""
    statuses = {"403": "Not allowed, or the address is blocked", "413": "The body is too large"}
    statuses["503"] = "A store is away; try again"
    statuses["500"] = "A fault of the server"
    parameters, body = operation.path_names, operation.body
    if operation.access is not Access.ANYONE or body is not None:
        statuses["401"] = "The caller is not known, or a signature does not hold"
    if operation.access is not Access.ANYONE or operation.rule is not None:
        statuses["429"] = "Too many requests"
    if parameters or operation.query is not None:
        statuses["404"] = "There is no such thing"
    if parameters or operation.query is not None or body is not None:
        statuses["400"] = "The request is not well formed"
    if parameters or operation.method == "POST":
        statuses["410"] = "It is over: expired, revoked, archived or past its retention"
    if operation.method in ("POST", "PUT", "PATCH"):
        statuses["415"] = "The body is of another type"
        statuses["409"] = "It does not fit the present state"
        statuses["422"] = "A field is too long, or names what is not there"
        statuses["404"] = "There is no such thing"
    v1 = Surface.of(operation.path) is Surface.V1
    kind, media = (ProblemDocument, "application/problem+json") if v1 else (ErrorText, "application/json")
    return {
        status: {"description": text, "content": {media: {"schema": schemas[kind]}}}
        for status, text in statuses.items()
        if int(status) not in operation.statuses
    }


def _query_parameters(kind: Any) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(kind)
    defined = schema.get("$defs", {})
    record = _inlined(defined.get(kind.__name__, schema), defined)
    required = set(record.get("required", ()))
    parameters = []
    for name, part in record["properties"].items():
        schema = dict(_not_null(part))
        about = {"description": schema.pop("description")} if "description" in schema else {}
        parameters.append({"name": name, "in": "query", "required": name in required, **about, "schema": schema})
    return parameters


def _inlined(part: Any, defined: dict[str, Any]) -> Any:
    """Returns a schema without references: each is replaced by what it refers to."""
    if isinstance(part, list):
        return [_inlined(one, defined) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        beside = {name: one for name, one in part.items() if name != "$ref"}
        return {**_inlined(defined[part["$ref"].rpartition("/")[2]], defined), **beside}
    return {name: _inlined(one, defined) for name, one in part.items()}


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Removes null from a schema: a query parameter is a value or absent."""
    choices = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
    return choices[0] if len(choices) == 1 else {k: v for k, v in schema.items() if k != "default" or v is not None}


def _records(operation: Operation[Any]) -> tuple[Any, ...]:
    """The records that a success may return; several where a query parameter selects one."""
    if operation.answer is NOTHING:
        return ()
    return (operation.answer, *(one for one in operation.or_else if not isinstance(one, str)))
