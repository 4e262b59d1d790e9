"""Our own Valkey: the hot tier, with an append-only file, reachable by a Unix socket only."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from angelia.stores.embedded.binaries import Programs
from angelia.stores.embedded.datadir import VALKEY_SOCKET, DataDir
from angelia.stores.embedded.orphans import Trace
from angelia.stores.embedded.process import Program, Steps
from angelia.stores.private_files import make_private_directory, sync_directory, write_private

_LARGEST_LOG = 10 * 1024 * 1024
_READY = "Ready to accept connections"
# Log lines of a start that failed for another reason than its files.
_OTHER_REASONS = ("No space left on device", "Received SIGTERM", "Received SIGINT", "Received shutdown signal")


class Valkey:
    """The hot tier's server process."""

    name = "Valkey"
    log_name = "valkey.log"
    passing_troubles: tuple[str, ...] = ()
    stop_steps: Steps = ((signal.SIGTERM, 30.0), (signal.SIGKILL, 5.0))

    def __init__(self, data_dir: DataDir, programs: Programs) -> None:
        self.programs = programs
        self._data_dir = data_dir
        self._began_anew = False
        self._socket = data_dir.sockets / VALKEY_SOCKET
        self._configuration = data_dir.valkey / "valkey.conf"
        self.trace = Trace(data_dir.valkey / "valkey.pid", executable="valkey-server", title=str(self._socket))

    @property
    def url(self) -> str:
        return f"unix://:{self._data_dir.secret(self._data_dir.valkey_password)}@{quote(str(self._socket))}"

    def prepare(self) -> None:
        """Rotates a large log."""
        log = self._data_dir.logs / self.log_name
        if log.is_file() and log.stat().st_size > _LARGEST_LOG:
            log.replace(log.with_name(f"{self.log_name}.1"))

    def program(self) -> Program:
        """The command of one start. Removes what an earlier start left behind."""
        make_private_directory(self._data_dir.valkey, self._data_dir.owner)
        self._write_configuration()
        self._socket.unlink(missing_ok=True)
        for unfinished in self._data_dir.valkey.glob("temp-*"):
            with contextlib.suppress(OSError):
                unfinished.unlink()
        command = (self.programs.directory / "valkey-server", self._configuration)
        return Program.of_store(self._data_dir.owner, signal.SIGTERM, *command)

    def after_death(self, said: str, *, killed: bool) -> str | None:
        """Moves the files aside if Valkey gave up before it was ready: it cannot read them, and the ledger can rebuild
        what they hold.

        Only the newest set is kept. Not done twice in a row, nor if the log names another reason: then the files are
        not to blame.
        """
        if _READY in said:
            self._began_anew = False
        if _READY in said or killed or self._began_anew or any(reason in said for reason in _OTHER_REASONS):
            return None
        directory = self._data_dir.valkey
        aside = directory.with_name(f"{directory.name}.unreadable")
        shutil.rmtree(aside, ignore_errors=True)
        try:
            directory.rename(aside)
            sync_directory(directory.parent)
        except OSError:
            return None  # the usual restart follows
        self._began_anew = True
        return f"Valkey cannot read its files; they lie in {aside} now, and what it held is rebuilt from the ledger"

    def is_ready(self) -> bool:
        """Whether it answers; while it loads its file it does not."""
        client = redis.Redis.from_url(self.url, socket_timeout=5, retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):  # BusyLoadingError is a ConnectionError
            return False
        finally:
            client.close()

    def _write_configuration(self) -> None:
        """Writes a private file, since it holds the password; at each start, since a crash may have damaged it."""
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "requirepass": self._data_dir.secret(self._data_dir.valkey_password),
            "dir": str(self._data_dir.valkey),
            "pidfile": str(self.trace.pid_file),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        lines = [f"{name} {_quoted(value)}\n" for name, value in settings.items()]
        write_private(self._configuration, "".join(lines).encode(), self._data_dir.owner)


def _quoted(value: str) -> str:
    """A value quoted for Valkey's configuration; a path may hold any character."""
    plain = "".join(
        c if c.isprintable() and c not in '"\\' else "".join(f"\\x{b:02x}" for b in os.fsencode(c)) for c in value
    )
    return f'"{plain}"'
