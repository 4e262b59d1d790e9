"""Mail on its way out. What was sealed is durable before anybody can send it, and is sent again byte for byte."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypedDict, Unpack
from uuid import UUID

from angelia.envelope import frame, sealing, wire
from angelia.envelope.bundles import Bundle, Link, OneTimeKey, UntrustedBundle, check_one_time_key
from angelia.envelope.kem import KemPublicKey
from angelia.envelope.refusals import Expired, InvalidKey, UnknownSigner
from angelia.envelope.sealing import Letter
from angelia.envelope.wire import TTL_DEFAULT, TTL_MAX, Compression, Envelope, Priority, Suite
from angelia.errors import Conflict, InvalidArgument, KeyRevoked, KeyStale
from angelia.keys.model import ONE_TIME_LIFE, moment, unix_ms
from angelia.mailbox.database import SQL, Database, Tx, stamp, unstamp
from angelia.mailbox.files import Drawer, Problem
from angelia.mailbox.inbox import PAGE, resolve
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.rotation import OwnKeys
from angelia.mailbox.trust import Pin, Trust
from angelia.mailbox.upkeep import Upkeep

LONGEST_WAIT = timedelta(minutes=5)
# How long after its end news of a message may still come.
FOLLOWED = timedelta(days=1)
_NEWEST = ("~", "~")


class Sent(StrEnum):
    """How far a message has come."""

    STORED = "stored"
    QUEUED = "queued"
    DELIVERED = "delivered"
    READ = "read"
    EXPIRED = "expired"
    FAILED = "failed"
    RESEALED = "resealed"


# There is no way back: what is not named here is ignored, so that news may come twice or out of order.
_ONWARD = {
    Sent.STORED: {Sent.QUEUED, Sent.DELIVERED, Sent.READ, Sent.EXPIRED, Sent.FAILED},
    Sent.QUEUED: {Sent.DELIVERED, Sent.READ, Sent.EXPIRED, Sent.FAILED},
    Sent.DELIVERED: {Sent.READ, Sent.FAILED},
}
# A failed message keeps its plaintext until it expires: it may be sealed again.
_NEEDS_NO_BODY = {Sent.DELIVERED, Sent.READ, Sent.EXPIRED}


class Wishes(TypedDict, total=False):
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
        wishes: Wishes = {
            "priority": self.priority,
            "compression": self.compression,
            "channel_id": self.channel_id,
            "correlation_id": self.correlation_id,
        }
        check(self.body, wishes)


def check(body: bytes, wishes: Wishes) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A row of the outbox, without its content."""

    replay_key: str
    message_id: UUID
    recipient: str
    channel_id: UUID | None
    correlation_id: UUID | None
    created_at: datetime
    expires_at: datetime
    status: Sent
    attempts: int
    next_try_at: datetime | None
    resealable: bool


class Outbox:
    """The table `outbox` and its sealed files."""

    def __init__(
        self,
        database: Database,
        local: LocalKey,
        drawer: Drawer,
        own: OwnKeys,
        trust: Trust,
        upkeep: Upkeep,
        ttl_max: int = TTL_MAX,
    ) -> None:
        self._database = database
        self._local = local
        self._drawer = drawer
        self._own = own
        self._trust = trust
        self._upkeep = upkeep
        self._ttl_max = ttl_max

    def seal(
        self,
        recipient: Link | Bundle,
        body: bytes,
        *,
        now: datetime,
        one_time_key: OneTimeKey | None = None,
        message_id: UUID | None = None,
        **wishes: Unpack[Wishes],
    ) -> Envelope:
        """Seal one message; when this returns, its bytes are on disk."""
        draft = Draft(
            recipient=_bundle(recipient), body=body, one_time_key=one_time_key, message_id=message_id, **wishes
        )
        self._upkeep.tend(now)
        letter = self._letter(draft, now)
        envelope = sealing.seal(letter, self._own.identity.handle, self._own.identity.pair, ttl_max=self._ttl_max)
        self._store([envelope], [body], now)
        return envelope

    def seal_many(self, drafts: Sequence[Draft], now: datetime) -> list[Envelope]:
        """Seal up to 256 messages under one pair of signatures."""
        self._upkeep.tend(now)
        letters = [self._letter(draft, now) for draft in drafts]
        identity = self._own.identity
        envelopes = sealing.seal_batch(letters, identity.handle, identity.pair, ttl_max=self._ttl_max)
        self._store(envelopes, [draft.body for draft in drafts], now)
        return envelopes

    def reseal(
        self,
        replay_key: str,
        recipient: Link | Bundle,
        now: datetime,
        *,
        new_id: bool,
        one_time_key: OneTimeKey | None = None,
    ) -> Envelope:
        """Seal a message again from its kept content, for other keys of the same recipient and until the same time.

        `new_id` is for a message that the relay had taken: it remembers the old id.
        """
        before = self.outgoing(replay_key)
        old = wire.decode(self._drawer.get(before.replay_key))
        body = self._body(before)
        bundle, header = _bundle(recipient), old.header
        if bundle.agent_nhi != before.recipient:
            raise UntrustedBundle(f"the message is for {before.recipient}, the bundle is {bundle.agent_nhi}'s")
        seconds_left = (before.expires_at - now) // timedelta(seconds=1)
        if seconds_left < 1:
            raise Expired(f"the message to {before.recipient} has expired, so it is not sealed again")
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
            message_id=None if new_id else header.message_id,
        )
        identity = self._own.identity
        envelope = sealing.seal(self._letter(draft, now), identity.handle, identity.pair, ttl_max=self._ttl_max)
        self._store([envelope], [body], now, replaces=before.replay_key)
        return envelope

    def wire(self, replay_key: str) -> bytes:
        """The bytes to send: always those that were sealed."""
        return self._drawer.get(self.outgoing(replay_key).replay_key)

    def outgoing(self, replay_key: str) -> Outgoing:
        """One message by its replay key, or by the beginning of it if no other begins so."""
        return _outgoing(self._database.row("outbox_one", resolve(self._database, "outbox_between", replay_key)))

    def page(self, limit: int = PAGE, after: str | None = None) -> list[Outgoing]:
        """Sent mail, newest first; `after` is the last replay key of the page before."""
        since = _NEWEST
        if after is not None:
            last = self.outgoing(after)
            since = (stamp(last.created_at), last.replay_key)
        return [_outgoing(row) for row in self._database.rows("outbox_page", *since, limit)]

    def due(self, now: datetime, limit: int = 100) -> list[Outgoing]:
        """What has not reached the relay and should be tried now."""
        return [_outgoing(row) for row in self._database.rows("outbox_due", stamp(now), limit)]

    def unsettled(self, now: datetime) -> list[Outgoing]:
        """What the relay has, or had, and of which there may be news, oldest first."""
        return [_outgoing(row) for row in self._database.rows("outbox_unsettled", stamp(now - FOLLOWED))]

    def hand_over(self, replay_key: str) -> None:
        """A person carries the message: it is not sent through a relay as well."""
        with self._database.transaction() as tx:
            tx.execute(SQL["hand_over"], (replay_key,))

    def mark(self, replay_key: str, status: Sent) -> bool:
        """Move a message on; False when it was there already or further. Content that is not needed any more goes."""
        with self._database.transaction() as tx:
            found = tx.execute(SQL["outbox_one"], (replay_key,)).fetchone()
            if found is None or status not in _ONWARD.get(_outgoing(found).status, ()):
                return False
            tx.execute(SQL["set_outbox_status"], (status.value, replay_key))
            if status in _NEEDS_NO_BODY:
                tx.execute(SQL["clear_outbox_body"], (replay_key,))
        return True

    def withdraw(self, replay_key: str) -> bool:
        """The sender took it back: it failed, and its content is not kept."""
        moved = self.mark(replay_key, Sent.FAILED)
        with self._database.transaction() as tx:
            tx.execute(SQL["clear_outbox_body"], (replay_key,))
        return moved

    def retry_later(self, replay_key: str, now: datetime) -> datetime:
        """A try came to nothing: when the next one is due, after 1, 2, 4 … seconds and at most five minutes."""
        with self._database.transaction() as tx:
            found = tx.execute(SQL["outbox_one"], (replay_key,)).fetchone()
            if found is None or _outgoing(found).status is not Sent.STORED:
                raise Conflict("only a message that the relay does not have yet is tried again")
            attempts = _outgoing(found).attempts
            at = now + _wait(attempts)
            tx.execute(SQL["set_outbox_retry"], (attempts + 1, stamp(at), replay_key))
        return at

    def missing(self) -> Iterable[Problem]:
        """Messages whose sealed file is gone."""
        for (replay_key,) in self._database.rows("outbox_keys"):
            if not self._drawer.has(replay_key):
                yield Problem(self._drawer.path / f"{replay_key}.agl", "is missing")

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
        pin = self._trust.pin(nhi)
        if pin is None:
            raise UnknownSigner(f"{nhi} is not pinned yet, so nothing is sealed to it", hint=f"angelia key pin {nhi}")
        if bundle.hash != pin.bundle_hash:
            raise UntrustedBundle(f"bundle {bundle.bundle_version} of {nhi} is not the one that was checked last")
        self._trust.check_age(bundle, now)
        key = bundle.best_key(unix_ms(now)) if one_time is None else _one_time(one_time, bundle, pin, now)
        if key is None:
            raise KeyStale(
                f"the key bundle of {nhi} has no key that is still good", hint=f"{nhi} runs `angelia key rotate`"
            )
        known = self._trust.bundle(nhi, now, max_age=None)
        if known is not None and key.key_id in known.revoked:
            raise KeyRevoked(f"the key of {nhi} was revoked", hint=f"{nhi} runs `angelia key rotate`")
        return key

    def _store(
        self, envelopes: Sequence[Envelope], bodies: Sequence[bytes], now: datetime, replaces: str | None = None
    ) -> None:
        keys = [envelope.replay_key for envelope in envelopes]
        self._drawer.put(zip(keys, (envelope.wire for envelope in envelopes), strict=True))
        with self._database.transaction() as tx:
            if replaces is not None:
                self._supersede(tx, replaces)
            for envelope, replay_key, body in zip(envelopes, keys, bodies, strict=True):
                header = envelope.header
                values = (
                    replay_key,
                    str(header.message_id),
                    header.recipient_nhi,
                    header.channel_id and str(header.channel_id),
                    header.correlation_id and str(header.correlation_id),
                    stamp(moment(header.created_at)),
                    stamp(moment(header.expires_at)),
                    stamp(now + _wait(0)),
                    *self._local.encrypt("outbox", replay_key, body),
                )
                tx.execute(SQL["add_outbox"], values)

    def _supersede(self, tx: Tx, replay_key: str) -> None:
        row = _outgoing(tx.execute(SQL["outbox_one"], (replay_key,)).fetchone())
        _refuse_unless_resealable(row)
        tx.execute(SQL["set_outbox_status"], (Sent.RESEALED.value, replay_key))
        tx.execute(SQL["clear_outbox_body"], (replay_key,))

    def _body(self, row: Outgoing) -> bytes:
        _refuse_unless_resealable(row)
        nonce, content = self._database.row("outbox_body", row.replay_key)
        return self._local.decrypt("outbox", row.replay_key, nonce, content)


def _refuse_unless_resealable(row: Outgoing) -> None:
    if not row.resealable:
        raise Conflict(f"the message to {row.recipient} is {row.status}: its content is not kept any more")


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


def _wait(attempts: int) -> timedelta:
    return min(timedelta(seconds=1 << min(attempts, 16)), LONGEST_WAIT)


def _outgoing(row: tuple[Any, ...]) -> Outgoing:
    key, msg_id, recipient, channel, correlation, created, expires, status, attempts, next_try, resealable = row
    return Outgoing(
        replay_key=key,
        message_id=UUID(msg_id),
        recipient=recipient,
        channel_id=UUID(channel) if channel else None,
        correlation_id=UUID(correlation) if correlation else None,
        created_at=unstamp(created),
        expires_at=unstamp(expires),
        status=Sent(status),
        attempts=attempts,
        next_try_at=unstamp(next_try) if next_try else None,
        resealable=bool(resealable),
    )
