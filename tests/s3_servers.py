"""S3 servers as processes on loopback: a correct one, one that ignores conditions, and one that refuses all keys."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import boto3
import httpx

BUCKET = "archive"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIALOOPBACK", "AWS_SECRET_ACCESS_KEY": "very/secret+key"}


@dataclass(frozen=True)
class ObjectStore:
    """A store with one bucket."""

    endpoint: str

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    def keys(self, prefix: str = "") -> list[str]:
        """Returns every object under a prefix."""
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def make_bucket(self) -> None:
        self._client().create_bucket(Bucket=BUCKET)

    def _client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )


@contextmanager
def moto(directory: Path) -> Iterator[ObjectStore]:
    """A store that behaves as S3 does, also for the conditions of a put."""
    with _running(directory, [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p"]) as store:
        store.make_bucket()
        yield store


@contextmanager
def careless(directory: Path) -> Iterator[ObjectStore]:
    """A store that ignores the conditions of a put: existing objects are overwritten."""
    with _running(directory, [sys.executable, __file__, "careless"]) as store:
        yield store


@contextmanager
def refusing(directory: Path) -> Iterator[ObjectStore]:
    """A store that refuses every key."""
    with _running(directory, [sys.executable, __file__, "refusing"]) as store:
        yield store


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _running(directory: Path, command: list[str]) -> Iterator[ObjectStore]:
    # In another process, because delta-rs holds the GIL while it waits for an answer.
    port = free_port()
    with (directory / "objectstore.log").open("ab") as log:
        process = subprocess.Popen([*command, f"{port}"], stdout=log, stderr=log)
    try:
        store = ObjectStore(f"http://127.0.0.1:{port}")
        _wait(store.endpoint, process)
        yield store
    finally:
        process.terminate()
        process.wait(20)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the store has ended"
        try:
            httpx.get(url, timeout=5)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the store did not start")


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Refusing(_Answering):
    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        code = "<Error><Code>InvalidAccessKeyId</Code><Message>there is no such key</Message></Error>"
        self.answer(403, code.encode(), Content_Type="application/xml")

    do_PUT = do_HEAD = do_DELETE = do_POST = do_GET  # noqa: N815


class _Careless(_Answering):
    objects: dict[str, bytes] = {}  # noqa: RUF012 - one store

    def do_PUT(self) -> None:
        self.objects[urlsplit(self.path).path] = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(200, ETag='"1"')

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        found = self.objects.get(parts.path)
        if "list-type" in query:
            self.answer(200, self._listed(query.get("prefix", [""])[0]), Content_Type="application/xml")
        elif found is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")
        else:
            self.answer(200, found, ETag='"1"', Last_Modified="Mon, 16 Nov 2026 09:00:00 GMT")

    do_HEAD = do_GET  # noqa: N815

    def do_DELETE(self) -> None:
        self.objects.pop(urlsplit(self.path).path, None)
        self.answer(204)

    def do_POST(self) -> None:
        """Deletes several objects at once."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        names = [part.partition("</Key>")[0] for part in body.split("<Key>")[1:]]
        for name in names:
            self.objects.pop(f"/{BUCKET}/{name}", None)
        gone = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
        self.answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode(), Content_Type="application/xml")

    def _listed(self, prefix: str) -> bytes:
        listed = "".join(
            f"<Contents><Key>{escape(path.removeprefix(f'/{BUCKET}/'))}</Key><Size>{len(body)}</Size>"
            '<LastModified>2026-11-16T09:00:00.000Z</LastModified><ETag>"1"</ETag></Contents>'
            for path, body in sorted(self.objects.items())
            if path.startswith(f"/{BUCKET}/{prefix}")
        )
        text = f"<ListBucketResult><Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
        return text.encode()


if __name__ == "__main__":
    serving = {"careless": _Careless, "refusing": _Refusing}[sys.argv[1]]
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), serving).serve_forever()
