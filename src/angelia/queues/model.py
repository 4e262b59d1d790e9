"""Queues, their options, messages on their way in and out, and the rules that need no I/O."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from angelia.errors import InvalidArgument

QUEUE_MODE = "__QUEUE_MODE__"  # the consumer group of callers that name none
DEFAULT = "Default"  # the partition of callers that name none
LONGEST_NAME = 255
LONGEST_ID = 1_000
MOST_BATCH = 10_000
MOST_PARTITIONS = 1_000
MOST_ITEMS = 10_000  # of one request
CHUNK_MESSAGES, CHUNK_BYTES = 1_000, 1 << 20  # a larger push is stored as several chunks
EMPTY_PAYLOAD = msgspec.Raw(b"null")
PushStatus = Literal["queued", "duplicate", "failed", "buffered"]
AckStatus = Literal["completed", "failed", "retry", "dlq"]

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The options of a queue. Times are in seconds, but for `retry_delay`."""

    lease_time: Count = 300
    retry_limit: Count = 3
    retry_delay: Count = 1000  # ms
    priority: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)] = 0
    delayed_processing: Count = 0
    window_buffer: Count = 0
    max_size: Count = 0
    ttl: Count = 3600  # kept for clients that ask; nothing depends on it
    dead_letter_queue: bool = False  # kept for clients: exhausted messages always become dead letters
    dlq_after_max_retries: bool = False
    encryption_enabled: bool = False
    retention_enabled: bool = False
    retention_seconds: Count = 0
    completed_retention_seconds: Count = 0
    partition_retention_seconds: Count = 0
    max_wait_time_seconds: Count = 0
    archive_enabled: bool = False


OPTION_NAMES = frozenset(Options.__struct_encode_fields__)


def changed_options(present: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Options with changes; those that are absent or null stay. Unknown ones are ignored; InvalidArgument for a value
    of another type, or out of range."""
    wanted = {name: value for name, value in changes.items() if name in OPTION_NAMES and value is not None}
    try:
        msgspec.convert(wanted, Options)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"options: {error}", hint="numbers are whole and not negative") from error
    return present | wanted


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as the ledger has it."""

    queue_no: int
    queue_id: UUID
    name: str
    namespace: str
    task: str
    created_at: datetime
    options: Options
    options_version: int


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a queue. Its options are the queue's, or its own in their place."""

    partition_no: int
    partition_id: UUID
    name: str
    options: Options
    queue: Queue


class PushItem(msgspec.Struct, frozen=True):
    """A message to be pushed."""

    queue: str
    partition: str = DEFAULT
    payload: msgspec.Raw = EMPTY_PAYLOAD
    transaction_id: str | None = None
    trace_id: str | None = None


class PushResult(msgspec.Struct, frozen=True):
    """What became of a pushed message."""

    status: PushStatus
    transaction_id: str
    queue: str
    message_id: str | None = None
    partition_id: str | None = None
    trace_id: str | None = None
    error: str | None = None


class PopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer asks for: messages of a queue, of one of its partitions, or of the queues of a namespace and
    task."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str = QUEUE_MODE
    batch: int = 1
    partitions: int = 1
    auto_ack: bool = False
    mode: str | None = None  # all or new; where the group begins, if this makes it
    from_at: datetime | None = None  # wins over the mode
    consumer: str = "anonymous"


class PoppedMessage(msgspec.Struct):
    """A message that is delivered."""

    id: str
    transaction_id: str
    trace_id: str | None
    data: msgspec.Raw
    producer_sub: str | None
    created_at: datetime
    partition: Partition
    position: int


class QueueDelivery(msgspec.Struct):
    """The messages of one pop, under one lease."""

    lease_id: str  # empty if they need no acknowledgment
    group: str
    messages: list[PoppedMessage]
    partitions_claimed: int
    lease_seconds: int | None = None  # for how long, from the time of the pop


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """How the work on a message ended."""

    transaction_id: str
    partition_id: UUID
    group: str = QUEUE_MODE
    lease_id: UUID | None = None
    status: AckStatus = "completed"
    error: str | None = None


class AckResult(msgspec.Struct, frozen=True):
    """Whether an acknowledgment was taken."""

    success: bool
    transaction_id: str
    error: str | None = None
    queue: str | None = None
    partition: str | None = None
    lease_released: bool = False
    dlq: bool = False


class Extended(msgspec.Struct, frozen=True):
    """A lease that was extended in so many partitions; or why not."""

    renewed: int
    expires_at: datetime | None = None
    error: str | None = None


def scope_of(name: str) -> tuple[str, str]:
    """Namespace and task of a queue that its first push makes."""
    parts = name.split(".")
    return parts[0], parts[1] if len(parts) > 1 else ""


def check_name(name: str, what: str) -> str:
    """A queue's, partition's or consumer group's name; InvalidArgument if it is none."""
    if not 0 < len(name) <= LONGEST_NAME or "\0" in name:
        raise InvalidArgument(f"{what} must have 1 to {LONGEST_NAME} characters, and no NUL")
    return name


def check_id(text: str, what: str) -> str:
    if len(text) > LONGEST_ID or "\0" in text:
        raise InvalidArgument(f"{what} must have at most {LONGEST_ID:,} characters, and no NUL")
    return text


def parse_mode(text: str | None) -> str | None:
    """The subscription mode: new, or all for every other text; None if there is none."""
    if text is None or not text:
        return None
    return "new" if text in ("new", "new-only", "now") else "all"


def parse_time(text: str, what: str) -> datetime:
    """A time in any form of ISO 8601; without an offset it is UTC."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidArgument(f"{what} is no time in ISO 8601", hint="such as 2026-11-15T20:14:02Z") from error
    try:
        return (found.replace(tzinfo=UTC) if found.tzinfo is None else found).astimezone(UTC)
    except OverflowError as error:
        raise InvalidArgument(f"{what} is out of range") from error


class ChunkIds:
    """The ids of the messages of one chunk: version 7 UUIDs that count on in the last 48 bits."""

    __slots__ = ("_prefix", "_start", "first")

    def __init__(self, first: UUID) -> None:
        self.first = first
        text = str(first)
        self._prefix, self._start = text[:24], int(text[24:], 16)

    @classmethod
    def made(cls, unix_ms: int, noise: bytes) -> ChunkIds:
        """New ids from a time and ten random bytes."""
        drawn = int.from_bytes(noise[:10], "big")
        value = (
            (unix_ms & ((1 << 48) - 1)) << 80
            | 7 << 76
            | (drawn >> 68 & 0xFFF) << 64
            | 2 << 62
            | (drawn >> 48 & 0x3FFF) << 48
            | drawn & ((1 << 47) - 1)  # the highest bit stays free, so that counting never overflows
        )
        return cls(UUID(int=value))

    def text(self, number: int) -> str:
        return f"{self._prefix}{self._start + number:012x}"
