"""Messages of queues as an application has them: what it pushes, and what it pops."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, TypeVar
from uuid import uuid4

import msgspec

from angelia.errors import AngeliaError, InvalidArgument, QueueFull, Unavailable
from angelia.queues import api
from angelia.queues.model import AckStatus

T = TypeVar("T")


class QueueItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be pushed, with more than its payload. A second one with the same `transaction_id` in the same
    partition is a duplicate, and is not stored."""

    payload: Any
    queue: str | None = None  # the one that the verb names
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: str | None = None


class PushedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message: `queued`, `duplicate` of the message with this id, or `buffered` while pushes are
    paused, and then it has no id yet."""

    status: Literal["queued", "duplicate", "buffered"]
    id: str | None
    transaction_id: str
    queue: str
    partition_id: str | None = None
    trace_id: str | None = None


class QueueMessage(msgspec.Struct, kw_only=True, dict=True, rename="camel"):
    """A message of a queue. `data` is its payload; `settled_as` says how it was settled here, if it was."""

    id: str
    transaction_id: str
    queue: str
    partition: str
    partition_id: str
    created_at: datetime
    payload: msgspec.Raw = msgspec.field(name="data")
    trace_id: str | None = None
    producer: str | None = msgspec.field(name="producerSub", default=None)
    lease_id: str = ""  # empty if it needs no acknowledgment
    group: str = msgspec.field(name="consumerGroup", default="")
    settled_as: AckStatus | None = None

    @cached_property
    def data(self) -> Any:
        """The payload: dict, list, text, number, bool or None."""
        return msgspec.json.decode(self.payload)

    def __repr__(self) -> str:
        return f"<QueueMessage {self.id} of {self.queue}/{self.partition}: {self.data!r}>"

    def read(self, kind: type[T]) -> T:
        """Returns the payload as a dataclass, a msgspec record or another type; InvalidArgument if it is none."""
        try:
            return msgspec.json.decode(self.payload, type=kind)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"message {self.id} of {self.queue} is no {kind.__name__}: {error}") from error


class ClaimedMessages(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Messages under one lease, of one or several partitions."""

    messages: list[QueueMessage]
    lease_id: str = ""
    lease_seconds: int = 0  # 0 if the server does not say


def item_body(item: QueueItem, queue: str | None, partition: str | None) -> api.PushItemBody:
    """Returns a message as it is sent. It gets an id here, so that a push that is sent twice is stored once."""
    named = item.queue or queue
    if named is None:
        raise InvalidArgument("the item names no queue")
    return api.PushItemBody(
        queue=named,
        partition=item.partition or partition,
        payload=json_of(item.payload, "the payload"),
        transactionId=item.transaction_id or str(uuid4()),
        traceId=item.trace_id,
    )


def json_of(value: Any, what: str) -> msgspec.Raw:
    """Returns a value as JSON; InvalidArgument if JSON cannot say it."""
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"{what} cannot be written as JSON: {error}") from error


def error_text(error: str | None) -> str | None:
    """Returns the error of a message as it is sent. A lone surrogate, as in file names that are no UTF-8, is written as
    its escape: no JSON can have it, and the message would never be settled."""
    return None if error is None else error.encode("utf-8", "backslashreplace").decode()


def pushed_message(item: QueueItem, record: api.PushedRecord) -> PushedMessage | None:
    """Returns what became of a message; None if it was refused."""
    status = record.status
    if status not in ("queued", "duplicate", "buffered"):
        return None
    if status == "duplicate" and item.transaction_id is None:
        status = "queued"  # by an earlier try of this very push, whose answer was lost
    return PushedMessage(
        status=status,  # type: ignore[arg-type]  # checked above
        id=record.message_id or None,
        transaction_id=record.transaction_id,
        queue=record.queueName,
        partition_id=record.partition_id or None,
        trace_id=record.trace_id or None,
    )


def push_refusal(records: Sequence[api.PushedRecord], pushed: Sequence[PushedMessage]) -> AngeliaError:
    """Returns the error of a push of which some messages were refused; `pushed` are the others."""
    refused = [one for one in records if one.status == "failed"]
    why = refused[0].error or "" if refused else "the server did not say why"
    many = f"{len(refused)} of {len(records)} messages were refused: " if len(records) > 1 else ""
    if "max capacity" in why:
        error: AngeliaError = QueueFull(f"{many}{why}", hint="its option maxSize limits it; consumers make room")
    else:
        error = Unavailable(f"{many}{why}")
    error.members = {"pushed": list(pushed), "refused": [one.transaction_id for one in refused]}
    return error
