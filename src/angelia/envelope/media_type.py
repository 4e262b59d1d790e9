"""The two forms of an envelope in HTTP bodies: JSON by default, and the binary wire form."""

from __future__ import annotations

from angelia.envelope import json_form, wire
from angelia.envelope.wire import Envelope

MEDIA_TYPE = "application/vnd.angelia.envelope"


def read(content_type: str, body: bytes, ttl_max: int) -> Envelope:
    """Returns the envelope of a request body, in the form that its Content-Type names."""
    return wire.decode(body, ttl_max) if is_binary(content_type) else json_form.decode(body, ttl_max)


def is_binary(content_type: str) -> bool:
    """Whether a Content-Type or an Accept header asks for the binary form."""
    return any(part.partition(";")[0].strip().lower() == MEDIA_TYPE for part in content_type.split(","))
