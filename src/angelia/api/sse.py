"""The format of server-sent events."""

from __future__ import annotations

EVENT_STREAM = "text/event-stream"
HEARTBEAT = b": still here\n\n"
HEARTBEAT_SECONDS = 15.0


def sse(event: str, data: bytes, id: str | None = None) -> bytes:
    """Encodes one event. JSON has no line breaks, so one line of data is enough."""
    name = f"id: {id}\n" if id is not None else ""
    return f"{name}event: {event}\ndata: ".encode() + data + b"\n\n"
