"""Publishes sealed messages: each gets the next offset of its channel, once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from angelia import metrics
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.audit.failures import SIGNATURE, Failures
from angelia.audit.model import Detail, Event
from angelia.channels import store
from angelia.channels.admission import ChannelAdmission
from angelia.channels.model import Channel, ChannelPublication, PublishedMessage, no_channel
from angelia.channels.reading import channel_topic
from angelia.channels.store import Known
from angelia.envelope import sealing
from angelia.envelope.refusals import SignatureFailed, SuiteRefused
from angelia.envelope.times import moment
from angelia.envelope.wire import Envelope, Suite
from angelia.errors import (
    AngeliaError,
    Denied,
    EpochStale,
    InvalidArgument,
    MessageIdConflict,
    NotFound,
    TooLarge,
)
from angelia.keys import admission as signatures
from angelia.keys.admission import Signed
from angelia.mail.model import untimely
from angelia.policy.model import Action
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.wake import Wake

# Of one transaction, which holds the locks of its channels.
_MOST_TOGETHER = 64
# A published message, and whether it is new: false where the same bytes were published before.
Outcome: TypeAlias = tuple[PublishedMessage, bool]


class Publishing:
    """Checks envelopes one by one, and writes those that came at the same time in one transaction."""

    def __init__(self, ledger: Ledger, wake: Wake, admission: ChannelAdmission, failures: Failures) -> None:
        self._ledger = ledger
        self._wake = wake
        self._admission = admission
        self._failures = failures
        self._appends = GroupCommit(ledger.transaction, append_batch, most=_MOST_TOGETHER)

    async def close(self) -> None:
        await self._appends.close()

    async def publish(self, agent: AgentRow, channel_id: UUID, envelope: Envelope, now: datetime) -> Outcome:
        """Publishes an envelope. Returns where it stands, and whether it is new.

        Cheap checks come first. A repeat of the same bytes gets its first answer at any time, so the check of the clock
        comes after the one of the id."""
        header = envelope.header
        if header.suite is not Suite.CHANNEL:
            raise SuiteRefused(f"a channel takes suite {int(Suite.CHANNEL)}, this envelope has {int(header.suite)}")
        if header.channel_id != channel_id:
            raise InvalidArgument("the envelope was sealed for another channel", hint="publish it in the one it names")
        if header.sender_nhi != agent.handle:
            await self._failed("message_delivery_denied", agent, envelope, now, "sender_is_another")
            raise Denied(f"the envelope is {header.sender_nhi}'s, and the caller is {agent.handle}")
        wanted = ChannelPublication(
            channel_id=channel_id,
            envelope=envelope,
            replay_key=bytes.fromhex(envelope.replay_key),
            created_at=moment(header.created_at),
            expires_at=moment(header.expires_at),
            accepted_at=now,
        )
        try:
            published, new = await self._place(agent, wanted, now)
        except (Denied, NotFound):
            await self._failed("message_delivery_denied", agent, envelope, now, "not_allowed")
            raise
        except MessageIdConflict:
            await self._failed("message_id_conflict", agent, envelope, now, "publish")
            raise
        except SignatureFailed:
            await self._failed(SIGNATURE, agent, envelope, now, "publish")
            raise
        if new:
            metrics.CHANNEL_MESSAGES.inc()
            await self._wake.tell(channel_topic(channel_id), b"")
        return published, new

    async def _place(self, agent: AgentRow, wanted: ChannelPublication, now: datetime) -> Outcome:
        channel_id, envelope = wanted.channel_id, wanted.envelope
        async with self._ledger.reading() as tx:
            channel = await store.channel(tx, channel_id)
            before = (await store.known(tx, [_id(wanted)])).get(_id(wanted))
            if before is not None:
                return _again(wanted, before)
            # Before any check that tells about the channel: to outsiders it does not exist.
            await self._admission.check(tx, channel, Action.PUBLISH, agent.handle, now)
            _check_size(channel, wanted)
            if (refusal := untimely(wanted.created_at, wanted.expires_at, now)) is not None:
                raise refusal
            _check_epoch(channel, wanted)
            [pair] = await signatures.signers(tx, [Signed.envelope(envelope.header)], now)
        if isinstance(pair, AngeliaError):
            raise pair
        sealing.verify(envelope, pair)
        await self._admission.spend(channel, Action.PUBLISH, agent.handle, now)
        return await self._appends.submit(wanted)

    async def _failed(self, kind: str, agent: AgentRow, envelope: Envelope, now: datetime, why: str) -> None:
        header = envelope.header
        await self._failures.record(
            kind,
            agent.handle,
            now,
            object=header.sender_nhi,
            message_id=header.message_id,
            detail={"channel_id": str(header.channel_id), "why": why},
        )


async def append_batch(tx: Tx, wanted: Sequence[ChannelPublication]) -> list[Outcome | AngeliaError]:
    """Gives each message the next offset of its channel, under the locks of all their channels.

    What was checked before may have changed: the channel may be gone, its key replaced, the message published."""
    channels = await store.lock(tx, sorted({one.channel_id for one in wanted}))
    known = await store.known(tx, [_id(one) for one in wanted])
    ends = {channel_id: channel.next_offset for channel_id, channel in channels.items()}
    results: list[Outcome | AngeliaError] = []
    fresh: list[tuple[ChannelPublication, PublishedMessage]] = []
    for one in wanted:
        channel = channels.get(one.channel_id)
        try:
            if channel is None:
                raise no_channel(one.channel_id)
            if (before := known.get(_id(one))) is not None:
                results.append(_again(one, before))
                continue
            _check_epoch(channel, one)
        except AngeliaError as refusal:
            results.append(refusal)
            continue
        at = PublishedMessage(
            message_id=one.message_id,
            replay_key=one.replay_key.hex(),
            offset=ends[one.channel_id],
            accepted_at=one.accepted_at,
            expires_at=channel.leaves_at(one.accepted_at, one.expires_at),
        )
        ends[one.channel_id] += 1
        known[_id(one)] = at
        fresh.append((one, at))
        results.append((at, True))
    if fresh:
        await store.append(tx, fresh)
        await audit.record(tx, [_sent(one, at, channels[one.channel_id]) for one, at in fresh])
    return results


def _check_size(channel: Channel, wanted: ChannelPublication) -> None:
    most, size = channel.max_message_size_bytes, len(wanted.envelope.wire)
    if size > most:
        raise TooLarge(
            f"a message of this channel has at most {most:,} bytes, sealed; this has {size:,}",
            hint=f"{channel.owner_nhi} runs `angelia channel update {channel.channel_name} --max-size BYTES`",
        )


def _check_epoch(channel: Channel, wanted: ChannelPublication) -> None:
    if wanted.envelope.header.key_id == channel.epoch_key_id:
        return
    stale = EpochStale(
        "the channel has another key by now" if channel.epoch_key_id else "the channel waits for its next key",
        hint="read the channel, take or make its key, and seal the message again",
    )
    stale.members = {
        "epoch": channel.epoch,
        "epoch_key_id": str(channel.epoch_key_id) if channel.epoch_key_id else None,
    }
    raise stale


def _again(wanted: ChannelPublication, before: PublishedMessage) -> Outcome:
    """Returns the first answer for the same bytes; another envelope under a used id is refused."""
    if before.replay_key != wanted.replay_key.hex():
        raise MessageIdConflict(
            "this message id was used before, for another envelope; the first one stands",
            hint="if that was the same message, it is published; another one needs another id",
        )
    return before, False


def _sent(one: ChannelPublication, at: PublishedMessage, channel: Channel) -> Event:
    detail: Detail = {"channel_id": str(channel.channel_id), "name": channel.name, "offset": at.offset}
    return audit.event(
        "message_sent",
        one.accepted_at,
        actor=one.sender,
        object=channel.owner_nhi,
        message_id=one.message_id,
        replay_key=one.replay_key,
        detail=detail,
    )


def _id(one: ChannelPublication) -> Known:
    return one.channel_id, one.sender, one.message_id
