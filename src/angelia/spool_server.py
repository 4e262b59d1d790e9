"""`angelia spool serve`: a spool node of its own, in one process. It needs neither PostgreSQL nor Valkey."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from contextlib import closing
from dataclasses import replace

import angelia
from angelia import admin_token
from angelia.envelope.json_form import to_text
from angelia.http import logs, serving
from angelia.keys.node_key import NodeKey, load_or_make
from angelia.listener import bind, local_url, raise_open_files, refuse_nameless
from angelia.settings import Loaded, Settings
from angelia.spool_app import SpoolApplication, SpoolProtocol
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.system_user import SystemUser


def serve(loaded: Loaded) -> int:
    """Runs a node until a signal ends it. Returns the exit code; StartFailed if it cannot start."""
    logs.configure(loaded.settings)
    raise_open_files()
    refuse_nameless(loaded.settings)
    data_dir = DataDir(loaded.settings.data_dir, SystemUser.ourselves())
    data_dir.prepare()
    data_dir.lock()
    # uvicorn raises the signal that ended it once more: it has done its work by then.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        settings = loaded.settings
        while True:
            with closing(bind(settings, patient=data_dir.left_by_a_crash)) as listener:
                settings = replace(settings, port=listener.getsockname()[1])  # it stays the same
                code = _serve(settings, data_dir, listener)
            if code is not None:
                return code
    finally:
        logging.shutdown()
        data_dir.remove_runtime()
        data_dir.release()


def _serve(settings: Settings, data_dir: DataDir, listener: socket.socket) -> int | None:
    """Serves until a signal comes. Returns the exit code; None if the log has to be opened anew."""
    node = load_or_make(data_dir.node_key)
    open_mode = not settings.reachable or settings.insecure
    token = None if open_mode else admin_token.load_or_make(data_dir.admin_token)
    application = SpoolApplication(settings, node, open_mode=open_mode, token=token, behind_web=False)
    try:
        started = serving.serve(
            application,
            listener,
            drain_seconds=settings.drain_seconds,
            on_ready=lambda: _greet(settings, node, open_mode=open_mode),
            protocol=SpoolProtocol,
        )
    except SystemExit:  # uvicorn's way to end a start that failed
        started = False
    if application.failure is not None:
        raise application.failure
    if application.wants_restart:
        return None
    return 0 if started else 1


def _greet(settings: Settings, node: NodeKey, *, open_mode: bool) -> None:
    mode = "open mode: no token needed" if open_mode else "a group is created with the token in admin.token"
    print(f"Angelia {angelia.__version__} spool is ready   {local_url(settings)}   {mode}", file=sys.stderr)
    print(f"node {to_text(node.public_key)}", file=sys.stderr, flush=True)
