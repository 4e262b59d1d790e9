"""Structured logs on stderr: JSON, or coloured lines on a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import msgspec
import structlog

from angelia.settings import Settings

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160)) if code != 9}
_CONTROL_BUT_NEWLINE = {code: shown for code, shown in _CONTROL.items() if code != 10}


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
        if isinstance(value, str) and not value.isprintable():
            record[name] = value.translate(_CONTROL_BUT_NEWLINE if name == "exception" else _CONTROL)
    return record
