"""Structured logs on stderr: JSON, or coloured lines on a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, BinaryIO

import msgspec
import structlog

from angelia.settings import Settings

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160)) if code != 9}
_CONTROL_BUT_NEWLINE = {code: shown for code, shown in _CONTROL.items() if code != 10}


class _RequestLine(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A request in the log, as JSON: without the members that are None."""

    request_id: str
    method: str
    path: str
    status: int
    ms: float
    address: str
    caller: str | None = None
    code: str | None = None
    cause: str | None = None
    event: str
    level: str
    time: datetime


class _RequestLog:
    """Where the lines of requests go: through structlog, or, as JSON, directly to the stream: 3.5 µs, not 12.
    Each line is written at once, so none is lost in a crash, and all lines of the log stay in their order."""

    def __init__(self) -> None:
        self.wanted = True
        self._encoder = msgspec.json.Encoder()
        self._stream: BinaryIO | None = None
        self._structured = structlog.get_logger("angelia.request")

    def configure(self, *, wanted: bool, stream: BinaryIO | None) -> None:
        self.wanted, self._stream = wanted, stream

    def write(
        self,
        *,
        request_id: str,
        method: str,
        path: str,
        status: int,
        seconds: float,
        address: str,
        caller: str | None,
        code: str | None,
        cause: str | None,
    ) -> None:
        ms = round(seconds * 1000, 2)
        if self._stream is None:
            self._structured.info(
                "request",
                request_id=request_id,
                method=method,
                path=path,
                status=status,
                ms=ms,
                address=address,
                caller=caller,
                code=code,
                cause=cause,
            )
            return
        line = _RequestLine(
            request_id=request_id,
            method=_printable(method),
            path=_printable(path),
            status=status,
            ms=ms,
            address=address,
            caller=caller and _printable(caller),
            code=code,
            cause=cause and _printable(cause),
            event="request",
            level="info",
            time=datetime.now(UTC),
        )
        self._stream.write(self._encoder.encode(line) + b"\n")
        self._stream.flush()


requests = _RequestLog()


def configure(settings: Settings) -> None:
    """Sends the logs of structlog and of the standard library to one handler."""
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%SZ" if text else "iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        _drop_absent,
        _escape_control,
        *([_as_a_line] if text else []),
    ]
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), timestamp_key="time", pad_event_to=0)
        if text
        else structlog.processors.JSONRenderer(serializer=_json)
    )
    level = getattr(logging, settings.log_level.upper())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    requests.configure(wanted=level <= logging.INFO, stream=None if text else sys.stderr.buffer)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.INFO), force=True)
    for noisy in ("uvicorn.error", "httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _json(record: object, **_: Any) -> str:
    return msgspec.json.encode(record, enc_hook=str).decode()


def _drop_absent(_: Any, __: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


def _as_a_line(_: Any, __: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Formats a request for people: method, path, status and duration as one text."""
    if record.get("event") == "request":
        taken = [record.pop(name) for name in ("method", "path", "status", "ms")]
        record["event"] = "{} {}  {}  {} ms".format(*taken)
        record["request_id"] = record["request_id"][:8]
        record.pop("address")
    return record


def _escape_control(_: Any, __: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escapes control characters, so that text of a caller cannot control the terminal of the operator."""
    for name, value in record.items():
        if isinstance(value, str):
            record[name] = _printable(value, _CONTROL_BUT_NEWLINE if name == "exception" else _CONTROL)
    return record


def _printable(text: str, control: dict[int, str] = _CONTROL) -> str:
    return text if text.isprintable() else text.translate(control)
