"""The official clients of Queen MQ do against this server what their README shows."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from queen_clients import NEWEST, OLD, ClientProcess, by
from server_process import ServerProcess

pytestmark = pytest.mark.xdist_group("official clients")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(directory / f"queen-{secrets.token_hex(4)}")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[ClientProcess]:
    client = ClientProcess(request.param, server.start_url, Path(__file__))
    yield client
    client.stop()


def items(*numbers: int) -> list[dict[str, Any]]:
    return [{"data": {"n": number}} for number in numbers]


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return [message["data"]["n"] for message in messages]


async def taken(queue: Any, most: int = 10) -> list[dict[str, Any]]:
    """What a pop returns at once."""
    messages: list[dict[str, Any]] = await queue.batch(most).wait(False).pop()
    return messages


async def handled(queue: Any, count: int) -> list[dict[str, Any]]:
    """Consumes until so many messages were handled, one at a time."""
    messages, enough = [], asyncio.Event()

    async def handle(message: dict[str, Any]) -> None:
        messages.append(message)
        if len(messages) == count:
            enough.set()

    await queue.timeout_millis(200).consume(handle, signal=enough)
    return messages


def when(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


def one_of(listed: list[dict[str, Any]], **values: str) -> dict[str, Any]:
    (found,) = [entry for entry in listed if values.items() <= entry.items()]
    return found


@by(OLD, NEWEST)
async def test_a_queue_has_the_options_that_it_was_made_with(queen: Any, name: str) -> None:
    chosen = {"leaseTime": 60, "retryLimit": 5, "priority": 5, "dlqAfterMaxRetries": True}
    made = await queen.queue(name).namespace("billing").task("invoices").config(chosen).create()
    assert (made["configured"], made["queue"], made["namespace"], made["task"]) == (True, name, "billing", "invoices")
    assert made["options"].items() >= (chosen | {"windowBuffer": 0, "encryptionEnabled": False}).items()
    detail = await queen.admin.get_queue_detail(name)
    assert (detail["queue"]["config"]["leaseTime"], detail["queue"]["config"]["retryLimit"]) == (60, 5)


@by(OLD, NEWEST)
async def test_a_queue_that_is_made_again_keeps_what_was_not_said(queen: Any, name: str) -> None:
    """A bare `create()` sends nine options, and null for namespace and task."""
    await queen.queue(name).namespace("billing").task("invoices").config({"leaseTime": 60, "retryDelay": 7}).create()
    again = await queen.queue(name).create()
    assert (again["namespace"], again["task"]) == ("billing", "invoices")
    assert (again["options"]["leaseTime"], again["options"]["retryDelay"]) == (300, 7)


@by(OLD, NEWEST)
async def test_a_refusal_is_raised_with_its_reason(queen: Any, name: str) -> None:
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await queen.queue(name).config({"retryLimit": -1}).create()
    assert refused.value.response.status_code == 400
    assert refused.value.response.json()["error"] == str(refused.value)
    with pytest.raises(httpx.HTTPStatusError, match="Queue not found"):
        await queen.admin.get_queue(name)


@by(OLD, NEWEST)
async def test_any_payload_comes_back_as_it_was(queen: Any, name: str) -> None:
    payloads = [None, {}, [], 0, False, "", "ça ✓ \u0000 \U0001f41d", 1.5, 2**53, {"a": [{"b": None}]}, "x" * 3_000_000]
    await queen.queue(name).push([{"data": payload} for payload in payloads])
    assert [message["data"] for message in await taken(queen.queue(name), 20)] == payloads


@by(OLD, NEWEST)
async def test_a_message_that_is_pushed_twice_is_stored_once(queen: Any, name: str) -> None:
    duplicates: list[dict[str, Any]] = []

    async def note(found: list[dict[str, Any]], _: Exception) -> None:
        duplicates.extend(found)

    item = {"transactionId": "order 1", "data": {"n": 1}}
    (first,) = await queen.queue(name).push([item])
    second, third = await queen.queue(name).push([item, *items(2)]).on_duplicate(note)
    assert (first["status"], second["status"], third["status"]) == ("queued", "duplicate", "queued")
    assert (second["message_id"], third["queueName"]) == (first["message_id"], name)
    assert [duplicate["transactionId"] for duplicate in duplicates] == ["order 1"]
    assert numbers(await taken(queen.queue(name))) == [1, 2]


@by(OLD, NEWEST)
async def test_a_push_of_a_thousand_keeps_its_order(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(*range(1000)))
    assert numbers(await taken(queen.queue(name), 1000)) == list(range(1000))


@by(OLD, NEWEST)
async def test_buffered_pushes_arrive(queen: Any, name: str) -> None:
    buffered = queen.queue(name).buffer({"message_count": 100, "time_millis": 60_000})
    for number in range(250):
        assert (await buffered.push(items(number)))["buffered"] is True
    await queen.flush_all_buffers()
    assert queen.get_buffer_stats()["totalBufferedMessages"] == 0
    assert sorted(numbers(await taken(queen.queue(name), 1000))) == list(range(250))


@by(OLD, NEWEST)
async def test_workers_of_a_group_share_its_messages_and_each_group_gets_all(queen: Any, name: str) -> None:
    for partition in range(4):
        await queen.queue(name).partition(f"p{partition}").push(items(*range(10 * partition, 10 * partition + 5)))
    for group in ("mail", "audit"):
        messages = await handled(queen.queue(name).group(group).batch(1).concurrency(3), 20)
        for partition in range(4):
            of_it = [message for message in messages if message["partition"] == f"p{partition}"]
            assert numbers(of_it) == list(range(10 * partition, 10 * partition + 5))
        assert await taken(queen.queue(name).group(group)) == []


@by(OLD, NEWEST)
async def test_one_pop_may_drain_several_partitions(queen: Any, name: str) -> None:
    for partition in ("a", "b", "c"):
        await queen.queue(name).partition(partition).push(items(1, 2))
    messages = await taken(queen.queue(name).group("g").partitions(3), 5)
    assert len(messages) == 5
    assert {message["partition"] for message in messages} == {"a", "b", "c"}
    assert len({message["leaseId"] for message in messages}) == 1
    assert (await queen.ack(messages, True, {"group": "g"}))["success"]
    (last,) = await handled(queen.queue(name).group("g").batch(10).partitions(3).each(), 1)
    assert last["data"] == {"n": 2}


@by(OLD, NEWEST)
async def test_without_a_group_each_message_is_handled_once(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1, 2, 3))
    first = await handled(queen.queue(name).batch(1).limit(2), 2)
    second = await handled(queen.queue(name).batch(10).each(), 1)
    assert numbers(first + second) == [1, 2, 3]
    assert first[0]["consumerGroup"] == "__QUEUE_MODE__"
    assert await taken(queen.queue(name)) == []


@by(OLD, NEWEST)
async def test_a_leased_partition_belongs_to_one_consumer_until_it_is_settled(queen: Any, name: str) -> None:
    await queen.queue(name).partition("a").push(items(1, 2, 3))
    leased = await taken(queen.queue(name).partition("a"), 2)
    assert numbers(leased) == [1, 2]
    assert await taken(queen.queue(name)) == []
    for message in leased:
        assert (await queen.ack(message))["success"]
    assert numbers(await taken(queen.queue(name))) == [3]


@by(OLD, NEWEST)
async def test_a_waiting_pop_gets_what_is_pushed_meanwhile(queen: Any, name: str) -> None:
    waiting = asyncio.create_task(queen.queue(name).batch(10).timeout_millis(15_000).pop())
    await queen.admin.health()  # the pop gets its turn before it
    await queen.queue(name).push(items(1))
    assert numbers(await asyncio.wait_for(waiting, 5)) == [1]


@by(OLD, NEWEST)
async def test_a_pop_that_waits_in_vain_returns_nothing(queen: Any, name: str) -> None:
    assert await queen.queue(name).batch(1).timeout_millis(100).pop() == []


@by(OLD, NEWEST)
async def test_a_message_that_keeps_failing_ends_with_the_dead_letters(queen: Any, name: str) -> None:
    await queen.queue(name).config({"retryLimit": 1, "retryDelay": 0}).create()
    await queen.queue(name).push(items(1, 2))
    for error, dead in (("at first", False), ("again", True)):
        (message,) = await taken(queen.queue(name).group("g"), 1)
        answer = await queen.ack(message, False, {"group": "g", "error": error})
        assert (message["data"], answer["success"], answer["dlq"]) == ({"n": 1}, True, dead)
    assert numbers(await taken(queen.queue(name).group("g"))) == [2]
    letters = await queen.queue(name).dlq("g").limit(10).get()
    (letter,) = letters["messages"]
    assert (letters["total"], letter["data"], letter["errorMessage"]) == (1, {"n": 1}, "again")
    assert (letter["transactionId"], letter["queue"], letter["consumerGroup"]) == (message["transactionId"], name, "g")
    assert (await queen.queue(name).dlq("another").get())["total"] == 0
    assert numbers(await taken(queen.queue(name).group("another"))) == [1, 2]


@by(OLD, NEWEST)
async def test_a_handler_that_fails_gets_its_message_again(queen: Any, name: str) -> None:
    await queen.queue(name).config({"retryLimit": 3, "retryDelay": 0}).create()
    await queen.queue(name).push(items(1, 2))
    attempts = []

    async def stumble(message: dict[str, Any]) -> None:
        attempts.append(message["data"]["n"])
        if len(attempts) == 1:
            raise RuntimeError("stumbled")

    await queen.queue(name).group("g").batch(1).limit(3).timeout_millis(200).consume(stumble)
    assert attempts == [1, 1, 2]


@by(OLD, NEWEST)
async def test_each_message_of_a_batch_has_its_own_outcome(queen: Any, name: str) -> None:
    await queen.queue(name).config({"retryDelay": 0}).create()
    await queen.queue(name).push(items(1, 2, 3))
    outcomes = [{"_status": True}, {"_status": False, "_error": "not yet"}, {"_status": "completed"}]
    messages = await taken(queen.queue(name).group("g"))
    answer = await queen.ack(
        [message | outcome for message, outcome in zip(messages, outcomes, strict=True)], True, {"group": "g"}
    )
    assert answer["success"]
    assert [result["success"] for result in answer["results"]] == [True] * 3
    again = await taken(queen.queue(name).group("g"))
    assert numbers(again) == [2]
    assert (await queen.ack(again, True, {"group": "g"}))["success"]
    assert await taken(queen.queue(name).group("g")) == []


@by(OLD, NEWEST)
async def test_an_acknowledgment_under_a_lost_lease_is_refused(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    (lost,) = await taken(queen.queue(name))
    assert (await queen.ack(lost, "retry"))["success"]
    (held,) = await taken(queen.queue(name))
    answer = await queen.ack(lost)
    assert (answer["success"], answer["error"]) == (False, "Invalid or expired lease")
    assert (await queen.ack(held | {"transactionId": "unknown"}))["error"] == "Message not found"
    assert (await queen.ack(held))["success"]


@by(OLD, NEWEST)
async def test_dead_letters_are_listed_in_pages_the_latest_first(queen: Any, name: str) -> None:
    await queen.queue(name).partition("a").push(items(1, 2, 3))
    before = datetime.now(UTC) - timedelta(minutes=1)
    for _ in range(3):
        (message,) = await taken(queen.queue(name), 1)
        assert (await queen.ack(message, "dlq", {"error": "no such customer"}))["dlq"]
    letters = queen.queue(name).dlq()
    assert numbers((await letters.get())["messages"]) == [3, 2, 1]
    page = await letters.limit(1).offset(1).get()
    assert (numbers(page["messages"]), page["total"]) == ([2], 3)
    assert (await queen.queue(name).dlq().to(before.isoformat()).get())["messages"] == []
    assert len((await queen.queue(name).dlq().from_(before.isoformat()).get())["messages"]) == 3
    assert (await queen.queue(name).partition("b").dlq().get())["total"] == 0
    assert (await queen.queue(name).partition("a").dlq().get())["total"] == 3


@by(OLD, NEWEST)
async def test_a_dead_letter_can_be_put_back(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1, 2))
    (message,) = await taken(queen.queue(name), 1)
    await queen.ack(message, "dlq")
    assert (await queen.admin.retry_message(message["partitionId"], message["transactionId"]))["success"]
    assert numbers(await taken(queen.queue(name))) == [2, 1]
    assert (await queen.queue(name).dlq().get())["total"] == 0


@by(OLD, NEWEST)
async def test_a_transaction_settles_one_message_and_pushes_the_next(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    (message,) = await taken(queen.queue(name).group("g"))
    answer = await (
        queen.transaction()
        .ack(message, "completed", {"consumer_group": "g"})
        .queue(f"{name}.done")
        .partition("p")
        .push(items(10, 11))
        .commit()
    )
    assert answer["success"]
    assert [(result["type"], result["success"]) for result in answer["results"]] == [
        ("ack", True),
        ("push", True),
        ("push", True),
    ]
    assert numbers(await taken(queen.queue(f"{name}.done").partition("p"))) == [10, 11]
    assert await taken(queen.queue(name).group("g")) == []


@by(OLD, NEWEST)
async def test_a_transaction_may_span_two_leases(queen: Any, name: str) -> None:
    messages = []
    for partition in ("a", "b"):
        await queen.queue(name).partition(partition).push(items(1))
        messages += await taken(queen.queue(name).partition(partition))
    assert len({message["leaseId"] for message in messages}) == 2
    assert (await queen.transaction().ack(messages).queue(f"{name}.done").push(items(2)).commit())["success"]
    assert await taken(queen.queue(name)) == []


@by(OLD, NEWEST)
async def test_a_transaction_whose_lease_was_lost_changes_nothing(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    (lost,) = await taken(queen.queue(name))
    assert (await queen.ack(lost, "retry"))["success"]
    with pytest.raises(Exception, match="lease"):
        await queen.transaction().ack(lost).queue(f"{name}.done").push(items(2)).commit()
    assert await taken(queen.queue(f"{name}.done")) == []
    assert numbers(await taken(queen.queue(name))) == [1]


@by(OLD, NEWEST)
async def test_a_transaction_with_an_unknown_message_changes_nothing(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    (message,) = await taken(queen.queue(name))
    unknown = message | {"transactionId": "unknown"}
    with pytest.raises(Exception, match="Message not found"):
        await queen.transaction().queue(f"{name}.done").push(items(2)).ack([message, unknown]).commit()
    assert await taken(queen.queue(f"{name}.done")) == []
    assert (await queen.ack(message))["success"]


@by(NEWEST)
async def test_a_transaction_with_a_condition_that_is_not_understood_is_refused(queen: Any, name: str) -> None:
    """A gate that the server left out would let the push happen twice."""
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await queen.transaction().once("orders", "1", ttl_seconds=60).queue(name).push(items(1)).commit()
    assert refused.value.response.status_code == 400
    assert await taken(queen.queue(name)) == []


@by(OLD, NEWEST)
async def test_a_lease_can_be_renewed(queen: Any, name: str) -> None:
    await queen.queue(name).config({"leaseTime": 20}).create()
    await queen.queue(name).push(items(1, 2))
    messages = await taken(queen.queue(name).group("g"))
    asked = datetime.now(UTC)
    (renewed,) = await queen.renew(messages)
    assert renewed["success"]
    assert timedelta(seconds=15) < when(renewed["newExpiresAt"]) - asked < timedelta(seconds=90)
    assert (await queen.ack(messages, True, {"group": "g"}))["success"]


@by(OLD)
async def test_a_lease_that_ended_gets_no_new_end(queen: Any, name: str) -> None:
    """0.15 takes every answer but an error for a success."""
    await queen.queue(name).push(items(1))
    (message,) = await taken(queen.queue(name))
    assert (await queen.ack(message))["success"]
    assert (await queen.renew(message)).get("newExpiresAt") is None


@by(NEWEST)
async def test_a_lease_that_ended_cannot_be_renewed(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    (message,) = await taken(queen.queue(name))
    assert (await queen.ack(message))["success"]
    late = await queen.renew(message)
    assert late["success"] is False
    assert late["error"] in ("Lease not found", "Lease already expired")


@by(OLD, NEWEST)
async def test_a_group_can_be_moved_back_and_to_the_end(queen: Any, name: str) -> None:
    for number in (1, 2, 3):
        await queen.queue(name).push(items(number))
    messages = await taken(queen.queue(name).group("g"))
    assert numbers(messages) == [1, 2, 3]
    await queen.ack(messages, True, {"group": "g"})
    first = when(messages[0]["createdAt"])
    for moment, expected in ((first - timedelta(hours=1), [1, 2, 3]), (first, [2, 3])):
        answer = await queen.admin.seek_consumer_group("g", name, {"timestamp": moment.isoformat()})
        assert (answer["success"], answer["partitionsUpdated"]) == (True, 1)
        assert numbers(await taken(queen.queue(name).group("g"))) == expected
    assert (await queen.admin.seek_consumer_group("g", name, {"toEnd": True}))["seekToEnd"] is True
    assert await taken(queen.queue(name).group("g")) == []
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await queen.admin.seek_consumer_group("g", name)
    assert refused.value.response.status_code == 400


@by(OLD, NEWEST)
async def test_a_new_group_may_skip_what_was_pushed_before(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    (before,) = await taken(queen.queue(name).group("all"))
    assert await taken(queen.queue(name).group("new").subscription_mode("new")) == []
    await queen.queue(name).push(items(2))
    assert numbers(await taken(queen.queue(name).group("new").subscription_mode("new"))) == [2]
    assert numbers(await taken(queen.queue(name).group("since").subscription_from(before["createdAt"]))) == [2]


@by(OLD, NEWEST)
async def test_a_deleted_group_starts_anew(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    for delete in (
        lambda: queen.delete_consumer_group(f"of {name}"),
        lambda: queen.admin.delete_consumer_group_for_queue(f"of {name}", name),
    ):
        messages = await taken(queen.queue(name).group(f"of {name}"))
        assert numbers(messages) == [1]
        await queen.ack(messages, True, {"group": f"of {name}"})
        assert (await delete())["success"]
    assert numbers(await taken(queen.queue(name).group(f"of {name}"))) == [1]


@by(OLD, NEWEST)
async def test_a_pop_may_name_a_namespace_or_a_task(queen: Any, name: str) -> None:
    for number, task in enumerate(("print", "bind")):
        await queen.queue(f"{name} {task}").namespace(name).task(f"{task} {name}").create()
        await queen.queue(f"{name} {task}").push(items(number))
    (bound,) = await taken(queen.queue().task(f"bind {name}"))
    assert (bound["data"], bound["queue"]) == ({"n": 1}, f"{name} bind")
    assert numbers(await taken(queen.queue().namespace(name))) == [0]


@by(OLD, NEWEST)
async def test_names_may_have_blanks_slashes_and_letters_of_any_script(queen: Any, name: str) -> None:
    name, partition, group = f"{name}/über 100%", "Süd & Ost/1", f"{name}/für + wider"
    await queen.queue(name).create()
    await queen.queue(name).partition(partition).push([{"transactionId": "order/1", "data": {"n": 1}}])
    (message,) = await taken(queen.queue(name).partition(partition).group(group))
    assert (await queen.ack(message, True, {"group": group}))["partitionName"] == partition
    assert (await queen.admin.get_queue(name))["name"] == name
    assert (await queen.admin.get_message(message["partitionId"], "order/1"))["payload"] == {"n": 1}
    assert (await queen.admin.seek_consumer_group(group, name, {"toEnd": True}))["success"]
    assert name in await queen.admin.get_consumer_group(group)
    assert (await queen.delete_consumer_group(group))["success"]
    assert (await queen.queue(name).delete())["existed"]


@by(OLD, NEWEST)
async def test_a_deleted_queue_is_empty_when_it_is_used_again(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    await taken(queen.queue(name).group("g").subscription_mode("new"))
    assert (await queen.queue(name).delete())["existed"] is True
    assert (await queen.queue(name).delete())["existed"] is False
    assert await taken(queen.queue(name)) == []
    await queen.queue(name).push(items(2))
    assert numbers(await taken(queen.queue(name).group("g"))) == [2]


@by(OLD, NEWEST)
async def test_a_handler_may_leave_traces(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    traced = []

    async def trace(message: dict[str, Any]) -> None:
        step = {"traceName": [name], "eventType": "processing", "data": {"text": "order completed"}}
        traced.append((message, await message["trace"](step)))

    await queen.queue(name).batch(1).limit(1).consume(trace)
    ((message, answer),) = traced
    assert answer["success"]
    by_name = await queen.admin.get_traces_by_name(name)
    of_message = await queen.admin.get_traces_for_message(message["partitionId"], message["transactionId"])
    (found,) = by_name["traces"]
    assert (found["event_type"], found["data"]) == ("processing", {"text": "order completed"})
    assert (found["transaction_id"], found["queue_name"]) == (message["transactionId"], name)
    assert [entry["data"] for entry in of_message["traces"]] == [{"text": "order completed"}]
    assert one_of((await queen.admin.get_trace_names(limit=1000))["trace_names"], trace_name=name)["trace_count"] == 1


@by(OLD, NEWEST)
async def test_queues_and_partitions_are_listed(queen: Any, name: str) -> None:
    await queen.queue(name).namespace(f"ns {name}").task(f"task {name}").create()
    for partition in ("a", "b"):
        await queen.queue(name).partition(partition).push(items(1, 2))
    await queen.admin.refresh_consumer_stats()
    listed = one_of((await queen.admin.list_queues(limit=1000))["queues"], name=name)
    assert (listed["namespace"], listed["partitions"], listed["messages"]["total"]) == (f"ns {name}", 3, 4)
    queue = await queen.admin.get_queue(name)
    assert {entry["name"]: entry["stats"]["total"] for entry in queue["partitions"]} == {"Default": 0, "a": 2, "b": 2}
    partitions = (await queen.admin.get_partitions(queue=name))["partitions"]
    assert {(entry["queue"], entry["name"]) for entry in partitions} == {(name, "Default"), (name, "a"), (name, "b")}
    namespaces = (await queen.admin.get_namespaces())["namespaces"]
    assert one_of(namespaces, namespace=f"ns {name}")["messages"]["total"] == 4
    assert one_of((await queen.admin.get_tasks())["tasks"], task=f"task {name}")["queues"] == 1
    overview = await queen.admin.get_overview()
    assert overview["queues"] >= 1
    assert overview["messages"]["total"] >= 4


@by(OLD, NEWEST)
async def test_messages_are_listed_shown_and_deleted(queen: Any, name: str) -> None:
    first, second = await queen.queue(name).push(items(1, 2))
    listed = (await queen.admin.list_messages(queue=name))["messages"]
    assert {message["transactionId"] for message in listed} == {first["transaction_id"], second["transaction_id"]}
    assert {message["status"] for message in listed} == {"pending"}
    place = first["partition_id"], first["transaction_id"]
    assert (await queen.admin.get_message(*place))["payload"] == {"n": 1}
    assert (await queen.admin.delete_message(*place))["success"]
    with pytest.raises(httpx.HTTPStatusError, match="Message not found"):
        await queen.admin.get_message(*place)
    assert numbers(await taken(queen.queue(name))) == [2]


@by(OLD, NEWEST)
async def test_consumer_groups_are_listed_with_their_lag(queen: Any, name: str) -> None:
    group = f"of {name}"
    await queen.queue(name).push(items(1, 2, 3))
    messages = await taken(queen.queue(name).group(group), 2)
    await queen.ack(messages, True, {"group": group})
    await queen.admin.refresh_consumer_stats()
    assert one_of(await queen.admin.list_consumer_groups(), name=group, queueName=name)["totalLag"] == 1
    (partition,) = (await queen.admin.get_consumer_group(group))[name]["partitions"]
    assert (partition["partition"], partition["offsetLag"], partition["totalConsumed"]) == ("Default", 1, 2)
    assert one_of(await queen.admin.get_lagging_consumers(0), consumer_group=group)["queue_name"] == name
    assert [entry for entry in await queen.admin.get_lagging_consumers(3600) if entry["consumer_group"] == group] == []
    yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    assert (await queen.update_consumer_group_timestamp(group, yesterday))["success"]


@by(OLD, NEWEST)
async def test_the_state_of_the_server_is_shown(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    assert (await queen.admin.health())["status"] == "healthy"
    assert (await queen.admin.get_status())["messages"]
    assert one_of((await queen.admin.get_queue_stats(limit=1000))["queues"], name=name)
    assert (await queen.admin.get_analytics(interval="hour"))["interval"] == "hour"
    for series in (queen.admin.get_system_metrics(), queen.admin.get_worker_metrics()):
        assert await series


@by(OLD)
async def test_a_queue_can_be_cleared(queen: Any, name: str) -> None:
    for partition in ("a", "b"):
        await queen.queue(name).partition(partition).push(items(1, 2))
    assert (await queen.admin.clear_queue(name, "a"))["cleared"] == 2
    assert {message["partition"] for message in await taken(queen.queue(name).partitions(2).group("g"))} == {"b"}
    assert (await queen.admin.clear_queue(name))["cleared"] == 2
    assert await taken(queen.queue(name)) == []


@by(OLD)
async def test_a_pending_message_can_be_moved_to_the_dead_letters(queen: Any, name: str) -> None:
    first, _ = await queen.queue(name).push(items(1, 2))
    assert (await queen.admin.move_message_to_dlq(first["partition_id"], first["transaction_id"]))["success"]
    assert numbers((await queen.queue(name).dlq().get())["messages"]) == [1]
    assert numbers(await taken(queen.queue(name))) == [2]


@by(OLD)
async def test_pushes_are_kept_while_maintenance_is_on(queen: Any, name: str) -> None:
    assert (await queen.admin.set_maintenance_mode(True))["maintenanceMode"] is True
    try:
        (kept,) = await queen.queue(name).push(items(1))
        assert kept["status"] == "buffered"
        assert (await queen.admin.get_maintenance_mode())["bufferedMessages"] == 1
    finally:
        assert (await queen.admin.set_maintenance_mode(False))["maintenanceMode"] is False
    assert numbers(await queen.queue(name).batch(1).timeout_millis(10_000).pop()) == [1]


@by(OLD)
async def test_pops_return_nothing_while_they_are_paused(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1))
    assert (await queen.admin.set_pop_maintenance_mode(True))["popMaintenanceMode"] is True
    try:
        assert await taken(queen.queue(name)) == []
        assert (await queen.admin.get_pop_maintenance_mode())["popMaintenanceMode"] is True
    finally:
        await queen.admin.set_pop_maintenance_mode(False)
    assert numbers(await queen.queue(name).batch(1).timeout_millis(10_000).pop()) == [1]


@by(OLD)
async def test_the_state_of_postgresql_is_shown(queen: Any, name: str) -> None:
    assert await queen.admin.get_postgres_stats()


@by(NEWEST)
async def test_the_depth_of_a_queue_is_shown_by_partition(queen: Any, name: str) -> None:
    for partition in ("a", "b"):
        await queen.queue(name).partition(partition).push(items(1, 2))
    messages = await taken(queen.queue(name).partition("a").group("g"))
    await queen.ack(messages, True, {"group": "g"})
    depth = await queen.admin.get_queue_depth(name, "g")
    assert (depth["pending"], depth["partitionsPending"], depth["effectivePending"]) == (2, 1, 2)
    assert {"partition": "b", "pending": 2} in depth["partitions"]


@by(NEWEST)
async def test_a_delivery_of_the_latest_only_is_refused(queen: Any, name: str) -> None:
    """The client would take an answer without it for an old server's, after the messages were leased."""
    await queen.queue(name).push(items(1, 2))
    with pytest.raises(httpx.HTTPStatusError, match="conflation"):
        await queen.queue(name).group("g").conflation().wait(False).pop()
    assert numbers(await taken(queen.queue(name).group("g"))) == [1, 2]


@by(NEWEST)
async def test_what_is_committed_on_delivery_needs_no_acknowledgment(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(1, 2))
    messages = await queen.queue(name).batch(2).commit_on_delivery().wait(False).pop()
    assert numbers(messages) == [1, 2]
    assert not messages[0]["leaseId"]
    assert await taken(queen.queue(name)) == []


@by(NEWEST)
async def test_a_pop_without_a_size_takes_what_the_server_chose(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(*range(20)))
    result = await queen.queue(name).wait(False).pop_result()
    assert numbers(result.messages) == list(range(20))
    assert result.autopilot is not None
    assert result.autopilot.batch >= 20
    assert (result.autopilot.partitions >= 1, result.autopilot.wait_millis) == (True, 0)


@by(NEWEST)
async def test_a_handler_without_a_size_gets_lists(queen: Any, name: str) -> None:
    await queen.queue(name).push(items(*range(20)))
    seen: list[int] = []

    async def handle(messages: list[dict[str, Any]]) -> None:
        seen.extend(numbers(messages))

    await queen.queue(name).group("g").limit(20).consume(handle)
    assert seen == list(range(20))
    assert await taken(queen.queue(name).group("g")) == []
