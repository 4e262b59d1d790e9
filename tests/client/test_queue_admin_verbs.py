"""What operators do with queues from Python, on a real server: look, move groups, dead letters, pause, delete."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from angelia import AsyncClient, Client, Denied, InvalidArgument, NotFound, QueueItem, QueueMessage
from angelia.client import event_stream
from live_agents import Person
from lying_proxy import Answer, Asked, Liar, page
from server_process import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.start_url) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> str:
    name = f"q-{secrets.token_hex(4)}"
    client.queues.configure(name, retry_delay=0, retry_limit=0)
    return name


def data(messages: list[QueueMessage]) -> list[object]:
    return [one.data for one in messages]


def fail(client: Client, queue: str, *errors: str, group: str | None = None) -> None:
    """Has a message of its own partition become a dead letter with each error."""
    for number, error in enumerate(errors):
        client.queues.push(queue, number, partition=f"p{number}", transaction_id=f"t{number}")
        client.queues.nack(client.queues.pop(queue, partition=f"p{number}", group=group), error)


# Looking.


def test_queues_are_listed_and_shown(client: Client, queue: str) -> None:
    client.queues.push_many(queue, [QueueItem(payload=n, partition=f"p{n}") for n in range(3)])
    client.queues.pop(queue, group="mailer")
    [listed] = client.queues.list(name=queue).queues
    assert (listed.name, listed.partitions, listed.dead) == (queue, 4, 0)
    shown = client.queues.show(queue)
    assert shown.options["retryLimit"] == 0
    assert [(one.name, one.lag) for one in shown.groups] == [("mailer", 3)]
    assert {one.name: one.stats.total for one in client.queues.partitions(queue)} == {
        "Default": 0,
        "p0": 1,
        "p1": 1,
        "p2": 1,
    }
    assert client.queues.depth(queue, group="mailer").pending == 3
    with pytest.raises(NotFound):
        client.queues.show(f"{queue}-unknown")
    everything = client.queues.overview()
    assert everything.queues >= 1
    assert client.queues.namespaces().namespaces
    assert client.queues.tasks().tasks


def test_messages_are_read_without_being_consumed(client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(5))
    first = client.queues.messages(queue, limit=3)
    rest = client.queues.messages(queue, after=first.next)
    assert data(first.messages) + data(rest.messages) == list(range(5))
    assert data(client.queues.messages(queue, newest=2).messages) == [3, 4]
    assert client.queues.messages(queue, partition="none").messages == []
    assert (first.messages[0].queue, first.messages[0].lease_id) == (queue, "")
    assert data(client.queues.pop(queue, batch=9)) == list(range(5))
    with pytest.raises(NotFound):
        client.queues.messages(f"{queue}-unknown")


def test_a_queue_is_followed_without_being_consumed(client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(3))
    tail = client.queues.tail(queue, newest=2)
    assert data(list(islice(tail, 2))) == [1, 2]
    client.queues.push(queue, 3, partition="other")
    assert next(tail).data == 3
    tail.close()
    assert len(client.queues.pop(queue, batch=9, partitions=9)) == 4


def test_following_goes_on_after_a_fault_and_ends_with_a_refusal(
    client: Client, queue: str, liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.01)
    faults = [503, 429, 502]

    def away(_: Asked) -> Answer:
        answer = page(faults.pop())
        if not faults:
            liar.honest()
        return answer

    client.queues.push(queue, "here")
    with Client(liar.url) as other:
        tail = other.queues.tail(queue, newest=1)
        assert next(tail).data == "here"
        liar.instead("GET", f"/v1/queues/{queue}/messages", away)
        client.queues.push(queue, "after")
        assert next(tail).data == "after"
        tail.close()
        with pytest.raises(NotFound):
            next(other.queues.tail(f"{queue}-unknown"))
    assert faults == []


async def test_a_queue_is_followed_by_an_async_client(server: ServerProcess, client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(2))
    async with AsyncClient(server.start_url) as other:
        seen = []
        async for message in other.queues.tail(queue, newest=2):
            seen.append(message.data)
            if len(seen) == 2:
                break
    assert seen == [0, 1]


def test_a_single_message_is_shown_found_and_deleted(client: Client, queue: str) -> None:
    client.queues.push(queue, {"n": 1}, transaction_id="a/b c")
    [message] = client.queues.messages(queue).messages
    shown = client.queues.message(message.partition_id, "a/b c")
    assert (shown.status, bytes(shown.payload)) == ("pending", b'{"n":1}')
    assert [one.transaction_id for one in client.queues.find(queue=queue, status="pending").messages] == ["a/b c"]
    client.queues.delete_message(message.partition_id, "a/b c")
    with pytest.raises(NotFound):
        client.queues.message(message.partition_id, "a/b c")
    assert client.queues.pop(queue) == []


def test_what_consumers_note_about_a_message_is_found_again(client: Client, queue: str) -> None:
    client.queues.push(queue, 1)
    [message] = client.queues.pop(queue)
    name = f"order-{queue}"
    client.queues.trace(message, {"step": "charged"}, names=[name])
    client.queues.trace(message, "done", event_type="end")
    assert [(one.event_type, bytes(one.data)) for one in client.queues.traces(message)] == [
        ("info", b'{"step":"charged"}'),
        ("end", b'"done"'),
    ]
    with pytest.raises(InvalidArgument):
        client.queues.trace(message, object())
    [named] = client.queues.traces_named(name).traces
    assert (named.queue_name, named.transaction_id) == (queue, message.transaction_id)
    assert name in {one.trace_name for one in client.queues.trace_names(limit=1000).trace_names}


# Dead letters.


def test_dead_letters_are_found_put_back_and_purged(client: Client, queue: str) -> None:
    fail(client, queue, "timeout after 30 s", "timeout after 5 s", "no such file")
    found = client.queues.dead_letters(queue)
    assert found.total == 3
    assert [(one.data, one.error, one.partition) for one in found.letters] == [
        (2, "no such file", "p2"),
        (1, "timeout after 5 s", "p1"),
        (0, "timeout after 30 s", "p0"),
    ]
    assert client.queues.dead_letters(queue, error="timeout*", limit=1).total == 2
    assert client.queues.dead_letters(queue, partition="p2").total == 1
    assert client.queues.dead_letters(queue, group="nobody").total == 0
    hour = timedelta(hours=1)
    assert client.queues.dead_letters(queue, since=datetime.now(UTC) + hour).total == 0
    assert client.queues.dead_letters(queue, until=datetime.now(UTC) + hour).total == 3
    counted = client.queues.requeue_dead_letters(queue, error="timeout*", dry_run=True)
    assert (counted.count, counted.left) == (2, 3)
    done = client.queues.requeue_dead_letters(queue, transaction_id="t0")
    assert (done.count, done.left) == (1, 2)
    assert data(client.queues.pop(queue, partition="p0")) == [0]
    purged = client.queues.purge_dead_letters(queue, error="timeout*")
    assert (purged.count, purged.left) == (1, 1)
    assert client.queues.purge_dead_letters(queue, since=datetime.now(UTC) - hour).left == 0


def test_a_message_that_waits_is_given_up(client: Client, queue: str) -> None:
    client.queues.push(queue, 1, transaction_id="t")
    client.queues.pop(queue, group="g", auto_ack=True)
    client.queues.push(queue, 2, transaction_id="u")
    [_, waits] = client.queues.messages(queue).messages
    client.queues.give_up(waits.partition_id, "u")
    assert {one.transaction_id for one in client.queues.dead_letters(queue).letters} == {"u"}


# Consumer groups.


def test_a_consumer_group_is_moved(client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(3))
    client.queues.ack(client.queues.pop(queue, group="g", batch=2))
    told = client.queues.seek(queue, "beginning", group="g", dry_run=True)
    assert (told.read_again, told.skipped) == (2, 0)
    assert data(client.queues.pop(queue, group="g", batch=9)) == [2]
    client.queues.seek(queue, "beginning", group="g")
    assert data(client.queues.pop(queue, group="g", batch=9)) == [0, 1, 2]
    assert client.queues.seek(queue, "end", group="g").skipped == 3
    assert client.queues.pop(queue, group="g") == []
    client.queues.seek(queue, datetime.now(UTC) - timedelta(hours=1), group="g", partition="Default")
    assert data(client.queues.pop(queue, group="g", batch=9)) == [0, 1, 2]
    client.queues.seek(queue, "beginning")  # of consumers that name no group
    with pytest.raises(NotFound):
        client.queues.seek(f"{queue}-unknown", "end")
    with pytest.raises(InvalidArgument):
        client.queues.seek(queue, "end", partition="Default", dry_run=True)


def test_consumer_groups_are_listed_and_deleted(client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(2))
    client.queues.pop(queue, group="a")
    client.queues.pop(queue, group="b", auto_ack=True)
    assert {one.name: one.total_lag for one in client.queues.groups(queue)} == {"a": 2, "b": 1}
    assert [one.offset_lag for one in client.queues.group("b")[queue].partitions] == [1]
    assert {one.queue_name for one in client.queues.lagging(min_lag_seconds=0)} >= {queue}
    client.queues.delete_group("a", queue)
    assert [one.name for one in client.queues.groups(queue)] == ["b"]
    assert data(client.queues.pop(queue, group="a", batch=9)) == [0, 1], "it starts anew"
    client.queues.delete_group("b")
    client.queues.subscribe_from("a", datetime.now(UTC))


# Queues.


def test_a_queue_is_cleared_and_deleted(client: Client, queue: str) -> None:
    client.queues.push_many(queue, [QueueItem(payload=n, partition=f"p{n}") for n in range(3)])
    assert client.queues.clear(queue, partition="p1").cleared == 1
    assert client.queues.clear(queue).cleared == 2
    assert client.queues.pop(queue, partitions=9) == []
    assert client.queues.delete(queue).existed
    assert not client.queues.delete(queue).existed


def test_an_agent_may_push_and_look_and_an_operator_may_do_the_rest(
    join: Callable[..., Person], client: Client, queue: str, server: ServerProcess
) -> None:
    ann = join("ann", publishes=False)
    queues = ann.client.queues
    queues.push(queue, 1)
    assert queues.show(queue).name == queue
    fail(ann.client, queue, "why")
    queues.requeue_dead_letters(queue)
    for denied in (
        lambda: queues.delete(queue),
        lambda: queues.clear(queue),
        lambda: queues.purge_dead_letters(queue),
        lambda: queues.delete_group("g", queue),
        queues.pause_pops,
        queues.pause_pushes,
    ):
        with pytest.raises(Denied):
            denied()
    token = (server.data_dir / "admin.token").read_text().strip()
    with Client(server.start_url, ann.mailbox, token) as both:
        assert both.queues.delete(queue).existed


def test_the_figures_of_a_time_are_had(client: Client, queue: str) -> None:
    client.queues.push(queue, 1)
    client.queues.refresh()
    assert client.queues.status(queue=queue).messages
    assert client.queues.analytics(queue=queue, interval="minute").interval == "minute"
    for figures in (
        client.queues.activity,
        client.queues.waiting_times,
        client.queues.retention_history,
        client.queues.worker_metrics,
        client.queues.system_metrics,
        client.queues.postgres_stats,
        client.queues.buffers,
        client.queues.maintenance,
    ):
        assert figures() is not None


def test_all_queues_are_paused_and_resumed(server: ServerProcess, client: Client, queue: str, liar: Liar) -> None:
    """Told by a liar, since other tests share the server."""
    pops = {"popMaintenanceMode": True, "message": ""}
    both = pops | {"maintenanceMode": True, "bufferedMessages": 2, "bufferHealthy": True}
    liar.instead("POST", "/api/v1/system/maintenance/pop", Answer(200).saying(pops))
    liar.instead("POST", "/api/v1/system/maintenance", Answer(200).saying(both))
    with Client(liar.url) as other:
        assert other.queues.pause_pops().pop_maintenance_mode
        assert other.queues.resume_pops() is not None
        assert other.queues.pause_pushes().buffered_messages == 2
        assert other.queues.resume_pushes() is not None
    assert [one.json() for one in liar.asked] == [{"enabled": flag} for flag in (True, False, True, False)]
