"""The agent's side of channels: their keys, sealing under them, and opening what was published, without a network."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypedDict, Unpack
from uuid import UUID

from angelia.envelope import frame, sealing
from angelia.envelope.merkle_batch import VerifiedRoots
from angelia.envelope.refusals import Expired, IdConflict, Malformed, Refused, SuiteRefused, UnknownKey, WrongRecipient
from angelia.envelope.sealing import CHANNEL_KEY_LENGTHS, ChannelKey, Edition, EpochKey, Post
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import SKEW, moment, unix_ms
from angelia.envelope.wire import (
    LATEST,
    TTL_CEILING,
    TTL_DEFAULT,
    TTL_MAX,
    Compression,
    Envelope,
    Header,
    Priority,
    Suite,
)
from angelia.errors import AngeliaError
from angelia.mailbox.database import SQL, MailboxDatabase, MailboxTx, read_meta, stamp, unstamp, write_meta
from angelia.mailbox.key_rotation import STOLEN_AT
from angelia.mailbox.key_share_retries import Unreached, forget_before
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.own_keys import OwnKeys
from angelia.mailbox.pinned_keys import PinnedKeys
from angelia.mailbox.time_window import DeliveryProfile, check_window

_PRUNED_TO = "channels_pruned_to"
_CHUNK = 5_000
KEY_BYTES = [len(frame.pack(length, bytes(length), padme=False)) for length in CHANNEL_KEY_LENGTHS]


# A channel's epoch ends with every member that leaves, so that a mailbox may have missed many.
MOST_EPOCHS_AHEAD = 1_000_000


class EpochLeapt(AngeliaError):
    """The server says that a channel is at an epoch that it cannot have come to"""

    code = "bad_answer"


class EpochWentBack(AngeliaError):
    """The server says that a channel is at an earlier epoch than before"""

    code = "conflict"


class PostWishes(TypedDict, total=False):
    """How a publisher wants a message to be; what is left out is as in `Post`."""

    message_id: UUID
    ttl_seconds: int
    priority: Priority
    compression: Compression
    padme: bool
    correlation_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMessage:
    """A message of a channel, opened: its signatures hold, and it stands where it always stood."""

    channel_id: UUID
    offset: int
    replay_key: str
    message_id: UUID
    sender: str
    sender_fingerprint: str
    correlation_id: UUID | None
    priority: Priority
    created_at: datetime
    expires_at: datetime
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Placed:
    """An envelope, and the offset at which a server says it stands."""

    offset: int
    envelope: Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldKey:
    """A key of a channel, without its secret."""

    key_id: UUID
    epoch: int
    sender: str
    received_at: datetime


class Channels:
    """The tables `channels`, `channel_keys`, `channel_epochs` and `channel_opened`."""

    def __init__(
        self, database: MailboxDatabase, local: LocalKey, own: OwnKeys, trust: PinnedKeys, ttl_max: int = TTL_MAX
    ) -> None:
        self._database = database
        self._local = local
        self._own = own
        self._trust = trust
        self._ttl_max = ttl_max
        self.unreached = Unreached(database)
        self._roots = VerifiedRoots()

    @property
    def ttl(self) -> int:
        """How long a message or a key lives of which nobody says otherwise, in seconds."""
        return min(TTL_DEFAULT, self._ttl_max)

    def join(self, channel_id: UUID, name: str, now: datetime) -> None:
        """From now on mail that brings this channel's keys is expected, whoever its sender is."""
        with self._database.transaction() as tx:
            tx.execute(SQL["join_channel"], (str(channel_id), name, stamp(now)))
            tx.execute(SQL["revive_channel_key"], (str(channel_id),))

    def leave(self, channel_id: UUID, now: datetime) -> None:
        """Expect no more; the keys that are here go as those do that were replaced."""
        with self._database.transaction() as tx:
            tx.execute(SQL["leave_channel"], (str(channel_id),))
            tx.execute(SQL["retire_channel_keys"], (self._destroy_at(now), str(channel_id), LATEST))

    def forget(self, channel_id: UUID, now: datetime) -> None:
        """Know nothing of a channel any more but the keys that open its messages; they seal nothing."""
        self.leave(channel_id, now)
        with self._database.transaction() as tx:
            for statement in ("forget_roster", "forget_epoch", "spend_channel_keys"):
                tx.execute(SQL[statement], (str(channel_id),))

    def joined_as(self, name: str) -> UUID | None:
        """The channel that was joined under a name."""
        found = self._database.row("channel_joined_as", name)
        return None if found is None else UUID(found[0])

    def name(self, channel_id: UUID) -> str | None:
        found = self._database.row("joined_channel", str(channel_id))
        return None if found is None else str(found[0])

    def expects(self, envelope: Envelope) -> bool:
        """Whether an envelope claims to bring the key of a channel that this agent has joined, and is exactly as long.

        To join is to agree: such mail needs no place on the allowlist. What it brings is believed only if its sender
        may give out the channel's key."""
        header = envelope.header
        bare = header.compression is Compression.NONE and len(envelope.ciphertext) in KEY_BYTES
        joined = header.channel_id is not None and self.name(header.channel_id) is not None
        return header.control and bare and joined

    def keep(
        self, brought: ChannelKey, sender: str, now: datetime, *, seals: bool = True, came_at: datetime | None = None
    ) -> None:
        """Keep a key that is believed, or that was made here; or one that only opens. One that lay in this mailbox when
        its keys were stolen is spent."""
        roster = brought.made_under if seals else None
        if not 1 <= brought.epoch < LATEST:
            raise Malformed("the epoch of a channel's key is out of range")
        channel_id, key_id = str(brought.channel_id), str(brought.key.key_id)
        with self._database.transaction() as tx:
            kept = self._local.encrypt("channel_keys", key_id, brought.key.secret)
            made_under = (None, 0 if seals else None) if roster is None else (str(roster.signer_id), roster.version)
            stolen_at = read_meta(tx, STOLEN_AT)
            spent = came_at is not None and stolen_at is not None and stamp(came_at) <= stolen_at
            values = (channel_id, key_id, brought.epoch, *kept, sender, stamp(now), *made_under, spent)
            tx.execute(SQL["add_channel_key"], values)
            (newest,) = tx.execute(SQL["newest_epoch"], (channel_id, self._own.identity.handle)).fetchone()
            tx.execute(SQL["retire_channel_keys"], (self._destroy_at(now), channel_id, newest or 0))

    def retire(self, channel_id: UUID, epoch: int, now: datetime) -> None:
        """The channel has gone on after that epoch: keys up to it seal nothing any more."""
        with self._database.transaction() as tx:
            tx.execute(SQL["retire_channel_keys"], (self._destroy_at(now), str(channel_id), epoch + 1))

    def retire_before(self, channel_id: UUID, epoch: int, now: datetime) -> None:
        """The channel is at that epoch, whose key was made here: keys of earlier ones seal nothing any more, and live
        on until nothing under them can be read."""
        with self._database.transaction() as tx:
            tx.execute(SQL["heard_epoch"], (str(channel_id), epoch))
            tx.execute(SQL["retire_channel_keys"], (self._destroy_at(now), str(channel_id), epoch))
            forget_before(tx, channel_id, epoch)

    def follow(self, channel_id: UUID, epoch: int) -> None:
        """A server says at which epoch the channel is. One that goes back is refused: what is sealed under a key of
        before opens for those who were removed since. Only keys that are believed or were made here say where it was:
        nobody signs an epoch."""
        (newest,) = self._database.row("newest_epoch", str(channel_id), self._own.identity.handle)
        if newest is not None and epoch > newest + MOST_EPOCHS_AHEAD:
            raise EpochLeapt(f"the server says that the channel is at epoch {epoch}; it was at epoch {newest} before")
        if newest is not None and epoch < newest:
            raise EpochWentBack(
                f"the server says that the channel is at epoch {epoch}; it was at epoch {newest} before",
                hint="nothing is sealed under an earlier key. Was the server put back from an old copy, or was that "
                f"epoch untrue? Then: angelia channel forget {channel_id}",
            )

    def key(self, channel_id: UUID, key_id: UUID, now: datetime) -> EpochKey | None:
        found = self._database.row("channel_key", str(channel_id), str(key_id), stamp(now))
        return None if found is None else self._decrypted(key_id, *found)

    def made_under(self, channel_id: UUID, key_id: UUID) -> Edition | None:
        """The roster that the maker of a key had."""
        found = self._database.row("key_made_under", str(channel_id), str(key_id))
        return None if found is None else Edition(UUID(found[0]), found[1])

    @property
    def stolen_at(self) -> datetime | None:
        """When the keys of channels that lay here may have been stolen last."""
        found = self._database.row("read_meta", STOLEN_AT)
        return None if found is None else unstamp(found[0])

    def present_key(self, channel_id: UUID, key_id: UUID) -> EpochKey | None:
        """A key to seal under: one that was not replaced, by a publisher's word, and not too old for the roster."""
        found = self._database.row("present_channel_key", str(channel_id), str(key_id))
        return None if found is None else self._decrypted(key_id, *found)

    def keys(self, channel_id: UUID) -> list[HeldKey]:
        """The keys of a channel, newest epoch first."""
        return [
            HeldKey(key_id=UUID(key_id), epoch=epoch, sender=sender, received_at=unstamp(received))
            for key_id, epoch, sender, received in self._database.rows("channel_keys", str(channel_id))
        ]

    def seal(
        self, channel_id: UUID, key: EpochKey, body: bytes, now: datetime, **wishes: Unpack[PostWishes]
    ) -> Envelope:
        """Seal a message for everybody who has the key."""
        values: PostWishes = {"message_id": uuid.uuid4(), "ttl_seconds": self.ttl, **wishes}
        post = Post(channel_id=channel_id, key=key, body=body, created_at=unix_ms(now), **values)
        identity = self._own.identity
        return sealing.seal_post(post, identity.handle, identity.pair, ttl_max=self._ttl_max)

    def open_many(self, channel_id: UUID, messages: Sequence[Placed], now: datetime) -> list[ChannelMessage | Refused]:
        """Open messages where they stand; each has its own outcome. What stood there before opens again.

        The offset is the guard: a message at a second offset, or another message at an offset that was opened, is
        refused, whoever says so. A commit, and nothing here, ends the reading of a message."""
        outcomes: list[ChannelMessage | Refused] = [self._opened(channel_id, one, now) for one in messages]
        with self._database.transaction() as tx:
            for at, one in enumerate(outcomes):
                if isinstance(one, ChannelMessage) and (refusal := _claim(tx, one)):
                    outcomes[at] = refusal
        return outcomes

    def was_opened(self, channel_id: UUID, placed: Placed) -> bool:
        """Whether this very message was opened here before, at this offset."""
        found = self._database.row("channel_opened", str(channel_id), placed.offset)
        return found is not None and found[0] == placed.envelope.replay_key

    def _opened(self, channel_id: UUID, placed: Placed, now: datetime) -> ChannelMessage | Refused:
        try:
            pair, body = self._open(channel_id, placed.envelope, now)
        except Refused as refusal:
            return refusal
        header = placed.envelope.header
        return ChannelMessage(
            channel_id=channel_id,
            offset=placed.offset,
            replay_key=placed.envelope.replay_key,
            message_id=header.message_id,
            sender=header.sender_nhi,
            sender_fingerprint=pair.fingerprint,
            correlation_id=header.correlation_id,
            priority=header.priority,
            created_at=moment(header.created_at),
            expires_at=moment(header.expires_at),
            body=body,
        )

    def _open(self, channel_id: UUID, envelope: Envelope, now: datetime) -> tuple[VerifyingPair, bytes]:
        header = envelope.header
        if header.suite is not Suite.CHANNEL or header.channel_id != channel_id:
            raise WrongRecipient("the envelope is not of this channel")
        key = self.key(channel_id, header.key_id, now)
        if key is None:
            raise UnknownKey("the key of this message's epoch is not here", hint="it may be under way; or it is older")
        if not self._own.accepts_suite(header.suite, header.created_at):
            raise SuiteRefused("this agent took no messages of channels when the envelope was made")
        check_window(header, DeliveryProfile.RELAY, now)
        pruned_to = self._database.row("read_meta", _PRUNED_TO)
        if pruned_to and stamp(moment(header.expires_at)) <= pruned_to[0]:
            raise Expired("this mailbox no longer remembers where the message stood, so it does not open it")
        pair = self._signer(header)
        sealing.verify(envelope, pair, self._roots, unix_ms(now))
        return pair, sealing.unseal_post(envelope, channel_id, key)

    def _signer(self, header: Header) -> VerifyingPair:
        own = self._own.identity
        if (header.sender_nhi, header.sender_key_id) == (own.handle, own.pair.public.signer_id):
            return own.pair.public
        return self._trust.signer(header.sender_nhi, header.sender_key_id, moment(header.created_at))

    def _decrypted(self, key_id: UUID, nonce: bytes, secret: bytes) -> EpochKey | None:
        key = EpochKey.of(self._local.decrypt("channel_keys", str(key_id), nonce, secret))
        return key if key.key_id == key_id else None

    def _destroy_at(self, now: datetime) -> str:
        """Others may publish messages that live as long as any server allows."""
        return stamp(now + timedelta(seconds=TTL_CEILING) + SKEW)


def prune(database: MailboxDatabase, now: datetime) -> None:
    """Forget where messages stood that have expired."""
    before, chunk = stamp(now - SKEW), _CHUNK
    while chunk == _CHUNK:
        with database.transaction() as tx:
            expiries = [row[0] for row in tx.execute(SQL["prune_channel_opened"], (before, _CHUNK))]
            if expiries:
                write_meta(tx, _PRUNED_TO, max(read_meta(tx, _PRUNED_TO) or "", *expiries))
        chunk = len(expiries)


def _claim(tx: MailboxTx, message: ChannelMessage) -> Refused | None:
    channel_id, msg_id = str(message.channel_id), str(message.message_id)
    values = (channel_id, message.offset, message.replay_key, message.sender_fingerprint, msg_id)
    tx.execute(SQL["add_channel_opened"], (*values, stamp(message.expires_at)))
    found = tx.execute(SQL["channel_opened"], (channel_id, message.offset)).fetchone()
    if found is None:
        return IdConflict("this message stood at another offset before; it is not shown a second time")
    if found[0] != message.replay_key:
        return IdConflict(f"another message stood at offset {message.offset} before; the first one stands")
    return None
