"""What operators and dashboards send and get over HTTP: status codes, fields, roles, and names of any kind."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from angelia.queues import admin_api, listings_api, listings_store, messages_api, operator_api, statistics_api

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
OPERATIONS = [
    value
    for module in (admin_api, listings_api, messages_api, statistics_api, operator_api)
    for name, value in vars(module).items()
    if name.isupper() and hasattr(value, "path")
]


class Admin:
    """Requests to the admin routes of a server."""

    def __init__(self, server) -> None:
        self.server = server

    async def ask(self, method: str, path: str, expected: int = 200, **how):
        answer = await self.server.request(method, path if path.startswith("/v1") else f"/api/v1/{path}", **how)
        assert answer.status_code == expected, answer.text
        return answer.json()

    async def get(self, path: str, expected: int = 200, **query):
        return await self.ask("GET", path, expected, params=query)

    async def push(self, *payloads, queue="orders", partition="Default", ids=None):
        items = [
            {"queue": queue, "partition": partition, "payload": payload}
            | ({} if ids is None else {"transactionId": ids[number]})
            for number, payload in enumerate(payloads)
        ]
        return await self.ask("POST", "push", 201, json={"items": items})

    async def pop(self, queue="orders", **query):
        answer = await self.server.get(f"/api/v1/pop/queue/{queue}", params={"batch": 100, **query})
        return answer.json()["messages"] if answer.status_code == 200 else []

    async def ack(self, messages, status="completed", error=None):
        for one in messages:
            body = {name: one[name] for name in ("transactionId", "partitionId", "leaseId", "consumerGroup")}
            await self.ask("POST", "ack", json=body | {"status": status, "error": error})


@pytest.fixture
async def admin(start) -> Admin:
    return Admin(await start())


async def test_queues_partitions_and_totals_have_the_fields_that_clients_know(admin: Admin) -> None:
    await admin.push(1, 2)
    await admin.pop(batch=1)
    (queue,) = (await admin.get("resources/queues"))["queues"]
    assert set(queue) == {"id", "name", "namespace", "task", "createdAt", "partitions", "messages"}
    assert queue["messages"] == {"total": 2, "pending": 1, "processing": 1, "evicted": 0}
    assert STAMP.fullmatch(queue["createdAt"])
    shown = await admin.get("resources/queues/orders")
    stats = {"total": 2, "pending": 1, "processing": 1, "completed": 0, "failed": 0, "deadLetter": 0, "evicted": 0}
    assert (shown["totals"], shown["partitions"][0]["stats"]) == (stats, stats)
    assert STAMP.fullmatch(shown["partitions"][0]["oldestMessage"])
    assert (await admin.get("resources/partitions", queue="orders"))["partitions"] == shown["partitions"]
    assert await admin.get("resources/queues/nothing", 404) == {"error": "Queue not found"}
    namespaces = (await admin.get("resources/namespaces"))["namespaces"]
    assert namespaces == [{"namespace": "orders", "queues": 1, "partitions": 1, "messages": {"total": 2, "pending": 1}}]
    assert (await admin.get("resources/tasks"))["tasks"][0]["task"] == ""


async def test_the_overview_has_the_fields_that_clients_know(admin: Admin) -> None:
    await admin.push(1)
    seen = await admin.get("resources/overview")
    assert (seen["queues"], seen["partitions"], seen["messages"]["total"]) == (1, 1, 1)
    assert set(seen["lag"]["time"]) == set(seen["lag"]["offset"]) == {"avg", "max", "min", "median"}
    assert set(seen["throughput"]) == {"ingestedPerSecond", "processedPerSecond"}
    assert seen["statsAge"] >= 0
    await admin.push(2)
    assert (await admin.ask("POST", "stats/refresh"))["success"] is True
    assert (await admin.get("resources/overview"))["messages"]["total"] == 2


async def test_numbers_that_cannot_be_read_are_their_defaults(admin: Admin) -> None:
    for number in range(3):
        await admin.push(number, queue=f"queue {number}")
    assert len((await admin.get("resources/queues", limit="many", offset="x"))["queues"]) == 3
    assert len((await admin.get("resources/queues", limit="1", offset="1"))["queues"]) == 1
    assert (await admin.get("dlq", limit="-5"))["pagination"] == {"limit": 1, "offset": 0}
    assert (await admin.get("status/queues", limit=2))["pagination"] == {"limit": 2, "offset": 0}


async def test_names_with_slashes_blanks_and_other_letters_are_found(admin: Admin) -> None:
    name, group, id_ = "a/b c%/ü", "für/g 1", "order/1/retry 2?"
    (sent,) = await admin.push(1, queue=name, partition="p/q", ids=[id_])
    for path in ("a/b%20c%25/%C3%BC", "a%2Fb%20c%25%2F%C3%BC"):
        assert (await admin.get(f"resources/queues/{path}"))["name"] == name
        assert (await admin.get(f"resources/queues/{path}/depth"))["pending"] == 1
        assert (await admin.get(f"status/queues/{path}"))["queue"]["name"] == name
        assert (await admin.get(f"/v1/queues/{path}"))["name"] == name
    place = f"messages/{sent['partition_id']}"
    for path in ("order/1/retry%202%3F", "order%2F1%2Fretry%202%3F"):
        assert (await admin.get(f"{place}/{path}"))["transactionId"] == id_
    assert (await admin.ask("POST", f"{place}/order/1/retry%202%3F/dlq"))["transactionId"] == id_
    assert (await admin.ask("POST", f"{place}/order/1/retry%202%3F/retry"))["transactionId"] == id_
    seek = "consumer-groups/f%C3%BCr/g%201/queues/a/b%20c%25/%C3%BC/seek"
    assert (await admin.ask("POST", seek, json={"toEnd": True}))["consumerGroup"] == group
    assert list(await admin.get("consumer-groups/f%C3%BCr/g%201")) == [name]
    assert (await admin.ask("DELETE", "consumer-groups/f%C3%BCr/g%201/queues/a/b%20c%25/%C3%BC"))["success"] is True
    assert (await admin.ask("DELETE", "resources/queues/a/b%20c%25/%C3%BC"))["existed"] is True


async def test_a_seek_says_where_it_went_and_needs_to_know_where(admin: Admin) -> None:
    await admin.push(1, 2)
    await admin.ack(await admin.pop(consumerGroup="g"))
    path = "consumer-groups/g/queues/orders/seek"
    assert "error" in await admin.ask("POST", path, 400)
    assert "error" in await admin.ask("POST", path, 400, json={"timestamp": "yesterday"})
    trial = await admin.ask("POST", path, json={"timestamp": "2020-01-01", "dryRun": True})
    assert (trial["partitionsUpdated"], trial["readAgain"], trial["skipped"]) == (0, 2, 0)
    assert await admin.pop(consumerGroup="g") == []
    done = await admin.ask("POST", path, json={"timestamp": "2020-01-01T00:00:00Z"})
    assert done == {
        "success": True,
        "consumerGroup": "g",
        "queueName": "orders",
        "seekToEnd": False,
        "targetTimestamp": "2020-01-01T00:00:00.000Z",
        "partitionsUpdated": 1,
        "readAgain": 2,
        "skipped": 0,
    }
    assert len(await admin.pop(consumerGroup="g")) == 2
    one = await admin.ask("POST", "consumer-groups/g/queues/orders/partitions/Default/seek")
    assert (one["partitionName"], one["updated"], one["cursorMovedTo"]) == ("Default", True, 2)
    await admin.ask("POST", "consumer-groups/g/queues/nothing/seek", 404, json={"toEnd": True})


async def test_a_seek_in_one_partition_goes_to_the_end_or_to_a_time(admin: Admin) -> None:
    await admin.push(1, 2)
    path = "consumer-groups/g/queues/orders/partitions/Default/seek"
    begin = {"timestamp": "2020-01-01T00:00:00Z"}
    for body, position in (
        ({}, 2),
        (begin, 0),
        ({"toEnd": True}, 2),
        ({"toEnd": False} | begin, 0),
        ({"toEnd": True} | begin, 2),
    ):
        assert (await admin.ask("POST", path, json=body))["cursorMovedTo"] == position, body
    await admin.ask("POST", path, json=begin)
    refused = await admin.ask("POST", path, 400, json={"toEnd": False})
    assert "no timestamp" in refused["error"]
    assert len(await admin.pop(consumerGroup="g")) == 2, "nothing was moved"


async def test_whether_a_group_exists_is_found_without_the_lags_of_all_groups(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.push(1)
    await admin.pop(consumerGroup="g")
    monkeypatch.delattr(listings_store, "groups")
    assert await admin.get("consumer-groups/nobody", 404) == {"error": "Consumer group not found"}
    assert list(await admin.get("consumer-groups/g")) == ["orders"]


async def test_groups_have_the_fields_that_clients_know(admin: Admin) -> None:
    await admin.push(1, 2)
    await admin.pop(consumerGroup="g", batch=1)
    (group,) = await admin.get("consumer-groups")
    assert set(group) == {
        "name", "queueName", "topics", "members", "totalLag", "maxTimeLag", "partitionsWithLag", "state",
        "subscriptionMode", "subscriptionTimestamp", "subscriptionCreatedAt",
    }  # fmt: skip
    (partition,) = (await admin.get("consumer-groups/g"))["orders"]["partitions"]
    assert (partition["leaseActive"], partition["offsetLag"], partition["totalConsumed"]) == (True, 2, 0)
    (behind,) = await admin.get("consumer-groups/lagging", minLagSeconds=0)
    assert set(behind) == {
        "consumer_group", "queue_name", "partition_name", "partition_id", "worker_id", "offset_lag",
        "time_lag_seconds", "lag_hours", "oldest_unconsumed_at", "last_consumed_at",
    }  # fmt: skip
    assert await admin.get("consumer-groups/lagging") == []
    await admin.get("consumer-groups/nobody", 404)
    body = {"subscriptionTimestamp": "2026-01-01T00:00:00Z"}
    assert (await admin.ask("POST", "consumer-groups/g/subscription", json=body))["rowsUpdated"] == 1
    assert (await admin.ask("POST", "consumer-groups/g/subscription", 400, json={}))["error"]
    again = await admin.ask("DELETE", "consumer-groups/g?deleteMetadata=false")
    assert (again["metadataDeleted"], again["deletedPartitions"]) == (False, 1)
    gone = await admin.ask("DELETE", "consumer-groups/g")
    assert (gone["success"], gone["metadataDeleted"]) == (True, True)
    assert await admin.get("consumer-groups") == []


async def test_messages_are_listed_shown_moved_and_deleted(admin: Admin) -> None:
    sent = await admin.push({"n": 1}, {"n": 2}, {"n": 3}, ids=["a", "b", "c"])
    place = f"messages/{sent[0]['partition_id']}"
    listed = await admin.get("messages", queue="orders")
    assert [one["transactionId"] for one in listed["messages"]] == ["c", "b", "a"]
    assert listed["mode"] == {"hasQueueMode": False, "busGroupsCount": 0, "type": "none"}
    assert len((await admin.get("messages", ns="orders", status="pending"))["messages"]) == 3
    await admin.get("messages", 400, status="lost")
    await admin.get("messages", 400, **{"from": "now"})
    shown = await admin.get(f"{place}/b")
    assert (shown["payload"], shown["status"], shown["isEncrypted"], shown["consumerGroups"]) == (
        {"n": 2}, "pending", False, [],
    )  # fmt: skip
    assert await admin.ask("POST", f"{place}/b/dlq") == {
        "success": True, "partitionId": sent[0]["partition_id"], "transactionId": "b",
    }  # fmt: skip
    assert (await admin.ask("POST", f"{place}/b/retry"))["success"] is True
    assert await admin.ask("POST", f"{place}/b/retry", 404) == {"error": "Message not found"}
    assert (await admin.ask("DELETE", f"{place}/a"))["success"] is True
    assert await admin.get(f"{place}/a", 404) == {"error": "Message not found"}
    await admin.get("messages/no-id/a", 404)
    await admin.get(f"messages/{uuid4()}/a", 404)
    assert [one["data"]["n"] for one in await admin.pop()] == [3, 2]
    assert [one["queuePath"] for one in await admin.get("status/queues/orders/messages", limit=1)] == ["orders/Default"]


async def test_dead_letters_have_the_fields_that_clients_know(admin: Admin) -> None:
    await admin.push({"n": 1}, ids=["a"])
    await admin.ack(await admin.pop(consumerGroup="g"), "dlq", "no such customer")
    page = await admin.get("dlq", queue="orders", partition="Default")
    (letter,) = page["messages"]
    assert set(letter) == {
        "id", "transactionId", "traceId", "partitionId", "queue", "partition", "consumerGroup", "errorMessage",
        "retryCount", "data", "producerSub", "createdAt", "failedAt",
    }  # fmt: skip
    assert (letter["data"], letter["errorMessage"]) == ({"n": 1}, "no such customer")
    assert (page["total"], page["pagination"]) == (1, {"limit": 100, "offset": 0})
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    for query, total in (
        ({"to": hour_ago}, 0),
        ({"from": hour_ago}, 1),
        ({"error": "no*"}, 1),
        ({"partition": "b"}, 0),
    ):
        assert (await admin.get("dlq", **query))["total"] == total, query


async def test_dead_letters_are_put_back_and_purged_under_v1(admin: Admin) -> None:
    await admin.push(1, 2, 3)
    await admin.ack(await admin.pop(batch=1), "dlq", "timeout 1")
    await admin.ack(await admin.pop(batch=1), "dlq", "timeout 2")
    await admin.ack(await admin.pop(batch=1), "dlq", "refused")
    path = "/v1/queues/orders/dead-letters"
    wanted = {"error": "timeout*", "dry_run": True}
    assert await admin.ask("POST", f"{path}/purge", json=wanted) == {"count": 2, "left": 3}
    assert await admin.ask("POST", f"{path}/purge", json={"error": "timeout*"}) == {"count": 2, "left": 1}
    assert await admin.ask("POST", f"{path}/requeue", json={}) == {"count": 1, "left": 0}
    assert [one["data"] for one in await admin.pop()] == [3]
    assert (await admin.ask("POST", "/v1/queues/nothing/dead-letters/purge", 404, json={}))["code"] == "not_found"


async def test_traces_are_noted_and_found(admin: Admin) -> None:
    (sent,) = await admin.push({"n": 1}, ids=["a"])
    body = {
        "transactionId": "a",
        "partitionId": sent["partition_id"],
        "consumerGroup": None,
        "traceNames": ["x/y"],
        "data": {},
    }
    noted = await admin.ask("POST", "traces", 201, json=body | {"eventType": "done"})
    assert noted["success"] is True
    (one,) = (await admin.get(f"traces/{sent['partition_id']}/a"))["traces"]
    assert (one["id"], one["event_type"], one["consumer_group"]) == (noted["traceId"], "done", "__QUEUE_MODE__")
    named = await admin.get("traces/by-name/x/y")
    assert (named["total"], named["traces"][0]["message_payload"]) == (1, {"n": 1})
    (name,) = (await admin.get("traces/names"))["trace_names"]
    assert (name["trace_name"], name["trace_count"], name["message_count"]) == ("x/y", 1, 1)
    for missing in ("transactionId", "partitionId", "data"):
        await admin.ask("POST", "traces", 400, json={key: value for key, value in body.items() if key != missing})
    await admin.ask("POST", "traces", 404, json=body | {"transactionId": "b"})


async def test_maintenance_is_switched_and_shown(admin: Admin) -> None:
    assert (await admin.get("system/maintenance"))["maintenanceMode"] is False
    on = await admin.ask("POST", "system/maintenance", json={"enabled": True})
    assert (on["maintenanceMode"], on["popMaintenanceMode"], on["bufferHealthy"]) == (True, False, True)
    (result,) = await admin.push(1)
    assert result["status"] == "buffered"
    assert (await admin.get("status/buffers"))["pending"] == 1
    off = await admin.ask("POST", "system/maintenance", json={"enabled": False})
    assert (off["maintenanceMode"], off["bufferedMessages"]) == (False, 0)
    assert (await admin.ask("POST", "system/maintenance/pop", json={"enabled": True}))["popMaintenanceMode"] is True
    assert await admin.pop() == []
    assert (await admin.ask("POST", "system/maintenance/pop", json={"enabled": False}))["popMaintenanceMode"] is False
    assert [one["data"] for one in await admin.pop()] == [1]
    assert "error" in await admin.ask("POST", "system/maintenance", 400)


async def test_status_and_statistics_have_the_fields_that_clients_know(admin: Admin) -> None:
    await admin.push(1)
    status = await admin.get("status")
    assert set(status) == {
        "timeRange", "throughput", "messages", "leases", "deadLetterQueue", "errors", "queues", "workers",
        "bucketMinutes", "pointCount", "statsAge",
    }  # fmt: skip
    detail = await admin.get("status/queues/orders")
    assert (set(detail), detail["queue"]["config"]["retryLimit"]) == ({"queue", "totals", "partitions"}, 3)
    analytics = await admin.get("status/analytics", interval="minute")
    assert set(analytics) == {"from", "to", "interval", "dataPoints"}
    assert len(analytics["dataPoints"]) in (1440, 1441)
    await admin.get("status/analytics", 400, interval="year")
    await admin.get("status", 400, **{"from": "2026-01-02", "to": "2026-01-01"})
    for name in ("system-metrics", "worker-metrics", "queue-lag", "queue-ops", "retention", "postgres-stats"):
        assert await admin.get(f"analytics/{name}") is not None


async def test_queues_are_listed_under_v1_page_by_page(admin: Admin) -> None:
    for name in ("orders", "orders.email", "invoices"):
        await admin.push(1, queue=name)
    first = await admin.get("/v1/queues", limit=2)
    assert ([one["name"] for one in first["queues"]], first["total"]) == (["invoices", "orders"], 3)
    second = await admin.get("/v1/queues", limit=2, cursor=first["next"])
    assert ([one["name"] for one in second["queues"]], second["next"]) == (["orders.email"], None)
    assert set(second["queues"][0]) == {
        "name", "namespace", "task", "state", "pending", "leased", "dead", "in_per_second", "out_per_second",
        "lag_seconds", "partitions", "created_at",
    }  # fmt: skip
    assert [one["name"] for one in (await admin.get("/v1/queues", name="orders."))["queues"]] == ["orders.email"]
    assert (await admin.get("/v1/queues", 400, cursor="?"))["code"] == "invalid_argument"
    shown = await admin.get("/v1/queues/orders")
    assert (shown["pending"], shown["state"], shown["options"]["leaseTime"], shown["groups"]) == (1, "ok", 300, [])
    assert (await admin.get("/v1/queues/nothing", 404))["code"] == "not_found"


async def test_messages_are_read_under_v1_without_a_lease(admin: Admin) -> None:
    await admin.push(1, 2, 3)
    first = await admin.get("/v1/queues/orders/messages", limit=2)
    assert [one["data"] for one in first["messages"]] == [1, 2]
    second = await admin.get("/v1/queues/orders/messages", after=first["next"])
    assert [one["data"] for one in second["messages"]] == [3]
    newest = await admin.get("/v1/queues/orders/messages", newest=1)
    assert [one["data"] for one in newest["messages"]] == [3]
    third = await admin.get("/v1/queues/orders/messages", after=newest["next"], wait=0.1)
    assert third["messages"] == []
    assert len(await admin.pop()) == 3
    await admin.get("/v1/queues/nothing/messages", 404)
    await admin.get("/v1/queues/orders/messages", 400, after="x")


def test_each_operation_asks_for_its_role() -> None:
    roles = {f"{one.method} {one.path}": one.access.name for one in OPERATIONS}
    assert all(role == "READ" for call, role in roles.items() if call.startswith("GET"))
    assert {call for call, role in roles.items() if role == "ADMIN"} == {
        "DELETE /api/v1/resources/queues/{queue}",
        "DELETE /api/v1/queues/{queue}/clear",
        "DELETE /api/v1/consumer-groups/{group}",
        "DELETE /api/v1/consumer-groups/{group}/queues/{queue}",
        "DELETE /api/v1/messages/{partition}/{transaction}",
        "POST /api/v1/stats/refresh",
        "POST /api/v1/system/maintenance",
        "POST /api/v1/system/maintenance/pop",
        "POST /v1/queues/{queue}/dead-letters/purge",
    }
    assert all(one.open_locally for one in OPERATIONS)
