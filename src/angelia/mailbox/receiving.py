"""Opens envelopes, cheap checks first. The plaintext is returned only after replay row and inbox row are committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from angelia.envelope import json_form, sealing, wire
from angelia.envelope.merkle_batch import VerifiedRoots
from angelia.envelope.receipts import Receipt, ReceiptStatus
from angelia.envelope.refusals import (
    IdConflict,
    NotAllowed,
    OpenFailed,
    Refused,
    SuiteRefused,
    UnknownKey,
    WrongRecipient,
)
from angelia.envelope.sealing import Control
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import moment, unix_ms
from angelia.envelope.wire import SUITE_OF, Envelope, Header
from angelia.errors import AngeliaError, RateLimited
from angelia.mailbox import open_failures, replay
from angelia.mailbox.allowlist import Allowlist
from angelia.mailbox.channels import MailboxChannels
from angelia.mailbox.database import MailboxDatabase, MailboxTx
from angelia.mailbox.envelope_files import EnvelopeFiles
from angelia.mailbox.inbox import Inbox, Message, Opened
from angelia.mailbox.key_rotation import accepts_suite
from angelia.mailbox.keyring import Keyring, KeyringEntry
from angelia.mailbox.logs import MailboxLogs
from angelia.mailbox.own_keys import OwnKeys
from angelia.mailbox.pinned_keys import PinnedKeys
from angelia.mailbox.private_files import UnsafeFile
from angelia.mailbox.replay import SeenEnvelope
from angelia.mailbox.time_window import DeliveryProfile, check_window


@dataclass(frozen=True, slots=True)
class _Unsealed:
    """A decrypted envelope, before the last check: that it was not opened before."""

    envelope: Envelope
    replay_key: str
    pair: VerifyingPair
    entry: KeyringEntry = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Opens envelopes of one mailbox."""

    database: MailboxDatabase
    own_keys: OwnKeys
    keyring: Keyring
    pinned_keys: PinnedKeys
    allowlist: Allowlist
    channels: MailboxChannels
    logs: MailboxLogs
    inbox: Inbox
    inbox_files: EnvelopeFiles
    dead_files: EnvelopeFiles
    roots: VerifiedRoots = field(default_factory=VerifiedRoots)

    def receive(
        self,
        contents: Sequence[bytes | Envelope],
        profile: DeliveryProfile,
        now: datetime,
        *,
        for_handler: bool = False,
    ) -> list[Opened | AngeliaError]:
        """Opens envelopes in one transaction. Returns a message or an error for each, in the same order.

        A committed message is returned even if the disk fails afterwards: then without a receipt."""
        outcomes: list[_Unsealed | Opened | AngeliaError] = [self._unsealed(one, profile, now) for one in contents]
        claimed: list[tuple[int, _Unsealed, Message]] = []
        unsealed = [(at, one) for at, one in enumerate(outcomes) if isinstance(one, _Unsealed)]
        if unsealed:
            self.inbox_files.sync()
            with self.database.transaction() as tx:
                for at, one in unsealed:
                    try:
                        claimed.append((at, one, self._claim(tx, one, now, for_handler=for_handler)))
                    except Refused as refused:
                        outcomes[at] = refused
        receipts = self._receipts([message for _, _, message in claimed], now)
        for (at, one, message), receipt in zip(claimed, receipts, strict=True):
            control = one.envelope.header.control
            outcomes[at] = Opened(message=message, body=one.body, control=control, receipt=receipt)
        for at, one in unsealed:
            if isinstance(outcomes[at], IdConflict | UnknownKey):
                try:
                    self._put_away(one, conflict=isinstance(outcomes[at], IdConflict))
                except AngeliaError as fault:  # it is neither acked nor nacked, so it is delivered again
                    outcomes[at] = fault
        return [one for one in outcomes if not isinstance(one, _Unsealed)]

    def _receipts(self, messages: Sequence[Message], now: datetime) -> Sequence[Receipt | None]:
        try:
            return self.inbox.sign_receipts(messages, ReceiptStatus.DELIVERED, now)
        except AngeliaError:
            return [None] * len(messages)

    def _put_away(self, one: _Unsealed, *, conflict: bool) -> None:
        """Moves a refused envelope to the dead files, or destroys it if its message was deleted. The move comes before
        that check, and a deletion looks for dead files after it deleted: so one of the two sees the other."""
        header = one.envelope.header
        self.inbox_files.move(one.replay_key, self.dead_files)
        if conflict and self.inbox.was_deleted(header.sender_nhi, header.message_id):
            self.database.write("use_one_time", header.key_id)
            self.dead_files.remove([one.replay_key])
            self.dead_files.sync()

    def _unsealed(self, content: bytes | Envelope, profile: DeliveryProfile, now: datetime) -> _Unsealed | AngeliaError:
        try:
            one = self._open(content, profile, now)
            self.inbox_files.place(one.replay_key, one.envelope.wire)
        except (Refused, RateLimited, UnsafeFile) as refused:
            return refused
        return one

    def _open(self, content: bytes | Envelope, profile: DeliveryProfile, now: datetime) -> _Unsealed:
        envelope = content if isinstance(content, Envelope) else decoded(content)
        header, replay_key = envelope.header, envelope.replay_key
        if header.recipient_nhi != self.own_keys.identity.handle:
            raise WrongRecipient(f"the envelope is for {header.recipient_nhi or 'a channel'}")
        entry = self._private_key(header, replay_key, now)
        if not accepts_suite(self.database, header.suite, header.created_at):
            raise SuiteRefused(f"this agent did not take suite {int(header.suite)} when the envelope was made")
        check_window(header, profile, now)
        replay.probe(self.database, replay_key, str(header.message_id), moment(header.expires_at), now)
        pair = self.pinned_keys.signer(header.sender_nhi, header.sender_key_id, moment(header.created_at))
        refusal = self._stranger(envelope, pair)
        sealing.verify(envelope, pair, self.roots, unix_ms(now))
        open_failures.check(self.database, pair.fingerprint, header.sender_nhi, now)
        if header.control:
            self.inbox.check_room_for_control(pair.fingerprint, header.sender_nhi)
        try:
            body = sealing.unseal(envelope, entry.key)
        except OpenFailed:
            self.dead_files.put([(replay_key, envelope.wire)])
            open_failures.record(self.database, replay_key, pair.fingerprint, now)
            raise
        if refusal is not None and not self._is_expected(envelope, body):
            raise refusal
        return _Unsealed(envelope, replay_key, pair, entry, body)

    def _stranger(self, envelope: Envelope, pair: VerifyingPair) -> NotAllowed | None:
        """Raises NotAllowed for a sender that is not on the allowlist. If the envelope may bring the key of a joined
        channel, or the next edition of a group from one of its admins, returns the error instead: then nothing else is
        accepted from it."""
        try:
            self.allowlist.check(pair, envelope.header.sender_nhi)
        except NotAllowed as stranger:
            if not self.channels.expects(envelope) and not self.logs.expects(envelope):
                raise
            return stranger
        return None

    def _is_expected(self, envelope: Envelope, body: bytes) -> bool:
        """Whether a stranger's message is what it may bring."""
        if body[0] == Control.GROUP_KEY:
            return self.logs.expects(envelope) and self.logs.continues(body, envelope.header.sender_nhi)
        return body[0] == Control.CHANNEL_KEY and self.channels.expects(envelope)

    def _private_key(self, header: Header, replay_key: str, now: datetime) -> KeyringEntry:
        """Returns the private key by the id and the type that the envelope names."""
        entry = self.keyring.find(header.key_id, now)
        if entry is None and self.own_keys.refresh():
            entry = self.keyring.find(header.key_id, now)
        if entry is None or SUITE_OF[entry.key.kind] is not header.suite:
            # A one-time key is destroyed with its message, so a second delivery would look like an unknown key.
            replay.refuse_seen(self.database, replay_key, now)
            raise UnknownKey("the envelope is sealed to a key that this agent does not have, or not any more")
        return entry

    def _claim(self, tx: MailboxTx, one: _Unsealed, now: datetime, *, for_handler: bool) -> Message:
        header = one.envelope.header
        seen = SeenEnvelope(
            replay_key=one.replay_key,
            msg_id=str(header.message_id),
            sender=header.sender_nhi,
            sender_fp=one.pair.fingerprint,
            recipient_fp=self.own_keys.identity.pair.public.fingerprint,
            seen_at=now,
            envelope_timestamp=moment(header.created_at),
            expires_at=moment(header.expires_at),
        )
        replay.remember(tx, seen)
        if one.entry.one_time and not tx.row("use_one_time", header.key_id):
            tx.write("forget", one.replay_key)
            raise UnknownKey("another envelope used this one-time key first")
        return self.inbox.add(
            tx, one.envelope, one.replay_key, one.pair.fingerprint, one.body, now, for_handler=for_handler
        )


def decoded(content: bytes) -> Envelope:
    """Returns an envelope from its wire form or its JSON form; in both cases the replay key is that of the wire form.

    It may have any TTL that a server can be set to: the own setting limits only envelopes that are sealed here."""
    is_json = content.lstrip()[:1] == b"{"
    return json_form.decode(content) if is_json else wire.decode(content)
