"""Consumers on a real server: leases are kept, order is kept, and no message is lost or handled twice."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager

import pytest

from angelia import (
    Agent,
    AsyncAgent,
    AsyncClient,
    Client,
    InvalidArgument,
    QueueItem,
    QueueMessage,
    QueueTransaction,
)
from angelia.client import event_stream, queue_consumer
from client.recorder import Recorder
from client.test_event_loop import watched
from live_agents import Person
from lying_proxy import Answer, Asked, Liar, page
from server_process import ServerProcess

SOON = 20.0  # seconds, after which a test fails that waits for something


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


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(queue_consumer, "PAUSE", 0.02)


class Handled:
    """What handlers were given, in order; other threads wait for it."""

    def __init__(self) -> None:
        self.messages: list[QueueMessage] = []
        self._changed = threading.Condition()

    def __call__(self, message: QueueMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    @property
    def data(self) -> list[object]:
        return [one.data for one in self.messages]

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.messages) >= count, SOON), self.data

    def wait_for(self, data: object) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: data in self.data, SOON), self.data


@contextmanager
def serving(url: str, queue: str, handler: Callable[[QueueMessage], object], **options: object) -> Iterator[None]:
    """A consumer in a thread, which is stopped at the end."""
    stop, failed = threading.Event(), list[BaseException]()

    def serve() -> None:
        try:
            with Client(url) as client:
                client.queues.serve(queue, handler, stop=stop, **options)  # type: ignore[arg-type]
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert failed == []


def left(client: Client, queue: str, **options: str) -> list[object]:
    """What a consumer would be given now; it is given back."""
    messages = client.queues.pop(queue, batch=1000, partitions=100, **options)  # type: ignore[arg-type]
    client.queues.retry(messages)
    return [one.data for one in messages]


# Loops.


def test_a_message_is_completed_when_the_loop_asks_for_the_next(client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(3))
    seen = []
    for message in client.queues.consume(queue):
        seen.append(message.data)
        if message.data == 2:
            break
    assert seen == [0, 1, 2]
    assert left(client, queue) == [2]


def test_a_loop_that_breaks_down_gives_back_the_message_in_hand_and_all_behind_it(client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(4))

    def consume() -> None:
        for message in client.queues.consume(queue):
            assert 1 / (message.data - 1)  # the second one breaks it

    with pytest.raises(ZeroDivisionError):
        consume()
    assert left(client, queue) == [1, 2, 3]


def test_the_last_message_is_done_with_if_the_loop_settles_it(client: Client, queue: str) -> None:
    client.queues.configure(queue, retry_limit=0)
    client.queues.push_many(queue, range(4))
    for message in client.queues.consume(queue):
        if message.data == 0:
            client.queues.nack(message, "no good")  # at once a dead letter; what is behind it comes again
        if message.data == 1:
            client.queues.dead_letter(message, "no good either")
        if message.data == 2:
            client.queues.ack(message)
            break
    assert left(client, queue) == [3]


def test_a_consumer_group_has_a_loop_of_its_own(client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(2))
    for group in ("mailer", "archive"):
        loop = client.queues.consume(queue, group=group)
        assert [next(loop).data, next(loop).data] == [0, 1]
        loop.close()
        assert left(client, queue, group=group) == [1]


def test_a_loop_waits_for_messages(client: Client, queue: str) -> None:
    loop = client.queues.consume(queue)
    pushing = threading.Timer(0.2, lambda: client.queues.push(queue, "late"))
    pushing.start()
    assert next(loop).data == "late"
    loop.close()
    pushing.join()


def test_closing_the_agent_ends_its_loops(join: Callable[..., Person], client: Client, queue: str) -> None:
    bob = join("bob", publishes=False)
    client.queues.push_many(queue, range(2))
    with Agent.open(bob.name, home=bob.home, url=bob.url) as agent:
        loop = agent.queues.consume(queue)
        assert next(loop).data == 0
    assert left(client, queue) == [0, 1]
    with pytest.raises(StopIteration):
        next(loop)


def test_a_loop_of_an_async_client(server: ServerProcess, client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(3))

    async def consume() -> list[object]:
        seen = []
        async with AsyncClient(server.start_url) as other, aclosing(other.queues.consume(queue)) as loop:
            async for message in loop:
                seen.append(message.data)
                if len(seen) == 2:
                    break
        return seen

    assert asyncio.run(consume()) == [0, 1]
    assert left(client, queue) == [1, 2]


def test_a_loop_that_is_left_or_cancelled_gives_back_even_if_it_is_never_closed(
    server: ServerProcess, client: Client, queue: str
) -> None:
    client.queues.push_many(queue, range(2))

    async def consume(ready: asyncio.Event) -> None:
        async with AsyncClient(server.start_url) as other:
            async for _ in other.queues.consume(queue):
                ready.set()
                await asyncio.sleep(60)

    async def cancel() -> None:
        ready = asyncio.Event()
        task = asyncio.create_task(consume(ready))
        await ready.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert left(client, queue) == [0, 1]


# Handlers.


def test_a_message_is_completed_when_the_handler_returns(server: ServerProcess, client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(20))
    handled = Handled()
    with serving(server.start_url, queue, handled):
        handled.wait(20)
    assert handled.data == list(range(20))
    assert left(client, queue) == []


def test_a_message_failed_if_its_handler_raises_and_those_behind_it_wait_for_it(
    server: ServerProcess, client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.queues.configure(queue, retry_limit=2)
    client.queues.push_many(queue, ["bad", "good"])
    handled = Handled()

    def handler(message: QueueMessage) -> None:
        handled(message)
        if message.data == "bad":
            raise ValueError("no such file")

    with caplog.at_level(logging.ERROR, "angelia.queues"), serving(server.start_url, queue, handler):
        handled.wait(4)
    assert handled.data == ["bad", "bad", "bad", "good"]
    assert left(client, queue) == []
    assert "ValueError: no such file" in caplog.text


def test_a_failure_is_told_in_its_words(recorder: Recorder) -> None:
    message = {
        "id": "1", "transactionId": "t", "queue": "q", "partition": "Default", "data": 1, "leaseId": "lease",
        "partitionId": "p", "createdAt": "2026-11-15T20:14:02Z", "consumerGroup": "g",
    }  # fmt: skip
    recorder.tell("GET", "/api/v1/pop/queue/q", {"messages": [message], "leaseId": "lease"})
    recorder.tell("GET", "/api/v1/pop/queue/q", status=204)
    record = {"index": 0, "transactionId": "t", "success": True, "error": None, "queueName": "q"}
    more = {"partitionName": "Default", "leaseReleased": True, "dlq": False}
    recorder.tell("POST", "/api/v1/ack/batch", [record | more])
    failed = threading.Event()

    def handler(message: QueueMessage) -> None:
        failed.set()
        raise KeyError("x" * 5000)

    with serving(recorder.url, "q", handler, group="g"):
        assert failed.wait(SOON)
    [ack] = recorder.asked("POST", "/api/v1/ack/batch")
    [told] = ack.json()["acknowledgments"]
    assert (told["status"], told["leaseId"], ack.json()["consumerGroup"]) == ("failed", "lease", "g")
    assert told["error"].startswith("KeyError: 'xxx")
    assert len(told["error"]) == queue_consumer.LONGEST_ERROR


def test_an_exception_whose_text_is_no_unicode_or_cannot_be_made_fails_its_message_alone(
    server: ServerProcess, client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "angelia.queues")  # pytest's workers cannot send such a text either

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    failures = {"file": FileNotFoundError(os.fsdecode(b"caf\xe9.txt")), "mute": Mute()}
    client.queues.configure(queue, retry_limit=0)
    client.queues.push_many(queue, ["file", "mute", "good"])
    handled = Handled()

    def handler(message: QueueMessage) -> None:
        if message.data in failures:
            raise failures[message.data]
        handled(message)

    with serving(server.start_url, queue, handler):
        handled.wait_for("good")
    assert {one.data: one.error for one in client.queues.dead_letters(queue).letters} == {
        "file": r"FileNotFoundError: caf\udce9.txt",
        "mute": "Mute: its text cannot be made",
    }
    assert left(client, queue) == []


def test_a_handler_may_settle_its_message_itself(server: ServerProcess, client: Client, queue: str) -> None:
    done = f"{queue}-done"
    client.queues.push_many(queue, ["move", "back", "end"])
    handled, backs = Handled(), []

    def handler(message: QueueMessage) -> None:
        if message.data == "move":
            client.queues.commit(QueueTransaction().ack(message).push(done, "moved"))
        elif message.data == "back" and not backs:
            backs.append(client.queues.retry(message))
        handled(message)

    with serving(server.start_url, queue, handler):
        handled.wait(4)
    assert handled.data == ["move", "back", "back", "end"]
    assert left(client, queue) == []
    assert left(client, done) == ["moved"]


def test_as_many_partitions_are_worked_on_as_the_concurrency_says(server: ServerProcess, queue: str) -> None:
    with Client(server.start_url) as client:
        client.queues.push_many(queue, [QueueItem(payload=n, partition=f"p{n % 6}") for n in range(24)])
    together, lock, handled = threading.Barrier(4), threading.Lock(), Handled()
    running: set[str] = set()
    most = []

    def handler(message: QueueMessage) -> None:
        with lock:
            assert message.partition not in running, "two messages of one partition at a time"
            running.add(message.partition)
            most.append(len(running))
            is_early = len(most) <= 4
        if is_early:
            together.wait(SOON)  # passed only by four handlers at a time
        with lock:
            running.remove(message.partition)
        handled(message)

    with serving(server.start_url, queue, handler, concurrency=4, batch=5):
        handled.wait(24)
    assert max(most) == 4
    assert sorted(handled.data) == list(range(24))  # type: ignore[type-var]


def test_consumers_share_partitions_and_each_message_is_handled_once_and_in_order(
    server: ServerProcess, client: Client, queue: str
) -> None:
    items = [QueueItem(payload=[f"p{n % 7}", n], partition=f"p{n % 7}") for n in range(350)]
    client.queues.push_many(queue, items[:200])
    handled, by = Handled(), defaultdict[str, int](int)

    def handler_of(name: str) -> Callable[[QueueMessage], None]:
        def handler(message: QueueMessage) -> None:
            by[name] += 1
            handled(message)

        return handler

    options = {"group": "workers", "concurrency": 3, "batch": 4}
    with (
        serving(server.start_url, queue, handler_of("a"), **options),
        serving(server.start_url, queue, handler_of("b"), **options),
    ):
        client.queues.push_many(queue, items[200:])
        handled.wait(350)
    assert len(handled.messages) == 350
    for partition in {one.partition for one in handled.messages}:
        numbers = [one.data[1] for one in handled.messages if one.partition == partition]
        assert numbers == sorted(numbers)
    assert set(by) == {"a", "b"}
    assert left(client, queue, group="workers") == []


# Leases.


@pytest.mark.parametrize("told", [True, False])
def test_a_lease_is_extended_while_the_handler_runs(
    server: ServerProcess, client: Client, queue: str, liar: Liar, told: bool
) -> None:
    if not told:  # as by a server that says nothing of the lease time

        def silent(_: Asked, answer: Answer) -> Answer:
            if answer.status == 204:
                return answer
            return answer.saying({name: value for name, value in answer.json().items() if name != "leaseSeconds"})

        liar.lie("GET", f"/api/v1/pop/queue/{queue}", silent)
    client.queues.configure(queue, lease_time=1)
    client.queues.push_many(queue, range(3))
    handled, work = Handled(), threading.Event()

    def handler(message: QueueMessage) -> None:
        handled(message)
        work.wait(SOON)

    with serving(server.start_url if told else liar.url, queue, handler):
        handled.wait(1)
        assert client.queues.pop(queue, wait=2.5) == [], "another consumer gets nothing, for longer than the lease time"
        work.set()
        handled.wait(3)
    assert handled.data == [0, 1, 2]
    assert left(client, queue) == []


def test_after_a_lost_lease_the_messages_behind_it_are_left_to_others(
    server: ServerProcess, client: Client, queue: str, liar: Liar
) -> None:
    lost = {"leaseId": "", "success": False, "renewed": 0, "error": "Lease not found"}
    ends = dict.fromkeys(("newExpiresAt", "expiresAt", "lease_expires_at"))
    liar.lie("POST", "/api/v1/lease/.*", lambda _, answer: answer.saying(lost | ends))
    client.queues.configure(queue, lease_time=1)
    client.queues.push_many(queue, range(3))
    slow, work, handled = Handled(), threading.Event(), Handled()

    def handler(message: QueueMessage) -> None:
        slow(message)
        work.wait(SOON)

    with serving(liar.url, queue, handler, concurrency=1):  # so that it claims nothing meanwhile
        slow.wait(1)
        with serving(server.start_url, queue, handled):
            handled.wait(3)
        work.set()
    assert (slow.data, handled.data) == ([0], [0, 1, 2])


def test_a_process_that_is_killed_loses_nothing(server: ServerProcess, client: Client, queue: str) -> None:
    client.queues.configure(queue, lease_time=1)
    client.queues.push_many(queue, range(3))
    script = (
        "import sys, time\n"
        "from angelia import Client\n"
        "for message in Client(sys.argv[1]).queues.consume(sys.argv[2]):\n"
        "    print(message.data, flush=True)\n"
        "    if message.data == 1: time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, server.start_url, queue], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
    child.kill()
    child.communicate()
    handled = Handled()
    with serving(server.start_url, queue, handled):
        handled.wait_for(2)
    assert handled.data in ([1, 2], [0, 1, 2]), "its last acknowledgment may not have been on its way yet"


# The end.


def test_to_stop_is_to_finish_what_is_in_hand_and_to_give_back_the_rest(
    server: ServerProcess, client: Client, queue: str
) -> None:
    client.queues.configure(queue, retry_limit=0)
    client.queues.push_many(queue, [QueueItem(payload=n, partition=f"p{n % 2}") for n in range(6)])
    handled, work, stop = Handled(), threading.Event(), threading.Event()

    def handler(message: QueueMessage) -> None:
        handled(message)
        work.wait(SOON)

    with Client(server.start_url) as other:
        options = {"concurrency": 2, "batch": 6, "stop": stop}
        thread = threading.Thread(target=other.queues.serve, args=(queue, handler), kwargs=options)
        thread.start()
        handled.wait(2)
        stop.set()
        assert client.queues.pop(queue, wait=0.5) == [], "nothing is given back that is in hand"
        work.set()
        thread.join(SOON)
    assert sorted(handled.data) == [0, 1]  # type: ignore[type-var]
    assert sorted(left(client, queue)) == [2, 3, 4, 5]  # type: ignore[type-var]


def test_a_handler_that_does_not_end_in_time_is_cancelled_and_its_message_given_back(
    server: ServerProcess, client: Client, queue: str
) -> None:
    client.queues.configure(queue, retry_limit=0)
    client.queues.push_many(queue, range(2))
    cancelled = []

    async def serve() -> None:
        begun, stop = asyncio.Event(), asyncio.Event()

        async def handler(message: QueueMessage) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(message.data)
                raise

        async with AsyncClient(server.start_url) as other:
            task = asyncio.create_task(other.queues.serve(queue, handler, stop=stop, grace=0.1))
            await begun.wait()
            stop.set()
            await task

    asyncio.run(serve())
    assert cancelled == [0]
    assert left(client, queue) == [0, 1]


def test_a_task_that_is_cancelled_lets_its_handlers_finish(server: ServerProcess, client: Client, queue: str) -> None:
    client.queues.push_many(queue, range(2))
    finished = []

    async def serve() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def handler(message: QueueMessage) -> None:
            begun.set()
            await goes_on.wait()
            finished.append(message.data)

        async with AsyncClient(server.start_url) as other:
            task = asyncio.create_task(other.queues.serve(queue, handler))
            await begun.wait()
            task.cancel()
            asyncio.get_running_loop().call_later(0.1, goes_on.set)
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(serve())
    assert finished == [0]
    assert left(client, queue) == [1]


def test_messages_that_arrive_while_a_consumer_stops_are_given_back(
    client: Client, queue: str, liar: Liar, server: ServerProcess
) -> None:
    """The pop was answered, and the answer is on its way when the consumer stops."""
    client.queues.push(queue, 1)
    handled, stop = Handled(), threading.Event()

    def answered(_: Asked, answer: Answer) -> Answer:
        if answer.status == 200:
            stop.set()
        return answer

    liar.lie("GET", f"/api/v1/pop/queue/{queue}", answered)
    with Client(liar.url) as other:
        other.queues.serve(queue, handled, stop=stop)
    assert handled.data + left(client, queue) == [1]


# Faults.


def test_a_server_that_is_away_is_waited_for_and_nothing_is_handled_twice(
    client: Client, queue: str, liar: Liar, short_pauses: None
) -> None:
    pops, acks = [429, 502, 503, 500], [503, 502, 429]

    def in_turn(path: str, refusals: list[int]) -> Callable[[Asked], Answer]:
        def answer(_: Asked) -> Answer:
            refusal = page(refusals.pop())
            if not refusals:
                liar._instead[:] = [one for one in liar._instead if one[1].pattern != path]
            return refusal

        return answer

    popped, acked = f"/api/v1/pop/queue/{queue}", "/api/v1/ack/batch"
    liar.instead("GET", popped, in_turn(popped, pops))
    liar.instead("POST", acked, in_turn(acked, acks))
    client.queues.push_many(queue, range(5))
    handled = Handled()
    with serving(liar.url, queue, handled):
        handled.wait(5)
    assert (pops, acks) == ([], [])
    assert handled.data == list(range(5))
    assert left(client, queue) == []


def test_acknowledgments_whose_answer_is_lost_are_sent_again(
    client: Client, queue: str, liar: Liar, short_pauses: None
) -> None:
    lost: list[Asked] = []

    def lose(asked: Asked, answer: Answer) -> Answer:
        if len(lost) < 4:
            lost.append(asked)
            return page(502)
        return answer

    liar.lie("POST", "/api/v1/ack/batch", lose)
    client.queues.push_many(queue, range(3))
    handled = Handled()
    with serving(liar.url, queue, handled):
        handled.wait(3)
    assert len(lost) == 4
    assert handled.data == [0, 1, 2]
    assert left(client, queue) == []


def test_a_server_that_answers_at_once_with_nothing_is_not_asked_all_the_time(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while pops are paused."""
    recorder.tell("GET", "/api/v1/pop/queue/q", status=204)
    monkeypatch.setattr(queue_consumer, "PAUSE", 0.2)
    handled = Handled()
    with serving(recorder.url, "q", handled):
        assert not threading.Event().wait(0.5)
    assert 1 <= len(recorder.asked("GET", "/api/v1/pop/queue/q")) <= 4


def test_a_refusal_ends_the_loop(client: Client, queue: str) -> None:
    for name in ("", "x" * 256):
        with pytest.raises(InvalidArgument):
            next(client.queues.consume(queue, group=name or "y" * 256))
        with pytest.raises(InvalidArgument):
            client.queues.serve(name or "y" * 256, print)
    for options in ({"concurrency": 0}, {"batch": 0}, {"group": "x" * 256}):
        with pytest.raises(InvalidArgument):
            client.queues.serve(queue, print, **options)  # type: ignore[arg-type]


async def test_an_agent_consumes_and_leaves_the_event_loop_alone(
    join: Callable[..., Person], client: Client, queue: str
) -> None:
    bob = join("bob", publishes=False)
    client.queues.push_many(queue, range(3))
    seen = []
    with watched() as found:
        async with AsyncAgent.open(bob.name, home=bob.home, url=bob.url) as agent:
            async for message in agent.queues.consume(queue, group="loop"):
                seen.append(message.data)
                if len(seen) == 3:
                    await agent.queues.ack(message)
                    break
    assert seen == [0, 1, 2]
    assert found == []
    assert left(client, queue, group="loop") == []
