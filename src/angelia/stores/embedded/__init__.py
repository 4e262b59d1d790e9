"""Embedded stores: our own PostgreSQL and Valkey as child processes, where DATABASE_URL or REDIS_URL is not set."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from angelia.errors import StartFailed
from angelia.settings import Settings
from angelia.stores.embedded.binaries import postgres_for, valkey_for
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.orphans import stop_orphan
from angelia.stores.embedded.postgres import Postgres
from angelia.stores.embedded.process import Backoff, Child, ParentDeath, end, start
from angelia.stores.embedded.valkey import Valkey
from angelia.stores.private_files import open_log

_READY_SECONDS = 300.0
_FAILED_STARTS = 3
_SPARE_CONNECTIONS = 40
_LOG_BYTES = 64 * 1024


class EmbeddedStores:
    """The stores for which no URL is set. The data directory must be prepared and locked."""

    def __init__(self, settings: Settings, data_dir: DataDir, *, notice: ParentDeath | None = None) -> None:
        self._database_url = settings.database_url
        self._redis_url = settings.redis_url
        self._supervised: dict[str, _Supervised] = {}
        if settings.redis_url is None:
            valkey = Valkey(data_dir, valkey_for(data_dir))
            self._supervised["valkey"] = _Supervised(valkey, data_dir, notice)
        if settings.database_url is None:
            connections = max(100, settings.workers * settings.database_pool + _SPARE_CONNECTIONS)
            postgres = Postgres(data_dir, postgres_for(data_dir, settings.postgres_bin), connections)
            self._supervised["postgres"] = _Supervised(postgres, data_dir, notice)

    @property
    def names(self) -> list[str]:
        """Names and versions of the stores, for people."""
        stores = [one.store for _, one in sorted(self._supervised.items())]
        return [f"{store.name} {store.programs.version}" for store in stores]

    @property
    def pids(self) -> dict[str, int]:
        """The pids of the running stores, by `postgres` and `valkey`."""
        return {name: one.child.pid for name, one in self._supervised.items() if one.child is not None}

    def start(self, tell: Callable[[str], None] = lambda line: None) -> tuple[str, str]:
        """Starts the stores and waits until they answer. Returns the URLs of ledger and hot tier; `tell` gets messages
        about delays."""
        try:
            for one in self._supervised.values():
                one.stop_orphan(tell)
                one.store.prepare()
                one.launch(time.monotonic())
            for one in self._supervised.values():
                one.wait_until_ready(tell)
        except BaseException:
            self.stop()
            raise
        return self._url("postgres", self._database_url), self._url("valkey", self._redis_url)

    def tend(self, now: float) -> list[str]:
        """Restarts stores that ended; never waits. Returns what happened, as lines to log."""
        return [line for one in self._supervised.values() for line in one.tend(now)]

    def stop(self) -> None:
        """Stops the stores, cleanly if they can, and returns when they have ended."""
        alive = [(one.store, one.child) for one in self._supervised.values() if one.child is not None]
        for store, child in alive:
            child.send(store.stop_steps[0][0])
        for store, child in alive:
            if not child.wait(store.stop_steps[0][1]):
                end(child, store.stop_steps[1:])
        for one in self._supervised.values():
            one.child = None

    def _url(self, name: str, given: str | None) -> str:
        return given if given is not None else self._supervised[name].store.url


@contextmanager
def ledger_alone(settings: Settings) -> Iterator[str]:
    """The URL of the ledger, for work on a stopped server's data. Starts our own PostgreSQL under the lock of the data
    directory, without a hot tier."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    data_dir = DataDir(settings.data_dir)
    data_dir.refuse_another_users()
    data_dir.prepare()
    data_dir.lock()
    try:
        # With a URL for the hot tier, none is started.
        stores = EmbeddedStores(replace(settings, redis_url="unix:///none"), data_dir)
        try:
            yield stores.start()[0]
        finally:
            stores.stop()
    finally:
        data_dir.remove_runtime()
        data_dir.release()


class _Supervised:
    """One store, and the process that it runs in at present."""

    def __init__(self, store: Postgres | Valkey, data_dir: DataDir, notice: ParentDeath | None) -> None:
        self.store = store
        self.child: Child | None = None
        self._data_dir = data_dir
        self._notice = notice
        self._backoff = Backoff()
        self._launched = 0.0
        self._due = 0.0
        self._log_began = 0

    def stop_orphan(self, tell: Callable[[str], None]) -> None:
        """Stops the process that a killed server left behind, and waits for its end: it may be shutting down
        already."""
        pid = self.store.trace.orphan()
        if pid is not None:
            tell(f"waiting for the {self.store.name} of the server before (pid {pid}) to stop")
            stop_orphan(pid, self.store.stop_steps)

    def launch(self, now: float) -> None:
        program = self.store.program()
        log = open_log(self._data_dir.logs, self.store.log_name, self._data_dir.owner)
        try:
            self._log_began = os.fstat(log).st_size
            self.child = start(program, log=log, notice=self._notice)
        finally:
            os.close(log)
        self._launched = now

    def tend(self, now: float) -> Iterator[str]:
        if self.child is not None and (how := self.child.died) is not None:
            killed, self.child = self.child.was_killed, None
            repaired = self.store.after_death(self._log_of_this_start(), killed=killed)
            yield repaired or self._try_later(now, f"{self.store.name} ended with {how}")
        elif self.child is None and now >= self._due:
            try:
                self.launch(now)
            except OSError as error:
                yield self._try_later(now, f"{self.store.name} cannot be started: {error}")
            else:
                yield f"{self.store.name} was started again"

    def wait_until_ready(self, tell: Callable[[str], None]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        told = set[str]()
        while not (self.child is not None and self.store.is_ready()):
            now = time.monotonic()
            lines = list(self.tend(now))
            trouble = self._passing_trouble()
            if trouble is not None:
                lines = [f"waiting for the {self.store.name} of the server before to stop: {trouble}"]
            # A running store is only slow: it may be recovering, after starts that failed for another reason.
            hopeless = self.child is None and trouble is None and self._backoff.failures >= _FAILED_STARTS
            if hopeless or now >= deadline:
                raise StartFailed(f"{self.store.name} does not start", hint=self._last_lines())
            for line in lines:
                if line not in told:
                    told.add(line)
                    tell(line)
            time.sleep(0.03)

    def _passing_trouble(self) -> str | None:
        if not self._backoff.failures:
            return None
        log = self._last_lines()
        return next((trouble for trouble in self.store.passing_troubles if trouble in log), None)

    def _log_of_this_start(self) -> str:
        """The beginning of what the store logged since it was started."""
        try:
            with (self._data_dir.logs / self.store.log_name).open("rb") as log:
                log.seek(self._log_began)
                return log.read(_LOG_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def _last_lines(self) -> str:
        return self._data_dir.last_lines(self.store.log_name.removesuffix(".log"))

    def _try_later(self, now: float, what: str) -> str:
        delay = self._backoff.next(now - self._launched)
        self._due = now + delay
        return f"{what}; next start in {delay:.1f} s"
