"""The main process of `angelia serve`: starts data directory, stores and workers, in this order, and stops them in
reverse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import selectors
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import FrameType

import msgspec

import angelia
from angelia import executable_path, start
from angelia.audit_sealer import SealerThread
from angelia.guard.api import MadeToken
from angelia.http import logs
from angelia.keys.node_key import load_or_make
from angelia.listener import bind, bind_local, local_url, raise_open_files
from angelia.pipeline_schedule import PipelineSchedule
from angelia.runtime_file import Runtime
from angelia.settings import OUR_OWN, Loaded, Settings
from angelia.stores.embedded import EmbeddedStores, ledger_alone
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.private_files import make_private_directory
from angelia.stores.system_user import SystemUser
from angelia.worker import Handover
from angelia.worker_pool import SPOOL, Workers

_LOG = logging.getLogger("angelia.server")
_TICK_SECONDS = 0.25


def serve(loaded: Loaded, *, rotate_master_key: bool = False) -> int:
    """Runs a server until a signal ends it. Returns the exit code; StartFailed if it cannot start."""
    logs.configure(loaded.settings)
    raise_open_files()
    with _Signals() as signals, contextlib.ExitStack() as cleanup:
        try:
            stores, spool, workers, schedule, listener = _start(loaded, signals, cleanup, rotate_master_key)
        except _Interrupted:
            return 128 + signals.received[0]
        finally:
            signals.interrupting = False
        while not signals.received:
            _tend(stores, spool, workers, schedule)
            signals.wait(_TICK_SECONDS)
        listener.close()
        schedule.ask_to_stop()
        _drain(workers, signals, stores, spool)
        _drain(spool, signals, stores)
    return 0


def set_schema(loaded: Loaded, version: int, may_go_back: Callable[[int], bool]) -> list[str]:
    """Migrates the ledger to a schema version while no server runs. Returns the steps done; going back needs a yes from
    `may_go_back`, which gets the present version."""
    logs.configure(loaded.settings)
    with ledger_alone(loaded.settings) as database_url:
        present = asyncio.run(start.schema_version(database_url))
        if version < present and not may_go_back(present):
            return []
        return asyncio.run(start.set_schema(database_url, version))


def create_token(loaded: Loaded, *, role: str, agent: str | None, label: str, life: timedelta | None) -> MadeToken:
    """Makes a token while no server runs, so that already the first start may listen beyond this machine."""
    logs.configure(replace(loaded.settings, log_level="warning"))
    with ledger_alone(loaded.settings) as database_url:
        effective = _with_urls(loaded, loaded.settings, database_url, loaded.settings.redis_url)
        return asyncio.run(start.create_token(effective, role=role, agent=agent, label=label, life=life))


def _start(
    loaded: Loaded, signals: _Signals, cleanup: contextlib.ExitStack, rotate_master_key: bool
) -> tuple[EmbeddedStores, Workers, Workers, PipelineSchedule, socket.socket]:
    """Each step registers its undoing in `cleanup`, which runs them in reverse order, however the server ends."""
    data_dir = DataDir(loaded.settings.data_dir)
    data_dir.prepare()
    data_dir.lock()
    cleanup.callback(data_dir.release)
    cleanup.callback(data_dir.remove_runtime)
    listener = cleanup.enter_context(bind(loaded.settings, patient=data_dir.left_by_a_crash))
    settings = replace(loaded.settings, port=listener.getsockname()[1])

    stores = EmbeddedStores(settings, data_dir)
    cleanup.callback(stores.stop)
    with _announced(stores.names) as tell:
        database_url, redis_url = stores.start(tell)
    effective = _with_urls(loaded, settings, database_url, redis_url)
    node = load_or_make(data_dir.node_key)
    open_mode = asyncio.run(start.prepare(effective, node, rotate_master_key=rotate_master_key))

    shutil.rmtree(data_dir.metrics, ignore_errors=True)
    make_private_directory(data_dir.metrics, SystemUser.ourselves())
    handover = Handover(
        loaded=effective,
        open_mode=open_mode,
        node_public_key=node.public_key,
        listener=listener.fileno(),
    )
    sealer = SealerThread(effective, node)
    sealer.start()
    cleanup.callback(sealer.stop)  # it seals until the workers have ended
    # The main process holds the spool's socket too, so that requests wait while a killed spool starts again.
    local = cleanup.enter_context(bind_local(data_dir.spool_socket))
    to_spool = msgspec.structs.replace(handover, listener=local.fileno())
    spool = Workers(to_spool, data_dir.metrics, signals.selector, SPOOL)
    workers = Workers(handover, data_dir.metrics, signals.selector, count=settings.workers)
    for processes in (spool, workers):
        cleanup.callback(processes.kill)
        processes.start()
    while not (spool.all_ready and workers.all_ready):
        _tend(stores, spool, workers)
        signals.wait(_TICK_SECONDS)
    schedule = PipelineSchedule(effective.settings, data_dir, time.monotonic())
    cleanup.callback(schedule.stop)
    runtime = Runtime(
        pid=os.getpid(),
        url=local_url(settings),
        database_url=database_url,
        redis_url=redis_url,
        sockets=str(data_dir.sockets),
    )
    data_dir.write_runtime(runtime)
    _greet(effective, open_mode=open_mode)
    return stores, spool, workers, schedule, listener


def _tend(*processes: EmbeddedStores | Workers | PipelineSchedule) -> None:
    """Restarts stores and workers that ended, starts jobs that are due, and logs what went wrong."""
    for group in processes:
        for line in group.tend(time.monotonic()):
            _LOG.warning(line)


def _drain(workers: Workers, signals: _Signals, *still_needed: EmbeddedStores | Workers) -> None:
    """Lets requests finish, until the time of the settings is over or a second signal comes."""
    deadline = time.monotonic() + workers.ask_to_stop()
    while workers.alive and len(signals.received) < 2 and time.monotonic() < deadline:
        signals.wait(_TICK_SECONDS)
        workers.collect()
        _tend(*still_needed)


class _Interrupted(KeyboardInterrupt):
    """A signal came during the start. A KeyboardInterrupt, because an event loop lets no other kind through."""


class _Signals:
    """Receives signals. During the start they interrupt it; afterwards `wait` returns when one comes."""

    _HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __enter__(self) -> _Signals:
        self.received: list[int] = []
        self.interrupting = True
        self.selector = selectors.DefaultSelector()
        self._reading, writing = socket.socketpair()
        self._writing = writing
        for end in (self._reading, writing):
            end.setblocking(False)
        self.selector.register(self._reading, selectors.EVENT_READ)
        self._old_wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        # Under nohup SIGHUP is ignored, and stays so.
        handled = [number for number in self._HANDLED if signal.getsignal(number) is not signal.SIG_IGN]
        self._old_hook, sys.unraisablehook = sys.unraisablehook, self._raise_again
        self._old = {number: signal.signal(number, self._handle) for number in handled}
        # SIGCHLD only has to reach the wake-up descriptor, which takes a handler.
        self._old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._old[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._handle_again)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._old_hook
        signal.set_wakeup_fd(self._old_wakeup)
        self.selector.close()
        self._reading.close()
        self._writing.close()

    def wait(self, seconds: float) -> None:
        """Returns after a signal, a worker's report, or that time."""
        self.selector.select(seconds)
        with contextlib.suppress(BlockingIOError):
            while self._reading.recv(4096):
                pass

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        if self.interrupting and len(self.received) == 1:
            raise _Interrupted

    def _raise_again(self, lost: sys.UnraisableHookArgs) -> None:
        """Handles the signal again, 10 ms later, if its exception was lost: Python drops those that are raised in
        its callbacks after a fork."""
        if isinstance(lost.exc_value, _Interrupted):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            self._old_hook(lost)

    def _handle_again(self, _number: int, frame: FrameType | None) -> None:
        self._handle(self.received.pop(), frame)


def _with_urls(loaded: Loaded, settings: Settings, database_url: str, redis_url: str | None) -> Loaded:
    own = {name: OUR_OWN for name in ("database_url", "redis_url") if getattr(loaded.settings, name) is None}
    return Loaded(replace(settings, database_url=database_url, redis_url=redis_url), {**loaded.origins, **own})


@contextlib.contextmanager
def _announced(names: list[str]) -> Iterator[Callable[[str], None]]:
    """Prints what is being started and how long it took. The yielded function logs a delay on a line of its own."""
    if not names:
        yield _LOG.warning
        return
    what, show = f"starting {', '.join(names)} … ", partial(print, file=sys.stderr, flush=True)

    def tell(line: str) -> None:
        show()
        _LOG.warning(line)
        show(what, end="")

    began = time.monotonic()
    show(what, end="")
    try:
        yield tell
    except BaseException:
        show()
        raise
    seconds = time.monotonic() - began
    show(f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s")


def _greet(loaded: Loaded, *, open_mode: bool) -> None:
    settings = loaded.settings
    if not open_mode:
        mode = "token mode: callers show who they are"
    elif settings.loopback:
        mode = "open mode: this machine only, no token needed"
    else:
        mode = "open mode: NO PROTECTION, whoever reaches this address may use it"
    print(f"Angelia {angelia.__version__} is ready   {local_url(settings)}   {mode}", file=sys.stderr)
    before = "".join(f"`{command}`, " for command in _before_the_next(loaded))
    then = "then " if before else ""
    print(f"next: in another terminal, {before}{then}`angelia agent new alice --register`", file=sys.stderr, flush=True)


def _before_the_next(loaded: Loaded) -> Iterator[str]:
    """Commands with which another terminal finds `angelia`, if it is not on the path, and the server and its token."""
    if prefix := executable_path.own():
        yield f". {prefix}/bin/activate"
    if loaded.origins["data_dir"] != "default":
        yield f"export ANGELIA_DATA_DIR={shlex.quote(str(loaded.settings.data_dir.expanduser().resolve()))}"
