"""Transactions of queues: messages are pushed and settled together, or none of them."""

from __future__ import annotations

from typing import Any, Self

from angelia.client.exchange import Exchange
from angelia.client.operation_requests import ask
from angelia.client.queue_calls import Settlement
from angelia.client.queue_messages import PushedMessage, QueueItem, QueueMessage, error_text, item_body
from angelia.errors import AlreadyExists, AngeliaError, Conflict, LeaseLost, NotFound, QueueFull
from angelia.queues import api


class QueueTransaction:
    """Messages to push and messages to settle, all of them or none. `commit` carries it out, if the leases of those to
    settle are in force."""

    def __init__(self) -> None:
        self.items: list[QueueItem] = []
        self.settlements: list[Settlement] = []

    def push(
        self,
        queue: str,
        payload: Any,
        *,
        partition: str | None = None,
        transaction_id: str | None = None,
        trace_id: str | None = None,
    ) -> Self:
        """Adds a message to push."""
        self.items.append(
            QueueItem(
                payload=payload, queue=queue, partition=partition, transaction_id=transaction_id, trace_id=trace_id
            )
        )
        return self

    def ack(self, *messages: QueueMessage) -> Self:
        """Adds messages to complete."""
        self.settlements += [(one, "completed", None) for one in messages]
        return self

    def nack(self, message: QueueMessage, error: str | None = None) -> Self:
        """Adds a message to give up on."""
        self.settlements.append((message, "failed", error))
        return self

    def retry(self, message: QueueMessage) -> Self:
        """Adds a message to give back."""
        self.settlements.append((message, "retry", None))
        return self

    def dead_letter(self, message: QueueMessage, error: str | None = None) -> Self:
        """Adds a message that becomes a dead letter."""
        self.settlements.append((message, "dlq", error))
        return self


def commit(transaction: QueueTransaction) -> Exchange[list[PushedMessage]]:
    """Carries a transaction out, and returns the messages that it pushed. If it is refused, nothing was done. If the
    network fails, it may have been carried out or not: if not, the messages that it settles are delivered again."""
    operations: list[api.TransactionPush | api.TransactionAck] = [
        api.TransactionAck(
            one.transaction_id, one.partition_id, status, one.group or None, one.lease_id or None, error_text(error)
        )
        for one, status, error in transaction.settlements
    ]
    if transaction.items:
        operations.append(api.TransactionPush([item_body(item, None, None) for item in transaction.items]))
    if not operations:
        return []
    leases = dict.fromkeys(one.lease_id for one, _, _ in transaction.settlements if one.lease_id)
    answer = yield from ask(api.TRANSACTION, body=api.TransactionBody(operations, list(leases)))
    if not answer.success:
        raise _transaction_refusal(answer.error or "the transaction was refused")
    for message, status, _ in transaction.settlements:
        message.settled_as = status
    return [
        PushedMessage(
            status="queued",
            id=one.messageId or None,
            transaction_id=one.transactionId,
            queue=one.queueName or "",
            partition_id=one.partitionId or None,
        )
        for one in answer.results
        if one.type == "push"
    ]


def _transaction_refusal(why: str) -> AngeliaError:
    if "lease" in why:
        return LeaseLost(f"nothing was done: {why}", hint="the message is delivered again")
    for words, kind in (("not found", NotFound), ("duplicate", AlreadyExists), ("max capacity", QueueFull)):
        if words in why:
            return kind(f"nothing was done: {why}")
    return Conflict(f"nothing was done: {why}")
