"""The OpenAPI 3.1 document, made from the route declarations; there is no second description by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from angelia import __version__
from angelia.guard.declarations import JSON, Access, Route, Surface
from angelia.http.answers import ErrorText, Problem

_PARAMETER = re.compile(r"\{(\w+)\}")
_BYTES = {"type": "string", "format": "binary"}
_REF = "#/components/schemas/{name}"


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole API as OpenAPI."""
    kinds: list[Any] = [Problem, ErrorText]
    for route in routes:
        kinds += [kind for given in (route.takes, *route.gives.values()) for kind in _records(given)]
    unique = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    by_kind = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Angelia",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
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


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.about,
        "operationId": _operation_id(route),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(route.path)
        ],
        "responses": {str(status): _answer(kind, schemas) for status, kind in route.gives.items()},
    }
    if route.query is not None:
        operation["parameters"] += _query_parameters(route.query)
    if route.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {media: {"schema": schemas[route.takes] if media == JSON else _BYTES} for media in route.reads},
        }
    if route.access is not Access.ANYONE:
        operation["security"] = (
            [{"bearer": []}] if route.access is Access.ADMIN else [{"signature": []}, {"bearer": []}]
        )
    operation["responses"] |= _errors(route, schemas)
    return operation


def _operation_id(route: Route) -> str:
    words = re.findall(r"\w+", route.path)
    return "_".join([route.method.lower(), *words]) if words else f"{route.method.lower()}_root"


def _answer(kind: Any, schemas: dict[Any, Any]) -> dict[str, Any]:
    if kind is None:
        return {"description": "Done; no body"}
    if isinstance(kind, str):
        return {"description": "A document", "content": {kind: {}}}
    first, *others = _records(kind)
    schema = {"anyOf": [schemas[one] for one in (first, *others)]} if others else schemas[first]
    also = [one for one in kind if isinstance(one, str)] if isinstance(kind, tuple) else []
    return {
        "description": (first.__doc__ or first.__name__).splitlines()[0],
        "content": {JSON: {"schema": schema}} | {media: {"schema": _BYTES} for media in also},
    }


def _errors(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    """Each status that the edge, the guard or the service may answer with."""
    statuses = {"403": "Not allowed, or the address is blocked", "413": "The body is too large"}
    statuses["503"] = "A store is away; try again"
    statuses["500"] = "A fault of the server"
    if route.access is not Access.ANYONE or route.takes is not None:
        statuses["401"] = "The caller is not known, or a signature does not hold"
    if route.access is not Access.ANYONE or route.rule is not None:
        statuses["429"] = "Too many requests"
    if _PARAMETER.search(route.path) or route.query is not None:
        statuses["404"] = "There is no such thing"
    if _PARAMETER.search(route.path) or route.query is not None or route.takes is not None:
        statuses["400"] = "The request is not well formed"
    if _PARAMETER.search(route.path) or route.method == "POST":
        statuses["410"] = "It is over: expired, revoked, archived or past its retention"
    if route.method in ("POST", "PUT", "PATCH"):
        statuses["415"] = "The body is of another type"
        statuses["409"] = "It does not fit the present state"
        statuses["404"] = "There is no such thing"
    v1 = Surface.of(route.path) is Surface.V1
    kind, media = (Problem, "application/problem+json") if v1 else (ErrorText, "application/json")
    return {
        status: {"description": text, "content": {media: {"schema": schemas[kind]}}}
        for status, text in statuses.items()
        if int(status) not in route.gives
    }


def _query_parameters(kind: Any) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(kind)
    defined = schema.get("$defs", {})
    record = _inlined(defined.get(kind.__name__, schema), defined)
    required = set(record.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _not_null(part)}
        for name, part in record["properties"].items()
    ]


def _inlined(part: Any, defined: dict[str, Any]) -> Any:
    """A schema that stands alone: what it refers to is written out where it is referred to."""
    if isinstance(part, list):
        return [_inlined(one, defined) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(defined[part["$ref"].rpartition("/")[2]], defined)
    return {name: _inlined(one, defined) for name, one in part.items()}


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is absent or a value; it cannot be null."""
    choices = [part for part in schema.get("anyOf", ()) if part != {"type": "null"}]
    return choices[0] if len(choices) == 1 else {k: v for k, v in schema.items() if k != "default" or v is not None}


def _records(kind: Any) -> tuple[Any, ...]:
    """The types of a body: one, none, or several where a parameter decides which it is; texts are media types."""
    if isinstance(kind, tuple):
        return tuple(one for one in kind if not isinstance(one, str))
    return () if kind is None or isinstance(kind, str) else (kind,)
