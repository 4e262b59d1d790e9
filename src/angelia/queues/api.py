"""The operations on queues that applications need, as Queen's clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from angelia.api import Access, Operation
from angelia.queues.model import EMPTY_PAYLOAD, LONGEST_ID, LONGEST_NAME, MOST_ITEMS, MOST_PARTITIONS

TAG = "queues"
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
Id = Annotated[str, msgspec.Meta(max_length=LONGEST_ID)]


class PushItemBody(msgspec.Struct, frozen=True):
    """A message: any JSON, for a queue that is made if it does not exist."""

    queue: Name
    partition: Name | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: EMPTY_PAYLOAD)
    transactionId: Id | None = None  # noqa: N815 - the names of the wire
    traceId: Id | None = None  # noqa: N815


class PushBody(msgspec.Struct, frozen=True):
    """Messages for any queues."""

    items: Annotated[list[PushItemBody], msgspec.Meta(max_length=MOST_ITEMS)]


class PushedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a message: queued, duplicate, failed or buffered."""

    index: int
    status: str
    transaction_id: str
    queueName: str  # noqa: N815
    message_id: str | msgspec.UnsetType = msgspec.UNSET
    partition_id: str | msgspec.UnsetType = msgspec.UNSET
    trace_id: str | msgspec.UnsetType | None = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET


class PopQuery(msgspec.Struct, frozen=True):
    """How many messages to claim, for which consumer group, and how long to wait for them."""

    batch: int = 1
    wait: bool = False
    timeout: Annotated[int, msgspec.Meta(description="Milliseconds to wait")] = 30_000
    consumerGroup: str | None = None  # noqa: N815
    autoAck: bool = False  # noqa: N815
    subscriptionMode: str | None = None  # noqa: N815
    subscriptionFrom: str | None = None  # noqa: N815
    partitions: int = 1
    namespace: str | None = None
    task: str | None = None


class PoppedRecord(msgspec.Struct, frozen=True):
    """A message that a pop delivers."""

    id: str
    transactionId: str  # noqa: N815
    traceId: str | None  # noqa: N815
    data: msgspec.Raw
    producerSub: str | None  # noqa: N815
    createdAt: str  # noqa: N815
    partitionId: str  # noqa: N815
    partition: str
    leaseId: str  # noqa: N815
    consumerGroup: str  # noqa: N815
    queue: str


class Autopilot(msgspec.Struct, frozen=True):
    """What the server chose for a consumer that left it to the server."""

    partitions: int
    batch: int
    waitMs: int  # noqa: N815


class PopAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages of one or several partitions under one lease."""

    success: bool
    queue: str
    partition: str
    partitionId: str  # noqa: N815
    leaseId: str  # noqa: N815
    consumerGroup: str  # noqa: N815
    partitionsClaimed: int  # noqa: N815
    messages: list[PoppedRecord]
    leaseSeconds: int | msgspec.UnsetType = msgspec.UNSET  # noqa: N815 - ours: so that a consumer knows when to extend
    autopilot: Autopilot | msgspec.UnsetType = msgspec.UNSET


AckWord = Literal["completed", "success", "failed", "retry", "dlq"]


class QueueAckBody(msgspec.Struct, frozen=True):
    """How the work on a message ended."""

    transactionId: Id  # noqa: N815
    partitionId: str  # noqa: N815
    leaseId: str | None = None  # noqa: N815
    status: AckWord = "completed"
    error: str | None = None
    consumerGroup: Name | None = None  # noqa: N815


class AckBatchItem(msgspec.Struct, frozen=True):
    """One acknowledgment of a batch."""

    transactionId: Id  # noqa: N815
    partitionId: str  # noqa: N815
    leaseId: str | None = None  # noqa: N815
    status: AckWord = "completed"
    error: str | None = None


class AckBatchBody(msgspec.Struct, frozen=True):
    """Acknowledgments of one consumer group."""

    acknowledgments: Annotated[list[AckBatchItem], msgspec.Meta(max_length=MOST_ITEMS)]
    consumerGroup: Name | None = None  # noqa: N815


class AckRecord(msgspec.Struct, frozen=True):
    """Whether an acknowledgment was taken."""

    index: int
    transactionId: str  # noqa: N815
    success: bool
    error: str | None
    queueName: str | None  # noqa: N815
    partitionName: str | None  # noqa: N815
    leaseReleased: bool  # noqa: N815
    dlq: bool


class ExtendBody(msgspec.Struct, frozen=True):
    """How long a lease is to last from now on; the queue's lease time if not said."""

    seconds: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)] | None = None


class ExtendAnswer(msgspec.Struct, frozen=True):
    """A lease that was extended, or why not. The end has three names, since clients differ."""

    leaseId: str  # noqa: N815
    success: bool
    renewed: int
    newExpiresAt: str | None  # noqa: N815
    expiresAt: str | None  # noqa: N815
    lease_expires_at: str | None
    error: str | None


class TransactionPush(msgspec.Struct, frozen=True, tag="push"):
    """Messages that a transaction pushes."""

    items: Annotated[list[PushItemBody], msgspec.Meta(max_length=MOST_ITEMS)]


class TransactionAck(msgspec.Struct, frozen=True, tag="ack"):
    """A message that a transaction acknowledges."""

    transactionId: Id  # noqa: N815
    partitionId: str  # noqa: N815
    status: AckWord = "completed"
    consumerGroup: Name | None = None  # noqa: N815
    leaseId: str | None = None  # noqa: N815
    error: str | None = None


class TransactionBody(msgspec.Struct, frozen=True):
    """Operations that are done together or not at all, if the required leases are in force."""

    operations: Annotated[list[TransactionPush | TransactionAck], msgspec.Meta(max_length=MOST_ITEMS)]
    requiredLeases: Annotated[list[str], msgspec.Meta(max_length=MOST_PARTITIONS)] = []  # noqa: N815
    kv: list[Any] = []
    timers: list[Any] = []


class TransactionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operation of a transaction did."""

    index: int
    type: str
    success: bool
    transactionId: str  # noqa: N815
    messageId: str | msgspec.UnsetType | None = msgspec.UNSET  # noqa: N815
    partitionId: str | msgspec.UnsetType | None = msgspec.UNSET  # noqa: N815
    queueName: str | msgspec.UnsetType = msgspec.UNSET  # noqa: N815
    error: str | msgspec.UnsetType | None = msgspec.UNSET
    dlq: bool | msgspec.UnsetType = msgspec.UNSET


class TransactionAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """All operations of a transaction, or why none was done."""

    success: bool
    transactionId: str  # noqa: N815
    results: list[TransactionRecord]
    error: str | msgspec.UnsetType = msgspec.UNSET


class ConfigureBody(msgspec.Struct, frozen=True):
    """A queue to make or change; options that are absent stay as they are."""

    queue: Name
    namespace: str | None = None
    task: str | None = None
    partition: Name | None = None
    options: dict[str, Any] | None = None


class ConfigureAnswer(msgspec.Struct, frozen=True):
    """A queue, and the options that are in effect."""

    configured: bool
    queueId: str  # noqa: N815
    partitionId: str  # noqa: N815
    queue: str
    namespace: str
    task: str
    options: dict[str, Any]


_QUEUE = {"queue": "The queue's name"}
PUSH = Operation(
    TAG, "POST", "/api/v1/push", Access.WRITE, "Push messages", list[PushedRecord],
    statuses=(201,), body=PushBody, open_locally=True,
)  # fmt: skip
POP = Operation(
    TAG, "GET", "/api/v1/pop/queue/{queue}", Access.WRITE, "Claim messages of a queue", PopAnswer,
    empty=(204,), parameters=_QUEUE, query=PopQuery, waits=True, repeatable=False, open_locally=True,
    spanning=("queue",),
)  # fmt: skip
POP_PARTITION = Operation(
    TAG, "GET", "/api/v1/pop/queue/{queue}/partition/{partition}", Access.WRITE, "Claim messages of a partition",
    PopAnswer, empty=(204,), parameters=_QUEUE | {"partition": "The partition's name"}, query=PopQuery, waits=True,
    repeatable=False, open_locally=True, spanning=("queue", "partition"),
)  # fmt: skip
POP_ANY = Operation(
    TAG, "GET", "/api/v1/pop", Access.WRITE, "Claim messages of the queues of a namespace or task", PopAnswer,
    empty=(204,), query=PopQuery, waits=True, repeatable=False, open_locally=True,
)  # fmt: skip
ACK = Operation(
    TAG, "POST", "/api/v1/ack", Access.WRITE, "Acknowledge a message", list[AckRecord],
    body=QueueAckBody, open_locally=True,
)  # fmt: skip
ACK_BATCH = Operation(
    TAG, "POST", "/api/v1/ack/batch", Access.WRITE, "Acknowledge messages", list[AckRecord],
    body=AckBatchBody, open_locally=True,
)  # fmt: skip
EXTEND = Operation(
    TAG, "POST", "/api/v1/lease/{lease}/extend", Access.WRITE, "Extend a lease", ExtendAnswer,
    parameters={"lease": "The lease's id"}, body=ExtendBody, open_locally=True,
)  # fmt: skip
TRANSACTION = Operation(
    TAG, "POST", "/api/v1/transaction", Access.WRITE, "Push and acknowledge, all or nothing", TransactionAnswer,
    body=TransactionBody, repeatable=False, open_locally=True,
)  # fmt: skip
CONFIGURE = Operation(
    TAG, "POST", "/api/v1/configure", Access.WRITE, "Make a queue, or change its options", ConfigureAnswer,
    body=ConfigureBody, open_locally=True,
)  # fmt: skip
