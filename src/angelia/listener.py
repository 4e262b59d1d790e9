"""The listening sockets. The server's is bound before the slow parts of a start; errors name address and port."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import time
from pathlib import Path

from angelia.errors import StartFailed
from angelia.settings import Settings

_OPEN_FILES = 65536


def bind(settings: Settings, *, patient: bool) -> socket.socket:
    """Returns a socket that listens on the configured address. `patient` waits up to 5 s for workers of a killed server
    to free it."""
    host = settings.host.strip("[]")
    family = socket.AF_INET if host == "localhost" else socket.AF_UNSPEC
    try:
        found = socket.getaddrinfo(host, settings.port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StartFailed(
            f"the address {settings.host} is not known: {error.strerror}",
            hint="name an address of this machine with --host, such as 127.0.0.1",
        ) from error
    deadline = time.monotonic() + (5.0 if patient else 0.0)
    while True:
        try:
            return _listen(found[0][0], found[0][4])
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            raise _bind_failed(settings, error) from error


def raise_open_files() -> None:
    """Each connection takes a descriptor, and many systems allow only 256 or 1,024 by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit that getrlimit does not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def refuse_nameless(settings: Settings) -> None:
    """StartFailed for a server that others can reach, if nothing says what it is called there."""
    if not settings.loopback and settings.public_url is None:
        raise StartFailed(
            f"{settings.host} can be reached from elsewhere, and no public_url says what the server is called there",
            hint="say --public-url http://NAME:PORT as clients have it: agents sign every request for that name",
        )


def bind_local(path: Path) -> socket.socket:
    """Returns a Unix socket that listens on a path, and that only this user can reach."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)  # before it listens: until then nothing can connect
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise StartFailed(f"the socket {path} cannot be made: {error.strerror}") from error
    return listener


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        listener.bind(address)
        # At once: with SO_REUSEADDR two programs can bind one port, but only one can listen on it.
        listener.listen(2048)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_failed(settings: Settings, error: OSError) -> StartFailed:
    where = f"port {settings.port} of {settings.host}"
    if error.errno == errno.EADDRINUSE:
        return StartFailed(
            f"{where} is taken by another program",
            hint=f"choose another with --port {settings.port + 1}, or let --port 0 take a free one",
        )
    if error.errno == errno.EACCES:
        return StartFailed(f"{where} may only be used by root", hint="choose a --port above 1023")
    if error.errno == errno.EADDRNOTAVAIL:
        return StartFailed(
            f"{settings.host} is not an address of this machine",
            hint="--host 127.0.0.1 for this machine alone, --host 0.0.0.0 for all its addresses",
        )
    return StartFailed(f"{where} cannot be used: {error.strerror}")


def local_url(settings: Settings) -> str:
    """Returns the URL for programs on this machine: the public URL if there is one, because signatures name it."""
    if settings.public_url is not None:
        return settings.public_url.rstrip("/")
    host = settings.host.strip("[]")
    if host in ("127.0.0.1", "localhost", "0.0.0.0", "::"):  # noqa: S104
        return f"http://localhost:{settings.port}"
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
