"""The outbox on the command line: how far each message has come, on whose word, and why it waits."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from angelia.cli.command_context import Session
from angelia.cli.paging import Page, ago, short, show_list, until
from angelia.cli.tables import Column

if TYPE_CHECKING:
    from angelia.mailbox.mailbox import Mailbox
    from angelia.mailbox.outbox_message import OutboxMessage


class SentLine(msgspec.Struct, kw_only=True):
    """A sent message as it is listed: `state` is what is said of it, `by` whose word that is, `status` what is sure."""

    replay_key: str
    message_id: UUID
    recipient: str
    channel_id: UUID | None
    correlation_id: UUID | None
    created_at: datetime
    expires_at: datetime
    status: str
    state: str
    by: str
    why: str
    attempts: int
    next_try_at: datetime | None
    reseals: int
    content_kept: bool


def show_outbox(session: Session, mailbox: Mailbox) -> None:
    """List what was sealed here, newest first."""
    columns: list[Column[SentLine]] = [
        Column("ID", lambda m: short(m.replay_key)),
        Column("TO", lambda m: m.recipient, long=True),
        Column("AGE", lambda m: ago(m.created_at), right=True),
        Column("STATE", lambda m: m.state),
        Column("BY", lambda m: m.by),
        Column("EXPIRES", lambda m: until(m.expires_at), right=True),
        Column("WHY", lambda m: m.why, long=True),
    ]

    def fetch(cursor: str | None, limit: int) -> Page[SentLine]:
        rows = mailbox.outbox.page(limit, cursor)
        return Page([_line(row) for row in rows], rows[-1].replay_key if len(rows) == limit else None)

    show_list(session, fetch, columns, nothing="nothing sent yet", hint='angelia mail send NAME "hello"')


def _line(row: OutboxMessage) -> SentLine:
    state, by, why = _standing(row)
    named = SentLine.__struct_fields__
    fields = {name: getattr(row, name) for name in row.__slots__ if name in named}
    return SentLine(**fields, state=state, by=by, why=why, content_kept=row.resealable)


def _standing(row: OutboxMessage) -> tuple[str, str, str]:
    """The state of a message, whose word that is, and the reason."""
    from angelia.mailbox.outbox_message import OutboxStatus

    if row.reported is not None:
        assert row.reported_at is not None, "they are written together"
        untrue = row.contradiction(row.reported, row.reported_reason, row.reported_at)
        return row.reported.value, "relay", row.reported_reason if untrue is None else f"untrue: {untrue}"
    if row.withdrawn:
        return "withdrawn", "you", ""
    by = {
        OutboxStatus.QUEUED: "relay",
        OutboxStatus.DELIVERED: "recipient",
        OutboxStatus.READ: "recipient",
        OutboxStatus.FAILED: "recipient",
    }
    wanted_back = row.withdraw_asked_at is not None and row.withdrawable
    why = "to be withdrawn, once the server answers" if wanted_back else row.last_error
    return row.status.value, by.get(row.status, ""), why
