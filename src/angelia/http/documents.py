"""Documentation on a running server: /, /docs, /openapi.json and /docs/openapi.yaml."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any

import msgspec
import yaml
from markdown_it import MarkdownIt

from angelia.api import JSON, NOTHING, Access, Answer, Call, Operation, Route
from angelia.http.openapi import document

# Twenty times as fast, where PyYAML was built with libyaml; the text is the same.
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_STYLE = """
body { font: 16px/1.6 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
       color: #1b2330; background: #fff }
pre, code { font: 14px/1.5 ui-monospace, monospace; background: #f6f7f9 }
pre { padding: 12px; overflow-x: auto; border-radius: 6px } a { color: #0b6b72 }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto }
td, th { text-align: left; vertical-align: top; padding: 4px 16px 4px 0; border-bottom: 1px solid #7d879655 }
@media (prefers-color-scheme: dark) {
  body { color: #e6eaf0; background: #0f1318 } pre, code { background: #171d24 } a { color: #4cc4cc } }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_PAGE_CSP = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


WELCOME = Operation("docs", "GET", "/", Access.ANYONE, "What this is", NOTHING, media="text/markdown", page=True)
DOCS = Operation(
    "docs", "GET", "/docs", Access.ANYONE, "How to use this server", NOTHING, media="text/markdown", page=True
)
OPENAPI_JSON = Operation("docs", "GET", "/openapi.json", Access.ANYONE, "This API as OpenAPI 3.1", NOTHING, media=JSON)
OPENAPI_YAML = Operation(
    "docs", "GET", "/docs/openapi.yaml", Access.ANYONE, "The same as YAML", NOTHING, media="application/yaml"
)


def routes(described: Sequence[Operation[Any]]) -> list[Route]:
    """Routes that document an API: `described`, and these routes themselves."""

    # Made on first use: most processes are never asked.
    @functools.cache
    def json_text() -> bytes:
        return msgspec.json.encode(document([*described, *(route.operation for route in own)]))

    @functools.cache
    def yaml_text() -> bytes:
        api = msgspec.json.decode(json_text())
        text: str = yaml.dump(api, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
        return text.encode()

    async def openapi_json(call: Call) -> Answer:
        return Answer(body=json_text())

    async def openapi_yaml(call: Call) -> Answer:
        return Answer(body=yaml_text(), content_type="application/yaml")

    own = [
        Route(WELCOME, _page("welcome.md")),
        Route(DOCS, _page("onboarding.md")),
        Route(OPENAPI_JSON, openapi_json),
        Route(OPENAPI_YAML, openapi_yaml),
    ]
    return own


def _page(name: str) -> Callable[[Call], Awaitable[Answer]]:
    """The handler of a text of this package: HTML for browsers, else the Markdown that it is."""

    async def page(call: Call) -> Answer:
        headers = {"vary": "Accept, Origin"}
        if prefers_html(call.headers.get("accept", "")):
            headers["content-security-policy"] = _PAGE_CSP
            return Answer(body=_html(name), headers=headers, content_type="text/html; charset=utf-8")
        return Answer(body=_markdown(name).encode(), headers=headers, content_type="text/markdown; charset=utf-8")

    return page


@functools.cache
def _markdown(name: str) -> str:
    return (files("angelia.http") / name).read_text("utf-8")


@functools.cache
def _html(name: str) -> bytes:
    markdown = _markdown(name)
    title = markdown.partition("\n")[0].removeprefix("# ")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><main>{MarkdownIt().enable('table').render(markdown)}</main></body></html>"
    ).encode()


def prefers_html(accept: str) -> bool:
    """Whether an Accept header prefers HTML to Markdown; an empty one does not."""
    weights: dict[str, float] = {}
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        given = [p[2:] for p in parameters if p.startswith("q=")]
        weights[kind] = _weight(given[0]) if given else 1.0
    # The most specific range decides (RFC 9110 section 12.5.1).
    html, markdown = (
        next((weights[accepted] for accepted in (kind, "text/*", "*/*") if accepted in weights), 0.0)
        for kind in ("text/html", "text/markdown")
    )
    return html > markdown


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
