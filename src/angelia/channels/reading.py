"""Hands messages to subscribers, at once or when they come; who may not read any more is told so."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from angelia.api import AgentRow
from angelia.channels import store
from angelia.channels.admission import Admission
from angelia.channels.model import Channel, Reading, Status, Subscription
from angelia.errors import AngeliaError, Conflict, Denied, InvalidArgument, NotFound, OffsetGone
from angelia.policy.model import Action
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.wake import LOOK, Bell, Wake, topic

# Of one answer: JSON makes a third more of it.
MOST_BYTES = 4 << 20
# Of all answers that are read together: they are in memory until the last of them is there.
TOGETHER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages a reader wants: after an offset, or after what it committed."""

    channel_id: UUID
    after: int | None
    limit: int


@dataclass(frozen=True, slots=True)
class _Look:
    """One look of one reader."""

    handle: str
    wanted: Wanted
    now: datetime


class _Time:
    """The time of a request that goes on: the edge's clock, and how long ago that was."""

    def __init__(self, now: datetime) -> None:
        self._began = now
        self._since = time.monotonic()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self.passed())

    def passed(self) -> float:
        return time.monotonic() - self._since


class Readers:
    """Reads channels for subscribers. Every look asks again whether they may."""

    def __init__(self, ledger: Ledger, wake: Wake, admission: Admission) -> None:
        self._ledger = ledger
        self._wake = wake
        self._admission = admission
        self._looks: GroupCommit[_Look, Reading] = GroupCommit(ledger, self._look_together, reads=True)

    async def close(self) -> None:
        await self._looks.close()

    async def read(self, agent: AgentRow, wanted: Wanted, now: datetime, wait_seconds: float) -> Reading:
        """The next messages; where there are none, the first that come within that time."""
        clock = _Time(now)
        async with AsyncExitStack() as stack:
            bell: Bell | None = None
            while True:
                found = await self._look(agent, wanted, clock.now())
                left = wait_seconds - clock.passed()
                if found.messages or left <= 0 or self._wake.stopping:
                    return found
                if bell is None:
                    # From here on nothing is missed, so there is one more look before the first wait.
                    bell = await stack.enter_async_context(
                        self._wake.listening(topic("channel", str(wanted.channel_id)))
                    )
                    continue
                await bell.wait(min(LOOK, left))

    async def follow(
        self, agent: AgentRow, wanted: Wanted, now: datetime, heartbeat: float
    ) -> AsyncIterator[Reading | None]:
        """Messages as they come, without an end; None at the beginning, and when nothing has come for so long.

        What is wrong from the beginning is raised by the first step."""
        clock, after, quiet_since = _Time(now), wanted.after, -heartbeat
        async with self._wake.listening(topic("channel", str(wanted.channel_id))) as bell:
            while True:
                found = await self._look(agent, Wanted(wanted.channel_id, after, wanted.limit), clock.now())
                quiet = clock.passed() - quiet_since
                if found.messages:
                    after = found.messages[-1].offset
                    yield found
                elif quiet >= heartbeat:
                    # Commits of another reader must not make this one leap.
                    after = found.next_offset - 1 if after is None else after
                    yield None
                elif self._wake.stopping:
                    return
                else:
                    await bell.wait(min(LOOK, heartbeat - quiet))
                    continue
                quiet_since = clock.passed()

    async def commit(self, agent: AgentRow, channel_id: UUID, offset: int, now: datetime) -> Subscription:
        """Everything up to an offset is done with. It moves forward only, and never past the end."""
        async with self._ledger.transaction() as tx:
            channel = await store.channel(tx, channel_id)
            held = await store.subscription(tx, channel_id, agent.handle)
            if held is None or not held.listens:
                await self._admission.refuse_outsiders(tx, channel, agent.handle, now)
                raise _not_subscribed(channel)
            if offset > channel.end:
                raise InvalidArgument(
                    f"the channel ends at offset {channel.end}, so {offset} cannot be committed",
                    hint=f"commit the offset of a message that you have read, at most {channel.end}",
                )
            committed = await store.commit(tx, channel_id, agent.handle, offset, now)
            if committed is None:  # it was removed just now
                raise _not_subscribed(channel)
        return committed

    async def _look(self, agent: AgentRow, wanted: Wanted, now: datetime) -> Reading:
        return await self._looks.submit(_Look(agent.handle, wanted, now))

    async def _look_together(self, tx: Tx, looks: Sequence[_Look]) -> Sequence[Reading | AngeliaError]:
        """A message wakes all who wait for it at once: one read serves those who stand at the same offset."""
        outcomes: dict[int, Reading | AngeliaError] = {}
        pages, by_channel = _Pages(), dict[UUID, list[int]]()
        for at, look in enumerate(looks):
            by_channel.setdefault(look.wanted.channel_id, []).append(at)
        for channel_id, places in by_channel.items():
            try:
                channel = await store.channel(tx, channel_id)
            except AngeliaError as error:
                outcomes |= dict.fromkeys(places, error)
            else:
                found = await self._look_into(tx, channel, [looks[at] for at in places], pages)
                outcomes |= dict(zip(places, found, strict=True))
        return [outcomes[at] for at in range(len(looks))]

    async def _look_into(
        self, tx: Tx, channel: Channel, looks: Sequence[_Look], pages: _Pages
    ) -> list[Reading | AngeliaError]:
        handles, now = [look.handle for look in looks], max(look.now for look in looks)
        held = await store.subscriptions(tx, channel.channel_id, handles)
        refusals = await self._admission.refusals(tx, channel, Action.SUBSCRIBE, handles, now)
        outcomes: list[Reading | AngeliaError] = []
        for look, refusal in zip(looks, refusals, strict=True):
            after = _place(channel, held.get(look.handle), refusal, look.wanted)
            if isinstance(after, AngeliaError):
                outcomes.append(await self._refused(tx, channel, look, after))
                continue
            outcomes.append(await pages.read(tx, channel, after, look.wanted.limit, now))
        return outcomes

    async def _refused(self, tx: Tx, channel: Channel, look: _Look, refusal: AngeliaError) -> AngeliaError:
        """What a reader is told who may not read; to outsiders there is no such channel."""
        try:
            await self._admission.refuse_outsiders(tx, channel, look.handle, look.now)
        except NotFound as hidden:
            return hidden
        return refusal


def _place(
    channel: Channel, held: Subscription | None, refusal: AngeliaError | None, wanted: Wanted
) -> int | AngeliaError:
    """Where a reader goes on, if it may."""
    if refusal is not None:
        return refusal
    if held is None or not held.listens:
        return _not_subscribed(channel)
    if held.status is Status.PAUSED:
        return Conflict("the subscription is paused", hint=f"angelia channel resume {channel.name}")
    after = held.last_offset if wanted.after is None else wanted.after
    return _gone(channel, after + 1) if after + 1 < channel.first_offset else after


class _Pages:
    """The pages of one batch. Who stands at the same place shares one; when there are many, the later ones are short,
    of one message at least."""

    def __init__(self) -> None:
        self._read: dict[tuple[UUID, int, int], Reading] = {}
        self._room = TOGETHER_BYTES

    async def read(self, tx: Tx, channel: Channel, after: int, limit: int, now: datetime) -> Reading:
        place = (channel.channel_id, after, limit)
        if place not in self._read:
            most = max(1, min(MOST_BYTES, self._room))
            found = await store.read(tx, channel.channel_id, after, now, limit + 1, most)
            self._room -= sum(len(one.wire) for one in found)
            more = len(found) > limit or (bool(found) and found[-1].offset < channel.end)
            self._read[place] = Reading(
                found[:limit], channel.first_offset, channel.next_offset, more, channel.roster_version
            )
        return self._read[place]


def _gone(channel: Channel, offset: int) -> OffsetGone:
    gone = OffsetGone(
        f"offset {offset} is not kept any more; the first that is kept is {channel.first_offset}",
        hint=f"go on after offset {channel.first_offset - 1}",
    )
    gone.members = {"offset": offset, "first_offset": channel.first_offset}
    return gone


def _not_subscribed(channel: Channel) -> Denied:
    return Denied("you are not subscribed to this channel", hint=f"angelia channel subscribe {channel.name}")
