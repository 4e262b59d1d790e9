"""One web process (`python -m angelia.worker`): its settings come by a pipe, its socket from the server."""

from __future__ import annotations

import logging
import os
import socket
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from angelia.errors import AngeliaError
from angelia.settings import Loaded, Settings

READY = b"\x06"
_LONGEST_REPORT = 4000


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker is told; it holds secrets, so it never travels by command line or environment."""

    settings: Settings
    origins: dict[str, str]
    open_mode: bool
    worker: int
    data_dir: Path
    node_public_key: bytes
    listener: int
    report: int

    def encode(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=_path_to_text)

    @staticmethod
    def decode(data: bytes) -> Handover:
        return msgspec.json.decode(data, type=Handover, dec_hook=_text_to_path)


class StartReport(logging.Handler):
    """Tells the server, over a pipe, that this process is ready, or what went wrong before."""

    def __init__(self, pipe: int) -> None:
        super().__init__(logging.ERROR)
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._tell(record.getMessage() if error is None else _explained(error))

    def crashed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """An exception hook: the process is about to end."""
        self._tell(_explained(error))
        sys.__excepthook__(kind, error, trace)

    def ready(self) -> None:
        os.write(self._pipe, READY)
        os.close(self._pipe)

    def _tell(self, text: str) -> None:
        os.write(self._pipe, text.encode("utf-8", "replace")[-_LONGEST_REPORT:] + b"\n")


def main() -> None:
    handover = Handover.decode(sys.stdin.buffer.read())
    report = StartReport(handover.report)
    sys.excepthook = report.crashed
    run(handover, report)


def run(handover: Handover, report: StartReport) -> None:
    """Build the application and serve it until a signal says stop."""
    # Imported late, so that an application that cannot even be imported is reported too.
    import uvicorn

    from angelia.app import Application
    from angelia.http import logs
    from angelia.http.protocol import BoundedProtocol
    from angelia.keys.node_key import NodeIdentity

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            logging.getLogger("uvicorn.error").removeHandler(report)
            report.ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            application.stop_waiting()
            await super().shutdown(sockets=sockets)

    settings = handover.settings
    logs.configure(settings)
    logging.getLogger("uvicorn.error").addHandler(report)
    application = Application(
        loaded=Loaded(settings, handover.origins),
        open_mode=handover.open_mode,
        worker=handover.worker,
        data_dir=handover.data_dir,
        node=NodeIdentity(handover.node_public_key, handover.data_dir),
    )
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    Server(config).run(sockets=[socket.socket(fileno=handover.listener)])


def _explained(error: BaseException) -> str:
    if isinstance(error, AngeliaError):
        return f"{error.message}\n{error.hint}"
    return "".join(traceback.format_exception(error))


def _path_to_text(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value)} does not travel")


def _text_to_path(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise TypeError(f"{kind} does not travel")


if __name__ == "__main__":
    main()
