"""Mail as it comes, and a mailbox that is served for days: whatever passes is waited for, and nothing is forgotten."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from angelia.client import (
    AsyncClient,
    Client,
    Unreachable,
    channel_signing,
    clock,
    delivery_status,
    event_stream,
    mail_stream,
    mailbox_server,
    transport,
)
from angelia.client.api_errors import _class_of
from angelia.client.mail_calls import LeasedMessage
from angelia.envelope.receipts import Receipt
from angelia.errors import DiskFull
from angelia.keys.model import PrekeysLow
from angelia.mail.hot_store import events
from angelia.mail.model import DeliveryEvent, DeliveryStatus
from angelia.mailbox import identity
from angelia.mailbox.inbox import Opened
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import OutboxStatus
from angelia.mailbox.receipt_log import ReceiptLog
from angelia.runtime_file import read_runtime
from client.letters import now, outgoing
from client.recorder import Recorder
from live_agents import Person
from server_process import ServerProcess

Join = Callable[..., Person]


pytestmark = pytest.mark.usefixtures("short_work")


# The stream.


async def test_a_stream_says_what_comes_and_what_became_of_it(
    server: ServerProcess, alice: Person, bob: Person
) -> None:
    runtime = read_runtime(server.data_dir)
    assert runtime is not None
    topic = events(alice.name).encode()
    async with (
        AsyncClient(bob.url, identity=bob.mailbox) as bobs,
        AsyncClient(alice.url, identity=alice.mailbox) as alices,
        aclosing(bobs.mail.stream()) as incoming,
        aclosing(alices.mail.stream()) as news,
    ):
        await alices.mail.send(alice.mailbox, bob.name, b"hello")
        handed = await anext(incoming)
        assert isinstance(handed, LeasedMessage)
        waiting = asyncio.create_task(anext(news))
        with redis.Redis.from_url(runtime.redis_url) as hot:
            await until(lambda: topic in hot.pubsub_channels())  # the second stream is heard as well
        received = await bobs.mail.take_in(bob.mailbox, [handed])
        assert [one.body for one in received.messages] == [b"hello"]
        said = await asyncio.wait_for(waiting, 10)
        assert isinstance(said, DeliveryEvent)
        assert (said.replay_key, said.status) == (handed.replay_key, "delivered")


async def test_a_mailbox_that_is_served_answers_questions(alice: Person, bob: Person) -> None:
    async with (
        AsyncClient(bob.url, identity=bob.mailbox) as bobs,
        AsyncClient(alice.url, identity=alice.mailbox) as alices,
    ):

        async def answer(question: Any) -> None:
            await bobs.mail.reply(bob.mailbox, question, question.body.upper())

        mailbox_server = asyncio.create_task(bobs.mail.serve(bob.mailbox, answer))
        answered = await alices.mail.ask(alice.mailbox, bob.name, b"shout", timeout=20)
        assert answered.body == b"SHOUT"
        await until(lambda: outgoing(bob).status is OutboxStatus.DELIVERED, mailbox_server)
        mailbox_server.cancel()
        with pytest.raises(asyncio.CancelledError):
            await mailbox_server


async def test_a_stream_that_breaks_off_is_taken_up_again(recorder: Recorder, alice: Person) -> None:
    event = 'event: prekeys_low\ndata: {"count":3}\n\n'
    recorder.tell("GET", "/v1/messages/stream", b": still here\n\nevent: unknown\ndata: {}\n\n" + event.encode())
    recorder.tell("GET", "/v1/messages/stream", {"code": "unavailable"}, status=503)
    recorder.tell("GET", "/v1/messages/stream", event.replace("3", "2").encode())
    recorder.tell("GET", "/v1/messages/stream", {"code": "unauthenticated"}, status=401)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_stream, "FIRST_PAUSE", 0.01)
        async with AsyncClient(recorder.url, identity=alice.mailbox) as client:
            said = client.mail.stream()
            assert [await anext(said), await anext(said)] == [PrekeysLow(count=3), PrekeysLow(count=2)]
            with pytest.raises(transport.ApiError):
                await anext(said)
    nonces = {seen.headers["signature-input"] for seen in recorder.seen}
    assert len(nonces) == len(recorder.seen) == 4


def test_a_stream_can_be_listened_to_without_a_loop(recorder: Recorder, alice: Person, bob: Person) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    with closing(bob.client.mail.stream()) as incoming:
        handed = next(incoming)
        assert isinstance(handed, LeasedMessage)
        assert [one.body for one in bob.client.mail.take_in(bob.mailbox, [handed]).messages] == [b"hello"]
    event = 'event: prekeys_low\ndata: {"count":3}\n\n'
    recorder.tell("GET", "/v1/messages/stream", {"code": "unavailable"}, status=503)
    recorder.tell("GET", "/v1/messages/stream", b": still here\n\n" + event.encode())
    recorder.tell("GET", "/v1/messages/stream", {"code": "unauthenticated"}, status=401)
    with pytest.MonkeyPatch.context() as patch, Client(recorder.url, identity=alice.mailbox) as client:
        patch.setattr(event_stream, "FIRST_PAUSE", 0.01)
        said = client.mail.stream()
        assert next(said) == PrekeysLow(count=3)
        with pytest.raises(transport.ApiError):
            next(said)


async def test_a_stream_is_taken_up_by_the_pair_that_another_process_rotated_to(
    recorder: Recorder, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.01)
    event = b'event: prekeys_low\ndata: {"count":3}\n\n'
    recorder.tell("GET", "/v1/messages/stream", event)
    old = alice.mailbox.key_id
    async with AsyncClient(recorder.url, identity=alice.mailbox) as client, aclosing(client.mail.stream()) as said:
        await anext(said)
        with Mailbox(alice.home, identity.load(alice.home, alice.name, lambda: ""), now()) as other:
            other.key_rotation.begin(now(), signer=True)
            other.key_rotation.finish(now())
            new = other.key_id
        await anext(said)
    named = [re.search('keyid="([^"]+)"', seen.headers["signature-input"]) for seen in recorder.seen[:2]]
    assert [found and found[1] for found in named] == [str(old), str(new)]


# A mailbox that is served.


@asynccontextmanager
async def served(
    person: Person, handler: Callable[[Opened], Awaitable[object]] | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    async def ignore(_: Opened) -> None: ...

    async with AsyncClient(person.url, identity=person.mailbox) as client:
        task = asyncio.create_task(client.mail.serve(person.mailbox, handler or ignore))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object], task: asyncio.Task[None] | None = None) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        assert task is None or not task.done(), task.exception()
        await asyncio.sleep(0.05)


def failing_first(real: Callable[..., Any], times: int, error: Exception) -> tuple[Callable[..., Any], list[object]]:
    """A verb whose first calls fail, and what it was called with."""
    calls: list[object] = []

    def verb(*args: object, **kwargs: object) -> Iterator[Any]:
        calls.append(args)
        if len(calls) <= times:
            raise error
        return (yield from real(*args, **kwargs))

    return verb, calls


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(mailbox_server, "ROUND", 0.2)


@pytest.mark.parametrize("code", ["network", "rate_limited", "unavailable"])
async def test_a_served_mailbox_outlives_what_passes(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.01)
    error = Unreachable("gone") if code == "network" else _class_of(code)("not now")
    if code != "network":
        error.status = 429 if code == "rate_limited" else 503  # type: ignore[attr-defined]
    verb, calls = failing_first(delivery_status.ask, 3, error)
    monkeypatch.setattr(delivery_status, "ask", verb)
    async with served(alice) as task, AsyncClient(bob.url, identity=bob.mailbox) as bobs:
        await asyncio.to_thread(alice.client.mail.send, alice.mailbox, bob.name, b"hello")
        await bobs.mail.receive(bob.mailbox, wait=10)
        await until(lambda: outgoing(alice).status is OutboxStatus.DELIVERED, task)
    assert len(calls) >= 4


async def test_keys_that_cannot_be_renewed_now_are_renewed_later_and_mail_does_not_wait(
    recorder: Recorder, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.01)
    due = f'{{"peer":"bob","session_id":"{alice.newest.signer.signer_id}","due_since":"2026-11-15T12:00:00Z"}}'
    for name, data in (("prekeys_low", '{"count":3}'), ("rotation_due", due)):
        recorder.tell("GET", "/v1/messages/stream", f"event: {name}\ndata: {data}\n\n".encode())
    recorder.tell("GET", "/v1/messages/stream", b": still here\n\n")
    done: list[str] = []

    def verb(name: str) -> Callable[..., Any]:
        def call(_: Mailbox, **__: Any) -> Iterator[Any]:
            done.append(name)
            if done.count(name) < 3:
                raise Unreachable("gone")
            return iter(())

        return call

    for name in ("publish_keys", "rotate_due_keys"):
        monkeypatch.setattr(channel_signing, name, verb(name))
    async with AsyncClient(recorder.url, identity=alice.mailbox) as client:
        task = asyncio.create_task(client.mail.serve(alice.mailbox, lambda _: asyncio.sleep(0)))
        await until(lambda: sorted(done) == ["publish_keys"] * 3 + ["rotate_due_keys"] * 3, task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_waits_in_the_outbox_is_sent_and_followed_whenever_a_stream_begins(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"sent before")
    assert len(bob.client.mail.receive(bob.mailbox).messages) == 1
    alice.client.mail.seal(alice.mailbox, bob.name, b"never sent")
    monkeypatch.setattr(clock, "now", lambda: now() + timedelta(seconds=2))  # it is due
    async with served(alice) as task:
        await until(
            lambda: (
                {row.status for row in alice.mailbox.outbox.page()} == {OutboxStatus.DELIVERED, OutboxStatus.QUEUED}
            ),
            task,
        )


@pytest.mark.usefixtures("hasty")
async def test_mail_that_was_kept_out_goes_to_the_handler_once_its_sender_is_allowed(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    got: list[bytes] = []

    async def handle(opened: Opened) -> None:
        got.append(opened.body)

    async with served(bob, handle) as task:
        await asyncio.to_thread(alice.client.mail.send, alice.mailbox, bob.name, b"may I?")
        await until(lambda: _kept_out(bob), task)
        await asyncio.to_thread(bob.allow, alice)
        await until(lambda: got, task)
    assert got == [b"may I?"]


def _kept_out(person: Person) -> bool:
    with person.mailbox.database.transaction() as tx:
        return bool(tx.execute("SELECT count(*) FROM kept_out").fetchone()[0])


async def test_a_fault_of_the_disk_after_the_commit_keeps_no_message_from_the_handler(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, faults, got = ReceiptLog.append, list[Receipt](), list[bytes]()

    def append(self: ReceiptLog, receipts: Sequence[Receipt], at: datetime) -> None:
        if receipts and not faults:
            faults.extend(receipts)
            raise DiskFull("full for a moment")
        real(self, receipts, at)

    async def handle(opened: Opened) -> None:
        got.append(opened.body)

    monkeypatch.setattr(ReceiptLog, "append", append)
    async with served(bob, handle) as task:
        for body in (b"first", b"second"):
            await asyncio.to_thread(alice.client.mail.send, alice.mailbox, bob.name, body)
        await until(lambda: len(got) == 2, task)
        unacked = [one.message_id for one in bob.mailbox.inbox.page().messages if one.acked_at is None]
        assert unacked == [one.message_id for one in faults]
    assert got == [b"first", b"second"]


async def test_a_message_whose_handler_was_interrupted_is_handled_by_the_next_who_serves_and_then_no_more(
    alice: Person, bob: Person
) -> None:
    got: list[bytes] = []

    async def hang(opened: Opened) -> None:
        got.append(opened.body)
        await asyncio.Event().wait()

    async def handle(opened: Opened) -> None:
        got.append(opened.body)

    async with served(bob, hang) as task:
        await asyncio.to_thread(alice.client.mail.send, alice.mailbox, bob.name, b"first")
        await until(lambda: got, task)
    bob.reopen()
    for body in (b"second", b"third"):
        async with served(bob, handle) as task:
            await asyncio.to_thread(alice.client.mail.send, alice.mailbox, bob.name, body)
            await until(lambda body=body: got[-1] == body, task)
    assert got == [b"first", b"first", b"second", b"third"]


async def test_what_was_opened_for_the_handler_and_never_told_is_handled_when_it_comes_again(
    alice: Person, bob: Person
) -> None:
    """Killed between the commit and everything after it."""
    alice.client.mail.send(alice.mailbox, bob.name, b"once")
    (handed,) = bob.client.mail.poll(lease_seconds=5).messages
    bob.mailbox.receive_many([handed.wire], now=now(), for_handler=True)
    got: list[bytes] = []

    async def handle(opened: Opened) -> None:
        got.append(opened.body)

    async with served(bob, handle) as task:
        await until(lambda: got and all(one.acked_at for one in bob.mailbox.inbox.page().messages), task)
    assert got == [b"once"]


async def test_what_the_handler_raises_ends_the_serving_whatever_it_is(alice: Person, bob: Person) -> None:
    async def fail(_: Opened) -> None:
        raise Unreachable("not the relay, but somebody else whom the handler asked")

    async with served(bob, fail) as task:
        await asyncio.to_thread(alice.client.mail.send, alice.mailbox, bob.name, b"hello")
        with pytest.raises(Unreachable, match="somebody else"):
            await asyncio.wait_for(asyncio.shield(task), 20)
    (message,) = bob.mailbox.inbox.page().messages
    assert message.acked_at is not None
    assert bob.mailbox.inbox.unhandled() == []  # it is not handed to it again


@pytest.mark.usefixtures("hasty")
async def test_a_word_of_the_relay_that_is_not_believed_ends_nothing(
    recorder: Recorder, alice: Person, bob: Person
) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    row = outgoing(alice)
    news = (
        f'{{"replay_key":"{row.replay_key}","message_id":"{row.message_id}","recipient":"{bob.name}",'
        f'"status":"read","at":"2026-11-15T12:00:00Z"}}'
    )
    recorder.tell("GET", "/v1/messages/stream", f"event: receipt\ndata: {news}\n\n".encode())
    recorder.tell("GET", f"/v1/receipts/{row.replay_key}", {"code": "not_found"}, status=404)
    async with AsyncClient(recorder.url, identity=alice.mailbox) as client:
        task = asyncio.create_task(client.mail.serve(alice.mailbox, lambda _: asyncio.sleep(0)))
        await until(lambda: len(recorder.asked("GET", f"/v1/receipts/{row.replay_key}")) > 3, task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert outgoing(alice).status is OutboxStatus.QUEUED


async def test_however_fast_a_stream_has_news_of_a_message_it_is_asked_about_once_a_second(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_server, "SAME_PAUSE", 0.3)
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    row, asked_at, heard = outgoing(alice), list[float](), asyncio.Event()
    at = datetime(2026, 11, 15, tzinfo=UTC)
    news = DeliveryEvent(
        replay_key=row.replay_key, message_id=row.message_id, recipient=bob.name, status=DeliveryStatus.DELIVERED, at=at
    )

    async def run(call: Any) -> None:
        call.close()
        asked_at.append(time.monotonic())
        heard.set()

    async def listen(_: Callable[[], None]) -> AsyncGenerator[mail_stream.Event, None]:
        while True:
            yield news
            await heard.wait()
            heard.clear()

    serves = mailbox_server.Serving(alice.mailbox, lambda _: asyncio.sleep(0), run, asyncio.to_thread, listen)
    task = asyncio.create_task(serves.forever())
    await until(lambda: len(asked_at) > 3, task)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert all(later - earlier >= 0.3 for earlier, later in itertools.pairwise(asked_at))


async def test_a_mailbox_that_is_served_signs_its_bundle_again_after_three_days(join: Join) -> None:
    carol = join("carol", publishes=False)
    link = carol.mailbox.own_keys.first_bundle(now() - timedelta(days=4))
    carol.client.keys.publish_bundle(link)
    carol.mailbox.key_rotation.finish(now(), link)

    async def ignore(opened: Opened) -> None: ...

    async with AsyncClient(carol.url, identity=carol.mailbox) as client:
        task = asyncio.create_task(client.mail.serve(carol.mailbox, ignore))
        await until(lambda: carol.version == 2, task)
        task.cancel()
    assert carol.newest.kem_keys == link.bundle.kem_keys
