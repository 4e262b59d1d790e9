"""The object store of the archive: a directory of this machine, or a bucket of any S3-compatible store, by one URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit

from angelia.errors import SettingsError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_HINT = "a directory, or s3://bucket/prefix?endpoint=https://host&region=name; keys as AWS_ACCESS_KEY_ID and so on"
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# By default delta-rs retries a store that does not answer for three minutes and more.
_TIMEOUTS = {"connect_timeout": "5s", "timeout": "60s", "max_retries": "4", "retry_timeout": "60s"}
_CONNECT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Objects:
    """A directory or bucket. Spark sends it to executors, so it carries the credentials that they need."""

    root: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, url: str, environ: Mapping[str, str] = os.environ) -> Objects:
        if url.startswith("/"):
            return cls(url.rstrip("/") or "/")
        parts = urlsplit(url)
        if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
            return cls(parts.path.rstrip("/") or "/")
        if parts.scheme != "s3":
            raise SettingsError("lake: this is no place for an archive", hint=_HINT)
        query = parse_qs(parts.query)
        wanted = query.get("endpoint", [environ.get("AWS_ENDPOINT_URL", "")])[0]
        if not re.fullmatch(r"[a-zA-Z0-9._-]+", parts.netloc) or "@" in wanted or query.keys() - {"endpoint", "region"}:
            raise SettingsError("lake: the URL of a bucket is not understood", hint=_HINT)
        options = {name: environ[name] for name in _CREDENTIALS if environ.get(name)}
        options["AWS_REGION"] = query.get("region", [environ.get("AWS_REGION", "us-east-1")])[0]
        if wanted:
            options["AWS_ENDPOINT_URL"] = wanted
            if wanted.startswith("http://"):
                options["AWS_ALLOW_HTTP"] = "true"
        options |= _TIMEOUTS
        return cls(f"s3://{parts.netloc}/{parts.path.strip('/')}".rstrip("/"), options)

    @property
    def url(self) -> str:
        """The URL from which `at` makes the same place; without credentials."""
        if not self.remote:
            return self.root
        parts = {"endpoint": self.options.get("AWS_ENDPOINT_URL"), "region": self.options["AWS_REGION"]}
        return f"{self.root}?{urlencode({name: value for name, value in parts.items() if value}, safe=':/')}"

    def beside(self, ending: str) -> Objects:
        """The place next to this one, named with the ending; inside it, if this is a whole bucket."""
        separator = "-" if self.prefix or not self.remote else "/"
        return replace(self, root=f"{self.root}{separator}{ending}")

    @property
    def remote(self) -> bool:
        return self.root.startswith("s3://")

    @property
    def bucket(self) -> str:
        return self.path(self.root).partition("/")[0]

    @property
    def prefix(self) -> str:
        """The path inside the bucket; empty for the whole bucket."""
        return self.path(self.root).partition("/")[2]

    @property
    def endpoint(self) -> str:
        return self.options.get("AWS_ENDPOINT_URL") or f"S3 in {self.options['AWS_REGION']}"

    def table(self, name: str) -> str:
        """The URI of a table."""
        return f"{self.root}/{name}"

    def filesystem(self) -> FileSystem:
        """A file system for the paths that `path` returns."""
        from pyarrow import fs

        if not self.remote:
            return fs.LocalFileSystem()
        endpoint = urlsplit(self.options.get("AWS_ENDPOINT_URL", ""))
        return fs.S3FileSystem(
            access_key=self.options.get("AWS_ACCESS_KEY_ID"),
            secret_key=self.options.get("AWS_SECRET_ACCESS_KEY"),
            session_token=self.options.get("AWS_SESSION_TOKEN"),
            region=self.options["AWS_REGION"],
            scheme=endpoint.scheme or None,
            endpoint_override=endpoint.netloc or None,
            connect_timeout=_CONNECT_SECONDS,
            # A small file is then one request instead of three; errors show when it is closed.
            allow_delayed_open=True,
        )

    def path(self, uri: str) -> str:
        """The path of a URI in `filesystem`."""
        return uri.removeprefix("s3://")
