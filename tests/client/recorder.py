"""A small HTTP server on loopback that answers as it was told and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from angelia.envelope import media_type, wire
from angelia.envelope.wire import Envelope

_NOT_TOLD = b'{"error":"not told","code":"not_found","request_id":"r"}'


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def target(self) -> str:
        return self.path + (f"?{self.query}" if self.query else "")

    def json(self) -> Any:
        return json.loads(self.body)

    def envelopes(self) -> list[Envelope]:
        """The envelopes of a batch."""
        return [wire.decode(one) for one in media_type.split_batch(self.body)]


@dataclass
class Recorder:
    """Each told answer is given once; the last one of a path again and again."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    told: dict[tuple[str, str], list[tuple[int, bytes, dict[str, str]]]] = field(default_factory=dict)

    def tell(
        self, method: str, path: str, body: object = None, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        if isinstance(body, dict) and "code" in body:
            body = {"request_id": "0" * 26, **body}  # as every refusal of a server has one
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.told.setdefault((method, path), []).append((status, raw, headers or {}))

    def asked(self, method: str, path: str) -> list[Seen]:
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path, query = scope["raw_path"].decode(), scope["query_string"].decode()
        self.seen.append(Seen(scope["method"], path, query, headers, body))
        answers = self.told.get((scope["method"], path), [(404, _NOT_TOLD, {})])
        status, raw, extra = answers.pop(0) if len(answers) > 1 else answers[0]
        pairs = [(name.encode(), value.encode()) for name, value in extra.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": raw})


@contextmanager
def recording() -> Iterator[Recorder]:
    recorder = Recorder()
    listener = socket.create_server(("127.0.0.1", 0))  # connections wait here until the server takes them
    recorder.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(recorder, log_level="error", lifespan="off", date_header=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield recorder
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def closed_port() -> Iterator[str]:
    """A URL where nobody listens, and nobody can begin to."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    try:
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
    finally:
        taken.close()
