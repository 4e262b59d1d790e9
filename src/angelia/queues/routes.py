"""Queues over HTTP, for applications: binds the operations to the services, and shapes the answers."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

import msgspec

from angelia.api import Answer, Call, Caller, Route
from angelia.errors import InvalidArgument
from angelia.queues import api
from angelia.queues.asked import QueryParameters
from angelia.queues.catalog import Catalog
from angelia.queues.claims import MessageClaims
from angelia.queues.model import (
    DEFAULT,
    MOST_BATCH,
    MOST_PARTITIONS,
    QUEUE_MODE,
    Ack,
    AckResult,
    AckStatus,
    PopRequest,
    PushItem,
    PushResult,
    QueueDelivery,
    check_id,
    check_name,
    parse_mode,
    parse_time,
)
from angelia.queues.pushing import Pushes
from angelia.queues.settlement import Settlement
from angelia.queues.stamps import stamp_or_none
from angelia.queues.transactions import Transactions

_AUTOPILOT_BATCH = 100  # for a consumer that leaves the size to the server
_LONGEST_WAIT_MS = 600_000
_NEVER_MADE = UUID(int=0)  # in place of a text that is no UUID: no lease or partition has this id
_STATUSES: dict[str, AckStatus] = {
    "completed": "completed",
    "success": "completed",
    "failed": "failed",
    "retry": "retry",
    "dlq": "dlq",
}


def routes(
    pushes: Pushes,
    claims: MessageClaims,
    settlement: Settlement,
    transactions: Transactions,
    catalog: Catalog,
    default_mode: str,
) -> list[Route]:
    """`default_mode` says where consumer groups begin whose first pop does not: all or new."""

    async def push(call: Call) -> Answer:
        items = [_push_item(one) for one in call.json(api.PushBody).items]
        results = await pushes.push(items, producer_of(call.caller), call.now)
        return Answer(201, [_pushed(index, one) for index, one in enumerate(results)])

    async def pop_queue(call: Call) -> Answer:
        return await pop(call, queue=check_name(call.path("queue"), "queue"))

    async def pop_partition(call: Call) -> Answer:
        queue, partition = check_name(call.path("queue"), "queue"), check_name(call.path("partition"), "partition")
        return await pop(call, queue=queue, partition=partition)

    async def pop_any(call: Call) -> Answer:
        asked = QueryParameters(call)
        if asked.text("namespace") is None and asked.text("task") is None:
            raise InvalidArgument("namespace or task is required", hint="or name a queue: /api/v1/pop/queue/QUEUE")
        return await pop(call)

    async def pop(call: Call, queue: str | None = None, partition: str | None = None) -> Answer:
        asked = QueryParameters(call)
        for name in ("conflation", "frames"):
            if asked.flag(name):
                raise InvalidArgument(f"{name} is not supported", hint="pop without it")
        request = _pop_request(asked, queue, partition, call.caller.known_as, default_mode)
        wait = asked.number("timeout", 30_000, 0, _LONGEST_WAIT_MS) / 1000 if asked.flag("wait") else 0.0
        delivery = await claims.pop(request, call.now, wait)
        if delivery is None:
            return Answer(204)
        autopilot = api.Autopilot(request.partitions, request.batch, 0)
        return Answer(body=_popped(delivery, autopilot if asked.flag("autopilot") else msgspec.UNSET))

    async def ack(call: Call) -> Answer:
        body = call.json(api.QueueAckBody)
        return Answer(body=_acknowledged(await settlement.ack([_ack(body, body.consumerGroup)], call.now)))

    async def ack_batch(call: Call) -> Answer:
        body = call.json(api.AckBatchBody)
        acks = [_ack(one, body.consumerGroup) for one in body.acknowledgments]
        return Answer(body=_acknowledged(await settlement.ack(acks, call.now)))

    async def extend(call: Call) -> Answer:
        text, seconds = call.path("lease"), call.json(api.ExtendBody).seconds
        done = await settlement.extend(_lease(text) or _NEVER_MADE, seconds, call.now)
        until = stamp_or_none(done.expires_at)
        return Answer(body=api.ExtendAnswer(text, done.renewed > 0, done.renewed, until, until, until, done.error))

    async def transaction(call: Call) -> Answer:
        unknown = _unknown_types(call)
        if unknown:
            return Answer(body=api.TransactionAnswer(False, str(uuid4()), [], f"Unknown operation type: {unknown[0]}"))
        body = call.json(api.TransactionBody)
        if not body.operations:
            raise InvalidArgument("operations must not be empty")
        if body.kv or body.timers:
            raise InvalidArgument("kv and timers are not supported in a transaction")
        operations = [
            one
            for operation in body.operations
            for one in (
                [_push_item(item) for item in operation.items]
                if isinstance(operation, api.TransactionPush)
                else [_ack(operation, operation.consumerGroup)]
            )
        ]
        leases = [_lease(text) or _NEVER_MADE for text in body.requiredLeases]
        outcome = await transactions.run(operations, leases, producer_of(call.caller), call.now)
        records = [_transacted(index, one) for index, one in enumerate(outcome.results)]
        error = msgspec.UNSET if outcome.error is None else outcome.error
        return Answer(body=api.TransactionAnswer(outcome.success, str(uuid4()), records, error))

    async def configure(call: Call) -> Answer:
        body = call.json(api.ConfigureBody)
        done = await catalog.configure(
            body.queue,
            call.now,
            body.options or {},
            namespace=body.namespace,
            task=body.task,
            partition=body.partition,
            by=call.caller.known_as,
        )
        return Answer(
            body=api.ConfigureAnswer(
                True,
                str(done.queue.queue_id),
                str(done.default.partition_id),
                done.queue.name,
                done.queue.namespace,
                done.queue.task,
                msgspec.to_builtins(done.options),
            )
        )

    return [
        Route(api.PUSH, push),
        Route(api.POP, pop_queue),
        Route(api.POP_PARTITION, pop_partition),
        Route(api.POP_ANY, pop_any),
        Route(api.ACK, ack),
        Route(api.ACK_BATCH, ack_batch),
        Route(api.EXTEND, extend),
        Route(api.TRANSACTION, transaction),
        Route(api.CONFIGURE, configure),
    ]


def producer_of(caller: Caller) -> str | None:
    """Who pushed a message: the agent, or the subject of the credential; nobody in open mode."""
    if caller.agent is not None:
        return caller.agent.handle
    if caller.name is None or caller.name == "local":
        return None
    return caller.name.removeprefix("jwt ")


def _push_item(one: api.PushItemBody) -> PushItem:
    check_name(one.queue, "queue")
    check_name(one.partition or DEFAULT, "partition")
    check_id(one.transactionId or "", "transactionId")
    check_id(one.traceId or "", "traceId")
    return PushItem(one.queue, one.partition or DEFAULT, one.payload, one.transactionId or None, one.traceId)


def _pushed(index: int, one: PushResult) -> api.PushedRecord:
    if one.status == "queued":
        assert one.message_id is not None, "what is queued has an id"
        assert one.partition_id is not None
        return api.PushedRecord(
            index, one.status, one.transaction_id, one.queue, one.message_id, one.partition_id, one.trace_id
        )
    return api.PushedRecord(
        index,
        one.status,
        one.transaction_id,
        one.queue,
        one.message_id or msgspec.UNSET,
        error=one.error or msgspec.UNSET,
    )


def _pop_request(
    asked: QueryParameters, queue: str | None, partition: str | None, consumer: str, default_mode: str
) -> PopRequest:
    group = asked.text("consumerGroup") or QUEUE_MODE
    begins = asked.text("subscriptionFrom")
    mode = parse_mode(asked.text("subscriptionMode")) or default_mode
    if begins == "now":
        mode = "new"
    return PopRequest(
        queue=queue,
        partition=partition,
        namespace=None if queue is not None else asked.text("namespace"),
        task=None if queue is not None else asked.text("task"),
        group=check_name(group, "consumerGroup"),
        batch=asked.number("batch", _AUTOPILOT_BATCH if asked.flag("autopilot") else 1, 1, MOST_BATCH),
        partitions=1 if partition is not None else asked.number("partitions", 1, 1, MOST_PARTITIONS),
        auto_ack=asked.flag("autoAck"),
        mode=None if group == QUEUE_MODE else mode,
        from_at=None
        if group == QUEUE_MODE or begins is None or begins == "now"
        else parse_time(begins, "subscriptionFrom"),
        consumer=consumer,
    )


def _popped(delivery: QueueDelivery, autopilot: api.Autopilot | msgspec.UnsetType) -> api.PopAnswer:
    records: list[api.PoppedRecord] = []
    lease, group = delivery.lease_id, delivery.group
    partition = created_at = None
    for one in delivery.messages:
        if one.partition is not partition:
            partition = one.partition
            partition_id, queue, name = str(partition.partition_id), partition.queue.name, partition.name
        if one.created_at is not created_at:
            created_at = one.created_at
            created = f"{created_at:%Y-%m-%dT%H:%M:%S.%f}Z"
        records.append(
            api.PoppedRecord(
                one.id,
                one.transaction_id,
                one.trace_id,
                one.data,
                one.producer_sub,
                created,
                partition_id,
                name,
                lease,
                group,
                queue,
            )
        )
    first = records[0]
    return api.PopAnswer(
        True,
        first.queue,
        first.partition,
        first.partitionId,
        lease,
        group,
        delivery.partitions_claimed,
        records,
        msgspec.UNSET if delivery.lease_seconds is None else delivery.lease_seconds,
        autopilot,
    )


def _ack(one: api.QueueAckBody | api.AckBatchItem | api.TransactionAck, group: str | None) -> Ack:
    return Ack(
        transaction_id=check_id(one.transactionId, "transactionId"),
        partition_id=_uuid(one.partitionId) or _NEVER_MADE,
        group=check_name(group or QUEUE_MODE, "consumerGroup"),
        lease_id=_lease(one.leaseId),
        status=_STATUSES[one.status],
        error=None if one.error is None else one.error.replace("\0", "\N{REPLACEMENT CHARACTER}"),
    )


def _acknowledged(results: Sequence[AckResult]) -> list[api.AckRecord]:
    return [
        api.AckRecord(
            index,
            one.transaction_id,
            one.success,
            one.error,
            one.queue,
            one.partition,
            one.lease_released,
            one.dlq,
        )
        for index, one in enumerate(results)
    ]


def _transacted(index: int, one: PushResult | AckResult) -> api.TransactionRecord:
    if isinstance(one, PushResult):
        return api.TransactionRecord(
            index, "push", True, one.transaction_id, one.message_id, one.partition_id, one.queue
        )
    return api.TransactionRecord(index, "ack", one.success, one.transaction_id, error=one.error, dlq=one.dlq)


class _Typed(msgspec.Struct):
    type: str


class _TypedOperations(msgspec.Struct):
    operations: list[_Typed]


def _unknown_types(call: Call) -> list[str]:
    """The types of operations that there are not. They refuse a transaction, as other operations that cannot be done;
    a body that is none is an error of its own."""
    try:
        found = msgspec.json.decode(call.body, type=_TypedOperations)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError):
        return []
    return [one.type for one in found.operations if one.type not in ("push", "ack")]


def _lease(text: str | None) -> UUID | None:
    """The id of a lease; None for none. Another text is no lease that was ever given out."""
    return (_uuid(text) or _NEVER_MADE) if text else None


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
