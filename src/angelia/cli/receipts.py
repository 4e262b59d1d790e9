"""Receipts on the command line: what became of mail, on whose word, and what is said to a sender."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from angelia.cli.command_context import Session
from angelia.cli.paging import Page, ago, pages_of, short, show_list
from angelia.cli.tables import Column
from angelia.errors import AngeliaError, InvalidArgument, ReceiptArchived

if TYPE_CHECKING:
    from angelia.client import Client
    from angelia.envelope.receipts import Receipt, ReceiptDocument
    from angelia.mail.api import ReceiptRecord
    from angelia.mailbox.mailbox import Mailbox


class ReceiptLine(msgspec.Struct, kw_only=True):
    """A receipt as it is listed: the members of the HTTP answer, and `by`, whose word the state is.

    `by` says recipient only when the signatures were checked and hold; `status` is then what was signed."""

    receipt_id: UUID
    message_id: UUID
    replay_key: str
    sender: str
    recipient: str
    channel_id: UUID | None
    priority: int
    wire_bytes: int
    status: str
    by: str
    attested_by: str
    delivery_attempts: int
    last_attempt_at: datetime | None
    sent_at: datetime
    accepted_at: datetime
    expires_at: datetime
    delivered_at: datetime | None
    acknowledged_at: datetime | None
    read_at: datetime | None
    failure_reason: str | None
    receipt: object | None


def list_all(session: Session, mailbox: Mailbox, state: str | None) -> None:
    """What the server has of this agent's receipts, each signature checked."""
    from angelia.mail.model import DeliveryStatus

    client = session.as_agent(mailbox)
    wanted = None if state is None else DeliveryStatus(state)
    columns: list[Column[ReceiptLine]] = [
        Column("ID", lambda r: short(r.replay_key)),
        Column("FROM", lambda r: r.sender, long=True),
        Column("TO", lambda r: r.recipient, long=True),
        Column("STATE", lambda r: r.status),
        Column("BY", lambda r: r.by),
        Column("ATTEMPTS", lambda r: f"{r.delivery_attempts:,}", right=True),
        Column("SENT", lambda r: ago(r.sent_at), right=True),
        Column("REASON", lambda r: r.failure_reason or "", long=True),
    ]

    def fetch(cursor: str | None, limit: int) -> Page[ReceiptLine]:
        page = client.mail.receipts(status=wanted, since=session.shared.since, cursor=cursor, limit=limit)
        return Page([_checked(session, client, mailbox, one) for one in page.receipts], page.next)

    show_list(session, fetch, columns, nothing="no receipts yet", hint='angelia mail send NAME "hello"')


def hand_in(session: Session, mailbox: Mailbox, receipt: Receipt) -> None:
    """Give the server a receipt for the sender; of a message that came by hand it knows nothing."""
    try:
        session.as_agent(mailbox).mail.hand_in_receipt(receipt)
    except ReceiptArchived:
        session.out.note(f"the server has no such message; --out FILE hands the receipt to {receipt.sender_nhi}")


def list_given(session: Session, mailbox: Mailbox) -> None:
    """The receipts that this agent signed, from its own log."""
    from angelia.envelope.receipts import receipt_document

    logged = mailbox.receipts()
    for problem in logged.problems:
        session.out.note(f"warning: {problem}")
    columns: list[Column[ReceiptDocument]] = [
        Column("ID", lambda r: short(r.replay_key)),
        Column("FROM", lambda r: r.sender_nhi, long=True),
        Column("STATE", lambda r: r.status),
        Column("AGE", lambda r: ago(_moment(r.time_ms)), right=True),
        Column("REASON", lambda r: r.reason, long=True),
    ]
    rows = [receipt_document(one) for one in reversed(logged.receipts)]
    show_list(session, pages_of(rows), columns, nothing="no receipts yet", hint="opening a message gives one")


def take_file(session: Session, mailbox: Mailbox, file: Path) -> None:
    """Check a receipt that a recipient handed back, and write down what it says."""
    from angelia.envelope.receipts import ReceiptDocument, parse_receipt
    from angelia.mailbox.envelope_files import read_safely
    from angelia.mailbox.outbox_message import OutboxStatus

    try:
        document = msgspec.json.decode(read_safely(file, file), type=ReceiptDocument)
        receipt: Receipt = parse_receipt(document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"{file} is no receipt", hint="its recipient makes one by `angelia mail ack ID --out FILE`"
        ) from error
    sent = mailbox.outbox.message(receipt.replay_key)
    named = (receipt.replay_key, receipt.message_id, receipt.recipient_nhi)
    if (sent.replay_key, sent.message_id, sent.recipient) != named:
        raise InvalidArgument("the receipt names another message than its replay key")
    mailbox.check_receipt(receipt)
    mailbox.outbox.mark(sent.replay_key, OutboxStatus(document.status))
    when = ago(_moment(receipt.time_ms))
    session.out.done(document, f"{receipt.recipient_nhi} signed: {short(sent.replay_key)} {document.status} {when} ago")


def _checked(session: Session, client: Client, mailbox: Mailbox, answer: ReceiptRecord) -> ReceiptLine:
    fields = {name: getattr(answer, name) for name in answer.__struct_fields__}
    fields |= {"status": answer.status.value, "attested_by": answer.attested_by.value}
    if answer.status == "pending":
        return ReceiptLine(**fields, by="")
    try:
        receipt = client.mail.check_attested(mailbox, answer)
    except AngeliaError as error:
        session.out.note(f"warning: the receipt of {short(answer.replay_key)} proves nothing: {error.message}")
        return ReceiptLine(**fields, by="unproven")
    if receipt is None:
        return ReceiptLine(**fields, by="relay")
    return ReceiptLine(**{**fields, "status": receipt.status.name.lower()}, by="recipient")


def _moment(at_ms: int) -> datetime:
    from angelia.envelope.times import moment

    return moment(at_ms)
