"""The hot tier's side of mail: who is next in each queue, who has what, and copies of small envelopes.

All of it can be rebuilt from the ledger, which decides what exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from angelia.envelope.ids import hot_tag
from angelia.mail.model import HOT_COPY_LIFE, HOT_COPY_MAX, Lease, Place, last_score, new_secret, score
from angelia.stores.hot_line import Word
from angelia.stores.valkey import HotTier, Script
from angelia.stores.wake import topic

_ENQUEUE = Script.read(__file__, "enqueue.lua")
_CLAIM = Script.read(__file__, "claim.lua")
_CLAIM_THESE = Script.read(__file__, "claim_these.lua")
_HOLD = Script.read(__file__, "hold.lua")
_PEEK = Script.read(__file__, "peek.lua")
_PUT_BACK = Script.read(__file__, "put_back.lua")
_REMOVE = Script.read(__file__, "remove.lua")
AT_ONCE = datetime.fromtimestamp(0, UTC)  # whatever the time is for the next one who asks
_GIVEN = "0"  # in the place of a secret: nobody has the message now, and somebody had it


@dataclass(frozen=True, slots=True)
class Claimed:
    """One message that is leased now."""

    mref: bytes
    secret: str
    attempt: int
    first_leased: datetime
    copy: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Claims:
    """What a claim got, when the next message comes back by itself, and whether more waits.

    `out` are messages that were handed out or left alone before; of all others that are known here, these are the first
    ones, up to the place `last`."""

    messages: list[Claimed]
    next_return: datetime | None
    more: bool
    last: int = 0
    out: list[bytes] = field(default_factory=list)


def arrivals(recipient: str) -> str:
    """The topic that says that something is in a recipient's queue."""
    return topic("mail", hot_tag(recipient))


def departures(recipient: str) -> str:
    """The topic that says that something was settled."""
    return topic("settled", hot_tag(recipient))


def events(agent: str) -> str:
    """The topic of what an agent's stream says beside its mail."""
    return topic("events", hot_tag(agent))


class HotMail:
    """The queues of all recipients. The keys of one recipient share a hash tag, so a script has them in one place."""

    def __init__(self, hot: HotTier) -> None:
        self._hot = hot

    async def enqueue(self, place: Place, wire: bytes | None = None, life: timedelta = HOT_COPY_LIFE) -> bool:
        """Put a message into its queue; False when it is there already."""
        mref = place.mref.hex()
        ready, lease, _ = _keys(place.recipient)
        copy = wire if wire is not None and len(wire) <= HOT_COPY_MAX else b""
        life_ms = max(1, min(life, HOT_COPY_LIFE) // timedelta(milliseconds=1))
        args: list[Word] = [mref, score(place.priority, place.seq), copy, life_ms, arrivals(place.recipient)]
        return bool(await self._hot.run(_ENQUEUE, [ready, lease, _copies(place.recipient) + mref], args))

    async def claim(self, recipient: str, most: int, min_priority: int, now: datetime, until: datetime) -> Claims:
        """Lease the first messages of a queue."""
        secrets = [new_secret() for _ in range(most)]
        args: list[Word] = [_ms(now), _ms(until), last_score(min_priority), _copies(recipient), *secrets]
        back, more, last, out, *told = await self._hot.run(_CLAIM, _keys(recipient), args)
        return Claims(
            _claimed(told, secrets),
            _moment(back) if back else None,
            bool(more),
            int(last or 0),
            [bytes.fromhex(mref.decode()) for mref in out],
        )

    async def claim_these(
        self, recipient: str, wanted: Sequence[tuple[bytes, int]], now: datetime, until: datetime, most: int
    ) -> list[Claimed]:
        """Lease messages by mref and score, the first ones that are free."""
        secrets = {mref.hex(): new_secret() for mref, _ in wanted}
        named: list[Word] = [part for mref, place in wanted for part in (mref.hex(), place, secrets[mref.hex()])]
        args: list[Word] = [_ms(now), _ms(until), _copies(recipient), most, *named]
        told = await self._hot.run(_CLAIM_THESE, _keys(recipient), args)
        return _claimed(told, [secrets[mref.decode()] for mref in told[::4]])

    async def leases(self, recipient: str, mrefs: Sequence[bytes]) -> list[Lease | None]:
        """What is remembered of messages; None where nothing is."""
        _, lease, tries = _keys(recipient)
        told = await self._hot.run(_PEEK, [lease, tries], [mref.hex() for mref in mrefs])
        return [_lease(until, record) for until, record in zip(told[::2], told[1::2], strict=True)]

    async def put_back(
        self,
        recipient: str,
        held: Sequence[tuple[bytes, str]],
        until: datetime,
        *,
        uncounted: bool = False,
        given: bool = False,
        quietly: bool = False,
    ) -> int:
        """End leases, named by mref and secret, in one step, and leave the messages alone until then.

        Returns how many were still held. One that is `given` was in its recipient's hands: it cannot be withdrawn,
        though it may not count as an attempt. A waiting poll is told, so that it looks in time, unless `quietly`."""
        named: list[Word] = [part for mref, secret in held for part in (mref.hex(), secret)]
        said = "" if quietly else arrivals(recipient)
        args: list[Word] = [_ms(until), int(uncounted), said, _GIVEN if given else "", *named]
        return int(await self._hot.run(_PUT_BACK, _keys(recipient), args))

    async def hold(self, recipient: str, mref: bytes, place: int, now: datetime, until: datetime) -> bool:
        """Keep a message back that nobody was ever given; False when somebody was."""
        return bool(await self._hot.run(_HOLD, _keys(recipient), [mref.hex(), place, _ms(now), _ms(until)]))

    async def let_go(self, recipient: str, mref: bytes) -> None:
        """What was kept back has its place again, unless it is in somebody's hands by now."""
        await self.put_back(recipient, [(mref, "")], AT_ONCE)

    async def remove(self, recipient: str, mrefs: Sequence[bytes], words: Sequence[tuple[str, bytes]] = ()) -> None:
        """Forget messages that are gone from the ledger, and say on some topics what became of them."""
        said: list[Word] = [part for word in words for part in word]
        named = [mref.hex() for mref in mrefs]
        args: list[Word] = [_copies(recipient), departures(recipient), len(named), *named, *said]
        await self._hot.run(_REMOVE, _keys(recipient), args)


def _keys(recipient: str) -> list[str]:
    return [f"ang:mail:{{{hot_tag(recipient)}}}:{name}" for name in ("ready", "lease", "tries")]


def _copies(recipient: str) -> str:
    return f"ang:mail:{{{hot_tag(recipient)}}}:env:"


def _claimed(told: Sequence[bytes], secrets: Sequence[str]) -> list[Claimed]:
    parts = zip(told[::4], told[1::4], told[2::4], told[3::4], secrets, strict=False)
    return [
        Claimed(bytes.fromhex(mref.decode()), secret, int(attempt), _moment(since), copy or None)
        for mref, attempt, since, copy, secret in parts
    ]


def _lease(until: bytes, record: bytes) -> Lease | None:
    if not record:
        return None
    _, attempts, since, secret = record.decode().split(":")
    held_with = "" if secret == _GIVEN else secret
    return Lease(int(attempts), _moment(since), _moment(until) if until else None, held_with)


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _moment(ms: bytes | str) -> datetime:
    return datetime.fromtimestamp(int(ms) / 1000, UTC)
