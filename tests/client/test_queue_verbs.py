"""Queues from Python, on a real server: push, pop, settle, transactions and options."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import get_type_hints

import msgspec
import pytest

from angelia import (
    AlreadyExists,
    AsyncClient,
    BadAnswer,
    Client,
    InvalidArgument,
    LeaseLost,
    NotFound,
    QueueFull,
    QueueItem,
    QueueMessage,
    QueueTransaction,
    Unavailable,
    Unreachable,
)
from angelia.client import queue_calls
from angelia.queues.model import Options
from client.recorder import Recorder
from live_agents import Lossy, Person
from lying_proxy import Answer, Asked, Liar
from server_process import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.start_url) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> str:
    """A queue of its own, in which a failed message comes again at once."""
    name = f"q-{secrets.token_hex(4)}"
    client.queues.configure(name, retry_delay=0)
    return name


def data(messages: list[QueueMessage]) -> list[object]:
    return [one.data for one in messages]


# Push.


def test_a_message_is_any_json_and_comes_back_as_it_was(client: Client, queue: str) -> None:
    payloads = [{"task": "resize", "id": 7}, [1, 2.5, None], "text ✓", 12_345_678_901_234_567_890, True, None, {}]
    pushed = [client.queues.push(queue, one) for one in payloads]
    popped = client.queues.pop(queue, batch=10)
    assert data(popped) == payloads
    assert [one.id for one in popped] == [one.id for one in pushed]
    assert [one.transaction_id for one in popped] == [one.transaction_id for one in pushed]
    assert {one.status for one in pushed} == {"queued"}
    assert {(one.queue, one.partition, one.group) for one in popped} == {(queue, "Default", "__QUEUE_MODE__")}
    assert abs(popped[0].created_at - datetime.now(UTC)) < timedelta(minutes=1)


def test_payloads_are_read_as_records_and_raw_json_stays_as_it_was_written(client: Client, queue: str) -> None:
    @dataclass
    class Job:
        task: str
        id: int

    client.queues.push_many(queue, [Job("resize", 7), msgspec.Raw(b'{ "task": "crop", "id": 8.50 }')])
    first, second = client.queues.pop(queue, batch=2)
    assert first.read(Job) == Job("resize", 7)
    assert bytes(second.payload) == b'{ "task": "crop", "id": 8.50 }'
    with pytest.raises(InvalidArgument, match="is no Job"):
        second.read(Job)
    with pytest.raises(InvalidArgument, match="cannot be written as JSON"):
        client.queues.push(queue, object())


def test_many_messages_go_in_few_requests_and_keep_their_order(
    client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_calls, "MOST_ITEMS", 3)
    pushed = client.queues.push_many(queue, range(7), partition="p")
    assert len(pushed) == 7
    assert data(client.queues.pop(queue, partition="p", batch=10)) == list(range(7))


def test_items_have_partitions_queues_and_ids_of_their_own(client: Client, queue: str) -> None:
    other = f"{queue}-other"
    client.queues.push_many(
        queue,
        [
            QueueItem(payload=1, partition="a", transaction_id="one"),
            QueueItem(payload=2, queue=other),
            QueueItem(payload=3, partition="b", trace_id="0b2f6d0e-0000-4000-8000-000000000001"),
        ],
    )
    assert data(client.queues.pop(queue, partition="a")) == [1]
    assert data(client.queues.pop(other)) == [2]
    [third] = client.queues.pop(queue, partition="b")
    assert (third.data, third.trace_id) == (3, "0b2f6d0e-0000-4000-8000-000000000001")
    with pytest.raises(InvalidArgument, match="names no queue"):
        client.queues.push_many(None, [1])


def test_a_second_message_with_the_same_id_is_a_duplicate(client: Client, queue: str) -> None:
    first = client.queues.push(queue, 1, transaction_id="order-7")
    second = client.queues.push(queue, 2, transaction_id="order-7")
    assert (first.status, second.status, second.id) == ("queued", "duplicate", first.id)
    assert data(client.queues.pop(queue, batch=10)) == [1]


def test_a_push_whose_answer_is_lost_is_stored_once_and_says_queued(server: ServerProcess, queue: str) -> None:
    with Lossy(server.start_url) as client:
        client.loses, client.times = "/api/v1/push", 1
        pushed = client.queues.push(queue, "once")
        assert pushed.status == "queued"
        [popped] = client.queues.pop(queue, batch=10)
        assert popped.id == pushed.id


def test_a_full_queue_refuses_and_says_which_were_taken(client: Client, queue: str) -> None:
    client.queues.configure(queue, max_size=2)
    with pytest.raises(QueueFull, match="max capacity") as refused:
        client.queues.push_many(queue, [1, 2, 3])
    assert len(refused.value.members["pushed"]) + len(refused.value.members["refused"]) == 3  # type: ignore[arg-type]
    with pytest.raises(QueueFull):
        client.queues.push_many(queue, [4, 5, 6])


def test_another_refusal_of_a_message_is_an_error_too(recorder: Recorder) -> None:
    failed = {"index": 0, "status": "failed", "transaction_id": "t", "queueName": "q", "error": "no key"}
    recorder.tell("POST", "/api/v1/push", [failed], status=201)
    with Client(recorder.url) as client, pytest.raises(Unavailable, match="no key"):
        client.queues.push("q", 1)


def test_an_answer_about_other_messages_is_not_believed(recorder: Recorder) -> None:
    recorder.tell("POST", "/api/v1/push", [], status=201)
    recorder.tell("POST", "/api/v1/ack/batch", [])
    with Client(recorder.url) as client:
        with pytest.raises(BadAnswer):
            client.queues.push("q", 1)
        with pytest.raises(BadAnswer):
            client.queues.ack(made_up("t"))


def made_up(transaction_id: str) -> QueueMessage:
    return QueueMessage(
        id=transaction_id,
        transaction_id=transaction_id,
        queue="q",
        partition="Default",
        partition_id="0b2f6d0e-0000-4000-8000-000000000001",
        created_at=datetime.now(UTC),
        payload=msgspec.Raw(b"null"),
    )


def test_the_producer_is_the_agent_that_signed(join: Callable[..., Person], client: Client, queue: str) -> None:
    ann = join("ann", publishes=False)
    ann.client.queues.push(queue, "signed")
    client.queues.push(queue, "not signed")
    assert [one.producer for one in client.queues.pop(queue, batch=2)] == [ann.name, None]


# Pop.


def test_a_pop_of_nothing_is_an_empty_list_and_waits_if_it_is_told_to(client: Client, queue: str) -> None:
    assert client.queues.pop(queue) == []
    assert client.queues.pop(f"{queue}-unknown") == []
    began = time.monotonic()
    assert client.queues.pop(queue, wait=0.3) == []
    assert time.monotonic() - began >= 0.3
    for wrong in ({}, {"partition": "p"}, {"partition": "p", "namespace": "n"}):
        with pytest.raises(InvalidArgument):
            client.queues.pop(**wrong)  # type: ignore[arg-type]


def test_each_consumer_group_gets_every_message_from_where_it_begins(client: Client, queue: str) -> None:
    client.queues.push(queue, "before")
    assert client.queues.pop(queue, group="late", start="new") == []
    between = datetime.now(UTC)
    client.queues.push(queue, "after")
    assert data(client.queues.pop(queue, group="all", batch=10)) == ["before", "after"]
    assert data(client.queues.pop(queue, group="late", batch=10)) == ["after"]
    assert data(client.queues.pop(queue, group="timed", start=between, batch=10)) == ["after"]


def test_messages_of_several_partitions_and_of_a_namespace_are_popped_at_once(client: Client) -> None:
    namespace = f"n{secrets.token_hex(4)}"
    client.queues.push_many(f"{namespace}.mail", [QueueItem(payload=n, partition=f"p{n}") for n in range(3)])
    client.queues.push(f"{namespace}.sms", 3)
    popped = client.queues.pop(namespace=namespace, batch=10, partitions=10)
    assert sorted(data(popped)) == [0, 1, 2, 3]  # type: ignore[type-var]
    assert {one.queue for one in popped} == {f"{namespace}.mail", f"{namespace}.sms"}
    client.queues.push(f"{namespace}.sms", 4, partition="next")
    assert data(client.queues.pop(namespace=namespace, task="sms")) == [4]


def test_messages_that_are_settled_at_delivery_have_no_lease(client: Client, queue: str) -> None:
    client.queues.push(queue, 1)
    [popped] = client.queues.pop(queue, auto_ack=True)
    assert popped.lease_id == ""
    assert client.queues.pop(queue) == []


# Settle.


def test_messages_are_completed_one_or_many_and_once(client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(3))
    messages = client.queues.pop(queue, batch=3)
    assert [one.lease_released for one in client.queues.ack(messages[:2])] == [False, False]
    [last] = client.queues.ack(messages[2])
    assert (last.transaction_id, last.lease_released, last.dead_letter) == (messages[2].transaction_id, True, False)
    assert {one.settled_as for one in messages} == {"completed"}
    client.queues.ack(messages)  # a second time changes nothing
    assert client.queues.pop(queue) == []
    assert client.queues.ack([]) == []


def test_what_failed_comes_again_and_becomes_a_dead_letter_at_last(client: Client, queue: str) -> None:
    client.queues.configure(queue, retry_limit=1)
    client.queues.push_many(queue, ["bad", "good"])
    for dead in (False, True):
        [message] = client.queues.pop(queue)
        assert message.data == "bad"
        assert [one.dead_letter for one in client.queues.nack(message, "no such file")] == [dead]
    assert data(client.queues.pop(queue)) == ["good"]


def test_an_error_text_with_what_is_no_unicode_is_sent_as_escapes(client: Client, queue: str) -> None:
    """As in the name of a file that is no UTF-8."""
    error = "no such file: caf\udce9"
    client.queues.configure(queue, retry_limit=0)
    client.queues.push_many(queue, range(4))
    failed, dead, failed_in_one, dead_in_one = client.queues.pop(queue, batch=4)
    client.queues.dead_letter(dead, error)
    client.queues.commit(QueueTransaction().dead_letter(dead_in_one, error).nack(failed_in_one, error))
    [failed] = client.queues.pop(queue)
    client.queues.nack(failed, error)
    letters = client.queues.dead_letters(queue).letters
    assert sorted(one.data for one in letters) == [0, 1, 2, 3]
    assert {one.error for one in letters} == {r"no such file: caf\udce9"}


def test_what_is_given_back_comes_again_and_counts_no_failure(client: Client, queue: str) -> None:
    client.queues.configure(queue, retry_limit=0)
    client.queues.push(queue, 1)
    for _ in range(3):
        [message] = client.queues.pop(queue)
        assert client.queues.retry(message)[0].lease_released
    [message] = client.queues.pop(queue)
    assert client.queues.dead_letter(message, "not ours")[0].dead_letter
    assert client.queues.pop(queue) == []


def test_messages_of_several_consumer_groups_are_settled_together(client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(2))
    both = [one for group in ("a", "b") for one in client.queues.pop(queue, group=group, batch=2)]
    settled = client.queues.ack(both)
    assert [one.transaction_id for one in settled] == [one.transaction_id for one in both]
    assert client.queues.pop(queue, group="a") == client.queues.pop(queue, group="b") == []


def test_a_lease_that_is_over_is_noticed_and_the_others_are_settled(client: Client, queue: str) -> None:
    client.queues.push_many(queue, [QueueItem(payload=1, partition="a"), QueueItem(payload=2, partition="b")])
    [a] = client.queues.pop(queue, partition="a")
    [b] = client.queues.pop(queue, partition="b")
    client.queues.retry(a)
    [again] = client.queues.pop(queue, partition="a")
    with pytest.raises(LeaseLost, match="1 of 2 messages were not settled") as refused:
        client.queues.ack([a, b])
    assert refused.value.members["refused"] == [a.transaction_id]
    assert (a.settled_as, b.settled_as) == ("retry", "completed")
    with pytest.raises(LeaseLost):
        client.queues.extend(a)
    client.queues.ack(again)
    with pytest.raises(NotFound, match="Message not found"):
        client.queues.ack(made_up("nothing"))


def test_a_lease_is_extended_by_the_lease_time_or_to_a_number_of_seconds(client: Client, queue: str) -> None:
    client.queues.configure(queue, lease_time=100)
    client.queues.push(queue, 1)
    [message] = client.queues.pop(queue)
    by_itself = client.queues.extend(message)
    further = client.queues.extend(message.lease_id, seconds=500)
    now = datetime.now(UTC)
    assert abs((by_itself - now).total_seconds() - 100) < 10
    assert abs((further - now).total_seconds() - 500) < 10


# Transactions.


def test_a_transaction_pushes_and_completes_together(client: Client, queue: str) -> None:
    done = f"{queue}-done"
    client.queues.push(queue, {"n": 1})
    [message] = client.queues.pop(queue)
    transaction = QueueTransaction().ack(message).push(done, "a").push(done, "b", partition="p")
    pushed = client.queues.commit(transaction)
    assert [one.queue for one in pushed] == [done, done]
    assert message.settled_as == "completed"
    assert data(client.queues.pop(done)) == ["a"]
    assert data(client.queues.pop(done, partition="p")) == ["b"]
    assert client.queues.pop(queue) == []
    assert client.queues.commit(QueueTransaction()) == []


def test_a_transaction_settles_in_every_way(client: Client, queue: str) -> None:
    client.queues.push_many(queue, [QueueItem(payload=name, partition=name) for name in ("a", "b", "c")])
    messages = {one.data: one for one in client.queues.pop(queue, batch=3, partitions=3)}
    ways = QueueTransaction().nack(messages["a"], "later").retry(messages["b"]).dead_letter(messages["c"], "never")
    client.queues.commit(ways)
    assert [messages[name].settled_as for name in "abc"] == ["failed", "retry", "dlq"]
    assert sorted(str(one.data) for one in client.queues.pop(queue, batch=3, partitions=3)) == ["a", "b"]


def test_a_transaction_that_is_refused_does_nothing(client: Client, queue: str) -> None:
    done = f"{queue}-done"
    client.queues.push(queue, 1)
    [message] = client.queues.pop(queue)
    client.queues.retry(message)
    with pytest.raises(LeaseLost, match="nothing was done"):
        client.queues.commit(QueueTransaction().ack(message).push(done, 1))
    client.queues.push(done, 1, transaction_id="known")
    [again] = client.queues.pop(queue)
    with pytest.raises(AlreadyExists):
        client.queues.commit(QueueTransaction().ack(again).push(done, 2, transaction_id="known"))
    assert again.settled_as is None
    with pytest.raises(NotFound):
        client.queues.commit(QueueTransaction().ack(made_up("nothing")))
    client.queues.configure(done, max_size=1)
    with pytest.raises(QueueFull):
        client.queues.commit(QueueTransaction().ack(again).push(done, 3).push(done, 4))
    assert data(client.queues.pop(done, batch=10)) == [1]


def test_a_transaction_is_not_sent_twice(client: Client, queue: str, server: ServerProcess) -> None:
    with Lossy(server.start_url) as lossy:
        lossy.loses = "/api/v1/transaction"
        with pytest.raises(Unreachable, match="whether the request was carried out is not known"):
            lossy.queues.commit(QueueTransaction().push(queue, 1))
    assert data(client.queues.pop(queue, batch=10)) == [1]


# Options.


def test_options_are_those_of_the_server_and_the_rest_stays(client: Client, queue: str) -> None:
    assert set(get_type_hints(queue_calls.QueueOptions)) == set(Options.__struct_fields__)
    made = client.queues.configure(queue, lease_time=7, namespace="n", task="t")
    assert (made.name, made.namespace, made.task) == (queue, "n", "t")
    assert (made.options.lease_time, made.options.retry_delay, made.options.retry_limit) == (7, 0, 3)
    changed = client.queues.configure(queue, retry_limit=9)
    assert (changed.id, changed.options.lease_time, changed.options.retry_limit) == (made.id, 7, 9)
    of_partition = client.queues.configure(queue, partition="p", lease_time=1)
    assert of_partition.options.lease_time == 1
    assert client.queues.configure(queue).options.lease_time == 7
    with pytest.raises(InvalidArgument, match="a queue has no option leaseTime"):
        client.queues.configure(queue, leaseTime=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument):
        client.queues.configure(queue, lease_time=-1)


def test_a_name_never_leaves_its_place_in_the_path(client: Client) -> None:
    name = f"a/b?c#d {secrets.token_hex(2)} ✓"
    client.queues.push(name, 1, partition="x/y?z")
    [message] = client.queues.pop(name, partition="x/y?z")
    assert (message.queue, message.partition) == (name, "x/y?z")


async def test_the_same_is_awaited(server: ServerProcess, queue: str) -> None:
    async with AsyncClient(server.start_url) as client:
        await client.queues.push_many(queue, [1, 2])
        messages = await client.queues.pop(queue, batch=2, wait=1)
        assert data(messages) == [1, 2]
        await client.queues.extend(messages[0])
        await client.queues.commit(QueueTransaction().ack(*messages))
        assert await client.queues.pop(queue) == []


def test_what_the_server_adds_to_a_message_does_no_harm(client: Client, queue: str, liar: Liar) -> None:
    def more(_: Asked, answer: Answer) -> Answer:
        told = answer.json()
        return answer.saying(told | {"messages": [one | {"future": 1} for one in told["messages"]]})

    liar.lie("GET", f"/api/v1/pop/queue/{queue}", more)
    client.queues.push(queue, 1)
    with Client(liar.url) as other:
        assert data(other.queues.pop(queue)) == [1]
