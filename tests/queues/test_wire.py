"""What applications send and get, as Queen's clients do: status codes, fields and spellings."""

from __future__ import annotations

import asyncio
import json
from itertools import chain
from uuid import UUID, uuid4

import pytest

QUEUE = "orders"


class Wire:
    """Requests to the queue routes of a server."""

    def __init__(self, server) -> None:
        self.server = server

    async def push(self, *items, status: int = 201):
        answer = await self.server.post("/api/v1/push", json={"items": list(items)})
        assert answer.status_code == status, answer.text
        return answer.json()

    async def pop(self, path: str = f"queue/{QUEUE}", **query):
        answer = await self.server.get(f"/api/v1/pop/{path}" if path else "/api/v1/pop", params=query)
        assert answer.status_code in (200, 204), answer.text
        if answer.status_code == 204:
            assert answer.content == b""
            return None
        return answer.json()

    async def ack(self, message, status="completed", **more):
        body = {
            "transactionId": message["transactionId"],
            "partitionId": message["partitionId"],
            "leaseId": message["leaseId"],
            "status": status,
            "error": None,
            "consumerGroup": message["consumerGroup"],
        }
        answer = await self.server.post("/api/v1/ack", json=body | more)
        assert answer.status_code == 200, answer.text
        [result] = answer.json()
        return result

    async def ack_all(self, messages, statuses="completed", group=None):
        if isinstance(statuses, str):
            statuses = [statuses] * len(messages)
        acks = [
            {name: one[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": status}
            for one, status in zip(messages, statuses, strict=True)
        ]
        body = {"acknowledgments": acks, "consumerGroup": group or messages[0]["consumerGroup"]}
        answer = await self.server.post("/api/v1/ack/batch", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def configure(self, queue: str = QUEUE, status: int = 200, **options):
        answer = await self.server.post("/api/v1/configure", json={"queue": queue, "options": options})
        assert answer.status_code == status, answer.text
        return answer.json()

    async def transaction(self, *operations, leases=(), status: int = 200):
        body = {"operations": list(operations), "requiredLeases": list(leases)}
        answer = await self.server.post("/api/v1/transaction", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()


def item(payload=None, id=None, queue: str = QUEUE, **more):
    return {"queue": queue, "payload": payload} | ({"transactionId": id} if id else {}) | more


def ids(popped) -> list[str]:
    return [one["transactionId"] for one in popped["messages"]] if popped else []


@pytest.fixture
async def wire(start) -> Wire:
    return Wire(await start())


# Push.


async def test_a_push_is_answered_with_one_result_per_item_in_order(wire):
    results = await wire.push(item({"n": 1}, "a"), item({"n": 2}), item({"n": 3}, "a"), item(1, "a", partition="p2"))
    assert [one["status"] for one in results] == ["queued", "queued", "duplicate", "queued"]
    assert [one["index"] for one in results] == [0, 1, 2, 3]
    first, second, repeated, other = results
    assert set(first) == {
        "index",
        "status",
        "transaction_id",
        "message_id",
        "partition_id",
        "trace_id",
        "queueName",
    }
    assert set(repeated) == {"index", "status", "transaction_id", "message_id", "queueName"}
    assert first["transaction_id"] == "a"
    assert first["trace_id"] is None
    assert first["queueName"] == QUEUE
    assert UUID(first["message_id"]).version == 7
    assert repeated["message_id"] == first["message_id"]
    assert UUID(second["transaction_id"])
    assert other["partition_id"] != first["partition_id"]


async def test_the_same_transaction_id_in_a_later_push_is_a_duplicate_of_the_first(wire):
    [first] = await wire.push(item(1, "a"))
    results = await wire.push(item(2, "b"), item(3, "a"), item(4, "c"))
    assert [one["status"] for one in results] == ["queued", "duplicate", "queued"]
    assert results[1]["message_id"] == first["message_id"]
    assert ids(await wire.pop(batch=10)) == ["a", "b", "c"]


async def test_no_items_is_an_empty_list_and_no_list_is_refused(wire):
    assert await wire.push() == []
    for body in ({}, {"items": 1}, {"items": [{"payload": 1}]}, {"items": [{"queue": 5}]}):
        answer = await wire.server.post("/api/v1/push", json=body)
        assert answer.status_code == 400, answer.text
        assert list(answer.json()) == ["error"]
    for name in ("partition", "transactionId", "traceId"):
        answer = await wire.server.post("/api/v1/push", json={"items": [item(1) | {name: 7}]})
        assert answer.status_code == 400, answer.text


async def test_a_push_of_too_many_items_is_refused(wire):
    answer = await wire.push(*[item(number) for number in range(10_001)], status=400)
    assert "10000" in answer["error"]
    assert await wire.pop() is None


async def test_a_payload_that_is_no_text_is_refused(wire):
    body = b'{"items":[{"queue":"orders","payload":"\xff\xfe"}]}'
    answer = await wire.server.post("/api/v1/push", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert await wire.pop() is None


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b"])
async def test_a_name_that_cannot_be_stored_is_refused(wire, name):
    for body in (item(1, queue=name), item(1, partition=name) if name else item(1, queue=name)):
        answer = await wire.server.post("/api/v1/push", json={"items": [body]})
        assert answer.status_code == 400, answer.text


async def test_payloads_come_back_byte_for_byte(wire):
    payload = b'{ "b": 1.50, "a": [null, {}, 12345678901234567890] }'
    raw = b'{"items":[{"queue":"orders","payload":' + payload + b'},{"queue":"orders"}]}'
    answer = await wire.server.post("/api/v1/push", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 201
    answer = await wire.server.get(f"/api/v1/pop/queue/{QUEUE}?batch=2")
    assert b'"data":' + payload in answer.content
    assert answer.json()["messages"][1]["data"] is None


async def test_null_and_the_empty_object_are_different_payloads(wire):
    await wire.push(item(None), item({}))
    assert [one["data"] for one in (await wire.pop(batch=2))["messages"]] == [None, {}]


async def test_a_message_of_three_megabytes_and_a_push_of_a_thousand_pass(wire):
    large = "x" * 3_000_000
    await wire.push(item(large, "large"))
    popped = await wire.pop()
    assert popped["messages"][0]["data"] == large
    await wire.ack(popped["messages"][0])
    results = await wire.push(*(item({"n": n}, f"t{n}") for n in range(1_000)))
    assert {one["status"] for one in results} == {"queued"}
    assert len({one["message_id"] for one in results}) == 1_000
    assert ids(await wire.pop(batch=1_000)) == [f"t{n}" for n in range(1_000)]


async def test_an_answer_ends_at_16_mib_and_the_rest_comes_with_the_next(wire):
    for n in range(12):
        await wire.push(item("x" * 3_000_000, f"t{n}", partition=f"p{n % 2}"))
    seen = []
    while popped := await wire.pop(batch=100, partitions=2):
        assert 1 <= len(popped["messages"]) <= 6
        seen += ids(popped)
        await wire.ack_all(popped["messages"])
    assert sorted(seen) == sorted(f"t{n}" for n in range(12))


async def test_a_push_larger_than_a_chunk_keeps_its_order(wire):
    await wire.push(*(item(n, f"t{n}") for n in range(2_500)))
    seen = []
    while popped := await wire.pop(batch=700):
        seen += ids(popped)
        await wire.ack_all(popped["messages"])
    assert seen == [f"t{n}" for n in range(2_500)]


async def test_trace_ids_and_times_are_handed_on(wire):
    trace = str(uuid4())
    [result, _] = await wire.push(item(1, "a", traceId=trace), item(2, "b"))
    assert result["trace_id"] == trace
    first, second = (await wire.pop(batch=2))["messages"]
    assert first["traceId"] == trace
    assert second["traceId"] is None
    assert first["createdAt"].endswith("Z")
    assert len(first["createdAt"]) == len("2026-01-01T00:00:00.000000Z")


async def test_a_full_queue_refuses_the_surplus(wire):
    await wire.configure(maxSize=3)
    results = await wire.push(*(item(n, f"t{n}") for n in range(5)))
    assert [one["status"] for one in results] == ["queued"] * 3 + ["failed"] * 2
    assert "max capacity" in results[4]["error"]
    popped = await wire.pop(batch=2)
    await wire.ack_all(popped["messages"])
    results = await wire.push(*(item(n, f"u{n}") for n in range(4)))
    assert [one["status"] for one in results] == ["queued"] * 2 + ["failed"] * 2


# Pop.


async def test_a_pop_says_what_it_claimed(wire):
    await wire.push(item({"n": 1}, "a"))
    popped = await wire.pop()
    [message] = popped.pop("messages")
    assert popped == {
        "success": True,
        "queue": QUEUE,
        "partition": "Default",
        "partitionId": message["partitionId"],
        "leaseId": message["leaseId"],
        "consumerGroup": "__QUEUE_MODE__",
        "partitionsClaimed": 1,
        "leaseSeconds": 300,
    }
    assert set(message) == {
        "id",
        "transactionId",
        "traceId",
        "data",
        "producerSub",
        "createdAt",
        "partitionId",
        "partition",
        "leaseId",
        "consumerGroup",
        "queue",
    }
    assert message["data"] == {"n": 1}
    assert UUID(message["leaseId"])


async def test_nothing_to_deliver_is_204(wire):
    assert await wire.pop("queue/never") is None
    await wire.push(item(1))
    assert await wire.pop(f"queue/{QUEUE}/partition/other") is None
    assert await wire.pop() is not None
    assert await wire.pop() is None  # leased
    assert await wire.pop("", namespace="nowhere") is None
    assert (await wire.server.get("/api/v1/pop")).status_code == 400


async def test_a_partition_is_leased_to_one_consumer_of_a_group_at_a_time(wire):
    await wire.push(item(1, "a"), item(2, "b"), item(3, "c", partition="p2"))
    first = await wire.pop(batch=10)
    second = await wire.pop(batch=10)
    assert sorted([ids(first), ids(second)]) == [["a", "b"], ["c"]]
    assert await wire.pop(batch=10) is None
    assert ids(await wire.pop(batch=10, consumerGroup="other", partitions=2)) in (["a", "b", "c"], ["c", "a", "b"])


async def test_several_partitions_share_one_lease_and_are_released_each_on_its_own(wire):
    await wire.push(*(item(n, f"{p}{n}", partition=p) for p in "xyz" for n in range(2)))
    popped = await wire.pop(batch=5, partitions=3)
    assert popped["partitionsClaimed"] == 3
    assert len(popped["messages"]) == 5
    assert len({one["leaseId"] for one in popped["messages"]}) == 1
    of_first = [one for one in popped["messages"] if one["partition"] == popped["messages"][0]["partition"]]
    results = await wire.ack_all(of_first)
    assert [one["leaseReleased"] for one in results] == [True, True]
    assert await wire.pop(batch=10) is None  # of the other two partitions, both leased; the first has no more


async def test_without_the_parameter_one_partition_is_drained_even_if_there_is_room(wire):
    await wire.push(item(1, "a", partition="x"), item(2, "b", partition="y"))
    assert len(ids(await wire.pop(batch=10))) == 1


async def test_auto_ack_moves_on_at_delivery(wire):
    await wire.push(*(item(n, f"t{n}") for n in range(3)))
    popped = await wire.pop(batch=2, autoAck="true")
    assert popped["leaseId"] == ""
    assert ids(popped) == ["t0", "t1"]
    assert (await wire.ack(popped["messages"][0]))["success"]
    assert ids(await wire.pop(batch=2, autoAck="1")) == ["t2"]
    assert await wire.pop() is None


async def test_namespace_and_task_choose_queues_by_priority(wire):
    await wire.push(item(1, "low", queue="shop.email.a"), item(2, "high", queue="shop.email.b"))
    await wire.push(item(3, "x", queue="shop.sms"))
    await wire.configure("shop.email.b", priority=5)
    answer = await wire.server.post(
        "/api/v1/configure", json={"queue": "shop.email.b", "namespace": "shop", "task": "email", "options": {}}
    )
    assert answer.json()["options"]["priority"] == 5
    first = await wire.pop("", namespace="shop", task="email")
    assert ids(first) == ["high"]
    assert first["messages"][0]["queue"] == "shop.email.b"
    assert ids(await wire.pop("", namespace="shop", task="email")) == ["low"]
    assert await wire.pop("", namespace="shop", task="email") is None
    assert ids(await wire.pop("", task="sms")) == ["x"]


async def test_unreadable_numbers_of_the_query_are_their_defaults(wire):
    await wire.push(item(1, "a"), item(2, "b"))
    assert ids(await wire.pop(batch="many", timeout="soon", partitions="-3", xbatch=5)) == ["a"]


async def test_an_unreadable_start_of_a_subscription_is_refused(wire):
    answer = await wire.server.get(f"/api/v1/pop/queue/{QUEUE}?consumerGroup=g&subscriptionFrom=yesterday-ish")
    assert answer.status_code == 400


async def test_the_server_chooses_the_batch_on_autopilot_and_says_so(wire):
    await wire.push(*(item(n) for n in range(5)))
    popped = await wire.pop(autopilot="true")
    assert len(popped["messages"]) == 5
    assert popped["autopilot"] == {"partitions": 1, "batch": 100, "waitMs": 0}
    assert (await wire.server.get(f"/api/v1/pop/queue/{QUEUE}?conflation=true")).status_code == 400


async def test_names_with_spaces_and_percent_signs_work(wire):
    await wire.push(item(1, "a", queue="a b%2F", partition="p/1 ü"))
    assert ids(await wire.pop("queue/a%20b%252F/partition/p%2F1%20%C3%BC")) == ["a"]


# Consumer groups.


@pytest.mark.parametrize("mode", ["new", "new-only", "now"])
async def test_a_group_that_begins_with_new_messages_fixes_the_point_with_its_first_pop(wire, mode):
    await wire.push(item(1, "old"))
    assert await wire.pop(consumerGroup="g", subscriptionMode=mode) is None
    await wire.push(item(2, "new"), item(3, "later", partition="made-later"))
    assert await wire.pop(consumerGroup="g", subscriptionMode="all", batch=10) is not None
    assert await wire.pop(consumerGroup="g", batch=10) is not None
    assert await wire.pop(consumerGroup="g", batch=10) is None
    assert ids(await wire.pop(consumerGroup="other", partition=1, batch=10)) in (["old", "new"], ["later"])


async def test_a_group_may_begin_at_a_time(wire):
    await wire.push(item(1, "old"))
    await asyncio.sleep(0.01)
    between = (await wire.server.post("/api/v1/push", json={"items": [item(2, "mid")]})).status_code
    assert between == 201
    at = (await wire.pop(batch=5))["messages"][0]["createdAt"]
    assert ids(await wire.pop(consumerGroup="g", subscriptionFrom=at, batch=5)) == ["mid"]
    assert ids(await wire.pop(consumerGroup="h", subscriptionFrom="2020-01-01", batch=5)) == ["old", "mid"]
    assert ids(await wire.pop(consumerGroup="i", subscriptionMode="from_beginning", batch=5)) == ["old", "mid"]


async def test_a_setting_says_where_groups_begin_that_do_not(start):
    wire = Wire(await start(queue_subscription_mode="new"))
    await wire.push(item(1, "a"))
    assert await wire.pop(consumerGroup="g") is None
    assert ids(await wire.pop(consumerGroup="h", subscriptionMode="all")) == ["a"]
    assert ids(await wire.pop()) == ["a"], "queue mode"
    await wire.push(item(2, "b"))
    assert ids(await wire.pop(consumerGroup="g")) == ["b"]


@pytest.mark.parametrize("name", ["conflation", "frames"])
async def test_what_is_not_served_is_refused(wire, name):
    await wire.push(item(1, "a"))
    answer = await wire.server.get(f"/api/v1/pop/queue/{QUEUE}", params={name: "true"})
    assert answer.status_code == 400
    assert name in answer.json()["error"]


async def test_queue_mode_always_starts_at_the_oldest(wire):
    await wire.push(item(1, "old"))
    assert ids(await wire.pop(subscriptionMode="new")) == ["old"]


# Acknowledge.


async def test_an_acknowledgment_says_what_it_did(wire):
    await wire.push(item(1, "a"), item(2, "b"))
    popped = await wire.pop(batch=2)
    assert await wire.ack(popped["messages"][0], "success") == {
        "index": 0,
        "transactionId": "a",
        "success": True,
        "error": None,
        "queueName": QUEUE,
        "partitionName": "Default",
        "leaseReleased": False,
        "dlq": False,
    }
    assert (await wire.ack(popped["messages"][1]))["leaseReleased"]
    assert await wire.pop() is None


async def test_refused_acknowledgments_do_not_stop_the_others(wire):
    await wire.push(item(1, "a"), item(2, "b"))
    popped = await wire.pop(batch=2)
    first, second = popped["messages"]
    stranger = first | {"transactionId": "nix"}
    lost = second | {"leaseId": str(uuid4())}
    nowhere = first | {"partitionId": str(uuid4())}
    unreadable = first | {"partitionId": "no uuid"}
    results = await wire.ack_all([stranger, first, lost, nowhere, unreadable])
    assert [one["error"] for one in results] == [
        "Message not found",
        None,
        "Invalid or expired lease",
        "Message not found",
        "Message not found",
    ]
    assert [one["index"] for one in results] == [0, 1, 2, 3, 4]


async def test_missing_ids_and_unknown_statuses_are_400(wire):
    unknown = {"transactionId": "a", "partitionId": "b", "status": "x"}
    for body in ({}, {"transactionId": "a"}, {"partitionId": "a"}, unknown):
        assert (await wire.server.post("/api/v1/ack", json=body)).status_code == 400
    assert (await wire.server.post("/api/v1/ack/batch", json={"acknowledgments": []})).json() == []
    assert (await wire.server.post("/api/v1/ack/batch", json={})).status_code == 400


async def test_a_failed_message_comes_again_and_the_completed_ones_behind_it_do_not(wire):
    await wire.configure(retryDelay=0)
    await wire.push(*(item(n, f"t{n}") for n in range(4)))
    popped = await wire.pop(batch=3)
    results = await wire.ack_all(popped["messages"], ["failed", "completed", "completed"])
    assert all(one["success"] and one["leaseReleased"] for one in results)
    popped = await wire.pop(batch=3)
    assert ids(popped) == ["t0", "t3"]


async def test_the_third_failure_of_two_retries_is_a_dead_letter_and_the_next_message_starts_anew(wire):
    await wire.configure(retryLimit=2, retryDelay=0)
    await wire.push(item(1, "bad"), item(2, "next"))
    for failures in range(3):
        popped = await wire.pop()
        assert ids(popped) == ["bad"]
        result = await wire.ack(popped["messages"][0], "failed", error="boom")
        assert result["dlq"] == (failures == 2)
        assert result["error"] is None
    for failures in range(3):
        popped = await wire.pop()
        assert ids(popped) == ["next"]
        result = await wire.ack(popped["messages"][0], "failed")
        assert result["dlq"] == (failures == 2)


async def test_a_batch_of_failures_counts_once_and_shares_its_fate(wire):
    await wire.configure(retryLimit=1, retryDelay=0)
    await wire.push(*(item(n, f"t{n}") for n in range(3)))
    popped = await wire.pop(batch=3)
    assert [one["dlq"] for one in await wire.ack_all(popped["messages"], "failed")] == [False] * 3
    popped = await wire.pop(batch=3)
    assert [one["dlq"] for one in await wire.ack_all(popped["messages"], "failed")] == [True] * 3
    assert await wire.pop() is None


async def test_retry_counts_nothing_and_dlq_is_at_once(wire):
    await wire.configure(retryLimit=0)
    await wire.push(item(1, "a"))
    for _ in range(3):
        popped = await wire.pop()
        assert (await wire.ack(popped["messages"][0], "retry"))["leaseReleased"]
    popped = await wire.pop()
    assert (await wire.ack(popped["messages"][0], "dlq", error="no"))["dlq"]
    assert await wire.pop() is None


async def test_repeated_acknowledgments_change_nothing(wire):
    await wire.configure(retryDelay=0, retryLimit=5)
    await wire.push(item(1, "a"), item(2, "b"))
    popped = await wire.pop(batch=2)
    a, b = popped["messages"]
    assert (await wire.ack(a))["success"]
    assert (await wire.ack(a))["success"]
    assert (await wire.ack(b, "failed"))["success"]
    assert (await wire.ack(b, "failed"))["success"]
    assert not (await wire.ack(b, "completed"))["success"]
    again = await wire.pop(batch=2)
    assert ids(again) == ["b"]
    assert (await wire.ack(a | {"leaseId": None}))["success"]
    assert (await wire.ack(again["messages"][0]))["success"]
    assert await wire.pop() is None


async def test_an_acknowledgment_without_lease_never_moves_the_cursor_back(wire):
    await wire.push(*(item(n, f"t{n}") for n in range(3)))
    popped = await wire.pop(batch=3)
    await wire.ack_all(popped["messages"])
    assert (await wire.ack(popped["messages"][0] | {"leaseId": None}))["success"]
    assert await wire.pop() is None


async def test_a_failed_message_waits_for_its_delay_and_a_waiting_pop_gets_it_then(wire):
    await wire.configure(retryDelay=300)
    await wire.push(item(1, "a"))
    popped = await wire.pop()
    await wire.ack(popped["messages"][0], "failed")
    assert await wire.pop() is None
    assert ids(await wire.pop(wait="true", timeout=5_000)) == ["a"]


# Leases.


async def test_a_lease_is_extended_without_a_body(wire):
    await wire.configure(leaseTime=20)
    await wire.push(item(1, "a"))
    lease = (await wire.pop())["leaseId"]
    answer = await wire.server.post(f"/api/v1/lease/{lease}/extend")
    assert answer.status_code == 200
    body = answer.json()
    until = body["newExpiresAt"]
    assert body == {
        "leaseId": lease,
        "success": True,
        "renewed": 1,
        "newExpiresAt": until,
        "expiresAt": until,
        "lease_expires_at": until,
        "error": None,
    }
    longer = (await wire.server.post(f"/api/v1/lease/{lease}/extend", json={"seconds": 600})).json()
    assert longer["newExpiresAt"] > until
    shorter = (await wire.server.post(f"/api/v1/lease/{lease}/extend", json={"seconds": 1})).json()
    assert shorter["newExpiresAt"] == longer["newExpiresAt"]


@pytest.mark.parametrize("lease", ["0b0c7f0e-9b02-4c18-8d61-44f09a3e7c55", "nonsense"])
async def test_an_unknown_lease_is_not_extended(wire, lease):
    answer = await wire.server.post(f"/api/v1/lease/{lease}/extend", json={})
    assert answer.status_code == 200
    assert answer.json() == {
        "leaseId": lease,
        "success": False,
        "renewed": 0,
        "newExpiresAt": None,
        "expiresAt": None,
        "lease_expires_at": None,
        "error": "Lease not found",
    }


async def test_a_lease_that_ran_out_is_redelivered_and_its_acknowledgment_refused(wire):
    await wire.configure(leaseTime=1)
    await wire.push(item(1, "a"), item(2, "b"))
    popped = await wire.pop(batch=2)
    assert (await wire.ack(popped["messages"][0]))["success"]
    assert ids(await wire.pop(wait="true", timeout=5_000, batch=2)) == ["b"]
    assert (await wire.ack(popped["messages"][1]))["error"] == "Invalid or expired lease"
    answer = (await wire.server.post(f"/api/v1/lease/{popped['leaseId']}/extend")).json()
    assert not answer["success"]


# Waiting.


async def test_a_waiting_pop_is_woken_by_a_push(wire):
    waiting = asyncio.create_task(wire.pop(wait="true", timeout=20_000))
    await asyncio.sleep(0.1)
    await wire.push(item(1, "a"))
    assert ids(await asyncio.wait_for(waiting, 2)) == ["a"]


async def test_a_wait_ends_after_its_time(wire):
    began = asyncio.get_running_loop().time()
    assert await wire.pop(wait="true", timeout=300) is None
    assert 0.25 < asyncio.get_running_loop().time() - began < 3


async def test_a_delayed_and_a_windowed_message_end_a_wait_when_their_time_comes(wire):
    await wire.configure(delayedProcessing=1)
    await wire.push(item(1, "a"))
    assert await wire.pop() is None
    assert ids(await wire.pop(wait="true", timeout=5_000)) == ["a"]
    await wire.configure("window", windowBuffer=1)
    await wire.push(item(1, "b", queue="window"))
    assert await wire.pop("queue/window") is None
    assert ids(await wire.pop("queue/window", wait="true", timeout=5_000)) == ["b"]


async def test_one_push_to_each_of_many_partitions_wakes_as_many_waiting_pops(wire):
    await wire.push(item(0, "first", queue="w"))
    await wire.pop("queue/w")
    waiting = [asyncio.create_task(wire.pop("queue/w", wait="true", timeout=20_000)) for _ in range(10)]
    await asyncio.sleep(0.1)
    await wire.push(*(item(n, f"t{n}", queue="w", partition=f"p{n}") for n in range(10)))
    popped = await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert sorted(chain.from_iterable(map(ids, popped))) == sorted(f"t{n}" for n in range(10))


# Transactions.


async def test_a_transaction_does_all_or_nothing(wire):
    await wire.push(item(1, "a"))
    popped = await wire.pop()
    [message] = popped["messages"]
    ack = {"type": "ack", "transactionId": "a", "partitionId": message["partitionId"], "status": "completed"}
    push = {"type": "push", "items": [item(2, "b", queue="next"), item(3, queue="next", partition="p1")]}
    done = await wire.transaction(ack, push, leases=[message["leaseId"]])
    assert done["success"]
    assert "error" not in done
    assert UUID(done["transactionId"])
    assert [(one["index"], one["type"], one["success"]) for one in done["results"]] == [
        (0, "ack", True),
        (1, "push", True),
        (2, "push", True),
    ]
    assert set(done["results"][1]) == {
        "index",
        "type",
        "success",
        "transactionId",
        "messageId",
        "partitionId",
        "queueName",
    }
    assert done["results"][0] == {
        "index": 0,
        "type": "ack",
        "success": True,
        "transactionId": "a",
        "error": None,
        "dlq": False,
    }
    assert await wire.pop() is None
    assert ids(await wire.pop("queue/next/partition/Default")) == ["b"]


@pytest.mark.parametrize("fault", ["message", "lease", "required", "duplicate"])
async def test_a_refused_transaction_leaves_nothing_behind(wire, fault):
    await wire.push(item(1, "a"), item(9, "there", queue="next"))
    popped = await wire.pop()
    [message] = popped["messages"]
    ack = {
        "type": "ack",
        "transactionId": "nix" if fault == "message" else "a",
        "partitionId": message["partitionId"],
        "leaseId": str(uuid4()) if fault == "lease" else message["leaseId"],
    }
    push = {"type": "push", "items": [item(2, "there" if fault == "duplicate" else "b", queue="next")]}
    leases = [message["leaseId"]] + ([str(uuid4())] if fault == "required" else [])
    refused = await wire.transaction(push, ack, leases=leases)
    assert not refused["success"]
    assert refused["error"]
    if fault == "message":
        assert refused["error"] == "ACK operation failed: Message not found"
    assert ids(await wire.pop("queue/next", batch=10)) == ["there"]
    assert (await wire.ack(message))["success"]


async def test_a_transaction_with_an_unknown_operation_is_refused(wire):
    push = {"type": "push", "items": [item(1)]}
    answer = await wire.transaction(push, {"type": "dance", "with": [1]})
    assert (answer["success"], answer["results"], answer["error"]) == (False, [], "Unknown operation type: dance")
    assert UUID(answer["transactionId"])
    assert await wire.pop() is None


async def test_a_transaction_without_operations_or_with_parts_that_are_not_served_is_400(wire):
    for body in ({}, {"operations": []}, {"operations": [{"items": []}]}, {"operations": [], "kv": [1]}):
        answer = await wire.server.post("/api/v1/transaction", json=body)
        assert answer.status_code == 400, answer.text
    push = {"type": "push", "items": [item(1)]}
    answer = await wire.server.post("/api/v1/transaction", json={"operations": [push], "kv": [{"op": "once"}]})
    assert answer.status_code == 400
    assert await wire.pop() is None


async def test_failed_in_a_transaction_follows_the_retry_limit(wire):
    await wire.configure(retryLimit=1, retryDelay=0)
    await wire.push(item(1, "a"))
    for dead in (False, True):
        [message] = (await wire.pop())["messages"]
        ack = {"type": "ack", "transactionId": "a", "partitionId": message["partitionId"], "status": "failed"}
        done = await wire.transaction(ack, leases=[message["leaseId"]])
        assert done["results"][0]["dlq"] == dead


# Configure.


async def test_configure_answers_with_all_options_and_leaves_absent_ones_alone(wire):
    answer = await wire.server.post(
        "/api/v1/configure",
        json={"queue": "q", "namespace": "n", "task": "t", "options": {"leaseTime": 7, "unknown": 1}},
    )
    first = answer.json()
    assert first["configured"] is True
    assert (first["queue"], first["namespace"], first["task"]) == ("q", "n", "t")
    assert UUID(first["queueId"])
    assert UUID(first["partitionId"])
    assert first["options"] == {
        "leaseTime": 7,
        "retryLimit": 3,
        "retryDelay": 1000,
        "priority": 0,
        "delayedProcessing": 0,
        "windowBuffer": 0,
        "maxSize": 0,
        "ttl": 3600,
        "deadLetterQueue": False,
        "dlqAfterMaxRetries": False,
        "encryptionEnabled": False,
        "retentionEnabled": False,
        "retentionSeconds": 0,
        "completedRetentionSeconds": 0,
        "partitionRetentionSeconds": 0,
        "maxWaitTimeSeconds": 0,
        "archiveEnabled": False,
    }
    second = (await wire.server.post("/api/v1/configure", json={"queue": "q", "options": {"retryLimit": 1}})).json()
    assert second["options"] == first["options"] | {"retryLimit": 1}
    assert (second["namespace"], second["task"]) == ("n", "t")
    third = (await wire.server.post("/api/v1/configure", json={"queue": "q"})).json()
    assert third["options"] == second["options"]


@pytest.mark.parametrize(
    "options",
    [{"leaseTime": -1}, {"leaseTime": "5"}, {"leaseTime": 1.5}, {"encryptionEnabled": 1}, {"maxSize": 1 << 40}],
)
async def test_an_option_of_another_type_or_a_negative_number_is_400_and_makes_no_queue(wire, options):
    assert "error" in await wire.configure("q", status=400, **options)
    assert (await wire.server.post("/api/v1/configure", json={"options": {}})).status_code == 400
    assert await wire.pop("queue/q") is None


async def test_a_partition_may_have_options_of_its_own(wire):
    body = {"queue": QUEUE, "partition": "slow", "options": {"delayedProcessing": 100}}
    answer = await wire.server.post("/api/v1/configure", json=body)
    assert answer.json()["options"]["delayedProcessing"] == 100
    body["options"] = {"leaseTime": 7}
    answer = await wire.server.post("/api/v1/configure", json=body)
    assert [answer.json()["options"][name] for name in ("delayedProcessing", "leaseTime")] == [100, 7]
    assert (await wire.configure(retryLimit=1))["options"]["leaseTime"] == 300, "the queue keeps its own"
    await wire.push(item(1, "a"), item(2, "b", partition="slow"))
    assert ids(await wire.pop(batch=5, partitions=5)) == ["a"]


# Credentials.


async def test_with_tokens_roles_decide_and_the_producer_is_the_caller(start):
    server = await start(jwt_secret="x" * 32)
    answer = await server.post("/api/v1/push", json={"items": [item(1)]})
    assert answer.status_code == 401
    assert answer.json() == {"error": "Authentication required"}
    made = await server.post("/v1/tokens", json={"label": "reader", "role": "read-only"}, headers=server.admin)
    reader = {"authorization": f"Bearer {made.json()['token']}"}
    answer = await server.post("/api/v1/push", json={"items": [item(1)]}, headers=reader)
    assert answer.status_code == 403
    assert answer.json() == {"error": "Insufficient permissions"}
    agent = await server.register()
    body = json.dumps({"items": [item(1, "a") | {"producerSub": "forged"}]}).encode()
    answer = await server.send_signed(agent, "POST", "/api/v1/push", body)
    assert answer.status_code == 201, answer.text
    popped = (await server.get(f"/api/v1/pop/queue/{QUEUE}", headers=server.admin)).json()
    assert popped["messages"][0]["producerSub"] == agent.id
