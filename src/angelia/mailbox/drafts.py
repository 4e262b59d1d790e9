"""A message before it is sealed: its content, its recipient's bundle, and the options that its sender chose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict
from uuid import UUID

from angelia.envelope.bundles import Bundle, OneTimeKey
from angelia.envelope.wire import Compression, Priority
from angelia.errors import InvalidArgument


class MessageOptions(TypedDict, total=False):
    """How a message is sealed, as mail or for a channel. What is left out has the default of `Letter`; the TTL has
    that of the mailbox."""

    message_id: UUID
    ttl_seconds: int
    priority: Priority
    compression: Compression
    padme: bool
    correlation_id: UUID | None


class SendOptions(MessageOptions, total=False):
    """The options of mail: those of every message, and two that only mail has."""

    channel_id: UUID | None  # the channel that the message is about
    control: bool  # for the recipient's SDK, never shown as mail


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message to be sealed."""

    recipient: Bundle
    body: bytes = field(repr=False)
    options: SendOptions = field(default_factory=SendOptions)
    one_time_key: OneTimeKey | None = None

    def __post_init__(self) -> None:
        check(self.body, self.options)


def check(body: bytes, options: SendOptions) -> None:
    """Raises InvalidArgument for a value of the wrong type, before a key is fetched or anything is stored."""
    if not isinstance(body, bytes | bytearray):
        raise InvalidArgument(
            f"the body of a message is bytes, not {type(body).__name__}", hint='encode text first: "hello".encode()'
        )
    for name, kind in (("priority", Priority), ("compression", Compression)):
        value = options.get(name, 0)
        if not isinstance(value, int) or value not in list(kind):
            known = ", ".join(f"{kind.__name__}.{one.name}" for one in kind)
            raise InvalidArgument(f"{value!r} is no {name}", hint=f"one of {known}")
    for name in ("channel_id", "correlation_id"):
        value = options.get(name)
        if value is not None and not isinstance(value, UUID):
            raise InvalidArgument(f"{name} is a UUID, not {value!r}", hint="uuid.UUID(text) makes one of its text")
    ttl = options.get("ttl_seconds")
    if ttl is not None and not isinstance(ttl, int):
        raise InvalidArgument(f"ttl_seconds is a whole number, not {ttl!r}", hint="seconds, such as 3600")
