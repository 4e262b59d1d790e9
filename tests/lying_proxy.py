"""A relay that lies: an HTTP proxy on loopback between the real SDK and a real server.

It passes everything on, streams too, and rewrites the answers that it was told to lie about:

    liar.lie("GET", r"/v1/receipts/.*", lambda asked, answer: answer.changed(status="expired"))
    liar.instead("POST", "/v1/messages", page(404, "<h1>nginx</h1>"))

`asked` counts what the SDK asked, so that a test can say that nothing is asked for ever. Signatures cover the Host
header, which goes through as it is: the proxy has the server's own port, on the other of the machine's two loopback
addresses, and a server on loopback answers to both names.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import httpx
import uvicorn

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"}
_EVENTS = "text/event-stream"
_CHUNK_AGAIN = 1 << 16


@dataclass(frozen=True)
class Asked:
    """A request as the SDK sent it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """An answer to the SDK, from the server or made up."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    def saying(self, document: object) -> Answer:
        """Returns the answer with another JSON body."""
        return replace(self, body=json.dumps(document).encode())

    def changed(self, **members: object) -> Answer:
        """Returns the answer with other members in its JSON object."""
        return self.saying(self.json() | members)


Lie: TypeAlias = Callable[[Asked, Answer], Answer]
Event: TypeAlias = Callable[[bytes], bytes]


def page(status: int, html: str = "<html><h1>nginx</h1></html>", **headers: str) -> Answer:
    """Returns an answer of a web server, proxy or captive portal that is not Angelia."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"content-type": "text/html", **named}, html.encode())


def problem(status: int, code: str, **members: object) -> Answer:
    """Returns a refusal in the form of an Angelia server."""
    said = {"type": "about:blank", "title": code, "status": status, "code": code, "request_id": "0" * 26, **members}
    return Answer(status, {"content-type": "application/problem+json"}, json.dumps(said).encode())


class Liar:
    """The proxy; the SDK uses its `url`. It lies until `honest` is called."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._lies: list[tuple[str, re.Pattern[str], Lie]] = []
        self._instead: list[tuple[str, re.Pattern[str], Lie]] = []
        self._events: list[Event] = []
        self.asked: list[Asked] = []
        self.url = ""
        self._http: httpx.AsyncClient | None = None

    def lie(self, method: str, path: str, lie: Lie) -> None:
        """Forwards a request, and rewrites its answer."""
        self._lies.append((method, re.compile(path), lie))

    def instead(self, method: str, path: str, answer: Answer | Callable[[Asked], Answer]) -> None:
        """Answers a request here, without the server."""
        told: Lie = (lambda asked, _: answer(asked)) if callable(answer) else (lambda _, __: answer)
        self._instead.append((method, re.compile(path), told))

    def events(self, lie: Event) -> None:
        """Rewrites every event of a stream, from `event:` or `data:` to the empty line at its end."""
        self._events.append(lie)

    def honest(self) -> None:
        """Stops lying, and forgets the requests so far."""
        self._lies, self._instead, self._events, self.asked = [], [], [], []

    def count(self, method: str = "", path: str = ".*") -> int:
        """Returns how many such requests came."""
        wanted = re.compile(path)
        return sum(1 for one in self.asked if one.method.startswith(method) and wanted.fullmatch(one.path))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        asked = Asked(scope["method"], scope["raw_path"].decode(), scope["query_string"].decode(), headers, body)
        self.asked.append(asked)
        if (told := _first(self._instead, asked)) is not None:
            await _say(send, told(asked, Answer(0)))
            return
        await self._pass_on(asked, receive, send)

    async def _pass_on(self, asked: Asked, receive: Any, send: Any) -> None:
        assert self._http is not None, "it is serving"
        url = self._server + asked.path + (f"?{asked.query}" if asked.query else "")
        passed = {name: value for name, value in asked.headers.items() if name not in _HOP_BY_HOP}
        try:
            async with self._http.stream(asked.method, url, headers=passed, content=asked.body) as answer:
                headers = {name: value for name, value in answer.headers.items() if name not in _HOP_BY_HOP}
                if headers.get("content-type", "").startswith(_EVENTS):
                    await self._stream(answer, headers, receive, send)
                    return
                raw = b"".join([chunk async for chunk in answer.aiter_raw(_CHUNK_AGAIN)])
        except httpx.HTTPError:
            await _say(send, page(502))
            return
        true = Answer(answer.status_code, headers, raw)
        told = _first(self._lies, asked)
        await _say(send, true if told is None else told(asked, true))

    async def _stream(self, answer: httpx.Response, headers: dict[str, str], receive: Any, send: Any) -> None:
        gone = asyncio.ensure_future(receive())  # done when the SDK disconnects
        await send({"type": "http.response.start", "status": answer.status_code, "headers": _pairs(headers)})
        begun, chunks = b"", answer.aiter_raw()
        while True:
            coming = asyncio.ensure_future(anext(chunks, None))
            await asyncio.wait([coming, gone], return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                coming.cancel()
                return
            chunk = coming.result()
            *events, begun = (begun + (chunk or b"")).split(b"\n\n")
            said = b"".join(self._told(event + b"\n\n") for event in events)
            await send({"type": "http.response.body", "body": said, "more_body": chunk is not None})
            if chunk is None:
                gone.cancel()
                return

    def _told(self, event: bytes) -> bytes:
        for lie in self._events:
            event = lie(event)
        return event


@contextmanager
def lying(server: str) -> Iterator[Liar]:
    """Runs a proxy in front of a server; it is honest at first."""
    port = int(server.rpartition(":")[2])
    liar = Liar(f"http://127.0.0.1:{port}")
    # Connections wait in the socket's queue until the proxy accepts them.
    listener = socket.create_server(("::1", port), family=socket.AF_INET6)
    liar.url = f"http://[::1]:{port}"
    proxy = uvicorn.Server(
        uvicorn.Config(liar, log_level="error", lifespan="off", date_header=False, server_header=False)
    )

    async def serve() -> None:
        async with httpx.AsyncClient(timeout=60, follow_redirects=False, trust_env=False) as liar._http:
            await proxy.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield liar
    finally:
        proxy.should_exit = proxy.force_exit = True
        thread.join()
        listener.close()


def _first(lies: list[tuple[str, re.Pattern[str], Lie]], asked: Asked) -> Lie | None:
    for method, path, lie in reversed(lies):
        if method == asked.method and path.fullmatch(asked.path):
            return lie
    return None


def _pairs(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def _say(send: Any, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": _pairs(answer.headers)})
    await send({"type": "http.response.body", "body": answer.body})
