"""The agent's side of channels: their keys, sealing under them, and opening messages, without a network."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Unpack
from uuid import UUID

from angelia.envelope import frame, sealing
from angelia.envelope.merkle_batch import VerifiedRoots
from angelia.envelope.refusals import Expired, IdConflict, Malformed, Refused, SuiteRefused, UnknownKey, WrongRecipient
from angelia.envelope.sealing import CHANNEL_KEY_LENGTHS, ChannelKey, Edition, EpochKey, Letter
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import SKEW, moment, unix_ms
from angelia.envelope.wire import (
    LATEST,
    TTL_CEILING,
    TTL_DEFAULT,
    Compression,
    Envelope,
    Header,
    Priority,
    Suite,
)
from angelia.errors import AngeliaError
from angelia.mailbox import replay
from angelia.mailbox.database import MailboxDatabase, MailboxTx, stamp, unstamp
from angelia.mailbox.drafts import MessageOptions
from angelia.mailbox.key_rotation import STOLEN_AT, accepts_suite
from angelia.mailbox.key_share_retries import KeyShareRetries, forget_before
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.own_keys import OwnKeys
from angelia.mailbox.pinned_keys import PinnedKeys
from angelia.mailbox.time_window import DeliveryProfile, check_window

KEY_BYTES = [len(frame.pack(length, bytes(length), padme=False)) for length in CHANNEL_KEY_LENGTHS]


# A channel's epoch ends with every member that leaves, so that a mailbox may have missed many.
MOST_EPOCHS_AHEAD = 1_000_000


class EpochLeapt(AngeliaError, code="bad_answer"):
    """The server says that a channel is at an epoch that it cannot have come to"""


class EpochWentBack(AngeliaError, code="conflict"):
    """The server says that a channel is at an earlier epoch than before"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChannelMessage:
    """A message of a channel, opened: its signatures hold, and its offset is the one that it had before."""

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
    body: bytes

    def __repr__(self) -> str:
        """Which message it is, and nothing of its content: it may end up in a log."""
        return f"<message {self.offset} of channel {self.channel_id} from {self.sender}, {len(self.body):,} bytes>"

    @property
    def text(self) -> str:
        """The content as text; bytes that are no UTF-8 become U+FFFD."""
        return self.body.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class PlacedEnvelope:
    """An envelope, and its offset by the server's word."""

    offset: int
    envelope: Envelope


@dataclass(eq=False, repr=False)
class MailboxChannels:
    """The tables `channels`, `channel_keys`, `channel_epochs` and `channel_opened`."""

    _database: MailboxDatabase
    _local: LocalKey
    _own_keys: OwnKeys
    _pinned_keys: PinnedKeys
    _ttl_max: int
    key_share_retries: KeyShareRetries
    _roots: VerifiedRoots = field(default_factory=VerifiedRoots)

    @property
    def ttl(self) -> int:
        """The default lifetime of a message or a key, in seconds."""
        return min(TTL_DEFAULT, self._ttl_max)

    def join(self, channel_id: UUID, name: str, now: datetime) -> None:
        """Expects mail with this channel's keys from now on, from any sender."""
        with self._database.transaction() as tx:
            tx.write("join_channel", channel_id, name, now)
            tx.write("revive_channel_key", channel_id)

    def leave(self, channel_id: UUID, now: datetime) -> None:
        """Expects no more keys; the keys that are here are destroyed later, like replaced ones."""
        with self._database.transaction() as tx:
            tx.write("leave_channel", channel_id)
            tx.write("retire_channel_keys", self._destroy_at(now), channel_id, LATEST)

    def forget(self, channel_id: UUID, now: datetime) -> None:
        """Forgets all about a channel except its keys; they still open messages, and seal nothing."""
        self.leave(channel_id, now)
        with self._database.transaction() as tx:
            for statement in ("forget_roster", "forget_epoch", "spend_channel_keys"):
                tx.write(statement, channel_id)

    def joined_as(self, name: str) -> UUID | None:
        """Returns the id of the channel that was joined under a name."""
        found = self._database.row("channel_joined_as", name)
        return None if found is None else UUID(found[0])

    def name(self, channel_id: UUID) -> str | None:
        """Returns the `owner/name` under which a channel was joined."""
        found = self._database.row("joined_channel", channel_id)
        return None if found is None else str(found[0])

    def expects(self, envelope: Envelope) -> bool:
        """Whether an envelope claims to bring the key of a channel that this agent has joined, and has a key's length.

        To join a channel is to agree to such mail: its sender need not be on the allowlist. The key is accepted only if
        the sender may give it out."""
        header = envelope.header
        bare = header.compression is Compression.NONE and len(envelope.ciphertext) in KEY_BYTES
        joined = header.channel_id is not None and self.name(header.channel_id) is not None
        return header.control and bare and joined

    def keep(
        self, brought: ChannelKey, sender: str, now: datetime, *, seals: bool = True, came_at: datetime | None = None
    ) -> None:
        """Stores a key that was accepted or made here; `seals` is False for one that only opens. A key that was in this
        mailbox when its keys were stolen seals nothing either."""
        roster = brought.made_under if seals else None
        if not 1 <= brought.epoch < LATEST:
            raise Malformed("the epoch of a channel's key is out of range")
        channel_id, key_id = brought.channel_id, brought.key.key_id
        with self._database.transaction() as tx:
            kept = self._local.encrypt("channel_keys", str(key_id), brought.key.secret)
            made_under = (None, 0 if seals else None) if roster is None else (roster.signer_id, roster.version)
            stolen_at = self.stolen_at
            spent = came_at is not None and stolen_at is not None and came_at <= stolen_at
            tx.write("add_channel_key", channel_id, key_id, brought.epoch, *kept, sender, now, *made_under, spent)
            (newest,) = tx.row("newest_epoch", channel_id, self._own_keys.identity.handle)
            tx.write("retire_channel_keys", self._destroy_at(now), channel_id, newest or 0)

    def retire(self, channel_id: UUID, epoch: int, now: datetime) -> None:
        """Retires the keys up to an epoch that the channel has left: they seal nothing any more."""
        self._database.write("retire_channel_keys", self._destroy_at(now), channel_id, epoch + 1)

    def retire_before(self, channel_id: UUID, epoch: int, now: datetime) -> None:
        """Retires the keys of earlier epochs, after a key of this epoch was made here: they seal nothing any more, and
        are kept until no message under them can be read."""
        with self._database.transaction() as tx:
            tx.write("heard_epoch", channel_id, epoch)
            tx.write("retire_channel_keys", self._destroy_at(now), channel_id, epoch)
            forget_before(tx, channel_id, epoch)

    def check_epoch(self, channel_id: UUID, epoch: int) -> None:
        """Refuses an epoch of the server that goes back, or leaps far ahead: a message under an earlier key opens for
        members that were removed since. Epochs are not signed, so the keys that were accepted or made here say which
        one was the newest."""
        (newest,) = self._database.row("newest_epoch", channel_id, self._own_keys.identity.handle)
        if newest is None or newest <= epoch <= newest + MOST_EPOCHS_AHEAD:
            return
        said = f"the server says that the channel is at epoch {epoch}; it was at epoch {newest} before"
        if epoch > newest:
            raise EpochLeapt(said)
        raise EpochWentBack(
            said,
            hint="nothing is sealed under an earlier key. Was the server put back from an old copy, or was that "
            f"epoch untrue? Then: angelia channel forget {channel_id}",
        )

    def key(self, channel_id: UUID, key_id: UUID, now: datetime) -> EpochKey | None:
        found = self._database.row("channel_key", channel_id, key_id, now)
        return None if found is None else self._decrypted(key_id, *found)

    def made_under(self, channel_id: UUID, key_id: UUID) -> Edition | None:
        """Returns the roster, by signer and version, under which a key was made."""
        return self._database.record(Edition, "key_made_under", channel_id, key_id)

    @property
    def stolen_at(self) -> datetime | None:
        """The last time at which the keys of channels in this mailbox may have been stolen."""
        found = self._database.meta(STOLEN_AT)
        return None if found is None else unstamp(found)

    def present_key(self, channel_id: UUID, key_id: UUID) -> EpochKey | None:
        """Returns a key if it may seal: it was not replaced, a publisher vouched for it, and the roster still accepts
        keys of its version."""
        found = self._database.row("present_channel_key", channel_id, key_id)
        return None if found is None else self._decrypted(key_id, *found)

    def seal(
        self, channel_id: UUID, key: EpochKey, body: bytes, now: datetime, **options: Unpack[MessageOptions]
    ) -> Envelope:
        """Returns a message sealed for all agents that have the key."""
        values: MessageOptions = {"message_id": uuid.uuid4(), "ttl_seconds": self.ttl, **options}
        letter = Letter(channel_id=channel_id, key=key, body=body, created_at=unix_ms(now), **values)
        identity = self._own_keys.identity
        return sealing.seal(letter, identity.handle, identity.pair, ttl_max=self._ttl_max)

    def open_many(
        self, channel_id: UUID, messages: Sequence[PlacedEnvelope], now: datetime
    ) -> list[ChannelMessage | Refused]:
        """Opens messages, and returns one outcome for each. A message that was opened before opens again.

        Offsets guard against replay: a message at a second offset, or another message at an offset that was opened, is
        refused. Only a commit, which is not made here, ends the reading of a message."""
        outcomes: list[ChannelMessage | Refused] = [self._opened(channel_id, one, now) for one in messages]
        with self._database.transaction() as tx:
            for at, one in enumerate(outcomes):
                if isinstance(one, ChannelMessage) and (refusal := _claim(tx, one)):
                    outcomes[at] = refusal
        return outcomes

    def was_opened(self, channel_id: UUID, placed: PlacedEnvelope) -> bool:
        """Whether this message was opened here before, at this offset."""
        found = self._database.row("channel_opened", channel_id, placed.offset)
        return found is not None and found[0] == placed.envelope.replay_key

    def _opened(self, channel_id: UUID, placed: PlacedEnvelope, now: datetime) -> ChannelMessage | Refused:
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
        if not accepts_suite(self._database, header.suite, header.created_at):
            raise SuiteRefused("this agent took no messages of channels when the envelope was made")
        check_window(header, DeliveryProfile.RELAY, now)
        pruned_to = self._database.meta(replay.CHANNELS_PRUNED_TO)
        if pruned_to is not None and stamp(moment(header.expires_at)) <= pruned_to:
            raise Expired("this mailbox no longer remembers where the message stood, so it does not open it")
        pair = self._signer(header)
        sealing.verify(envelope, pair, self._roots, unix_ms(now))
        return pair, sealing.unseal_post(envelope, channel_id, key)

    def _signer(self, header: Header) -> VerifyingPair:
        own = self._own_keys.identity
        if (header.sender_nhi, header.sender_key_id) == (own.handle, own.pair.public.signer_id):
            return own.pair.public
        return self._pinned_keys.signer(header.sender_nhi, header.sender_key_id, moment(header.created_at))

    def _decrypted(self, key_id: UUID, nonce: bytes, secret: bytes) -> EpochKey | None:
        key = EpochKey.of(self._local.decrypt("channel_keys", str(key_id), nonce, secret))
        return key if key.key_id == key_id else None

    def _destroy_at(self, now: datetime) -> datetime:
        """When a retired key is destroyed: other publishers' messages live as long as any server allows."""
        return now + timedelta(seconds=TTL_CEILING) + SKEW


def _claim(tx: MailboxTx, message: ChannelMessage) -> Refused | None:
    """Notes the offset of a message. Returns the refusal if the message or the offset was used before."""
    place = (message.channel_id, message.offset)
    named = (message.replay_key, message.sender_fingerprint, message.message_id)
    tx.write("add_channel_opened", *place, *named, message.expires_at)
    found = tx.row("channel_opened", *place)
    if found is None:
        return IdConflict("this message stood at another offset before; it is not shown a second time")
    if found[0] != message.replay_key:
        return IdConflict(f"another message stood at offset {message.offset} before; the first one stands")
    return None
