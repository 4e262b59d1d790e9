"""Received mail: rows with the plaintext under the local key, beside the sealed files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from angelia.envelope.receipts import Receipt, ReceiptStatus, sign_receipt
from angelia.envelope.sealing import CHANNEL_KEY_LENGTHS, Control
from angelia.envelope.times import moment, unix_ms
from angelia.envelope.wire import MAX_PLAINTEXT, TAG, Envelope, Priority
from angelia.errors import NotFound, RateLimited
from angelia.mailbox.database import MailboxDatabase, MailboxTx
from angelia.mailbox.envelope_files import EnvelopeFiles, FileProblem
from angelia.mailbox.local_key import LocalKey
from angelia.mailbox.message_lookup import PAGE, by_prefix
from angelia.mailbox.own_keys import OwnKeys
from angelia.mailbox.receipt_log import ReceiptLog

_NEWEST: tuple[object, ...] = ("~", "~", "~")  # after every time and every replay key
_OLDEST: tuple[object, ...] = ("", "")
# How many control messages of one sender may wait to be handled, and how many of all are returned at a time.
MOST_CONTROLS = 100
_CONTROLS_AT_ONCE, _CONTROL_BYTES_AT_ONCE = 100, 1 << 20
_ROOM_LATER = 300
# Shortest and longest content of each kind; the shorter channel key is that of the previous release.
_LENGTHS = {Control.CHANNEL_KEY: CHANNEL_KEY_LENGTHS, Control.GROUP_KEY: (1, MAX_PLAINTEXT)}


class ReadState(StrEnum):
    UNREAD = "unread"
    READ = "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A received message without its content."""

    replay_key: str
    message_id: UUID
    sender: str
    sender_fingerprint: str
    recipient: str
    channel_id: UUID | None
    correlation_id: UUID | None
    priority: Priority
    created_at: datetime
    received_at: datetime
    expires_at: datetime
    status: ReadState
    acked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Opened:
    """A message with its content, and the receipt that was signed when it was opened or read, if any."""

    message: Message
    body: bytes
    control: bool = False
    receipt: Receipt | None = None

    def __repr__(self) -> str:
        """Which message it is, and nothing of its content: it may end up in a log."""
        message = self.message
        return f"<message {message.replay_key[:12]} from {message.sender}, {len(self.body):,} bytes>"

    @property
    def sender(self) -> str:
        return self.message.sender

    @property
    def text(self) -> str:
        """The content as text; bytes that are no UTF-8 become U+FFFD."""
        return self.body.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class InboxPage:
    """Messages, newest first; `after` is the cursor of the next page. Warnings name sealed files that are missing or
    changed."""

    messages: tuple[Message, ...]
    after: str | None
    warnings: tuple[FileProblem, ...]


@dataclass(eq=False, repr=False)
class Inbox:
    """The tables `inbox` and `controls`."""

    _database: MailboxDatabase
    _local: LocalKey
    _files: EnvelopeFiles
    _dead_files: EnvelopeFiles
    _receipts: ReceiptLog
    _own_keys: OwnKeys

    def add(
        self,
        tx: MailboxTx,
        envelope: Envelope,
        replay_key: str,
        sender_fp: str,
        body: bytes,
        now: datetime,
        *,
        for_handler: bool = False,
    ) -> Message:
        """Stores an opened message in the transaction that claims it. With `for_handler` it stays listed in `unhandled`
        until `end_handling`."""
        header = envelope.header
        message = Message(
            replay_key=replay_key,
            message_id=header.message_id,
            sender=header.sender_nhi,
            sender_fingerprint=sender_fp,
            recipient=header.recipient_nhi,
            channel_id=header.channel_id,
            correlation_id=header.correlation_id,
            priority=header.priority,
            created_at=moment(header.created_at),
            received_at=now,
            expires_at=moment(header.expires_at),
            status=ReadState.UNREAD,
            acked_at=None,
        )
        tx.write("add_inbox", *astuple(message), *self._local.encrypt("inbox", replay_key, body))
        if header.control:
            tx.write("add_control", replay_key)
        elif for_handler:
            tx.write("add_unhandled", replay_key)
        return message

    def page(self, limit: int = PAGE, after: str | None = None) -> InboxPage:
        """Returns mail without content, newest first; control messages are not mail."""
        since = _NEWEST
        if after is not None:
            last = self.message(after)
            since = (last.received_at, last.created_at, last.replay_key)
        messages = tuple(self._database.records(Message, "inbox_page", *since, limit))
        checked = [self._files.problem(message.replay_key) for message in messages]
        more = messages[-1].replay_key if len(messages) == limit else None
        return InboxPage(messages, more, tuple(problem for problem in checked if problem is not None))

    def message(self, replay_key: str) -> Message:
        """Returns a message by its replay key or a unique prefix of it."""
        return by_prefix(self._database, Message, "inbox_between", replay_key)

    def mail(self, replay_key: str) -> Message:
        """Returns a message as `message` does; a control message is NotFound."""
        found = self.message(replay_key)
        if self.is_control(found.replay_key):
            raise NotFound(f"{found.replay_key[:12]} is a control message for the SDK, and no mail")
        return found

    def is_control(self, replay_key: str) -> bool:
        """Whether a received message is for the SDK and not for the agent's owner."""
        return self._database.row("is_control", replay_key) is not None

    def controls(self, kind: Control = Control.CHANNEL_KEY, *, after: Message | None = None) -> list[Opened]:
        """Returns the oldest unhandled control messages of a kind, at most a hundred or a mebibyte of them; `after` is
        the last one of the call before."""
        found, size = list[Opened](), 0
        since = _OLDEST if after is None else (after.received_at, after.replay_key)
        least, most = _LENGTHS[kind]
        while True:
            page = self._database.records(Message, "inbox_controls", *since, least + TAG, most + TAG, _CONTROLS_AT_ONCE)
            for message in page:
                body = self._body(message.replay_key)
                if body[0] != kind:
                    continue
                found.append(Opened(message=message, body=body, control=True))
                size += len(body)
                if len(found) == _CONTROLS_AT_ONCE or size >= _CONTROL_BYTES_AT_ONCE:
                    return found
            if len(page) < _CONTROLS_AT_ONCE:
                return found
            since = (page[-1].received_at, page[-1].replay_key)

    def check_room_for_control(self, sender_fp: str, sender: str) -> None:
        """Raises RateLimited for a sender with too many unhandled control messages."""
        (count,) = self._database.row("count_controls", sender_fp)
        if count >= MOST_CONTROLS:
            raise RateLimited(
                f"{count:,} control messages of {sender} wait here to be handled; no more are taken for now",
                hint="keys of channels are taken when one reads: angelia channel tail",
                retry_after=_ROOM_LATER,
            )

    def read(self, replay_key: str, now: datetime) -> Opened:
        """Returns a message with its content; the first reading signs a receipt."""
        message = self.mail(replay_key)
        body, receipt = self._body(message.replay_key), None
        if message.status is ReadState.UNREAD:
            # The receipt first: after a crash in between there may be two receipts, but never none.
            receipt = self.receipt(message.replay_key, ReceiptStatus.READ, now)
            self._database.write("mark_read", message.replay_key)
        return Opened(message=replace(message, status=ReadState.READ), body=body, receipt=receipt)

    def unhandled(self) -> list[str]:
        """Returns the replay keys of messages whose handler has not finished, oldest first."""
        return [key for (key,) in self._database.rows("unhandled")]

    def to_handle(self, replay_key: str) -> Opened | None:
        """Returns an unhandled message with its content; None if its handler has finished."""
        if self._database.row("is_unhandled", replay_key) is None:
            return None
        return Opened(message=self.message(replay_key), body=self._body(replay_key))

    def end_handling(self, replay_key: str) -> None:
        """Records that the handler has finished with a message: it is not handed to it again."""
        self._database.write("end_unhandled", replay_key)

    def answer_to(self, correlation_id: UUID, sender: str) -> Opened | None:
        """Returns the first message of a sender in a conversation, whichever process received it."""
        found = self._database.record(Message, "inbox_answer", correlation_id, sender)
        return None if found is None else Opened(message=found, body=self._body(found.replay_key))

    def delete(self, replay_key: str) -> None:
        """Destroys a message, with the refused envelopes of the same message, which have the same content. Its replay
        state stays, so that it is not accepted again."""
        found = self.mail(replay_key)
        # Keys, then files, then the row: after a crash the row still exists, and a second call completes the deletion.
        self._destroy_refused(found)
        self._files.remove([found.replay_key])
        self._files.sync()
        self._database.write("delete_inbox", found.replay_key)
        # Envelopes that another process refused meanwhile; from now on that process sees that the message was deleted.
        self._destroy_refused(found)

    def _destroy_refused(self, message: Message) -> None:
        refused = {
            key: envelope.header.key_id
            for key, envelope in self._dead_files.envelopes()
            if (envelope.header.sender_nhi, envelope.header.message_id) == (message.sender, message.message_id)
        }
        if not refused:
            return
        with self._database.transaction() as tx:
            for used in refused.values():
                tx.write("use_one_time", used)
        self._dead_files.remove(refused)
        self._dead_files.sync()

    def was_deleted(self, sender: str, message_id: UUID) -> bool:
        """Whether a message of a sender was opened here and deleted since."""
        return self._database.row("was_deleted", message_id, sender) is not None

    def mark_handled(self, replay_key: str) -> None:
        """Records that the SDK has processed a control message."""
        self._database.write("mark_handled", replay_key)

    def mark_acked(self, replay_keys: Iterable[str], now: datetime) -> None:
        """Records that the server has the acks of these messages."""
        with self._database.transaction() as tx:
            for replay_key in replay_keys:
                tx.write("mark_acked", now, replay_key)

    def receipt(self, replay_key: str, status: ReceiptStatus, now: datetime) -> Receipt:
        """Signs a receipt for a received message, logs and returns it."""
        return self.sign_receipts([self.message(replay_key)], status, now)[0]

    def sign_receipts(self, messages: Sequence[Message], status: ReceiptStatus, now: datetime) -> list[Receipt]:
        """Signs receipts for received messages, logs and returns them."""
        pair = self._own_keys.identity.pair
        unsigned = [
            Receipt(
                status=status,
                replay_key=message.replay_key,
                message_id=message.message_id,
                sender_nhi=message.sender,
                recipient_nhi=message.recipient,
                time_ms=unix_ms(now),
                signer_id=pair.public.signer_id,
            )
            for message in messages
        ]
        signed = [sign_receipt(receipt, pair) for receipt in unsigned]
        self._receipts.append(signed, now)
        return signed

    def _body(self, replay_key: str) -> bytes:
        found = self._database.row("inbox_body", replay_key)
        if found is None:
            raise NotFound(f"the message {replay_key[:12]} was deleted meanwhile")
        return self._local.decrypt("inbox", replay_key, *found)
