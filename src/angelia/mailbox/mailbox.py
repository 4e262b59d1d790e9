"""An agent's mailbox, `<home>/<name>/mail/`: own keys, pinned keys, inbox and outbox. No network."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.envelope.refusals import Refused, SignatureFailed
from angelia.envelope.times import moment, unix_ms
from angelia.envelope.wire import TTL_MAX, Envelope
from angelia.errors import AngeliaError, NotFound
from angelia.mailbox import identity as identities
from angelia.mailbox import private_files
from angelia.mailbox.cleanup import Cleanup
from angelia.mailbox.database import FILE, MailboxDatabase
from angelia.mailbox.envelope_files import EnvelopeFiles, FileProblem
from angelia.mailbox.identity import Identity
from angelia.mailbox.key_rotation import KeyRotation
from angelia.mailbox.keyring import Keyring
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.notices import Notices
from angelia.mailbox.outbox import Outbox
from angelia.mailbox.own_keys import OwnKeys
from angelia.mailbox.pinned_keys import PinnedKeys
from angelia.mailbox.replay import RETENTION_HOURS, PruneResult
from angelia.mailbox.time_window import DeliveryProfile
from angelia.mailbox.withdrawal import Withdrawals

if TYPE_CHECKING:
    from angelia.envelope.receipts import Receipt, ReceiptStatus
    from angelia.mailbox.allowlist import Allowlist
    from angelia.mailbox.calyx_import import MigrationResult
    from angelia.mailbox.channels import MailboxChannels
    from angelia.mailbox.held_mail import HeldMail
    from angelia.mailbox.inbox import Inbox, Opened
    from angelia.mailbox.logs import MailboxLogs
    from angelia.mailbox.receipt_log import LoggedReceipts, ReceiptLog
    from angelia.mailbox.receiving import Receiver
    from angelia.mailbox.repeated_envelopes import RepeatedEnvelopes
    from angelia.mailbox.rosters import PinnedRosters

DIRECTORY, LOGS = "mail", "logs"


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that was looked up by a prefix of its id: `peer` is its sender or its recipient."""

    replay_key: str
    peer: str
    received: bool


class Mailbox:
    """One agent's mailbox. Threads may share it, and processes may open it at the same time.

    What sending does without is loaded when it is first used: a command that sends one message is over sooner."""

    def __init__(self, home: Path, identity: Identity, now: datetime, *, ttl_max: int = TTL_MAX) -> None:
        self.directory = home / identity.name / DIRECTORY
        private_files.make_below(self.directory)
        self.database = MailboxDatabase(self.directory)
        self._files = [EnvelopeFiles(self.directory / name) for name in ("inbox", "outbox", "dead")]
        self._inbox_files, outbox_files, self._dead_files = self._files
        self._local = LocalKey(self.database, identity.unlocked.seeds, lambda: identities.present_seeds(home, identity))
        self._keyring = Keyring(self.database, self._local, identity.unlocked.seeds)
        self._ttl_max = ttl_max
        self.notices = Notices()
        self._cleanup = Cleanup(self.database, self._files, self._inbox_files, self.notices)
        self.own_keys = OwnKeys(home, identity, self.database, self._keyring, self._local)
        self.key_rotation = KeyRotation(self.own_keys, self.database, self._keyring, ttl_max)
        self.pinned_keys = PinnedKeys(self.database, self.notices)
        self.outbox = Outbox(
            self.database, self._local, outbox_files, self.own_keys, self.pinned_keys, self._cleanup, ttl_max
        )
        self.withdrawals = Withdrawals(self.database, self.outbox)
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

    @cached_property
    def allowlist(self) -> Allowlist:
        from angelia.mailbox.allowlist import Allowlist

        return Allowlist(self.database, self.pinned_keys)

    @cached_property
    def held_mail(self) -> HeldMail:
        from angelia.mailbox.held_mail import HeldMail

        return HeldMail(self.database)

    @cached_property
    def repeated_envelopes(self) -> RepeatedEnvelopes:
        from angelia.mailbox.repeated_envelopes import RepeatedEnvelopes

        return RepeatedEnvelopes(self.database)

    @cached_property
    def inbox(self) -> Inbox:
        from angelia.mailbox.inbox import Inbox

        return Inbox(self.database, self._local, self._inbox_files, self._dead_files, self._log, self.own_keys)

    @cached_property
    def channels(self) -> MailboxChannels:
        from angelia.mailbox.channels import MailboxChannels
        from angelia.mailbox.key_share_retries import KeyShareRetries

        retries = KeyShareRetries(self.database)
        return MailboxChannels(self.database, self._local, self.own_keys, self.pinned_keys, self._ttl_max, retries)

    @cached_property
    def logs(self) -> MailboxLogs:
        from angelia.mailbox.logs import MailboxLogs

        return MailboxLogs(self.database, self._local, self.own_keys, self.pinned_keys, self.directory.parent / LOGS)

    @cached_property
    def rosters(self) -> PinnedRosters:
        from angelia.mailbox.rosters import PinnedRosters

        return PinnedRosters(self.database, self.own_keys, self.pinned_keys)

    @cached_property
    def _log(self) -> ReceiptLog:
        from angelia.mailbox.receipt_log import ReceiptLog

        return ReceiptLog(self.directory)

    @cached_property
    def _receiver(self) -> Receiver:
        from angelia.mailbox.receiving import Receiver

        return Receiver(
            database=self.database,
            own_keys=self.own_keys,
            keyring=self._keyring,
            pinned_keys=self.pinned_keys,
            allowlist=self.allowlist,
            channels=self.channels,
            logs=self.logs,
            inbox=self.inbox,
            inbox_files=self._inbox_files,
            dead_files=self._dead_files,
        )

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
        from angelia.envelope.receipts import ReceiptStatus

        receipt = self.sign(envelope, ReceiptStatus.FAILED, now, reason)
        self._log.append([receipt], now)
        return receipt

    def sign(self, envelope: Envelope, status: ReceiptStatus, now: datetime, reason: str = "") -> Receipt:
        """Returns a signed receipt without logging it: the log has one of an envelope that came again."""
        from angelia.envelope.receipts import Receipt, sign_receipt

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
        self._dead_files.remove([replay_key])
        self._dead_files.sync()

    def receipts(self) -> LoggedReceipts:
        """Returns the receipts that this agent signed; those with bad signatures are among the problems."""
        from angelia.envelope.receipts import Receipt, check_receipt
        from angelia.mailbox.receipt_log import LoggedReceipts

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
        from angelia.envelope.receipts import check_receipt

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

    def has_rosters_of_former_pairs(self) -> bool:
        """Whether rosters of the agent's own channels wait to be signed by its present pair."""
        own = self.identity
        return bool(self.database.rows("rosters_of_former_pairs", own.handle, own.pair.public.signer_id))

    def prune(self, now: datetime, retention_hours: int = RETENTION_HOURS, *, force: bool = False) -> PruneResult:
        """Prunes replay state that is not needed any more."""
        return self._cleanup.prune(now, retention_hours, force=force)

    def migrate(self, runtime: Path, now: datetime) -> MigrationResult:
        """Imports the replay state of a Calyx mailbox."""
        from angelia.mailbox import calyx_import

        return calyx_import.migrate(self.database, runtime, now)
