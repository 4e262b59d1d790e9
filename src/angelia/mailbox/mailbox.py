"""An agent's mailbox, `<home>/<name>/mail/`: keys, trust, mail in and mail out, without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
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
from angelia.mailbox.calyx_import import Migrated
from angelia.mailbox.channels import Channels
from angelia.mailbox.cleanup import Upkeep
from angelia.mailbox.database import FILE, Database
from angelia.mailbox.files import Drawer, Problem
from angelia.mailbox.held_mail import KeptOut
from angelia.mailbox.identity import Identity
from angelia.mailbox.inbox import Inbox, Opened
from angelia.mailbox.key_rotation import OwnKeys
from angelia.mailbox.keyring import Keyring
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.notices import Notices
from angelia.mailbox.outbox import Outbox
from angelia.mailbox.pinned_keys import Trust
from angelia.mailbox.receipt_log import Logged, ReceiptLog
from angelia.mailbox.receiving import Receiver
from angelia.mailbox.repeated_envelopes import Repeats
from angelia.mailbox.replay import RETENTION_HOURS, Pruned
from angelia.mailbox.rosters import Rosters
from angelia.mailbox.time_window import Profile

DIRECTORY = "mail"


@dataclass(frozen=True, slots=True)
class Found:
    """Which message somebody means, and who is at its other end."""

    replay_key: str
    peer: str
    received: bool


class Mailbox:
    """One agent's mailbox. Threads may share it, and processes may open it at the same time."""

    def __init__(self, home: Path, identity: Identity, now: datetime, *, ttl_max: int = TTL_MAX) -> None:
        self.directory = home / identity.name / DIRECTORY
        private_files.make_below(self.directory)
        self.database = Database(self.directory)
        self._drawers = [Drawer(self.directory / name) for name in ("inbox", "outbox", "dead")]
        inbox_files, outbox_files, dead_files = self._drawers
        local = LocalKey(self.database, identity.unlocked.seeds, lambda: identities.present_seeds(home, identity))
        self._local = local
        keyring = Keyring(self.database, local, identity.unlocked.seeds)
        self._log = ReceiptLog(self.directory)
        self.notices = Notices()
        self._upkeep = Upkeep(self.database, self._drawers, inbox_files, self.notices)
        self.own = OwnKeys(home, identity, self.database, keyring, local, ttl_max)
        self.trust = Trust(self.database, self.notices)
        self.allowlist = Allowlist(self.database, self.trust)
        self.kept_out = KeptOut(self.database)
        self.repeats = Repeats(self.database)
        self.inbox = Inbox(self.database, local, inbox_files, dead_files, self._log, self.own)
        self.outbox = Outbox(self.database, local, outbox_files, self.own, self.trust, self._upkeep, ttl_max)
        self.channels = Channels(self.database, local, self.own, self.trust, ttl_max)
        self.rosters = Rosters(self.database, self.own, self.trust)
        self._receiver = Receiver(
            database=self.database,
            own=self.own,
            keyring=keyring,
            trust=self.trust,
            allowlist=self.allowlist,
            channels=self.channels,
            inbox=self.inbox,
            inbox_files=inbox_files,
            dead_files=dead_files,
        )
        self.own.resume(now)
        self._upkeep.start(now)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()
        for drawer in self._drawers:
            drawer.close()

    @property
    def key(self) -> Ed25519PrivateKey:
        """What signs requests now; so a client that is given a mailbox as its identity goes on through a rotation."""
        return self.own.signer.key

    @property
    def key_id(self) -> UUID:
        return self.own.signer.key_id

    @property
    def identity(self) -> Identity:
        """The agent with its present keys; a rotation replaces them."""
        return self.own.identity

    def receive(self, content: bytes | Envelope, *, now: datetime, profile: Profile = Profile.RELAY) -> Opened:
        """Open an envelope, in its wire form or in JSON. It is in the inbox before this returns, and opens once."""
        (outcome,) = self.receive_many([content], now=now, profile=profile)
        if isinstance(outcome, AngeliaError):
            raise outcome
        return outcome

    def receive_many(
        self,
        contents: Sequence[bytes | Envelope],
        *,
        now: datetime,
        profile: Profile = Profile.RELAY,
        for_handler: bool = False,
    ) -> list[Opened | AngeliaError]:
        """Opens envelopes in one transaction; returns one outcome each. `for_handler` remembers which of them a handler
        has not ended with."""
        self._upkeep.tend(now)
        return self._receiver.receive(contents, profile, now, for_handler=for_handler)

    def refuse(self, envelope: Envelope, reason: str, now: datetime) -> Receipt:
        """Signs and logs a receipt `failed` for an envelope that could not be opened."""
        receipt = self.sign(envelope, ReceiptStatus.FAILED, now, reason)
        self._log.append([receipt], now)
        return receipt

    def sign(self, envelope: Envelope, status: ReceiptStatus, now: datetime, reason: str = "") -> Receipt:
        """A receipt for an envelope that came again: the log has one of it already."""
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
        """Whether an envelope was opened here, whatever became of its content since."""
        return self.database.row("seen_at", replay_key) is not None

    def find(self, replay_key: str) -> Found:
        """A message of the inbox or, if there is none, of the outbox, by its replay key or the beginning of it."""
        try:
            message = self.inbox.mail(replay_key)
        except NotFound:
            row = self.outbox.outgoing(replay_key)
            return Found(row.replay_key, row.recipient, received=False)
        return Found(message.replay_key, message.sender, received=True)

    def delete(self, replay_key: str, now: datetime) -> None:
        """Destroy a message for good: its content, its sealed files, and one-time keys that would open them."""
        self._upkeep.tend(now)
        for box in (self.inbox, self.outbox):  # a message to oneself is in both
            with contextlib.suppress(NotFound):
                box.delete(replay_key)
        dead = self._drawers[-1]
        dead.remove([replay_key])
        dead.sync()

    def receipts(self) -> Logged:
        """The receipts that this agent gave; those whose signatures do not hold are among the problems."""
        logged, pairs = self._log.read(), self.own.pairs()
        problems, sound = list(logged.problems), list[Receipt]()
        for receipt in logged.receipts:
            try:
                if receipt.signer_id not in pairs:
                    raise SignatureFailed("the receipt is signed by a pair that is not this agent's")
                check_receipt(receipt, pairs[receipt.signer_id])
                sound.append(receipt)
            except Refused as error:
                problems.append(Problem(self.directory, f"has a bad receipt of {receipt.replay_key[:12]}: {error}"))
        return Logged(tuple(sound), tuple(problems))

    def check_receipt(self, receipt: Receipt) -> None:
        """Whether a receipt for mail that this agent sent is truly its recipient's."""
        signer = self.trust.signer(receipt.recipient_nhi, receipt.signer_id, moment(receipt.time_ms))
        check_receipt(receipt, signer)

    def verify(self) -> list[Problem]:
        """Everything that is wrong with the mailbox's files, and with what its database has under the local key."""
        misplaced = [problem for drawer in self._drawers for problem in drawer.problems()]
        database = self.directory / FILE
        unreadable = [
            Problem(database, f"has a row of {table} that does not open with this agent's local key: {key}")
            for table, key in self._local.unreadable()
        ]
        return [*misplaced, *self.inbox.missing(), *self.outbox.missing(), *unreadable]

    def prune(self, now: datetime, retention_hours: int = RETENTION_HOURS, *, force: bool = False) -> Pruned:
        """Forget replay state that nothing needs any more."""
        return self._upkeep.prune(now, retention_hours, force=force)

    def migrate(self, runtime: Path, now: datetime) -> Migrated:
        """Take over what a Calyx mailbox has seen."""
        return calyx_import.migrate(self.database, runtime, now)

    def take_warnings(self) -> list[str]:
        """What the last operations want somebody to know, once."""
        return [notice.text for notice in self.notices.take()]
