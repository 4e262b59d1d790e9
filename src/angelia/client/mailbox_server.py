"""Serves a mailbox until it is cancelled: hands mail to a handler as it comes, and does the chores beside it.

Two tasks run concurrently. One listens to the stream, opens mail and gives it to the handler. The other does chores: it
sends the outbox, asks for receipts, fetches held mail whose sender is allowed by now, and renews keys. A chore that
fails for a temporary reason is retried with back-off; mail does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias, TypeVar

from angelia.client import channel_signing, delivery_status, mail_receiving, mail_sending
from angelia.client.event_stream import BackOff, is_passing
from angelia.client.exchange import BadAnswer, Exchange
from angelia.client.mail_calls import LeasedMessage
from angelia.client.mail_receiving import Received
from angelia.client.mail_stream import Event
from angelia.client.transport import Aside
from angelia.errors import AngeliaError
from angelia.keys.model import PrekeysLow, RotationDue
from angelia.mail.model import DeliveryEvent
from angelia.mailbox.inbox import Opened
from angelia.mailbox.mailbox import Mailbox

# How many seconds lie between two rounds of chores that no event asks for.
ROUND = 180.0
# A server may send events about keys, and events and leases of the same message, at any rate. Keys are renewed, and one
# message is looked at, no more often than this.
KEYS_PAUSE, SAME_PAUSE = 60.0, 1.0

K = TypeVar("K")
T = TypeVar("T")
Handler: TypeAlias = Callable[[Opened], Awaitable[object]]
Listen: TypeAlias = Callable[[Callable[[], None]], AsyncGenerator[Event, None]]
_Keys: TypeAlias = type[RotationDue] | type[PrekeysLow]


class RunExchange(Protocol):
    """Runs an exchange to its end and returns its answer."""

    def __call__(self, call: Exchange[T], /) -> Awaitable[T]: ...


class Serving:
    """Serves one mailbox. `listen` returns the events of a stream, and calls its argument when it is opened. All work
    on the mailbox itself runs in `aside`."""

    def __init__(self, mailbox: Mailbox, handler: Handler, run: RunExchange, aside: Aside, listen: Listen) -> None:
        self._mailbox = mailbox
        self._handler = handler
        self._run = run
        self._aside = aside
        self._listen = listen
        self._handling = asyncio.Lock()  # one message at a time, from the stream or from the chores
        self._wake = asyncio.Event()
        # What is due, in order. Each is taken out before it is done, so that it can become due again meanwhile.
        self._reported: dict[str, None] = {}
        self._keys_due: dict[_Keys, None] = {}
        self._rounds: dict[None, None] = {}
        self._admitted: dict[str, Opened | None] = {}
        self._ended = set[str]()
        self._keys_renewed: dict[_Keys, float] = {}
        self._leased, self._leased_since = set[str](), 0.0
        self._updated: dict[str, float] = {}
        self._round_begun = time.monotonic()

    async def forever(self) -> None:
        """Serves until it is cancelled, or until the handler or an error that is not temporary ends it."""
        tasks = [asyncio.ensure_future(self._receive_mail()), asyncio.ensure_future(self._do_chores())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive_mail(self) -> None:
        # First the messages that a crash or a cancellation kept from the handler.
        await self._handle(dict.fromkeys(await self._aside(self._mailbox.inbox.unhandled)))
        async with contextlib.aclosing(self._listen(self._begin_round)) as events:
            async for event in events:
                match event:
                    case LeasedMessage() if self._is_due(event.replay_key):
                        await self._take(event)
                    case DeliveryEvent():
                        self._reported[event.replay_key] = None
                        self._wake.set()
                    case RotationDue() | PrekeysLow():
                        if time.monotonic() - self._keys_renewed.get(type(event), -KEYS_PAUSE) >= KEYS_PAUSE:
                            self._keys_due[type(event)] = None
                            self._wake.set()

    def _is_due(self, replay_key: str) -> bool:
        """Returns whether a message was not leased just before."""
        now = time.monotonic()
        if now - self._leased_since >= SAME_PAUSE:
            self._leased, self._leased_since = set(), now
        is_due = replay_key not in self._leased
        self._leased.add(replay_key)
        return is_due

    async def _take(self, leased: LeasedMessage) -> None:
        try:
            received = await self._run(mail_receiving.take_in(self._mailbox, [leased], for_handler=True))
        except AngeliaError as error:
            if not is_passing(error):
                raise
            return  # its lease ends, and it is redelivered
        # Also a message that was opened before, if an error came between the inbox and the handler.
        await self._handle({leased.replay_key: None} | _by_key(received))

    async def _handle(self, messages: Mapping[str, Opened | None]) -> None:
        """Gives messages to the handler that it has not finished; None stands for one that only the inbox has."""
        async with self._handling:
            for replay_key, opened in messages.items():
                if replay_key in self._ended:
                    continue
                waiting = await self._aside(self._mailbox.inbox.to_handle, replay_key)
                if waiting is None:
                    continue
                try:
                    await self._handler(opened or waiting)
                except Exception:  # the message counts as handled; after a cancellation it does not
                    await self._end(replay_key)
                    raise
                await self._end(replay_key)

    async def _end(self, replay_key: str) -> None:
        ending = asyncio.ensure_future(self._aside(self._mailbox.inbox.end_handling, replay_key))
        try:
            await asyncio.shield(ending)  # a cancellation from now on does not give it to the handler again
        except AngeliaError:  # the disk failed: at least this process remembers it
            self._ended.add(replay_key)

    def _begin_round(self) -> None:
        self._rounds[None] = None
        self._round_begun = time.monotonic()
        self._wake.set()

    async def _do_chores(self) -> None:
        back_off = BackOff()
        while True:
            self._wake.clear()
            problem = await self._passing_problem()
            admitted, self._admitted = self._admitted, {}
            await self._handle(admitted)
            if problem is not None:
                await asyncio.sleep(back_off.next(problem.retry_after or 0.0))
                if time.monotonic() - self._round_begun >= ROUND:
                    self._begin_round()
                continue
            back_off.reset()
            try:
                async with asyncio.timeout(ROUND):  # unlike wait_for it never swallows a cancellation
                    await self._wake.wait()
            except TimeoutError:
                self._begin_round()

    async def _passing_problem(self) -> AngeliaError | None:
        """Does what is due. Returns the first temporary error, if any; what had one stays due."""
        problems = [
            await _each(self._reported, self._update_sent),
            await _each(self._keys_due, self._renew_keys),
            await _each(self._rounds, self._do_round),
        ]
        return next((one for one in problems if one is not None), None)

    async def _update_sent(self, replay_key: str) -> None:
        now = time.monotonic()
        self._updated = {key: at for key, at in self._updated.items() if now - at < SAME_PAUSE}
        await asyncio.sleep(self._updated.get(replay_key, now - SAME_PAUSE) + SAME_PAUSE - now)
        self._updated[replay_key] = time.monotonic()
        try:
            await self._run(delivery_status.update_sent(self._mailbox, replay_key))
        except AngeliaError as error:
            # Any other error: another mailbox of the agent sent the message, or the answer is not believed or cannot be
            # read. The next round asks again.
            if is_passing(error) and not isinstance(error, BadAnswer):
                raise

    async def _renew_keys(self, kind: _Keys) -> None:
        self._keys_renewed[kind] = time.monotonic()
        if kind is RotationDue:
            await self._run(channel_signing.rotate_due_keys(self._mailbox))
        else:
            await self._run(channel_signing.publish_keys(self._mailbox))

    async def _do_round(self, _: None) -> None:
        """Does what may have become due while the stream was down, or without an event of it."""
        chores = dict.fromkeys((self._send_waiting, self._follow_sent, self._fetch_admitted))
        problem = await _each(chores, lambda chore: chore())
        await self._run(channel_signing.tend_keys(self._mailbox))
        if problem is not None:
            raise problem

    async def _send_waiting(self) -> None:
        delivered = await self._run(mail_sending.deliver_outbox(self._mailbox))
        _raise(next((one.error for one in delivered.unsent if is_passing(one.error)), None))

    async def _follow_sent(self) -> None:
        _raise((await self._run(delivery_status.update_outbox(self._mailbox))).interrupted)

    async def _fetch_admitted(self) -> None:
        came = await self._run(mail_receiving.receive_admitted(self._mailbox, for_handler=True))
        self._admitted |= _by_key(came)
        _raise(came.interrupted)


async def _each(due: dict[K, None], do: Callable[[K], Awaitable[None]]) -> AngeliaError | None:
    """Does all that is due. Returns the first temporary error, if any; what had one stays due, and the rest is done."""
    first: AngeliaError | None = None
    for one in list(due):
        del due[one]
        try:
            await do(one)
        except AngeliaError as error:
            due[one] = None
            if not is_passing(error):
                raise
            first = first or error
    return first


def _by_key(received: Received) -> dict[str, Opened | None]:
    return {one.message.replay_key: one for one in received.messages}


def _raise(problem: AngeliaError | None) -> None:
    if problem is not None:
        raise problem
