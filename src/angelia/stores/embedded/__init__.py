"""Our own PostgreSQL and Valkey, as child processes, for whoever has not set DATABASE_URL or REDIS_URL."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from angelia.errors import StartFailed
from angelia.settings import Settings, with_values
from angelia.stores.embedded.binaries import Programs, postgres_for, valkey_for
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.orphans import Trace, stop_orphan
from angelia.stores.embedded.postgres import Postgres
from angelia.stores.embedded.private_files import open_log
from angelia.stores.embedded.process import Backoff, Child, ParentDeath, Program, Steps, end, start
from angelia.stores.embedded.valkey import Valkey

_READY_SECONDS = 300.0
_FAILED_STARTS = 3
_SPARE_CONNECTIONS = 40
_LONGEST_SAID = 64 * 1024


class Store(Protocol):
    """A server process that we keep alive."""

    name: str
    log_name: str
    programs: Programs
    passing_troubles: tuple[str, ...]
    stop_steps: Steps

    @property
    def trace(self) -> Trace: ...

    @property
    def url(self) -> str: ...

    def prepare(self) -> None: ...

    def program(self) -> Program: ...

    def is_ready(self) -> bool: ...

    def after_death(self, said: str, *, killed: bool) -> str | None:
        """It ended, after it had said so much: what was done for the next start, in a line to log."""
        ...


class EmbeddedStores:
    """The stores that no URL was given for; the data directory must be prepared and locked."""

    def __init__(self, settings: Settings, data_dir: DataDir, *, notice: ParentDeath | None = None) -> None:
        self._database_url = settings.database_url
        self._redis_url = settings.redis_url
        self._kept: dict[str, _Kept] = {}
        if settings.redis_url is None:
            valkey = Valkey(data_dir, valkey_for(data_dir))
            self._kept["valkey"] = _Kept(valkey, data_dir, notice)
        if settings.database_url is None:
            connections = max(100, settings.workers * settings.database_pool + _SPARE_CONNECTIONS)
            postgres = Postgres(data_dir, postgres_for(data_dir, settings.postgres_bin), connections)
            self._kept["postgres"] = _Kept(postgres, data_dir, notice)

    @property
    def names(self) -> list[str]:
        """The stores with their versions, as people read them."""
        stores = [kept.store for name, kept in sorted(self._kept.items())]
        return [f"{store.name} {store.programs.version}" for store in stores]

    @property
    def pids(self) -> dict[str, int]:
        """The living ones, by `postgres` and `valkey`."""
        return {name: kept.child.pid for name, kept in self._kept.items() if kept.child is not None}

    def start(self, tell: Callable[[str], None] = lambda line: None) -> tuple[str, str]:
        """Start what is ours and wait until it answers; the URLs of ledger and hot tier. `tell` hears of delays."""
        try:
            for kept in self._kept.values():
                kept.stop_orphan(tell)
                kept.store.prepare()
                kept.launch(time.monotonic())
            for kept in self._kept.values():
                kept.wait_until_ready(tell)
        except BaseException:
            self.stop()
            raise
        return self._url("postgres", self._database_url), self._url("valkey", self._redis_url)

    def tend(self, now: float) -> list[str]:
        """Start the dead ones again, without waiting for anything; what happened, in lines to log."""
        return [line for kept in self._kept.values() for line in kept.tend(now)]

    def stop(self) -> None:
        """Stop both, politely first, and return when they are gone."""
        alive = [(kept.store, kept.child) for kept in self._kept.values() if kept.child is not None]
        for store, child in alive:
            child.send(store.stop_steps[0][0])
        for store, child in alive:
            if not child.wait(store.stop_steps[0][1]):
                end(child, store.stop_steps[1:])
        for kept in self._kept.values():
            kept.child = None

    def _url(self, name: str, given: str | None) -> str:
        return given if given is not None else self._kept[name].store.url


@contextmanager
def ledger_alone(settings: Settings) -> Iterator[str]:
    """The URL of the ledger for work on a stopped server's data; our own runs under the lock, without a hot tier."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    data_dir = DataDir(settings.data_dir)
    data_dir.refuse_another_users()
    data_dir.prepare()
    data_dir.lock()
    try:
        # A hot tier that has a URL is one that we do not start.
        stores = EmbeddedStores(with_values(settings, redis_url="unix:///none"), data_dir)
        try:
            yield stores.start()[0]
        finally:
            stores.stop()
    finally:
        data_dir.remove_runtime()
        data_dir.release()


class _Kept:
    """One store and the process that it runs in at the moment."""

    def __init__(self, store: Store, data_dir: DataDir, notice: ParentDeath | None) -> None:
        self.store = store
        self.child: Child | None = None
        self._data_dir = data_dir
        self._notice = notice
        self._backoff = Backoff()
        self._launched = 0.0
        self._due = 0.0
        self._log_began = 0

    def stop_orphan(self, tell: Callable[[str], None]) -> None:
        """End the process that a killed server left behind, and wait for it: it may be shutting down already."""
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
            mended = self.store.after_death(self._said(), killed=killed)
            yield mended or self._try_later(now, f"{self.store.name} ended with {how}")
        elif self.child is None and now >= self._due:
            try:
                self.launch(now)
            except OSError as error:
                yield self._try_later(now, f"{self.store.name} cannot be started: {error}")
            else:
                yield f"{self.store.name} was started again"

    def wait_until_ready(self, tell: Callable[[str], None]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        told: set[str] = set()
        while not (self.child is not None and self.store.is_ready()):
            now = time.monotonic()
            lines = list(self.tend(now))
            trouble = self._passing_trouble()
            if trouble is not None:
                lines = [f"waiting for the {self.store.name} of the server before to stop: {trouble}"]
            # One that lives is only slow: it may be recovering, after starts that failed for another reason.
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
        said = self._last_lines()
        return next((trouble for trouble in self.store.passing_troubles if trouble in said), None)

    def _said(self) -> str:
        """What it wrote in its log first, since it was started."""
        try:
            with (self._data_dir.logs / self.store.log_name).open("rb") as log:
                log.seek(self._log_began)
                return log.read(_LONGEST_SAID).decode("utf-8", "replace")
        except OSError:
            return ""

    def _last_lines(self) -> str:
        return self._data_dir.last_lines(self.store.log_name.removesuffix(".log"))

    def _try_later(self, now: float, what: str) -> str:
        delay = self._backoff.next(now - self._launched)
        self._due = now + delay
        return f"{what}; next start in {delay:.1f} s"
