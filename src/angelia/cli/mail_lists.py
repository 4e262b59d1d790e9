"""Lists of a mailbox beside the inbox: the outbox, receipts, dead letters, allowed senders and blocked ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from angelia.cli import times
from angelia.cli.command_context import CommandContext
from angelia.cli.mail_files import handing_over, refuse_unregistered
from angelia.cli.paging import Fetch, Page, ago, every, full_id, pages_of, server_pages, short, show_list, until
from angelia.cli.tables import Column, counted
from angelia.errors import AngeliaError, InvalidArgument, NotFound

if TYPE_CHECKING:
    from angelia.agents.api import BlockedAgentRecord
    from angelia.client import Client
    from angelia.envelope.receipts import Receipt, ReceiptDocument
    from angelia.mail.api import DeadLetter
    from angelia.mail.model import ReceiptRecord
    from angelia.mailbox.allowlist import AllowedSender
    from angelia.mailbox.mailbox import Mailbox
    from angelia.mailbox.outbox_message import OutboxMessage

Line = dict[str, Any]  # an entry as --json prints it, with whose word its state is in `by`
_DEAD = "angelia mail dead"


def list_outbox(session: CommandContext, mailbox: Mailbox) -> None:
    """Lists what was sealed here, newest first."""
    columns: list[Column[Line]] = [
        Column("ID", lambda m: short(m["replay_key"])),
        Column("TO", lambda m: m["recipient"], long=True),
        Column("AGE", lambda m: ago(m["created_at"]), right=True),
        Column("STATE", lambda m: m["state"]),
        Column("BY", lambda m: m["by"]),
        Column("EXPIRES", lambda m: until(m["expires_at"]), right=True),
        Column("WHY", lambda m: m["why"], long=True),
    ]

    def fetch(cursor: str | None, limit: int) -> Page[Line]:
        rows = mailbox.outbox.page(limit, cursor)
        return Page([_outbox_line(row) for row in rows], rows[-1].replay_key if len(rows) == limit else None)

    show_list(session, fetch, columns, nothing="nothing sent yet", hint='angelia mail send NAME "hello"')


def list_receipts(session: CommandContext, mailbox: Mailbox, state: str | None) -> None:
    """Lists the receipts that the server has of this agent's mail, after a check of every signature."""
    from angelia.mail.model import DeliveryStatus

    client = session.as_agent(mailbox)
    wanted = None if state is None else DeliveryStatus(state)
    columns: list[Column[Line]] = [
        Column("ID", lambda r: short(r["replay_key"])),
        Column("FROM", lambda r: r["sender"], long=True),
        Column("TO", lambda r: r["recipient"], long=True),
        Column("STATE", lambda r: r["status"]),
        Column("BY", lambda r: r["by"]),
        Column("ATTEMPTS", lambda r: f"{r['delivery_attempts']:,}", right=True),
        Column("SENT", lambda r: ago(r["sent_at"]), right=True),
        Column("REASON", lambda r: r["failure_reason"] or "", long=True),
    ]

    def fetch(cursor: str | None, limit: int) -> Page[Line]:
        page = client.mail.receipts(status=wanted, since=session.shared.since, cursor=cursor, limit=limit)
        return Page([_receipt_line(session, client, mailbox, one) for one in page.receipts], page.next)

    show_list(session, fetch, columns, nothing="no receipts yet", hint='angelia mail send NAME "hello"')


def list_own_receipts(session: CommandContext, mailbox: Mailbox) -> None:
    """Lists the receipts that this agent signed, from its own log."""
    from angelia.envelope.receipts import receipt_document
    from angelia.envelope.times import moment

    logged = mailbox.receipts()
    for problem in logged.problems:
        session.out.note(f"warning: {problem}")
    columns: list[Column[ReceiptDocument]] = [
        Column("ID", lambda r: short(r.replay_key)),
        Column("FROM", lambda r: r.sender_nhi, long=True),
        Column("STATE", lambda r: r.status),
        Column("AGE", lambda r: ago(moment(r.time_ms)), right=True),
        Column("REASON", lambda r: r.reason, long=True),
    ]
    rows = [receipt_document(one) for one in reversed(logged.receipts)]
    show_list(session, pages_of(rows), columns, nothing="no receipts yet", hint="opening a message gives one")


def check_receipt_file(session: CommandContext, mailbox: Mailbox, file: Path) -> None:
    """Checks a receipt that a recipient handed back as a file, and records it in the outbox."""
    from angelia.envelope.receipts import ReceiptDocument, parse_receipt
    from angelia.envelope.times import moment
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
    when = ago(moment(receipt.time_ms))
    session.out.done(document, f"{receipt.recipient_nhi} signed: {short(sent.replay_key)} {document.status} {when} ago")


def list_dead_letters(session: CommandContext, of: str | None) -> None:
    """Lists dead letters, whose content stays sealed: this agent's own, or for operators those `of` another."""
    columns: list[Column[DeadLetter]] = [
        Column("ID", lambda d: short(d.replay_key)),
        Column("FROM", lambda d: d.sender, long=True),
        Column("SINCE", lambda d: ago(d.dead_at), right=True),
        Column("BYTES", lambda d: f"{d.wire_bytes:,}", right=True),
        Column("EXPIRES", lambda d: until(d.expires_at), right=True),
        Column("REASON", lambda d: d.reason or "", long=True),
    ]
    fetch = _dead_letters(_client(session, of), of)
    show_list(session, fetch, columns, nothing="no dead letters", hint="angelia mail receive")


def requeue(session: CommandContext, id_: str, of: str | None) -> None:
    """Puts a dead letter back into its queue."""
    client = _client(session, of)
    known = [one.replay_key for one in every(_dead_letters(client, of))]
    look = _DEAD if of is None else f"{_DEAD} --of {of}"
    letter = client.mail.requeue(full_id(id_, known, "dead letter", look))
    session.out.done(letter, f"{short(letter.replay_key)} of {letter.sender} waits for {letter.recipient} again")
    if of is None:
        session.out.note("hint: angelia mail receive")


def import_allowed(session: CommandContext, mailbox: Mailbox, file: Path) -> None:
    """Adds the entries of a file, and says which were refused."""
    from angelia.mailbox.envelope_files import read_safely

    imported = mailbox.allowlist.import_json(read_safely(file, file), times.now())
    for why in imported.refused:
        session.out.note(f"refused: {why}")
    refused = f", {len(imported.refused):,} refused" if imported.refused else ""
    session.out.done(imported, f"added {counted(imported.added, 'entry', 'entries')}{refused}")


def export_allowed(session: CommandContext, mailbox: Mailbox, path: Path) -> None:
    """Writes the list to a new file."""
    with handing_over(path) as file:
        file.write(mailbox.allowlist.export_json())
    count = len(mailbox.allowlist.entries())
    session.out.done({"done": "exported", "count": count}, f"exported {counted(count, 'entry', 'entries')} to {path}")


def list_allowed(session: CommandContext, mailbox: Mailbox) -> None:
    """Lists the senders whose mail is opened."""
    columns: list[Column[AllowedSender]] = [
        Column("NAME", lambda e: e.nhi, long=True),
        Column("FINGERPRINT", lambda e: e.fingerprint),
        Column("SINCE", lambda e: ago(e.added_at), right=True),
        Column("LABEL", lambda e: e.label or "", long=True),
    ]
    nothing, hint = "nobody is allowed, so no mail is opened", "angelia mail allow NAME"
    show_list(session, pages_of(mailbox.allowlist.entries()), columns, nothing=nothing, hint=hint)


def block(session: CommandContext, name: str) -> None:
    """Puts an agent on this agent's block list on the server."""
    _own_client(session).agents.block(name)
    session.out.done({"done": "blocked", "agent": name}, f"blocked {name}: its mail and direct messages are refused")


def unblock(session: CommandContext, name: str) -> None:
    """Takes an agent off the block list; raises NotFound for a handle that is not on it."""
    from angelia.client.agent_profiles import is_id

    client = _own_client(session)
    known = every(server_pages(client.agents.blocked, lambda page: page.blocks))
    if not is_id(name) and all(one.agent != name for one in known):
        raise NotFound(f"{name} is not blocked", hint="angelia mail block")
    client.agents.unblock(name)
    session.out.done({"done": "unblocked", "agent": name}, f"unblocked {name}")


def list_blocked(session: CommandContext) -> None:
    """Lists the agents that this agent has blocked, the oldest entry first."""
    columns: list[Column[BlockedAgentRecord]] = [
        Column("NAME", lambda one: one.agent, long=True),
        Column("SINCE", lambda one: ago(one.blocked_at), right=True),
    ]
    fetch = server_pages(_own_client(session).agents.blocked, lambda page: page.blocks)
    show_list(session, fetch, columns, nothing="no agent is blocked", hint="angelia mail block NAME")


def _outbox_line(row: OutboxMessage) -> Line:
    state, by, why = _outbox_state(row)
    return {
        "replay_key": row.replay_key,
        "message_id": row.message_id,
        "recipient": row.recipient,
        "channel_id": row.channel_id,
        "correlation_id": row.correlation_id,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "status": row.status,
        "state": state,
        "by": by,
        "why": why,
        "attempts": row.attempts,
        "next_try_at": row.next_try_at,
        "reseals": row.reseals,
        "content_kept": row.resealable,
    }


def _outbox_state(row: OutboxMessage) -> tuple[str, str, str]:
    """The state of a message, whose word that is, and the reason."""
    from angelia.mailbox.outbox_message import SIGNED, OutboxStatus

    if row.reported is not None:
        assert row.reported_at is not None, "they are written together"
        untrue = row.contradiction(row.reported, row.reported_reason, row.reported_at)
        return row.reported.value, "relay", row.reported_reason if untrue is None else f"untrue: {untrue}"
    if row.withdrawn:
        return "withdrawn", "you", ""
    by = "recipient" if row.status in SIGNED else "relay" if row.status is OutboxStatus.QUEUED else ""
    wanted_back = row.withdraw_asked_at is not None and row.withdrawable
    return row.status.value, by, "to be withdrawn, once the server answers" if wanted_back else row.last_error


def _receipt_line(session: CommandContext, client: Client, mailbox: Mailbox, answer: ReceiptRecord) -> Line:
    """The members of the server's answer, and `by`. It is recipient only if the signatures were checked and hold; then
    `status` is what was signed."""
    status, by = answer.status.value, ""
    if status != "pending":
        try:
            receipt = client.mail.check_attested(mailbox, answer)
            status, by = (status, "relay") if receipt is None else (receipt.status.name.lower(), "recipient")
        except AngeliaError as error:
            session.out.note(f"warning: the receipt of {short(answer.replay_key)} proves nothing: {error.message}")
            by = "unproven"
    return msgspec.structs.asdict(answer) | {"status": status, "by": by}


def _client(session: CommandContext, of: str | None) -> Client:
    if of is not None:
        return session.as_operator()
    return _own_client(session)


def _own_client(session: CommandContext) -> Client:
    refuse_unregistered(session.mailbox, without="angelia mail inbox")
    return session.as_agent(session.mailbox)


def _dead_letters(client: Client, of: str | None) -> Fetch[DeadLetter]:
    return server_pages(client.mail.dead_letters, lambda page: page.dead_letters, agent=of)
