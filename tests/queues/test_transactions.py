"""Transactions: which lease an acknowledgment is made under."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec
import pytest

from angelia.errors import InvalidArgument
from angelia.queues import store
from angelia.queues.model import Ack, PushItem, QueueDelivery
from angelia.queues.slice import QueuesSlice
from queues.conftest import Another
from queues.traffic import pop, push, taken

QUEUE = "orders"


def ack(delivery: QueueDelivery) -> Ack:
    """As clients of 0.15 send it: the lease is named by the transaction only."""
    (message,) = delivery.messages
    return Ack(transaction_id=message.transaction_id, partition_id=message.partition.partition_id)


async def leased(queues: QueuesSlice, now: datetime, partition: str) -> QueueDelivery:
    await push(queues, QUEUE, now, partition, partition=partition)
    delivery = await pop(queues, QUEUE, now, partition=partition)
    assert delivery is not None
    return delivery


async def test_an_acknowledgment_that_names_no_lease_is_made_under_the_required_one(
    queues: QueuesSlice, now: datetime
) -> None:
    delivery = await leased(queues, now, "one")
    outcome = await queues.transactions.run([ack(delivery)], [UUID(delivery.lease_id)], None, now)
    assert outcome.success, outcome.error
    await push(queues, QUEUE, now, "next", partition="one")
    assert await taken(queues, QUEUE, now) == ["next"], "the lease ended with its only message"


async def test_a_required_lease_does_not_settle_messages_that_another_consumer_has_leased(
    queues: QueuesSlice, now: datetime
) -> None:
    mine, others = await leased(queues, now, "one"), await leased(queues, now, "two")
    operations = [ack(mine), ack(others), PushItem(queue="results")]
    outcome = await queues.transactions.run(operations, [UUID(mine.lease_id)], None, now)
    assert outcome.error == "ACK operation failed: Invalid or expired lease"
    assert await taken(queues, "results", now) == []
    both = [UUID(one.lease_id) for one in (mine, others)]
    assert (await queues.transactions.run(operations, both, None, now)).success


async def test_a_consumer_group_that_was_made_anew_settles_in_every_process(
    queues: QueuesSlice, another: Another, now: datetime
) -> None:
    other = await another()
    await push(queues, QUEUE, now, "work", ids=["work"])
    for _ in range(2):
        delivery = await pop(other, QUEUE, now, "g")
        assert delivery is not None
        done = msgspec.structs.replace(ack(delivery), group="g")
        outcome = await other.transactions.run([done], [UUID(delivery.lease_id)], None, now)
        assert outcome.success, outcome.error
        await queues.groups.delete("g", None, now)
        # The other process meets the new group without having popped: it knows only the old one.
        delivery = await pop(queues, QUEUE, now, "g")
        assert delivery is not None
        done = msgspec.structs.replace(ack(delivery), group="g")
        outcome = await other.transactions.run([done], [UUID(delivery.lease_id)], None, now)
        assert outcome.success, outcome.error
        await queues.groups.delete("g", None, now)


async def test_a_transaction_about_too_much_is_refused_and_makes_nothing(queues: QueuesSlice, now: datetime) -> None:
    many = [PushItem(queue="results", partition=f"p{number}") for number in range(501)]
    with pytest.raises(InvalidArgument, match="500 partitions"):
        await queues.transactions.run(many, [], None, now)
    with pytest.raises(InvalidArgument, match="10,000 messages"):
        await queues.transactions.run([PushItem(queue="results")] * 10_001, [], None, now)
    assert await queues.catalog.queue("results") is None
    assert (await queues.transactions.run(many[:500], [], None, now)).success


async def test_leases_of_too_many_partitions_are_refused(
    queues: QueuesSlice, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MOST_LOCKS", 2)
    for number in range(3):
        await push(queues, QUEUE, now, number, partition=f"p{number}")
    delivery = await pop(queues, QUEUE, now, partitions=3)
    assert delivery is not None
    with pytest.raises(InvalidArgument, match="leases"):
        await queues.transactions.run([PushItem(queue="results")], [UUID(delivery.lease_id)], None, now)


async def test_a_duplicate_push_refuses_its_transaction_also_within_one_request(
    queues: QueuesSlice, now: datetime
) -> None:
    delivery = await leased(queues, now, "one")
    twice = [PushItem(queue="results", transaction_id="same") for _ in range(2)]
    outcome = await queues.transactions.run([ack(delivery), *twice], [], None, now)
    assert outcome.error == "PUSH operation failed: duplicate transactionId same"
    assert await taken(queues, "results", now) == []
    assert (await queues.transactions.run([ack(delivery), twice[0]], [], None, now)).success
