"""What an asynchronous client does on the event loop of its caller: no SQLite, no waiting for a disk, no signatures."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from angelia.channels.model import ChannelPolicy
from angelia.client import AsyncClient, mail_stream
from angelia.client.exchange import Exchange, Request
from angelia.client.mail_calls import LeasedMessage
from angelia.errors import Unauthenticated
from angelia.mailbox import identity
from angelia.mailbox.channels import ChannelMessage
from angelia.mailbox.inbox import Opened
from angelia.mailbox.mailbox import Mailbox
from client.letters import now
from client.recorder import Recorder
from live_agents import Person

pytestmark = pytest.mark.usefixtures("short_work")
_WAITS = {"fsync", "fdatasync", "flock"}


@contextmanager
def watched() -> Iterator[list[str]]:
    """The calls of this thread that an event loop must not make, and where each came from."""
    found: list[str] = []

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call":
            return
        owner = getattr(called, "__self__", None)
        of_sqlite = isinstance(owner, sqlite3.Connection | sqlite3.Cursor) or called is sqlite3.connect
        of_crypto = type(owner).__module__.startswith("cryptography.")
        if of_sqlite or of_crypto or called.__name__ in _WAITS:
            found.append(f"{called.__qualname__} at {frame.f_code.co_filename}:{frame.f_lineno}")

    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)


def test_the_watch_sees_what_it_looks_for(alice: Person, tmp_path: Path) -> None:
    with watched() as found, (tmp_path / "file").open("wb") as file:
        os.fsync(file.fileno())
        alice.mailbox.own_keys.newest()
        alice.mailbox.key.sign(b"")
    assert {one.partition(" ")[0].rpartition(".")[2] for one in found} >= {"fsync", "execute", "fetchall", "sign"}


async def test_mail_leaves_the_event_loop_alone(alice: Person, bob: Person) -> None:
    with watched() as found:
        async with (
            AsyncClient(bob.url, identity=bob.mailbox) as bobs,
            AsyncClient(alice.url, identity=alice.mailbox) as alices,
        ):
            await alices.mail.send(alice.mailbox, bob.name, b"hello")
            (message,) = (await bobs.mail.receive(bob.mailbox, wait=10)).messages
            await bobs.mail.reply(bob.mailbox, message, b"hello yourself")
            async with aclosing(alices.mail.stream()) as incoming:
                handed = await anext(incoming)
                assert isinstance(handed, LeasedMessage)
                await alices.mail.take_in(alice.mailbox, [handed])
            await alices.mail.update_outbox(alice.mailbox)
            await alices.keys.rotate(alice.mailbox, signer=True)
    assert found == []


async def test_a_served_mailbox_leaves_the_event_loop_alone(alice: Person, bob: Person) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"from before")
    with watched() as found:
        async with (
            AsyncClient(bob.url, identity=bob.mailbox) as bobs,
            AsyncClient(alice.url, identity=alice.mailbox) as alices,
        ):

            async def answer(question: Opened) -> None:
                await bobs.mail.reply(bob.mailbox, question, question.body.upper())

            serving = asyncio.create_task(bobs.mail.serve(bob.mailbox, answer))
            assert (await alices.mail.ask(alice.mailbox, bob.name, b"shout", timeout=20)).body == b"SHOUT"
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
    assert found == []


async def test_a_stream_that_is_refused_leaves_the_event_loop_alone(alice: Person, recorder: Recorder) -> None:
    recorder.tell("GET", mail_stream.PATH, {"code": "unauthenticated"}, status=401)
    with watched() as found:
        async with AsyncClient(recorder.url, identity=alice.mailbox) as client:
            with pytest.raises(Unauthenticated):
                await anext(client.mail.stream())
    assert found == []


async def test_channels_leave_the_event_loop_alone(alice: Person, bob: Person) -> None:
    with watched() as found:
        async with (
            AsyncClient(bob.url, identity=bob.mailbox) as bobs,
            AsyncClient(alice.url, identity=alice.mailbox) as alices,
        ):
            made = await alices.channels.create(alice.mailbox, "news", ChannelPolicy.ALLOWLIST, allow=[bob.name])
            await bobs.channels.subscribe(bob.mailbox, made.channel_id)
            await alices.channels.publish(alice.mailbox, made.channel_id, b"build 418 is green")
            async with aclosing(bobs.channels.tail(bob.mailbox, made.channel_id)) as incoming:  # type: ignore[type-var]
                message = await anext(incoming)
            assert isinstance(message, ChannelMessage)
            await bobs.channels.commit(made.channel_id, message.offset)
    assert found == []


async def test_of_exchanges_that_run_at_once_only_the_one_that_acts_as_the_next_pair_signs_with_it(
    recorder: Recorder, boxes: Callable[[str], Mailbox]
) -> None:
    """They share a thread, and take turns on it."""
    box = boxes("bob")
    box.key_rotation.begin(now(), signer=True)

    def exchange(path: str) -> Exchange[int]:
        return (yield Request("GET", path)).status

    def acting() -> Exchange[int]:
        with box.own_keys.signing_as_next():
            return (yield from exchange("/next"))

    for path in ("/next", "/present"):
        recorder.tell("GET", path, {})
    async with AsyncClient(recorder.url, identity=box) as client:
        assert await asyncio.gather(client.run(acting()), client.run(exchange("/present"))) == [200, 200]
    signed_by = {seen.path: re.findall('keyid="([^"]+)"', seen.headers["signature-input"])[0] for seen in recorder.seen}
    assert signed_by == {"/next": str(identity.next_of(box.identity).key_id), "/present": str(box.key_id)}
