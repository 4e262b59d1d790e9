"""What became of the mail that a mailbox sent.

Only its recipient's signature settles a message. What the relay says by itself is written down as its word, and called
untrue where the sender knows better; whatever it is, the content stays in the outbox.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from angelia.client import mail_calls, mailbox_keys
from angelia.client.api_errors import Unreachable
from angelia.client.exchange import MOST_PAGES, BadAnswer, Exchange
from angelia.client.mail_answers import ReceiptAnswer
from angelia.client.mail_sending import SentMail, handed_over
from angelia.envelope.receipts import Receipt, check_receipt, parse_receipt
from angelia.envelope.refusals import IdConflict, SignatureFailed, UnknownSigner
from angelia.errors import AngeliaError, KeyRevoked, NotFound, Unavailable
from angelia.mail.model import Attested, Side, Status
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import WITHDRAWN, OutboxMessage, OutboxStatus

_PAGE = 200
# So many are asked about by name; for more of them it is less work to go through what was sent.
FEW = 10


class Untrue(AngeliaError):
    """The server says something that its sender knows to be untrue"""

    code = "untrue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is said of a message now, and on whose word."""

    replay_key: str
    recipient: str
    status: OutboxStatus
    by: Attested
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A message of which the relay said something that is not believed, or that could not be sealed again."""

    message: OutboxMessage
    error: AngeliaError


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What has changed since the last time; `resent` was sealed again, since its recipient's key was revoked.

    `interrupted` is why there is not more: something went wrong after all this was written down."""

    told: tuple[Told, ...] = ()
    resent: tuple[SentMail, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    interrupted: AngeliaError | None = None


@dataclass(slots=True)
class _Hearing:
    """What is heard of messages, one after the other."""

    mailbox: Mailbox
    told: list[Told] = field(default_factory=list)
    resent: list[SentMail] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)

    def take(self, row: OutboxMessage, answer: ReceiptAnswer) -> Exchange[None]:
        try:
            found = yield from _taken(self.mailbox, row, answer)
        except (Unreachable, Unavailable):
            raise
        except AngeliaError as error:
            self.doubts.append(Doubt(row, error))
            return
        if isinstance(found, SentMail):
            self.resent.append(found)
        elif found is not None:
            self.told.append(found)

    def news(self, interrupted: AngeliaError | None = None) -> News:
        return News(
            told=tuple(self.told), resent=tuple(self.resent), doubts=tuple(self.doubts), interrupted=interrupted
        )


def update_outbox(mailbox: Mailbox) -> Exchange[News]:
    """Ask what became of the mail that is under way, check every signature, and write it down in the outbox.

    An error that comes after something was heard is told in `interrupted`."""
    open_ = {row.replay_key: row for row in mailbox.outbox.unsettled(mailbox_keys.now())}
    hearing = _Hearing(mailbox)
    try:
        yield from _asked_by_name(hearing, open_) if len(open_) <= FEW else _asked_by_page(hearing, open_)
    except AngeliaError as error:
        if hearing.news() == News():
            raise
        return hearing.news(error)
    return hearing.news()


def _asked_by_name(hearing: _Hearing, open_: dict[str, OutboxMessage]) -> Exchange[None]:
    for replay_key, row in open_.items():
        try:
            answer = yield from mail_calls.receipt(replay_key)
        except NotFound:  # the relay has forgotten it, and with it what there was to say
            continue
        except BadAnswer as error:
            hearing.doubts.append(Doubt(row, error))
            continue
        yield from hearing.take(row, answer)


def _asked_by_page(hearing: _Hearing, open_: dict[str, OutboxMessage]) -> Exchange[None]:
    since = min(row.created_at for row in open_.values())
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = yield from mail_calls.receipts(since=since, side=Side.SENT, cursor=cursor, limit=_PAGE)
        for answer in page.receipts:
            row = open_.pop(answer.replay_key, None)
            if row is not None:
                yield from hearing.take(row, answer)
        if not open_ or not page.receipts or page.next is None:
            return
        cursor = page.next
    raise BadAnswer(f"the list of receipts did not end after {MOST_PAGES} pages")


def update_sent(mailbox: Mailbox, replay_key: str) -> Exchange[Told | SentMail | None]:
    """The same for one message: what is new of it, or its second sending; None if nothing is."""
    row = mailbox.outbox.message(replay_key)
    answer = yield from mail_calls.receipt(row.replay_key)
    return (yield from _taken(mailbox, row, answer))


def check_attested(mailbox: Mailbox, answer: ReceiptAnswer) -> Exchange[Receipt | None]:
    """The recipient's signed word in an answer, once its signatures hold; None where it is only the relay's word."""
    if answer.attested_by is Attested.RELAY:
        return None
    if answer.receipt is None:
        raise SignatureFailed(f"the relay says that {answer.recipient} signed a receipt, and does not show it")
    receipt = parse_receipt(answer.receipt)
    named = (receipt.replay_key, receipt.message_id, receipt.sender_nhi, receipt.recipient_nhi)
    if named != (answer.replay_key, answer.message_id, answer.sender, answer.recipient):
        raise SignatureFailed("the receipt is of another message")
    pairs = mailbox.own_keys.signing_pairs() if answer.recipient == mailbox.identity.handle else {}
    if receipt.signer_id in pairs:
        check_receipt(receipt, pairs[receipt.signer_id])
        return receipt
    yield from mailbox_keys.look_up(mailbox, receipt.recipient_nhi)
    try:
        mailbox.check_receipt(receipt)
    except UnknownSigner:
        pin = mailbox.pinned_keys.pin(receipt.recipient_nhi)
        if pin is None:
            raise
        yield from mailbox_keys.catch_up(mailbox, pin)
        mailbox.check_receipt(receipt)
    return receipt


def _taken(mailbox: Mailbox, row: OutboxMessage, answer: ReceiptAnswer) -> Exchange[Told | SentMail | None]:
    known = row.status is OutboxStatus.DELIVERED and answer.status is Status.DELIVERED
    if known or answer.status is Status.PENDING:
        return None  # nothing that is not written down already, so nothing to check
    named = (answer.replay_key, answer.message_id, answer.recipient, answer.sender)
    if named != (row.replay_key, row.message_id, row.recipient, mailbox.identity.handle):
        raise SignatureFailed("the relay answered about another message")
    receipt = yield from check_attested(mailbox, answer)
    if receipt is None:
        return (yield from _heard(mailbox, row, answer))
    status = OutboxStatus(receipt.status.name.lower())
    if status is OutboxStatus.FAILED and receipt.reason == IdConflict.code and row.reseals:
        status = OutboxStatus.DELIVERED  # an earlier envelope of the same message was opened: this one came too late
    if not mailbox.outbox.mark(row.replay_key, status):
        return None
    return _told(row, status, answer, receipt.reason)


def _heard(mailbox: Mailbox, row: OutboxMessage, answer: ReceiptAnswer) -> Exchange[Told | SentMail | None]:
    """What the relay says on its own word. Of an envelope that was replaced only a signed word counts."""
    if row.status is OutboxStatus.RESEALED:
        return None
    if answer.status is Status.READ:
        raise SignatureFailed(f"only {answer.recipient} can say that a message was read, and signed nothing")
    now, said, reason = mailbox_keys.now(), OutboxStatus(answer.status.value), answer.failure_reason or ""
    new = mailbox.outbox.record_report(row.replay_key, said, reason, now)
    if (untrue := row.contradiction(said, reason, now)) is not None:
        raise Untrue(untrue, hint="its content is kept; ask the server's operator")
    if said is OutboxStatus.FAILED and reason == WITHDRAWN:
        return _told(row, said, answer, reason) if mailbox.outbox.withdraw(row.replay_key, now) else None
    wanted = row.status is OutboxStatus.QUEUED and row.resealable and row.withdraw_asked_at is None
    if said is OutboxStatus.FAILED and reason == KeyRevoked.code and wanted:
        return (yield from _sent_again(mailbox, row))
    return _told(row, said, answer, reason) if new else None


def _told(row: OutboxMessage, status: OutboxStatus, answer: ReceiptAnswer, reason: str) -> Told:
    return Told(replay_key=row.replay_key, recipient=row.recipient, status=status, by=answer.attested_by, reason=reason)


def _sent_again(mailbox: Mailbox, row: OutboxMessage) -> Exchange[SentMail]:
    """Seal a message for the recipient's present keys whose own were revoked while it waited. The mailbox refuses if
    the recipient signed nothing of the kind."""
    envelope = yield from mailbox_keys.reseal(mailbox, row.replay_key, KeyRevoked())
    return (yield from handed_over(mailbox, envelope))
