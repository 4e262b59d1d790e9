"""An agent's mailbox, `<home>/<name>/mail/`: own keys, pinned keys, inbox and outbox. No network."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.envelope.receipts import Receipt, ReceiptStatus, check_receipt, sign_receipt
from angelia.envelope.refusals import Refused, SignatureFailed
from angelia.envelope.times import moment, unix_ms
from angelia.envelope.wire import TTL_MAX, Envelope
from angelia.errors import AngeliaError, NotFound
from angelia.mailbox import calyx_import, private_files
from angelia.mailbox import identity as identities
from angelia.mailbox.allowlist import Allowlist
from angelia.mailbox.calyx_import import MigrationResult
from angelia.mailbox.channels import MailboxChannels
from angelia.mailbox.cleanup import Cleanup
from angelia.mailbox.database import FILE, MailboxDatabase
from angelia.mailbox.envelope_files import EnvelopeFiles, FileProblem
from angelia.mailbox.held_mail import HeldMail
from angelia.mailbox.identity import Identity
from angelia.mailbox.inbox import Inbox, Opened
from angelia.mailbox.key_rotation import KeyRotation
from angelia.mailbox.key_share_retries import KeyShareRetries
from angelia.mailbox.keyring import Keyring
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.notices import Notices
from angelia.mailbox.outbox import Outbox
from angelia.mailbox.own_keys import OwnKeys
from angelia.mailbox.pinned_keys import PinnedKeys
from angelia.mailbox.receipt_log import LoggedReceipts, ReceiptLog
from angelia.mailbox.receiving import Receiver
from angelia.mailbox.repeated_envelopes import RepeatedEnvelopes
from angelia.mailbox.replay import RETENTION_HOURS, PruneResult
from angelia.mailbox.rosters import PinnedRosters
from angelia.mailbox.time_window import DeliveryProfile
from angelia.mailbox.withdrawal import Withdrawals

DIRECTORY = "mail"


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that was looked up by a prefix of its id: `peer` is its sender or its recipient."""

    replay_key: str
    peer: str
    received: bool


class Mailbox:
    """One agent's mailbox. Threads may share it, and processes may open it at the same time."""

    def __init__(self, home: Path, identity: Identity, now: datetime, *, ttl_max: int = TTL_MAX) -> None:
        self.directory = home / identity.name / DIRECTORY
        private_files.make_below(self.directory)
        self.database = MailboxDatabase(self.directory)
        self._files = [EnvelopeFiles(self.directory / name) for name in ("inbox", "outbox", "dead")]
        inbox_files, outbox_files, dead_files = self._files
        local = LocalKey(self.database, identity.unlocked.seeds, lambda: identities.present_seeds(home, identity))
        self._local = local
        keyring = Keyring(self.database, local, identity.unlocked.seeds)
        self._log = ReceiptLog(self.directory)
        self.notices = Notices()
        self._cleanup = Cleanup(self.database, self._files, inbox_files, self.notices)
        self.own_keys = OwnKeys(home, identity, self.database, keyring, local)
        self.key_rotation = KeyRotation(self.own_keys, self.database, keyring, ttl_max)
        self.pinned_keys = PinnedKeys(self.database, self.notices)
        self.allowlist = Allowlist(self.database, self.pinned_keys)
        self.held_mail = HeldMail(self.database)
        self.repeated_envelopes = RepeatedEnvelopes(self.database)
        self.inbox = Inbox(self.database, local, inbox_files, dead_files, self._log, self.own_keys)
        self.outbox = Outbox(
            self.database, local, outbox_files, self.own_keys, self.pinned_keys, self._cleanup, ttl_max
        )
        self.withdrawals = Withdrawals(self.database, self.outbox)
        self.channels = MailboxChannels(
            self.database, local, self.own_keys, self.pinned_keys, ttl_max, KeyShareRetries(self.database)
        )
        self.rosters = PinnedRosters(self.database, self.own_keys, self.pinned_keys)
        self._receiver = Receiver(
            database=self.database,
            own_keys=self.own_keys,
            keyring=keyring,
            pinned_keys=self.pinned_keys,
            allowlist=self.allowlist,
            channels=self.channels,
            inbox=self.inbox,
            inbox_files=inbox_files,
            dead_files=dead_files,
        )
        self.key_rotation.resume(now)
        self._cleanup.start(now)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()
        for files in self._files:
            files.close()

    @property
    def key(self) -> Ed25519PrivateKey:
        """The key that signs requests now, so that a client with a mailbox as its identity survives a rotation."""
        return self.own_keys.signer.key

    @property
    def key_id(self) -> UUID:
        return self.own_keys.signer.key_id

    @property
    def identity(self) -> Identity:
        """The agent with its present keys; a rotation replaces them."""
        return self.own_keys.identity

    def receive(
        self, content: bytes | Envelope, *, now: datetime, profile: DeliveryProfile = DeliveryProfile.RELAY
    ) -> Opened:
        """Opens an envelope, in its wire form or in JSON. It is in the inbox before this returns, and opens once."""
        (outcome,) = self.receive_many([content], now=now, profile=profile)
        if isinstance(outcome, AngeliaError):
            raise outcome
        return outcome

    def receive_many(
        self,
        contents: Sequence[bytes | Envelope],
        *,
        now: datetime,
        profile: DeliveryProfile = DeliveryProfile.RELAY,
        for_handler: bool = False,
    ) -> list[Opened | AngeliaError]:
        """Opens envelopes in one transaction; returns one outcome each. `for_handler` remembers which of them a handler
        has not ended with."""
        self._cleanup.run_due(now)
        return self._receiver.receive(contents, profile, now, for_handler=for_handler)

    def refuse(self, envelope: Envelope, reason: str, now: datetime) -> Receipt:
        """Signs and logs a receipt `failed` for an envelope that could not be opened."""
        receipt = self.sign(envelope, ReceiptStatus.FAILED, now, reason)
        self._log.append([receipt], now)
        return receipt

    def sign(self, envelope: Envelope, status: ReceiptStatus, now: datetime, reason: str = "") -> Receipt:
        """Returns a signed receipt without logging it: the log has one of an envelope that came again."""
        header, pair = envelope.header, self.identity.pair
        return sign_receipt(
            Receipt(
                status=status,
                replay_key=envelope.replay_key,
                message_id=header.message_id,
                sender_nhi=header.sender_nhi,
                recipient_nhi=header.recipient_nhi,
                time_ms=unix_ms(now),
                signer_id=pair.public.signer_id,
                reason=reason,
            ),
            pair,
        )

    def has_opened(self, replay_key: str) -> bool:
        """Whether an envelope was opened here, even if its message was deleted since."""
        return self.database.row("seen_at", replay_key) is not None

    def find(self, replay_key: str) -> FoundMessage:
        """Returns a message of the inbox, else of the outbox, by its replay key or a unique prefix of it."""
        try:
            message = self.inbox.mail(replay_key)
        except NotFound:
            row = self.outbox.message(replay_key)
            return FoundMessage(row.replay_key, row.recipient, received=False)
        return FoundMessage(message.replay_key, message.sender, received=True)

    def delete(self, replay_key: str, now: datetime) -> None:
        """Destroys a message: its content, its sealed files, and one-time keys that would open them."""
        self._cleanup.run_due(now)
        for box in (self.inbox, self.outbox):  # a message to the agent itself is in both
            with contextlib.suppress(NotFound):
                box.delete(replay_key)
        dead = self._files[-1]
        dead.remove([replay_key])
        dead.sync()

    def receipts(self) -> LoggedReceipts:
        """Returns the receipts that this agent signed; those with bad signatures are among the problems."""
        logged, pairs = self._log.read(), self.own_keys.signing_pairs()
        problems, sound = list(logged.problems), list[Receipt]()
        for receipt in logged.receipts:
            try:
                if receipt.signer_id not in pairs:
                    raise SignatureFailed("the receipt is signed by a pair that is not this agent's")
                check_receipt(receipt, pairs[receipt.signer_id])
                sound.append(receipt)
            except Refused as error:
                problems.append(FileProblem(self.directory, f"has a bad receipt of {receipt.replay_key[:12]}: {error}"))
        return LoggedReceipts(tuple(sound), tuple(problems))

    def check_receipt(self, receipt: Receipt) -> None:
        """Raises unless the recipient of a sent message signed the receipt."""
        signer = self.pinned_keys.signer(receipt.recipient_nhi, receipt.signer_id, moment(receipt.time_ms))
        check_receipt(receipt, signer)

    def verify(self) -> list[FileProblem]:
        """Returns everything that is wrong with the mailbox's files and with the encrypted columns of its database."""
        misplaced = [problem for files in self._files for problem in files.problems()]
        inbox_files, outbox_files, _ = self._files
        missing = inbox_files.missing(key for (key,) in self.database.rows("inbox_keys"))
        missing += outbox_files.missing(key for (key,) in self.database.rows("outbox_keys"))
        database = self.directory / FILE
        unreadable = [
            FileProblem(database, f"has a row of {table} that does not open with this agent's local key: {key}")
            for table, key in self._local.unreadable()
        ]
        return [*misplaced, *missing, *unreadable]

    def prune(self, now: datetime, retention_hours: int = RETENTION_HOURS, *, force: bool = False) -> PruneResult:
        """Prunes replay state that is not needed any more."""
        return self._cleanup.prune(now, retention_hours, force=force)

    def migrate(self, runtime: Path, now: datetime) -> MigrationResult:
        """Imports the replay state of a Calyx mailbox."""
        return calyx_import.migrate(self.database, runtime, now)
