"""Verifies signed requests: the profile of RFC 9421, the time of signing, and the name of the server."""

from __future__ import annotations

from angelia.api import http_signature
from angelia.api.admission import UnverifiedRequest
from angelia.envelope.ed25519 import verifying_key
from angelia.errors import FromFuture, Stale, Unauthenticated


class RequestVerifier:
    """What a signature must hold to, whoever signed."""

    def __init__(
        self, *, public_url: str | None, host: str, port: int, loopback: bool, past_seconds: int, ahead_seconds: int
    ) -> None:
        self._public_url = public_url
        self._public = _authority_of(public_url) if public_url else None
        # If others can reach this machine, only the public URL counts.
        self._local = _local_authorities(host, port) if loopback else ()
        self._past_ms = past_seconds * 1000
        self._ahead_ms = ahead_seconds * 1000

    def presented(self, request: UnverifiedRequest) -> http_signature.Presented:
        """Parses the signature of a request, and checks when it was made."""
        headers = request.headers
        presented = http_signature.parse(
            headers.get("signature-input", ""),
            headers.get("signature", ""),
            room_key_sent=http_signature.ROOM_KEY in headers,
        )
        signed_ms = presented.created * 1000
        now_ms = request.now_ms
        if now_ms - signed_ms > self._past_ms:
            raise Stale("the request was signed too long ago", hint="sign it again; check this machine's clock")
        if signed_ms - now_ms > self._ahead_ms:
            raise FromFuture("the request was signed later than now", hint="check this machine's clock")
        return presented

    def verify_head(self, presented: http_signature.Presented, request: UnverifiedRequest, public_key: bytes) -> None:
        """Verifies the signature. It covers the digest of the body, so this works before the body is read."""
        target = http_signature.Target(
            method=request.operation.method,
            authority=self.authority(request),
            path=request.path,
            query=request.query,
            content_digest=request.headers.get("content-digest", ""),
            room_key=request.headers.get(http_signature.ROOM_KEY),
        )
        try:
            holds = verifying_key(public_key).holds(presented.signature, presented.base(target))
        except UnicodeEncodeError:
            holds = False
        if not holds:
            hint = "method, authority, path, query and body must be what was signed"
            if self._public is not None:
                hint = f"{hint}; this server is called {self._public_url}"
            raise Unauthenticated("the signature does not hold", hint=hint)

    def verify_body(self, request: UnverifiedRequest, body: bytes) -> None:
        if not http_signature.digest_matches(request.headers.get("content-digest", ""), body):
            raise Unauthenticated("Content-Digest does not match the body", hint="it is part of what is signed")

    def authority(self, request: UnverifiedRequest) -> str:
        """The authority that the signature must name: that of the public URL, or on loopback a name of this machine.

        Any other `Host` is refused, or else a request signed for another server would be accepted here.
        """
        if self._public is not None:
            return self._public
        called = request.headers.get("host", "").lower()
        if called not in self._local:
            raise Unauthenticated(
                "the request is signed for another server",
                hint=f"this one is called {' or '.join(self._local)}; another name needs --public-url",
            )
        return called


def _local_authorities(host: str, port: int) -> tuple[str, ...]:
    host = host.lower().strip("[]")
    names = dict.fromkeys(("localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host))
    suffix = "" if port == 80 else f":{port}"
    return tuple(f"{name}{suffix}" for name in names)


def _authority_of(url: str) -> str:
    """Host and port of a URL in the form of RFC 9421: lower case, without a default port."""
    scheme, _, rest = url.rstrip("/").lower().partition("://")
    return rest.removesuffix({"http": ":80", "https": ":443"}[scheme])
