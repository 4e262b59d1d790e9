"""Mail on its way out. What was sealed is durable before anybody can send it, and is sent again byte for byte."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypedDict, Unpack
from uuid import UUID

from angelia.envelope import frame, sealing, wire
from angelia.envelope.bundles import Bundle, Link, OneTimeKey, UntrustedBundle, check_one_time_key
from angelia.envelope.kem import KemPublicKey
from angelia.envelope.refusals import Expired, InvalidKey, UnknownSigner
from angelia.envelope.sealing import Letter
from angelia.envelope.times import SKEW, moment, unix_ms
from angelia.envelope.wire import TTL_DEFAULT, TTL_MAX, Compression, Envelope, Header, Priority, Suite
from angelia.errors import AngeliaError, Conflict, InvalidArgument, KeyRevoked, KeyStale
from angelia.keys.model import ONE_TIME_LIFE
from angelia.mailbox.cleanup import KEPT_AFTER_END, Cleanup
from angelia.mailbox.database import SQL, MailboxDatabase, MailboxTx, stamp
from angelia.mailbox.envelope_files import EnvelopeFiles, FileProblem
from angelia.mailbox.inbox import PAGE, resolve
from angelia.mailbox.key_rotation import OwnKeys
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.outbox_message import SIGNED, OutboxMessage, OutboxStatus, outbox_message
from angelia.mailbox.pinned_keys import Pin, PinnedKeys

LONGEST_WAIT = timedelta(minutes=5)
# How many times longer each envelope of a message is kept in use than the one before, if no server takes it.
_GROWS = 4
# How long after its end news of a message may still come; so long its content is kept.
FOLLOWED = KEPT_AFTER_END
# How often one message is sealed again, over its whole life.
MOST_RESEALS = 5
LONGEST_PAUSE = LONGEST_WAIT * _GROWS ** (MOST_RESEALS - 1)
_LONGEST_REASON = 500
_NEWEST = ("~", "~")


class SealStands(AngeliaError):
    """The message is not sealed again: nothing that its recipient signed asks for it"""

    code = "seal_stands"


class SendOptions(TypedDict, total=False):
    """How a sender wants a message to travel; what is left out is as in `Draft`."""

    ttl_seconds: int
    priority: Priority
    compression: Compression
    padme: bool
    channel_id: UUID | None
    correlation_id: UUID | None
    control: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message to be sealed."""

    recipient: Bundle
    body: bytes = field(repr=False)
    ttl_seconds: int | None = None  # as long as is usual, or as the mailbox may
    priority: Priority = Priority.NORMAL
    compression: Compression = Compression.NONE
    padme: bool = False
    channel_id: UUID | None = None
    correlation_id: UUID | None = None
    control: bool = False
    one_time_key: OneTimeKey | None = None
    message_id: UUID | None = None

    def __post_init__(self) -> None:
        wishes: SendOptions = {
            "priority": self.priority,
            "compression": self.compression,
            "channel_id": self.channel_id,
            "correlation_id": self.correlation_id,
        }
        check(self.body, wishes)


def check(body: bytes, wishes: SendOptions) -> None:
    """Refuse what is of the wrong type, before a key is fetched for it and anything is stored."""
    if not isinstance(body, bytes | bytearray):
        raise InvalidArgument(
            f"the body of a message is bytes, not {type(body).__name__}", hint='encode text first: "hello".encode()'
        )
    for name, kind in (("priority", Priority), ("compression", Compression)):
        value = wishes.get(name, 0)
        if not isinstance(value, int) or value not in list(kind):
            known = ", ".join(f"{kind.__name__}.{one.name}" for one in kind)
            raise InvalidArgument(f"{value!r} is no {name}", hint=f"one of {known}")
    for name in ("channel_id", "correlation_id"):
        value = wishes.get(name)
        if value is not None and not isinstance(value, UUID):
            raise InvalidArgument(f"{name} is a UUID, not {value!r}", hint="uuid.UUID(text) makes one of its text")
    ttl = wishes.get("ttl_seconds")
    if ttl is not None and not isinstance(ttl, int):
        raise InvalidArgument(f"ttl_seconds is a whole number, not {ttl!r}", hint="seconds, such as 3600")


class Outbox:
    """The table `outbox` and its sealed files."""

    def __init__(
        self,
        database: MailboxDatabase,
        local: LocalKey,
        files: EnvelopeFiles,
        own_keys: OwnKeys,
        pinned_keys: PinnedKeys,
        cleanup: Cleanup,
        ttl_max: int = TTL_MAX,
    ) -> None:
        self._database = database
        self._local = local
        self._files = files
        self._own_keys = own_keys
        self._pinned_keys = pinned_keys
        self._cleanup = cleanup
        self._ttl_max = ttl_max

    def seal(
        self,
        recipient: Link | Bundle,
        body: bytes,
        *,
        now: datetime,
        one_time_key: OneTimeKey | None = None,
        message_id: UUID | None = None,
        **wishes: Unpack[SendOptions],
    ) -> Envelope:
        """Seal one message; when this returns, its bytes are on disk."""
        draft = Draft(
            recipient=_bundle(recipient), body=body, one_time_key=one_time_key, message_id=message_id, **wishes
        )
        self._cleanup.run_due(now)
        letter = self._letter(draft, now)
        envelope = sealing.seal(
            letter, self._own_keys.identity.handle, self._own_keys.identity.pair, ttl_max=self._ttl_max
        )
        self._store([envelope], [draft], now)
        return envelope

    def seal_many(self, drafts: Sequence[Draft], now: datetime) -> list[Envelope]:
        """Seal up to 256 messages under one pair of signatures."""
        self._cleanup.run_due(now)
        letters = [self._letter(draft, now) for draft in drafts]
        identity = self._own_keys.identity
        envelopes = sealing.seal_batch(letters, identity.handle, identity.pair, ttl_max=self._ttl_max)
        self._store(envelopes, drafts, now)
        return envelopes

    def reseal(
        self,
        replay_key: str,
        recipient: Link | Bundle,
        now: datetime,
        *,
        one_time_key: OneTimeKey | None = None,
    ) -> Envelope:
        """Seal a message again from its kept content, for other keys of the same recipient and until the same time.

        It keeps its id, so that its recipient opens one of the two at most. `check_reseal` says what is a reason.
        """
        self.check_reseal(replay_key, recipient, now)
        before = self.message(replay_key)
        old = wire.decode(self._files.get(before.replay_key))
        body = self._body(before)
        bundle, header = _bundle(recipient), old.header
        seconds_left = (before.expires_at - now) // timedelta(seconds=1)
        _, compressed = frame.compress(body, header.compression)
        draft = Draft(
            recipient=bundle,
            body=body,
            ttl_seconds=min(seconds_left, self._ttl_max),
            priority=header.priority,
            compression=header.compression,
            padme=len(old.ciphertext) != len(frame.pack(len(body), compressed, padme=False)),
            channel_id=header.channel_id,
            correlation_id=header.correlation_id,
            control=header.control,
            one_time_key=one_time_key,
            message_id=header.message_id,
        )
        identity = self._own_keys.identity
        envelope = sealing.seal(self._letter(draft, now), identity.handle, identity.pair, ttl_max=self._ttl_max)
        self._store([envelope], [draft], now, replaces=before)
        return envelope

    def check_reseal(self, replay_key: str, recipient: Link | Bundle, now: datetime) -> None:
        """Refuse to seal a message again without a reason; a server's word is none. A signed bundle has to name its key
        no more, this agent's own pair has to be another one by now, or the envelope has to be too old for a server that
        has not taken it."""
        row, bundle = self.message(replay_key), _bundle(recipient)
        _refuse_unless_resealable(row)
        if bundle.agent_nhi != row.recipient:
            raise UntrustedBundle(f"the message is for {row.recipient}, the bundle is {bundle.agent_nhi}'s")
        if row.expires_at - now < timedelta(seconds=1):
            raise Expired(f"the message to {row.recipient} has expired, so it is not sealed again")
        header = wire.decode(self._files.get(row.replay_key)).header
        _refuse_needless(row, header, bundle, self._own_keys.identity.pair.public.signer_id, now)

    def wire(self, replay_key: str) -> bytes:
        """The bytes to send: always those that were sealed."""
        return self._files.get(self.message(replay_key).replay_key)

    def message(self, replay_key: str) -> OutboxMessage:
        """One message by its replay key, or by the beginning of it if no other begins so."""
        return outbox_message(self._database.row("outbox_one", resolve(self._database, "outbox_between", replay_key)))

    def current(self, replay_key: str) -> OutboxMessage:
        """The same, or what it was sealed into since."""
        row = self.message(replay_key)
        with self._database.transaction() as tx:
            return self._current(tx, row.replay_key) or row

    def page(self, limit: int = PAGE, after: str | None = None) -> list[OutboxMessage]:
        """Sent mail, newest first; `after` is the last replay key of the page before."""
        since = _NEWEST
        if after is not None:
            last = self.message(after)
            since = (stamp(last.created_at), last.replay_key)
        return [outbox_message(row) for row in self._database.rows("outbox_page", *since, limit)]

    def due(self, now: datetime, limit: int = 100) -> list[OutboxMessage]:
        """What has not reached the relay and should be tried now. A time that is further away than any pause was
        written down by a clock that ran ahead, and is not waited for."""
        times = stamp(now), stamp(now + LONGEST_WAIT), stamp(now + LONGEST_PAUSE)
        return [outbox_message(row) for row in self._database.rows("outbox_due", *times, limit)]

    def to_withdraw(self, now: datetime) -> list[OutboxMessage]:
        """What its sender wants back, of which the relay has not been told."""
        return [outbox_message(row) for row in self._database.rows("outbox_to_withdraw", stamp(now))]

    def unsettled(self, now: datetime) -> list[OutboxMessage]:
        """What the relay has, or had, and of which there may be news, oldest first."""
        return [outbox_message(row) for row in self._database.rows("outbox_unsettled", stamp(now - FOLLOWED))]

    def hand_over(self, replay_key: str) -> None:
        """A person carries the message: it is not sent through a relay as well."""
        with self._database.transaction() as tx:
            tx.execute(SQL["hand_over"], (replay_key,))

    def mark(self, replay_key: str, status: OutboxStatus) -> bool:
        """Move a message on, by the server's acceptance or its recipient's signed word; False when it was there already
        or further. What the recipient signed ends the need for its content. A word on an envelope that was sealed again
        is one on the message."""
        with self._database.transaction() as tx:
            row = self._current(tx, replay_key)
            if row is None or status not in row.onward:
                return False
            if row.replay_key != replay_key and status is OutboxStatus.FAILED:
                return False  # an envelope that was replaced may fail: the next one may not
            tx.execute(SQL["set_outbox_status"], (status.value, row.replay_key))
            if status in SIGNED:
                tx.execute(SQL["forget_withdrawal"], (row.replay_key,))
                tx.execute(SQL["clear_outbox_body"], (row.replay_key,))
        return True

    def accept(self, replay_key: str) -> OutboxMessage | None:
        """The server has the message. Also one that was withdrawn while it was sent, which is to be withdrawn again."""
        with self._database.transaction() as tx:
            row = self._current(tx, replay_key)
            if row is not None and (OutboxStatus.QUEUED in row.onward or row.withdrawn):
                tx.execute(SQL["set_outbox_status"], (OutboxStatus.QUEUED.value, row.replay_key))
            return self._current(tx, replay_key)

    def record_report(self, replay_key: str, said: OutboxStatus, reason: str, now: datetime) -> bool:
        """Write down what the server says by itself; False when that is known. Nothing is destroyed for it, and the
        recipient's signed word still counts."""
        with self._database.transaction() as tx:
            found = tx.execute(SQL["outbox_one"], (replay_key,)).fetchone()
            row = None if found is None else outbox_message(found)
            if row is None or row.status not in (OutboxStatus.STORED, OutboxStatus.QUEUED):
                return False
            reason = reason[:_LONGEST_REASON]
            if (row.reported, row.reported_reason) == (said, reason):
                return False
            tx.execute(SQL["set_outbox_said"], (said.value, reason, stamp(now), row.replay_key))
        return True

    def refuse(self, replay_key: str, said: OutboxStatus, reason: str, now: datetime) -> None:
        """The server did not take the message, for a reason that does not pass: it is not tried again by itself."""
        self.record_report(replay_key, said, reason, now)
        with self._database.transaction() as tx:
            tx.execute(SQL["forget_outbox_try"], (replay_key,))

    def give_up(self, replay_key: str, why: str) -> None:
        """Its sealed file is gone or was changed, so it is not tried again by itself. It stays stored, for `retry_now`
        after the file was put back."""
        with self._database.transaction() as tx:
            tx.execute(SQL["give_up_outbox"], (why[:_LONGEST_REASON], replay_key))

    def ask_withdrawal(self, replay_key: str, now: datetime) -> OutboxMessage:
        """Before the server is asked to take a message back: only then may it say that it did, and nobody sends it."""
        row = self.message(replay_key)
        with self._database.transaction() as tx:
            row = self._current(tx, row.replay_key) or row
            if not row.withdrawable and not row.withdrawn:
                raise not_taken_back(row)
            tx.execute(SQL["ask_withdrawal"], (stamp(now), row.replay_key))
        return row

    def forget_withdrawal(self, replay_key: str) -> None:
        """The server refused to take it back: it goes on as if nobody had asked."""
        with self._database.transaction() as tx:
            tx.execute(SQL["forget_withdrawal"], (replay_key,))

    def withdraw(self, replay_key: str, now: datetime, *, seen: OutboxStatus | None = None) -> bool:
        """The sender took it back: it failed, and its content is not kept. False if it is too late for that, or if it
        is no longer as it was `seen`."""
        with self._database.transaction() as tx:
            row = self._current(tx, replay_key)
            if row is None or not row.withdrawable or (seen is not None and row.status is not seen):
                return False
            tx.execute(SQL["ask_withdrawal"], (stamp(now), row.replay_key))
            tx.execute(SQL["set_outbox_status"], (OutboxStatus.FAILED.value, row.replay_key))
            tx.execute(SQL["clear_outbox_body"], (row.replay_key,))
        return True

    def retry_later(self, replay_key: str, now: datetime, why: str = "") -> datetime:
        """A try came to nothing: when the next one is due, after 1, 2, 4 … seconds and at most five minutes.

        An envelope is taken within five minutes of its making, and a message has few of them: once it is too old, the
        next try comes when another one may be made."""
        with self._database.transaction() as tx:
            found = tx.execute(SQL["outbox_one"], (replay_key,)).fetchone()
            row = None if found is None else outbox_message(found)
            if row is None or row.status is not OutboxStatus.STORED:
                raise Conflict("only a message that the relay does not have yet is tried again")
            at = now + _wait(row.attempts)
            if row.reseals and at > row.created_at + SKEW:
                at = now + LONGEST_PAUSE if row.reseals >= MOST_RESEALS else max(at, next_envelope_at(row))
            tx.execute(SQL["set_outbox_retry"], (row.attempts + 1, stamp(at), why[:_LONGEST_REASON], replay_key))
        return at

    def retry_now(self, now: datetime) -> int:
        """Make everything due that waits, also what the server refused; how many that is."""
        with self._database.transaction() as tx:
            return tx.execute(SQL["retry_outbox_now"], (stamp(now), stamp(now))).rowcount

    def delete(self, replay_key: str) -> None:
        """Destroy a message for good, with every envelope that it was sealed into."""
        row = self.message(replay_key)
        named = str(row.message_id), row.recipient
        # The files first: after a crash the row is there, and saying it again ends what was begun.
        self._files.remove(key for (key,) in self._database.rows("outbox_of_message", *named))
        self._files.sync()
        with self._database.transaction() as tx:
            tx.execute(SQL["delete_outbox"], named)

    def missing(self) -> Iterable[FileProblem]:
        """Messages whose sealed file is gone."""
        for (replay_key,) in self._database.rows("outbox_keys"):
            if not self._files.has(replay_key):
                yield FileProblem(self._files.path / f"{replay_key}.agl", "is missing")

    def _letter(self, draft: Draft, now: datetime) -> Letter:
        return Letter(
            recipient=draft.recipient.agent_nhi,
            key=self._key(draft.recipient, draft.one_time_key, now),
            body=draft.body,
            message_id=draft.message_id or uuid.uuid4(),
            created_at=unix_ms(now),
            ttl_seconds=min(TTL_DEFAULT, self._ttl_max) if draft.ttl_seconds is None else draft.ttl_seconds,
            priority=draft.priority,
            compression=draft.compression,
            padme=draft.padme,
            channel_id=draft.channel_id,
            correlation_id=draft.correlation_id,
            control=draft.control,
        )

    def _key(self, bundle: Bundle, one_time: OneTimeKey | None, now: datetime) -> KemPublicKey:
        """The key to seal to; only a bundle that the pin leads to is believed."""
        nhi = bundle.agent_nhi
        pin = self._pinned_keys.pin(nhi)
        if pin is None:
            raise UnknownSigner(f"{nhi} is not pinned yet, so nothing is sealed to it", hint=f"angelia key pin {nhi}")
        if bundle.hash != pin.bundle_hash:
            raise UntrustedBundle(f"bundle {bundle.bundle_version} of {nhi} is not the one that was checked last")
        self._pinned_keys.check_age(bundle, now)
        key = bundle.best_key(unix_ms(now)) if one_time is None else _one_time(one_time, bundle, pin, now)
        if key is None:
            raise KeyStale(
                f"the key bundle of {nhi} has no key that is still good", hint=f"{nhi} runs `angelia key rotate`"
            )
        known = self._pinned_keys.bundle(nhi, now, max_age=None)
        if known is not None and key.key_id in known.revoked:
            raise KeyRevoked(f"the key of {nhi} was revoked", hint=f"{nhi} runs `angelia key rotate`")
        return key

    def _store(
        self,
        envelopes: Sequence[Envelope],
        drafts: Sequence[Draft],
        now: datetime,
        replaces: OutboxMessage | None = None,
    ) -> None:
        keys = [envelope.replay_key for envelope in envelopes]
        self._files.put(zip(keys, (envelope.wire for envelope in envelopes), strict=True))
        try:
            with self._database.transaction() as tx:
                if replaces is not None:
                    self._supersede(tx, replaces)
                for envelope, draft in zip(envelopes, drafts, strict=True):
                    self._add(tx, envelope, draft, now, 0 if replaces is None else replaces.reseals + 1)
        except (Conflict, UntrustedBundle):
            self._files.remove(keys)
            raise

    def _add(self, tx: MailboxTx, envelope: Envelope, draft: Draft, now: datetime, reseals: int) -> None:
        header, replay_key = envelope.header, envelope.replay_key
        if draft.one_time_key is not None:
            _spend(tx, draft.one_time_key)
        values = (
            replay_key,
            str(header.message_id),
            header.recipient_nhi,
            header.channel_id and str(header.channel_id),
            header.correlation_id and str(header.correlation_id),
            stamp(moment(header.created_at)),
            stamp(moment(header.expires_at)),
            stamp(now + _wait(0)),
            reseals,
            draft.recipient.bundle_version,
            draft.one_time_key is not None,
            *self._local.encrypt("outbox", replay_key, draft.body),
        )
        tx.execute(SQL["add_outbox"], values)

    def _supersede(self, tx: MailboxTx, before: OutboxMessage) -> None:
        found = tx.execute(SQL["outbox_one"], (before.replay_key,)).fetchone()
        if found is None:
            raise _deleted(before)
        _refuse_unless_resealable(outbox_message(found))
        tx.execute(SQL["set_outbox_status"], (OutboxStatus.RESEALED.value, before.replay_key))
        tx.execute(SQL["clear_outbox_body"], (before.replay_key,))

    def _current(self, tx: MailboxTx, replay_key: str) -> OutboxMessage | None:
        """The row of a message; of one that was sealed again the newest, by its id."""
        found = tx.execute(SQL["outbox_one"], (replay_key,)).fetchone()
        row = None if found is None else outbox_message(found)
        if row is not None and row.status is OutboxStatus.RESEALED:
            found = tx.execute(SQL["outbox_successor"], (str(row.message_id), row.recipient)).fetchone()
            row = None if found is None else outbox_message(found)
        return row

    def _body(self, row: OutboxMessage) -> bytes:
        _refuse_unless_resealable(row)
        found = self._database.row("outbox_body", row.replay_key)
        if found is None:
            raise _deleted(row)
        return self._local.decrypt("outbox", row.replay_key, *found)


def next_envelope_at(row: OutboxMessage) -> datetime:
    """When a message that no server took may be sealed again by itself. At most five envelopes replace the first, so
    each lasts longer than the one before: together a day."""
    return row.created_at + (LONGEST_WAIT * _GROWS**row.reseals if row.reseals else SKEW)


def not_taken_back(row: OutboxMessage) -> Conflict:
    """Why a message cannot be withdrawn."""
    return Conflict(f"the message to {row.recipient} is {row.status} and not taken back")


def _deleted(row: OutboxMessage) -> Conflict:
    return Conflict(f"the message to {row.recipient} was deleted meanwhile")


def _refuse_unless_resealable(row: OutboxMessage) -> None:
    if row.withdraw_asked_at is not None:
        raise Conflict(f"the message to {row.recipient} is being withdrawn, so it is not sealed again")
    if not row.resealable:
        raise Conflict(f"the message to {row.recipient} is {row.status}: its content is not kept any more")


def _refuse_needless(row: OutboxMessage, header: Header, bundle: Bundle, own_signer: UUID, now: datetime) -> None:
    if row.reseals >= MOST_RESEALS:
        raise SealStands(
            f"the message to {row.recipient} was sealed again {MOST_RESEALS} times, and is not once more",
            hint="send it anew if it is still wanted",
        )
    if header.sender_key_id != own_signer:
        return
    taken = row.status is not OutboxStatus.STORED
    if not taken and abs(now - moment(header.created_at)) > SKEW:
        return
    # No bundle lists a one-time key, and its private half outlives even an emergency for as long as a message lives.
    lasting = taken and row.one_time
    if lasting or _lists(bundle, header.key_id) or bundle.bundle_version <= row.bundle_version:
        raise SealStands(
            f"the server says that a key of the message to {row.recipient} is not good any more, and nothing that "
            f"{row.recipient} or this agent signed says so: bundle {bundle.bundle_version} of {row.recipient} stands"
        )


def _lists(bundle: Bundle, key_id: UUID) -> bool:
    return any(entry.key.key_id == key_id for entry in bundle.kem_keys)


def _bundle(recipient: Link | Bundle) -> Bundle:
    return recipient.bundle if isinstance(recipient, Link) else recipient


def _one_time(one: OneTimeKey, bundle: Bundle, pin: Pin, now: datetime) -> KemPublicKey:
    check_one_time_key(one, pin.signer)
    if one.agent_nhi != bundle.agent_nhi:
        raise UntrustedBundle("the one-time key is another agent's")
    suite = Suite.XWING if one.key.kind.name == "XWING" else Suite.ML_KEM
    if not bundle.takes(suite):
        raise InvalidKey(f"{bundle.agent_nhi} does not take suite {int(suite)}, for which the one-time key is")
    if moment(one.created_at) + ONE_TIME_LIFE <= now:
        raise KeyStale("the one-time key is too old to be used")
    return one.key


def _spend(tx: MailboxTx, one: OneTimeKey) -> None:
    """Use a one-time key for good. Its recipient opens one message with it, so a second one would be lost."""
    until = moment(one.created_at) + ONE_TIME_LIFE
    if tx.execute(SQL["spend_one_time"], (str(one.key.key_id), stamp(until))).fetchone() is None:
        raise UntrustedBundle(
            f"the server gave out a one-time key of {one.agent_nhi} that this agent has used before",
            hint="send it again: an honest server gives another key",
        )


def _wait(attempts: int) -> timedelta:
    return min(timedelta(seconds=1 << min(attempts, 16)), LONGEST_WAIT)
