"""The hot tier's side of mail: the order of each queue, leases, and copies of small envelopes.

All of it can be rebuilt from the ledger, which decides what exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from angelia.envelope.ids import hot_tag
from angelia.envelope.times import moment, unix_ms
from angelia.mail.model import (
    HOT_COPY_LIFE,
    HOT_COPY_MAX,
    Lease,
    LeaseToken,
    QueuePlace,
    each_secret,
    last_score,
    new_secrets,
)
from angelia.stores.hot_line import Word
from angelia.stores.valkey import HotTier, Script
from angelia.stores.wake import Wake, wake_topic

_ENQUEUE = Script.read(__file__, "enqueue.lua")
_CLAIM = Script.read(__file__, "claim.lua")
_CLAIM_THESE = Script.read(__file__, "claim_these.lua")
_HOLD = Script.read(__file__, "hold.lua")
_PEEK = Script.read(__file__, "peek.lua")
_PUT_BACK = Script.read(__file__, "put_back.lua")
_REMOVE = Script.read(__file__, "remove.lua")
AT_ONCE = moment(0)  # before any claim, by whatever clock
_GIVEN = "0"  # in the place of a secret: the message is not leased now, and its recipient had it before


@dataclass(frozen=True, slots=True)
class QueuedEnvelope:
    """A message for its recipient's queue, with its bytes where the hot tier may keep a copy."""

    place: QueuePlace
    wire: bytes = field(default=b"", repr=False)
    life: timedelta = HOT_COPY_LIFE

    @property
    def mref(self) -> str:
        return self.place.mref.hex()

    def words(self) -> list[Word]:
        copy = self.wire if len(self.wire) <= HOT_COPY_MAX else b""
        life_ms = max(1, min(self.life, HOT_COPY_LIFE) // timedelta(milliseconds=1))
        return [self.mref, self.place.score, copy, life_ms]


@dataclass(frozen=True, slots=True)
class Claimed:
    """One message that is leased now."""

    token: LeaseToken
    attempt: int
    first_leased: datetime
    copy: bytes | None = field(repr=False)

    @property
    def mref(self) -> bytes:
        return self.token.mref


@dataclass(frozen=True, slots=True)
class Claims:
    """What a claim leased, when the next lease of another message runs out, and whether more waits.

    `out` are messages that were leased or held back before; of all others in the index, these are the first, up to the
    place `last`."""

    messages: list[Claimed]
    next_return: datetime | None
    more: bool
    last: int = 0
    out: list[bytes] = field(default_factory=list)


def arrivals(recipient: str) -> str:
    """The topic that says that a message is in a recipient's queue."""
    return wake_topic("mail", hot_tag(recipient))


def departures(recipient: str) -> str:
    """The topic that says that a message left a recipient's queue."""
    return wake_topic("settled", hot_tag(recipient))


def events(agent: str) -> str:
    """The topic of the events that an agent's stream has beside its mail."""
    return wake_topic("events", hot_tag(agent))


class HotMail:
    """The queues of all recipients. The keys of one recipient share a hash tag, so a script has them in one place."""

    def __init__(self, hot: HotTier, wake: Wake) -> None:
        self._hot = hot
        self._wake = wake

    async def enqueue(self, place: QueuePlace, wire: bytes = b"", life: timedelta = HOT_COPY_LIFE) -> bool:
        """Puts a message into its queue, and wakes its recipient; returns False when it is there already."""
        new = True  # where no answer comes: it may be, and a ring too many costs one look
        try:
            new = await self._enqueue(place.recipient, [QueuedEnvelope(place, wire, life)]) > 0
        finally:
            if new:
                self._wake.ring(arrivals(place.recipient))
        return new

    async def enqueue_all(self, recipient: str, queued: Sequence[QueuedEnvelope]) -> int:
        """Puts new messages into their recipient's queue; returns how many were not there already."""
        # Scripts of this process run in the order in which they are sent, so a waiter that is rung now and claims finds
        # these messages: its script goes out behind this one, in one write, and one wake-up serves both.
        self._wake.ring(arrivals(recipient))
        return await self._enqueue(recipient, queued)

    async def _enqueue(self, recipient: str, queued: Sequence[QueuedEnvelope]) -> int:
        ready, lease, _ = _keys(recipient)
        copies = _copies(recipient)
        args: list[Word] = [arrivals(recipient), self._wake.tagged()]
        for one in queued:
            args += one.words()
        return int(await self._hot.run(_ENQUEUE, [ready, lease, *(copies + one.mref for one in queued)], args))

    async def claim(self, recipient: str, most: int, min_priority: int, now: datetime, until: datetime) -> Claims:
        """Leases the first messages of a queue."""
        secrets = new_secrets(most)
        args: list[Word] = [unix_ms(now), unix_ms(until), last_score(min_priority), _copies(recipient), secrets]
        back, more, last, out, *told = await self._hot.run(_CLAIM, _keys(recipient), args)
        return Claims(
            _claimed(told, each_secret(secrets)),
            moment(int(back)) if back else None,
            bool(more),
            int(last or 0),
            [bytes.fromhex(mref.decode()) for mref in out],
        )

    async def claim_these(
        self, recipient: str, wanted: Sequence[QueuePlace], now: datetime, until: datetime, most: int
    ) -> list[Claimed]:
        """Leases messages that are named by their places: the first ones that are free."""
        if not wanted:
            return []
        mrefs = [one.mref.hex() for one in wanted]
        secrets = dict(zip(mrefs, each_secret(new_secrets(len(wanted))), strict=True))
        named: list[Word] = [
            part for mref, one in zip(mrefs, wanted, strict=True) for part in (mref, one.score, secrets[mref])
        ]
        args: list[Word] = [unix_ms(now), unix_ms(until), _copies(recipient), most, *named]
        told = await self._hot.run(_CLAIM_THESE, _keys(recipient), args)
        return _claimed(told, [secrets[mref.decode()] for mref in told[::4]])

    async def leases(self, recipient: str, mrefs: Sequence[bytes]) -> list[Lease | None]:
        """What is remembered of each message's last lease; None where nothing is."""
        _, lease, tries = _keys(recipient)
        told = await self._hot.run(_PEEK, [lease, tries], [mref.hex() for mref in mrefs])
        return [_lease(until, record) for until, record in zip(told[::2], told[1::2], strict=True)]

    async def put_back(
        self,
        recipient: str,
        tokens: Sequence[LeaseToken],
        until: datetime,
        *,
        uncounted: bool = False,
        given: bool = False,
        quietly: bool = False,
    ) -> int:
        """Ends leases in one step, and holds the messages back until then.

        Returns how many were still held. One that is `given` was delivered to its recipient: it cannot be withdrawn,
        though it may not count as an attempt. A waiting poll is woken, so that it looks in time, unless `quietly`."""
        named: list[Word] = [part for mref, secret in tokens for part in (mref.hex(), secret)]
        topic = "" if quietly else arrivals(recipient)
        left = _GIVEN if given else ""
        args: list[Word] = [unix_ms(until), int(uncounted), topic, self._wake.tagged(), left, *named]
        ended = len(tokens)  # where no answer comes: they may be
        try:
            ended = int(await self._hot.run(_PUT_BACK, _keys(recipient), args))
        finally:
            if ended and topic:
                self._wake.ring(topic)
        return ended

    async def hold(self, place: QueuePlace, now: datetime, until: datetime) -> bool:
        """Holds back a message that its recipient was never given; returns False when it was given."""
        args: list[Word] = [place.mref.hex(), place.score, unix_ms(now), unix_ms(until)]
        return bool(await self._hot.run(_HOLD, _keys(place.recipient), args))

    async def let_go(self, recipient: str, mref: bytes) -> None:
        """Gives a message that was held back its place again, unless it is leased by now."""
        await self.put_back(recipient, [LeaseToken(mref, "")], AT_ONCE)

    async def remove(self, recipient: str, mrefs: Sequence[bytes], news: Sequence[tuple[str, bytes]] = ()) -> None:
        """Forgets messages that are gone from the ledger, and publishes what became of them: topics and events."""
        told = [(departures(recipient), b""), *news]
        published: list[Word] = [part for topic, event in told for part in (topic, self._wake.tagged(event))]
        named = [mref.hex() for mref in mrefs]
        args: list[Word] = [_copies(recipient), len(named), *named, *published]
        try:
            await self._hot.run(_REMOVE, _keys(recipient), args)
        finally:  # without an answer too: the ledger has settled them
            for topic, event in told:
                self._wake.ring(topic, event)


def _keys(recipient: str) -> list[str]:
    queue = f"ang:mail:{{{hot_tag(recipient)}}}"
    return [f"{queue}:ready", f"{queue}:lease", f"{queue}:tries"]


def _copies(recipient: str) -> str:
    return f"ang:mail:{{{hot_tag(recipient)}}}:env:"


def _claimed(told: Sequence[bytes], secrets: Iterable[str]) -> list[Claimed]:
    parts = zip(told[::4], told[1::4], told[2::4], told[3::4], secrets, strict=False)
    return [
        Claimed(LeaseToken(bytes.fromhex(mref.decode()), secret), int(attempt), moment(int(since)), copy or None)
        for mref, attempt, since, copy, secret in parts
    ]


def _lease(until: bytes, record: bytes) -> Lease | None:
    if not record:
        return None
    _, attempts, since, secret = record.decode().split(":")
    held_with = "" if secret == _GIVEN else secret
    return Lease(int(attempts), moment(int(since)), moment(int(until)) if until else None, held_with)
