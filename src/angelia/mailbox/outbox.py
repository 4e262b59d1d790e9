"""Sent mail. An envelope is on disk before it can be sent, and is sent again byte for byte."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Unpack

from angelia.envelope import frame, sealing, wire
from angelia.envelope.bundles import Bundle, OneTimeKey, UntrustedBundle, check_one_time_key
from angelia.envelope.kem import KemPublicKey
from angelia.envelope.refusals import Expired, InvalidKey, UnknownSigner
from angelia.envelope.sealing import Letter
from angelia.envelope.times import moment, unix_ms
from angelia.envelope.wire import SUITE_OF, TTL_DEFAULT, Envelope
from angelia.errors import Conflict, KeyRevoked, KeyStale
from angelia.keys.model import ONE_TIME_LIFE
from angelia.mailbox import retry_rules
from angelia.mailbox.cleanup import KEPT_AFTER_END, Cleanup
from angelia.mailbox.database import MailboxDatabase, MailboxTx
from angelia.mailbox.drafts import Draft, SendOptions
from angelia.mailbox.envelope_files import EnvelopeFiles
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.message_lookup import PAGE, by_prefix
from angelia.mailbox.outbox_message import SIGNED, OutboxMessage, OutboxStatus, current_row, read_row
from angelia.mailbox.own_keys import OwnKeys
from angelia.mailbox.pinned_keys import Pin, PinnedKeys
from angelia.mailbox.retry_rules import LONGEST_PAUSE, LONGEST_WAIT

_LONGEST_REASON = 500
_NEWEST: tuple[object, ...] = ("~", "~")


@dataclass(eq=False, repr=False)
class Outbox:
    """The table `outbox` and its sealed files."""

    _database: MailboxDatabase
    _local: LocalKey
    _files: EnvelopeFiles
    _own_keys: OwnKeys
    _pinned_keys: PinnedKeys
    _cleanup: Cleanup
    _ttl_max: int

    def seal(
        self,
        recipient: Bundle,
        body: bytes,
        *,
        now: datetime,
        one_time_key: OneTimeKey | None = None,
        **options: Unpack[SendOptions],
    ) -> Envelope:
        """Seals one message; when this returns, its bytes are on disk."""
        draft = Draft(recipient=recipient, body=body, options=options, one_time_key=one_time_key)
        self._cleanup.run_due(now)
        return self._seal(draft, now)

    def seal_many(self, drafts: Sequence[Draft], now: datetime) -> list[Envelope]:
        """Seals up to 256 messages under one pair of signatures."""
        self._cleanup.run_due(now)
        letters = [self._letter(draft, now) for draft in drafts]
        identity = self._own_keys.identity
        envelopes = sealing.seal_batch(letters, identity.handle, identity.pair, ttl_max=self._ttl_max)
        self._store(envelopes, drafts, now)
        return envelopes

    def reseal(
        self, replay_key: str, recipient: Bundle, now: datetime, *, one_time_key: OneTimeKey | None = None
    ) -> Envelope:
        """Seals a message again from its kept content, for other keys of the same recipient and until the same time.

        It keeps its id, so that its recipient opens at most one of its envelopes. `check_reseal` names the reasons."""
        before, old = self._resealable(replay_key, recipient, now)
        header, body = old.header, self._body(before)
        _, compressed = frame.compress(body, header.compression)
        seconds_left = (before.expires_at - now) // timedelta(seconds=1)
        options: SendOptions = {
            "message_id": header.message_id,
            "ttl_seconds": min(seconds_left, self._ttl_max),
            "priority": header.priority,
            "compression": header.compression,
            "padme": len(old.ciphertext) != len(frame.pack(len(body), compressed, padme=False)),
            "channel_id": header.channel_id,
            "correlation_id": header.correlation_id,
            "control": header.control,
        }
        draft = Draft(recipient=recipient, body=body, options=options, one_time_key=one_time_key)
        return self._seal(draft, now, replaces=before)

    def check_reseal(self, replay_key: str, recipient: Bundle, now: datetime) -> None:
        """Raises unless the message can be sealed again and `retry_rules.check_reason` finds a reason to."""
        self._resealable(replay_key, recipient, now)

    def wire(self, replay_key: str) -> bytes:
        """Returns the bytes to send: always those that were sealed."""
        return self._files.get(self.message(replay_key).replay_key)

    def message(self, replay_key: str) -> OutboxMessage:
        """Returns a message by its replay key or a unique prefix of it."""
        return by_prefix(self._database, OutboxMessage, "outbox_between", replay_key)

    def current(self, replay_key: str) -> OutboxMessage:
        """Returns the same; of a resealed message its newest envelope's row."""
        row = self.message(replay_key)
        return current_row(self._database, row.replay_key) or row

    def page(self, limit: int = PAGE, after: str | None = None) -> list[OutboxMessage]:
        """Returns sent mail, newest first; `after` is the last replay key of the page before."""
        since = _NEWEST
        if after is not None:
            last = self.message(after)
            since = (last.created_at, last.replay_key)
        return self._database.records(OutboxMessage, "outbox_page", *since, limit)

    def due(self, now: datetime, limit: int = 100) -> list[OutboxMessage]:
        """Returns messages that no server has and that are to be tried now. A retry time further away than any pause
        comes from a clock that ran ahead, and counts as due."""
        times = (now, now + LONGEST_WAIT, now + LONGEST_PAUSE)
        return self._database.records(OutboxMessage, "outbox_due", *times, limit)

    def unsettled(self, now: datetime) -> list[OutboxMessage]:
        """Returns messages that a server has, or had, and whose status may still change, oldest first."""
        return self._database.records(OutboxMessage, "outbox_unsettled", now - KEPT_AFTER_END)

    def hand_over(self, replay_key: str) -> None:
        """Records that a person carries the message: it is not sent through a server."""
        self._database.write("hand_over", replay_key)

    def mark(self, replay_key: str, status: OutboxStatus) -> bool:
        """Advances a message's status, by the server's acceptance or its recipient's signature; False if it was there
        already or further. A signed status destroys the kept content. A status of a replaced envelope counts for the
        message."""
        with self._database.transaction() as tx:
            row = current_row(tx, replay_key)
            if row is None or status not in row.onward:
                return False
            if row.replay_key != replay_key and status is OutboxStatus.FAILED:
                return False  # a replaced envelope may fail: the next one may not
            tx.write("set_outbox_status", status.value, row.replay_key)
            if status in SIGNED:
                tx.write("forget_withdrawal", row.replay_key)
                tx.write("clear_outbox_body", row.replay_key)
        return True

    def accept(self, replay_key: str) -> OutboxMessage | None:
        """Records that the server took the message, and returns it; also if it was withdrawn while it was sent, so that
        it is withdrawn again."""
        with self._database.transaction() as tx:
            row = current_row(tx, replay_key)
            if row is not None and (OutboxStatus.QUEUED in row.onward or row.withdrawn):
                tx.write("set_outbox_status", OutboxStatus.QUEUED.value, row.replay_key)
            return current_row(tx, replay_key)

    def record_report(self, replay_key: str, reported: OutboxStatus, reason: str, now: datetime) -> bool:
        """Records a status that the server reports without its recipient's signature; False if it is known. Nothing is
        destroyed for it, and a signed status still counts."""
        with self._database.transaction() as tx:
            row = read_row(tx, replay_key)
            if row is None or row.status not in (OutboxStatus.STORED, OutboxStatus.QUEUED):
                return False
            reason = reason[:_LONGEST_REASON]
            if (row.reported, row.reported_reason) == (reported, reason):
                return False
            tx.write("set_outbox_said", reported.value, reason, now, row.replay_key)
        return True

    def refuse(self, replay_key: str, reported: OutboxStatus, reason: str, now: datetime) -> None:
        """Records that the server refused the message for good: it is not retried unless `retry_now` is called."""
        self.record_report(replay_key, reported, reason, now)
        self._database.write("forget_outbox_try", replay_key)

    def give_up(self, replay_key: str, why: str) -> None:
        """Records that the sealed file is gone or was changed: the message is not retried. It stays stored, for
        `retry_now` after the file was restored."""
        self._database.write("give_up_outbox", why[:_LONGEST_REASON], replay_key)

    def retry_later(self, replay_key: str, now: datetime, why: str = "") -> datetime:
        """Records a failed attempt; returns when the next one is due."""
        with self._database.transaction() as tx:
            row = read_row(tx, replay_key)
            if row is None or row.status is not OutboxStatus.STORED:
                raise Conflict("only a message that the relay does not have yet is tried again")
            at = retry_rules.retry_at(row, now)
            tx.write("set_outbox_retry", row.attempts + 1, at, why[:_LONGEST_REASON], replay_key)
        return at

    def retry_now(self, now: datetime) -> int:
        """Makes every waiting message due, also those that the server refused; returns how many."""
        return len(self._database.write("retry_outbox_now", now, now))

    def delete(self, replay_key: str) -> None:
        """Destroys a message, with every envelope that it was sealed into."""
        row = self.message(replay_key)
        named = (row.message_id, row.recipient)
        # The files first: after a crash the row still exists, and a second call completes the deletion.
        self._files.remove(key for (key,) in self._database.rows("outbox_of_message", *named))
        self._files.sync()
        self._database.write("delete_outbox", *named)

    def _seal(self, draft: Draft, now: datetime, replaces: OutboxMessage | None = None) -> Envelope:
        letter, identity = self._letter(draft, now), self._own_keys.identity
        envelope = sealing.seal(letter, identity.handle, identity.pair, ttl_max=self._ttl_max)
        self._store([envelope], [draft], now, replaces)
        return envelope

    def _letter(self, draft: Draft, now: datetime) -> Letter:
        options = draft.options.copy()
        options["message_id"] = options.get("message_id") or uuid.uuid4()
        if options.get("ttl_seconds") is None:
            options["ttl_seconds"] = min(TTL_DEFAULT, self._ttl_max)
        return Letter(
            recipient=draft.recipient.agent_nhi,
            key=self._key(draft.recipient, draft.one_time_key, now),
            body=draft.body,
            created_at=unix_ms(now),
            **options,
        )

    def _key(self, bundle: Bundle, one_time: OneTimeKey | None, now: datetime) -> KemPublicKey:
        """Returns the key to seal to. The bundle must be the pinned one."""
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
                    _supersede(tx, replaces)
                for envelope, draft in zip(envelopes, drafts, strict=True):
                    self._add(tx, envelope, draft, now, 0 if replaces is None else replaces.reseals + 1)
        except (Conflict, UntrustedBundle):
            self._files.remove(keys)
            raise

    def _add(self, tx: MailboxTx, envelope: Envelope, draft: Draft, now: datetime, reseals: int) -> None:
        header, replay_key = envelope.header, envelope.replay_key
        if draft.one_time_key is not None:
            _spend(tx, draft.one_time_key)
        tx.write(
            "add_outbox",
            replay_key,
            header.message_id,
            header.recipient_nhi,
            header.channel_id,
            header.correlation_id,
            moment(header.created_at),
            moment(header.expires_at),
            now + retry_rules.back_off(0),
            reseals,
            draft.recipient.bundle_version,
            draft.one_time_key is not None,
            *self._local.encrypt("outbox", replay_key, draft.body),
        )

    def _resealable(self, replay_key: str, recipient: Bundle, now: datetime) -> tuple[OutboxMessage, Envelope]:
        row = self.message(replay_key)
        retry_rules.check_resealable(row)
        if recipient.agent_nhi != row.recipient:
            raise UntrustedBundle(f"the message is for {row.recipient}, the bundle is {recipient.agent_nhi}'s")
        if row.expires_at - now < timedelta(seconds=1):
            raise Expired(f"the message to {row.recipient} has expired, so it is not sealed again")
        envelope = wire.decode(self._files.get(row.replay_key))
        own_signer = self._own_keys.identity.pair.public.signer_id
        retry_rules.check_reason(row, envelope.header, recipient, own_signer, now)
        return row, envelope

    def _body(self, row: OutboxMessage) -> bytes:
        found = self._database.row("outbox_body", row.replay_key)
        if found is None:
            raise _deleted(row)
        if found[1] is None:
            raise retry_rules.content_gone(row)
        return self._local.decrypt("outbox", row.replay_key, *found)


def _supersede(tx: MailboxTx, before: OutboxMessage) -> None:
    row = read_row(tx, before.replay_key)
    if row is None:
        raise _deleted(before)
    retry_rules.check_resealable(row)
    tx.write("set_outbox_status", OutboxStatus.RESEALED.value, before.replay_key)
    tx.write("clear_outbox_body", before.replay_key)


def _deleted(row: OutboxMessage) -> Conflict:
    return Conflict(f"the message to {row.recipient} was deleted meanwhile")


def _one_time(one: OneTimeKey, bundle: Bundle, pin: Pin, now: datetime) -> KemPublicKey:
    check_one_time_key(one, pin.signer)
    if one.agent_nhi != bundle.agent_nhi:
        raise UntrustedBundle("the one-time key is another agent's")
    suite = SUITE_OF[one.key.kind]
    if not bundle.takes(suite):
        raise InvalidKey(f"{bundle.agent_nhi} does not take suite {int(suite)}, for which the one-time key is")
    if moment(one.created_at) + ONE_TIME_LIFE <= now:
        raise KeyStale("the one-time key is too old to be used")
    return one.key


def _spend(tx: MailboxTx, one: OneTimeKey) -> None:
    """Records a one-time key as used. Its recipient opens one message with it, so a second one would be lost."""
    until = moment(one.created_at) + ONE_TIME_LIFE
    if tx.row("spend_one_time", one.key.key_id, until) is None:
        raise UntrustedBundle(
            f"the server gave out a one-time key of {one.agent_nhi} that this agent has used before",
            hint="send it again: an honest server gives another key",
        )
