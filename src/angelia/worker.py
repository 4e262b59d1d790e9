"""One web process (`python -m angelia.worker`). The server passes it settings by a pipe, and the listening socket."""

from __future__ import annotations

import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable
from types import TracebackType

import msgspec

from angelia.errors import AngeliaError
from angelia.settings import Loaded
from angelia.stores.embedded.datadir import DataDir

READY = b"\x06"
_LONGEST_REPORT = 4000
_UVICORN = "uvicorn.error"


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """What the server tells a worker. It holds secrets, so it goes through a pipe, never through the command line or
    the environment. `listener` and `report` are descriptors that the worker inherits."""

    loaded: Loaded
    open_mode: bool
    node_public_key: bytes
    listener: int
    worker: int = 0
    report: int = -1

    def encode(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=str)  # only paths need the hook

    @staticmethod
    def decode(data: bytes) -> Handover:
        return msgspec.json.decode(data, type=Handover, dec_hook=lambda kind, text: kind(text))


class StartReport(logging.Handler):
    """Tells the server, over a pipe, that this process is ready, or which error ended its start."""

    def __init__(self, pipe: int) -> None:
        super().__init__(logging.ERROR)
        self._pipe = pipe

    def listen(self) -> None:
        """Takes what the server logs as errors, until it is ready."""
        logging.getLogger(_UVICORN).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._tell(record.getMessage() if error is None else _explained(error))

    def crashed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Reports the exception that ends the process; used as `sys.excepthook`."""
        self._tell(_explained(error))
        sys.__excepthook__(kind, error, trace)

    def ready(self) -> None:
        logging.getLogger(_UVICORN).removeHandler(self)
        os.write(self._pipe, READY)
        os.close(self._pipe)

    def _tell(self, text: str) -> None:
        os.write(self._pipe, text.encode("utf-8", "replace")[-_LONGEST_REPORT:] + b"\n")


def main(run: Callable[[Handover, StartReport], None]) -> None:
    """Takes over from the server, and runs what this process is for."""
    handover = Handover.decode(sys.stdin.buffer.read())
    report = StartReport(handover.report)
    sys.excepthook = report.crashed
    run(handover, report)


def run_web(handover: Handover, report: StartReport) -> None:
    """Builds the application and serves it until a signal stops the process."""
    # Imported here, so that an import that fails is reported too.
    from angelia.app import Application
    from angelia.http import logs, serving
    from angelia.keys.node_key import NodeIdentity

    settings = handover.loaded.settings
    logs.configure(settings)
    application = Application(
        loaded=handover.loaded,
        open_mode=handover.open_mode,
        worker=handover.worker,
        node=NodeIdentity(handover.node_public_key, DataDir(settings.data_dir).path),
    )
    report.listen()
    listener = socket.socket(fileno=handover.listener)
    serving.serve(application, listener, drain_seconds=settings.drain_seconds, on_ready=report.ready)


def _explained(error: BaseException) -> str:
    if isinstance(error, AngeliaError):
        return f"{error.message}\n{error.hint}"
    return "".join(traceback.format_exception(error))


if __name__ == "__main__":
    main(run_web)
