"""The documents that a running server carries about itself."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from angelia.http.documents import prefers_html
from http_agents import Server

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        ("", False),
        ("*/*", False),
        ("text/*", False),
        ("text/markdown", False),
        ("application/json", False),
        ("text/html", True),
        ("TEXT/HTML", True),
        (BROWSER, True),
        ("text/html, text/markdown", False),
        ("text/html;q=0.9, text/markdown;q=0.8", True),
        ("text/html;q=0.8, text/markdown;q=0.9", False),
        ("text/markdown;q=0.1, text/html; q=0.2", True),
        ("text/html;q=0", False),
        ("text/html;q=0.5, */*", False),
        ("text/html, */*;q=0.1", True),
        ("text/markdown;q=0.5, text/*", True),
        ("text/*, text/html;q=0.1", False),
        ("text/markdown;q=0, */*", True),
        ("text/html;level=1;q=0.7, text/markdown;q=0.6", True),
        ("text/html;q=high", False),
        (";;,,;q=", False),
    ],
)
def test_html_is_given_to_whoever_prefers_it(accept: str, html: bool) -> None:
    assert prefers_html(accept) is html


async def test_docs_are_markdown_unless_html_is_preferred(start) -> None:
    server: Server = await start()
    markdown = await server.get("/docs")
    html = await server.get("/docs", headers={"accept": BROWSER})
    assert markdown.headers["content-type"] == "text/markdown; charset=utf-8"
    assert html.headers["content-type"].startswith("text/html")
    for answer in (markdown, html):
        assert "Onboarding" in answer.text
        assert {"accept", "origin"} <= {word.strip().lower() for word in answer.headers["vary"].split(",")}


async def test_the_html_page_has_a_csp_of_its_own_that_lets_nothing_run(start) -> None:
    server: Server = await start()
    policy = (await server.get("/docs", headers={"accept": "text/html"})).headers["content-security-policy"]
    directives = {name: set(values) for name, *values in (part.split() for part in policy.split(";"))}
    assert directives["default-src"] == {"'none'"}
    (style,) = directives["style-src"]
    assert style.startswith("'sha256-")
    assert "script-src" not in directives
    assert (await server.get("/docs")).headers["content-security-policy"] == "default-src 'none'"


async def test_the_front_door_says_what_this_is_and_leads_to_the_docs(start) -> None:
    server: Server = await start()
    for accept, kind, link in (("*/*", "text/markdown", "](/docs)"), (BROWSER, "text/html", 'href="/docs"')):
        answer = await server.get("/", headers={"accept": accept})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        assert "a message platform for AI agents" in answer.text
        assert link in answer.text


async def test_docs_tell_of_every_way_to_talk_by_routes_that_exist(start) -> None:
    server: Server = await start()
    page = (await server.get("/docs")).text
    assert {"## Mail", "## Channels"} <= set(page.splitlines())
    known = (await server.get("/openapi.json")).json()["paths"]
    templates = {re.sub(r"\{\w+\}", "{}", path): set(methods) for path, methods in known.items()}
    told = re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/[^`?]*)", page)
    assert len(told) > 15
    for method, path in told:
        assert method.lower() in templates[re.sub(r"\{\w+\}", "{}", path)], f"{method} {path}"


async def test_the_api_document_is_valid_openapi_3_1(start) -> None:
    server: Server = await start()
    answer = await server.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["openapi"].startswith("3.1")
    OPENAPI_31_VALIDATOR.validate(document)
    assert _unresolved(document) == []
    ids = [operation["operationId"] for operation in _operations(document).values()]
    assert len(set(ids)) == len(ids)


async def test_yaml_and_json_say_the_same(start) -> None:
    server: Server = await start()
    as_yaml = await server.get("/docs/openapi.yaml")
    assert as_yaml.headers["content-type"].startswith("application/yaml")
    assert yaml.safe_load(as_yaml.text) == (await server.get("/openapi.json")).json()


async def test_every_route_is_in_the_api_document_and_nothing_else(start) -> None:
    server: Server = await start()
    documented = set(_operations((await server.get("/openapi.json")).json()))
    # Nobody but the edge's own table knows all routes.
    table = server.application._edge._table  # type: ignore[union-attr]
    assert documented == {(route.operation.method, route.operation.path) for route in table}


async def test_a_route_that_needs_a_credential_says_so_and_documents_401(start) -> None:
    secret = "not in open mode, where queues need none"
    server: Server = await start(spool=True, limits={"unproven": "off"}, jwt_secret=secret)
    for (method, path), operation in _operations((await server.get("/openapi.json")).json()).items():
        headers = {"content-type": "application/json"}
        answer = await server.request(method, path.replace("{", "").replace("}", ""), headers=headers)
        assert (answer.status_code == 401) == ("security" in operation), path
        assert str(answer.status_code) in operation["responses"], path


async def test_errors_are_documented_in_the_shape_of_their_surface(start) -> None:
    server: Server = await start()
    for (_, path), operation in _operations((await server.get("/openapi.json")).json()).items():
        shape = "application/problem+json" if path.startswith("/v1/") else "application/json"
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert list(answer["content"]) == [shape], (path, status)


def _operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def _unresolved(document: dict[str, Any]) -> list[str]:
    """References that lead nowhere."""
    found = set()

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                found.add(node["$ref"])
            for part in node.values():
                collect(part)
        elif isinstance(node, list):
            for part in node:
                collect(part)

    collect(document)
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    return sorted(found - known)
