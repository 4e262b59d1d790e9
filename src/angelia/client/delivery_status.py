"""Updates the outbox: what became of the mail that a mailbox sent.

Only its recipient's signature decides about a message. What the server says without one is written down as the server's
word, and called untrue where the sender knows better; in any case the content stays in the outbox.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from angelia.client import clock, peer_keys
from angelia.client.api_errors import Unreachable
from angelia.client.exchange import MOST_PAGES, BadAnswer, Exchange
from angelia.client.mail_sending import OutboxProblem, SentMail, send_stored
from angelia.client.operation_requests import ask
from angelia.envelope.receipts import Receipt, check_receipt, parse_receipt
from angelia.envelope.refusals import IdConflict, SignatureFailed
from angelia.errors import AngeliaError, KeyRevoked, NotFound, Unavailable
from angelia.mail import api
from angelia.mail.api import ReceiptQuery
from angelia.mail.model import Attested, DeliveryStatus, ReceiptRecord, Side
from angelia.mailbox.mailbox import Mailbox
from angelia.mailbox.outbox_message import WITHDRAWN, OutboxMessage, OutboxStatus

_PAGE = 200
# So many messages are asked about one by one; for more of them it is less work to page through what was sent.
FEW = 10


class Untrue(AngeliaError, code="untrue"):
    """The server says something that its sender knows to be untrue"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange:
    """The new status of a message, and whether its recipient or the server says so."""

    replay_key: str
    recipient: str
    status: OutboxStatus
    by: Attested
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxUpdate:
    """What has changed since the last update; `resent` was sealed again, since its recipient's key was revoked. Of the
    `doubts` the server said what is not believed, or they could not be sealed again.

    `interrupted` is the error that kept more from being updated, after all this was written down."""

    changes: list[StatusChange] = field(default_factory=list)
    resent: list[SentMail] = field(default_factory=list)
    doubts: list[OutboxProblem] = field(default_factory=list)
    interrupted: AngeliaError | None = None


def update_outbox(mailbox: Mailbox) -> Exchange[OutboxUpdate]:
    """Asks what became of the mail in transit, checks every signature, and writes it down in the outbox.

    An error that comes after the first change is in `interrupted`."""
    open_ = {row.replay_key: row for row in mailbox.outbox.unsettled(clock.now())}
    update = OutboxUpdate()
    ask_for = _ask_one_by_one if len(open_) <= FEW else _ask_by_page
    try:
        yield from ask_for(mailbox, update, open_)
    except AngeliaError as error:
        if update == OutboxUpdate():
            raise
        return replace(update, interrupted=error)
    return update


def _ask_one_by_one(mailbox: Mailbox, update: OutboxUpdate, open_: dict[str, OutboxMessage]) -> Exchange[None]:
    for replay_key, row in open_.items():
        try:
            answer = yield from ask(api.SHOW_RECEIPT, replay_key)
        except NotFound:  # the server has no receipt of it any more
            continue
        except BadAnswer as error:
            update.doubts.append(OutboxProblem(row, error))
            continue
        yield from _take(mailbox, update, row, answer)


def _ask_by_page(mailbox: Mailbox, update: OutboxUpdate, open_: dict[str, OutboxMessage]) -> Exchange[None]:
    since = min(row.created_at for row in open_.values())
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        query = ReceiptQuery(since=since, side=Side.SENT, cursor=cursor, limit=_PAGE)
        page = yield from ask(api.LIST_RECEIPTS, query=query)
        for answer in page.receipts:
            row = open_.pop(answer.replay_key, None)
            if row is not None:
                yield from _take(mailbox, update, row, answer)
        if not open_ or not page.receipts or page.next is None:
            return
        cursor = page.next
    raise BadAnswer(f"the list of receipts did not end after {MOST_PAGES} pages")


def _take(mailbox: Mailbox, update: OutboxUpdate, row: OutboxMessage, answer: ReceiptRecord) -> Exchange[None]:
    """Adds to the update what a receipt changes."""
    try:
        found = yield from _taken(mailbox, row, answer)
    except (Unreachable, Unavailable):
        raise
    except AngeliaError as error:
        update.doubts.append(OutboxProblem(row, error))
        return
    if isinstance(found, SentMail):
        update.resent.append(found)
    elif found is not None:
        update.changes.append(found)


def update_sent(mailbox: Mailbox, replay_key: str) -> Exchange[StatusChange | SentMail | None]:
    """Updates one message of the outbox. Returns its new status, its second sending, or None if nothing has changed."""
    row = mailbox.outbox.message(replay_key)
    answer = yield from ask(api.SHOW_RECEIPT, row.replay_key)
    return (yield from _taken(mailbox, row, answer))


def check_attested(mailbox: Mailbox, answer: ReceiptRecord) -> Exchange[Receipt | None]:
    """Returns the receipt that the recipient signed, after checking it; None if only the server says what happened."""
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
    yield from peer_keys.look_up(mailbox, receipt.recipient_nhi)
    yield from peer_keys.following_signer(mailbox, lambda: mailbox.check_receipt(receipt))
    return receipt


def _taken(mailbox: Mailbox, row: OutboxMessage, answer: ReceiptRecord) -> Exchange[StatusChange | SentMail | None]:
    known = row.status is OutboxStatus.DELIVERED and answer.status is DeliveryStatus.DELIVERED
    if known or answer.status is DeliveryStatus.PENDING:
        return None  # it is written down already, so there is nothing to check
    named = (answer.replay_key, answer.message_id, answer.recipient, answer.sender)
    if named != (row.replay_key, row.message_id, row.recipient, mailbox.identity.handle):
        raise SignatureFailed("the relay answered about another message")
    receipt = yield from check_attested(mailbox, answer)
    if receipt is None:
        return (yield from _unsigned(mailbox, row, answer))
    status = OutboxStatus(receipt.status.name.lower())
    if status is OutboxStatus.FAILED and receipt.reason == IdConflict.code and row.reseals:
        status = OutboxStatus.DELIVERED  # an earlier envelope of the same message was opened: this one came too late
    if not mailbox.outbox.mark(row.replay_key, status):
        return None
    return _change(row, status, answer, receipt.reason)


def _unsigned(mailbox: Mailbox, row: OutboxMessage, answer: ReceiptRecord) -> Exchange[StatusChange | SentMail | None]:
    """Takes what the server says without a signature. After a message was sealed again, only signed receipts count."""
    if row.status is OutboxStatus.RESEALED:
        return None
    if answer.status is DeliveryStatus.READ:
        raise SignatureFailed(f"only {answer.recipient} can say that a message was read, and signed nothing")
    now, said, reason = clock.now(), OutboxStatus(answer.status.value), answer.failure_reason or ""
    new = mailbox.outbox.record_report(row.replay_key, said, reason, now)
    if (untrue := row.contradiction(said, reason, now)) is not None:
        raise Untrue(untrue, hint="its content is kept; ask the server's operator")
    if said is OutboxStatus.FAILED and reason == WITHDRAWN:
        return _change(row, said, answer, reason) if mailbox.withdrawals.complete(row.replay_key, now) else None
    wanted = row.status is OutboxStatus.QUEUED and row.resealable and row.withdraw_asked_at is None
    if said is OutboxStatus.FAILED and reason == KeyRevoked.code and wanted:
        # The mailbox refuses to seal it again if the recipient signed no such revocation.
        envelope = yield from peer_keys.reseal(mailbox, row.replay_key, KeyRevoked())
        return (yield from send_stored(mailbox, envelope))
    return _change(row, said, answer, reason) if new else None


def _change(row: OutboxMessage, status: OutboxStatus, answer: ReceiptRecord, reason: str) -> StatusChange:
    return StatusChange(
        replay_key=row.replay_key, recipient=row.recipient, status=status, by=answer.attested_by, reason=reason
    )
