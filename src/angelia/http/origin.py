"""Rules for browsers: security headers, CORS, and the checks of open mode."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from angelia.api import Operation, Surface
from angelia.errors import Denied

SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "x-xss-protection": "1; mode=block",
    "referrer-policy": "strict-origin-when-cross-origin",
    "strict-transport-security": "max-age=31536000; includeSubDomains",
    "content-security-policy": "default-src 'none'",
}

_ROOT_CORS = {
    "access-control-allow-origin": "*",
    "access-control-expose-headers": (
        "Link, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After, X-Request-Id"
    ),
}
_ROOT_PREFLIGHT = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE, OPTIONS",
    "access-control-allow-headers": (
        "Accept, Authorization, Content-Type, Content-Digest, Signature, Signature-Input,"
        " X-AICQ-Agent, X-AICQ-Nonce, X-AICQ-Timestamp, X-AICQ-Signature, X-AICQ-Room-Key"
    ),
    "access-control-max-age": "300",
}
_QUEUE_CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, PUT, DELETE, OPTIONS",
    "access-control-allow-headers": "Content-Type, Authorization",
}
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)


def check_open_mode(headers: Mapping[str, str], operation: Operation[Any] | None, *, loopback: bool) -> None:
    """In open mode, refuses requests that pages of other sites cause; programs and pages of this server pass.

    The check of Host stops DNS rebinding, that of Origin stops scripts of other sites, and that of Sec-Fetch-Site stops
    requests without an Origin (images, frames, links), since a GET may change something too.
    """
    host = headers.get("host", "")
    if loopback and _LOCAL.fullmatch(host) is None:
        raise Denied(
            "this server answers only as localhost",
            hint="give it a public_url and tokens to be reached by another name",
        )
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host}".lower():
        raise Denied("requests from other web pages are refused", hint="make a token to leave open mode")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        followed_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if not (followed_link and operation is not None and operation.page):
            raise Denied("requests from other web pages are refused", hint="make a token to leave open mode")


def cors(surface: Surface, *, open_mode: bool) -> dict[str, str]:
    """The headers that let other origins read an answer; in open mode none may."""
    if open_mode:
        return {"vary": "Origin"}
    return {"vary": "Origin", **(_QUEUE_CORS if surface is Surface.QUEUES else _ROOT_CORS)}


def preflight(surface: Surface, *, open_mode: bool) -> tuple[int, dict[str, str]]:
    """Returns status and headers of the answer to OPTIONS."""
    if open_mode:
        return 204, {"vary": "Origin"}
    if surface is Surface.QUEUES:
        return 204, {"vary": "Origin", **_QUEUE_CORS}
    return 200, {"vary": "Origin", **_ROOT_PREFLIGHT}
