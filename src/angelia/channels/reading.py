"""Reads channels for subscribers, by long polls and streams. Every look checks again that the subscriber may read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from angelia.api import AgentRow
from angelia.channels import store
from angelia.channels.admission import ChannelAdmission
from angelia.channels.api import ChannelReadQuery
from angelia.channels.model import Channel, ReadResult, Subscription, SubscriptionStatus
from angelia.errors import AngeliaError, Conflict, Denied, InvalidArgument, NotFound, OffsetGone
from angelia.policy.model import Action
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.wake import RECHECK_SECONDS, RequestTime, Wake, wake_topic

# Of one answer: JSON makes a third more of it.
MOST_BYTES = 4 << 20
# Of all answers that are read together: they are in memory until the last of them is there.
TOGETHER_BYTES = 64 << 20
_STREAM_PAGE = 20


@dataclass(frozen=True, slots=True)
class _Look:
    """One look of one subscriber, for messages after an offset, or after the offset that it committed."""

    handle: str
    channel_id: UUID
    after: int | None
    limit: int
    now: datetime


def channel_topic(channel_id: UUID) -> str:
    """The wake-ups of a channel: a message was published, or subscribers may have lost their right to read."""
    return wake_topic("channel", str(channel_id))


class Readers:
    """Reads channels for subscribers."""

    def __init__(self, ledger: Ledger, wake: Wake, admission: ChannelAdmission) -> None:
        self._ledger = ledger
        self._wake = wake
        self._admission = admission
        self._looks: GroupCommit[_Look, ReadResult] = GroupCommit(ledger.reading, self._look_together)

    async def close(self) -> None:
        await self._looks.close()

    async def read(self, agent: AgentRow, channel_id: UUID, wanted: ChannelReadQuery, now: datetime) -> ReadResult:
        """Returns the next messages; where there are none, the first that are published while it waits."""
        after, limit = wanted.after_offset, wanted.max_messages
        return await self._wake.poll(
            [channel_topic(channel_id)],
            lambda at: self._looks.submit(_Look(agent.handle, channel_id, after, limit, at)),
            lambda found: bool(found.messages),
            now,
            wanted.wait_timeout_seconds,
        )

    async def follow(
        self, agent: AgentRow, channel_id: UUID, after: int | None, now: datetime, heartbeat: float
    ) -> AsyncGenerator[ReadResult | None, None]:
        """Yields messages as they are published, without an end; None at the beginning, and after `heartbeat` seconds
        without a message.

        What is wrong from the beginning is raised by the first step."""
        clock, quiet_since = RequestTime(now), -heartbeat
        async with self._wake.listening(channel_topic(channel_id)) as bell:
            while True:
                found = await self._looks.submit(_Look(agent.handle, channel_id, after, _STREAM_PAGE, clock.now()))
                quiet = clock.passed() - quiet_since
                if found.messages:
                    after = found.messages[-1].offset
                    yield found
                elif quiet >= heartbeat:
                    # A commit of another reader of this subscription must not make this stream skip messages.
                    after = found.next_offset - 1 if after is None else after
                    yield None
                elif self._wake.stopping:
                    return
                else:
                    await bell.wait(min(RECHECK_SECONDS, heartbeat - quiet))
                    continue
                quiet_since = clock.passed()

    async def commit(self, agent: AgentRow, channel_id: UUID, offset: int, now: datetime) -> Subscription:
        """Commits everything up to an offset, and returns the subscription. The committed offset moves forward only,
        and never past the end."""
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

    async def _look_together(self, tx: Tx, looks: Sequence[_Look]) -> Sequence[ReadResult | AngeliaError]:
        """A message wakes all its readers at once: one read serves those that are at the same offset."""
        outcomes: dict[int, ReadResult | AngeliaError] = {}
        pages, by_channel = _Pages(), dict[UUID, list[int]]()
        for at, look in enumerate(looks):
            by_channel.setdefault(look.channel_id, []).append(at)
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
    ) -> list[ReadResult | AngeliaError]:
        handles, now = [look.handle for look in looks], max(look.now for look in looks)
        held = await store.subscriptions(tx, channel.channel_id, handles)
        refusals = await self._admission.refusals(tx, channel, Action.SUBSCRIBE, handles, now)
        outcomes: list[ReadResult | AngeliaError] = []
        for look, refusal in zip(looks, refusals, strict=True):
            after = _place(channel, held.get(look.handle), refusal, look.after)
            if isinstance(after, AngeliaError):
                outcomes.append(await self._refused(tx, channel, look, after))
                continue
            outcomes.append(await pages.read(tx, channel, after, look.limit, now))
        return outcomes

    async def _refused(self, tx: Tx, channel: Channel, look: _Look, refusal: AngeliaError) -> AngeliaError:
        """Returns the refusal, or for an agent that does not see the channel, that it does not exist."""
        try:
            await self._admission.refuse_outsiders(tx, channel, look.handle, look.now)
        except NotFound as hidden:
            return hidden
        return refusal


def _place(
    channel: Channel, held: Subscription | None, refusal: AngeliaError | None, wanted: int | None
) -> int | AngeliaError:
    """Returns the offset after which a subscriber reads, or why it may not."""
    if refusal is not None:
        return refusal
    if held is None or not held.listens:
        return _not_subscribed(channel)
    if held.status is SubscriptionStatus.PAUSED:
        return Conflict("the subscription is paused", hint=f"angelia channel resume {channel.name}")
    after = held.last_offset if wanted is None else wanted
    return _gone(channel, after + 1) if after + 1 < channel.first_offset else after


class _Pages:
    """The pages of one batch. Subscribers at the same offset share one; when there are many pages, the later ones are
    short, of one message at least."""

    def __init__(self) -> None:
        self._read: dict[tuple[UUID, int, int], ReadResult] = {}
        self._room = TOGETHER_BYTES

    async def read(self, tx: Tx, channel: Channel, after: int, limit: int, now: datetime) -> ReadResult:
        place = (channel.channel_id, after, limit)
        if place not in self._read:
            most = max(1, min(MOST_BYTES, self._room))
            found = await store.read(tx, channel.channel_id, after, now, limit + 1, most)
            self._room -= sum(len(one.wire) for one in found)
            more = len(found) > limit or (bool(found) and found[-1].offset < channel.end)
            self._read[place] = ReadResult(
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
