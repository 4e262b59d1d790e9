"""Prints messages that were sealed, and messages that were opened."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from angelia.cli.command_context import CommandContext
from angelia.cli.escaping import escape_text, folded, width
from angelia.cli.paging import ago, short
from angelia.cli.times import age

if TYPE_CHECKING:
    from angelia.client.mail_sending import SentMail
    from angelia.envelope.wire import Envelope
    from angelia.mailbox.channels import ChannelMessage
    from angelia.mailbox.inbox import Message, Opened
    from angelia.mailbox.mailbox import Mailbox

Line = dict[str, object]  # a line of --json
_MARK = "│ "


def say_sent(session: CommandContext, sent: SentMail) -> None:
    """Says what the server accepted."""
    more: Line = {"enqueued_at": sent.accepted.enqueued_at, "expires_at": sent.accepted.expires_at}
    _say_new(session, sent.envelope, f"sent to {sent.envelope.header.recipient_nhi}, sealed", more)


def say_sealed(session: CommandContext, mailbox: Mailbox, envelope: Envelope, out: Path | None) -> None:
    """Says what was sealed, and where its file is."""
    from angelia.envelope.times import moment

    header = envelope.header
    file = out or mailbox.directory / "outbox" / f"{envelope.replay_key}.agl"
    more: Line = {"expires_at": moment(header.expires_at), "file": str(file)}
    _say_new(session, envelope, f"sealed for {header.recipient_nhi}", more)
    session.out.note(f"hand it over within 5 minutes, for `angelia mail open FILE`: {file}")


def say_control(session: CommandContext) -> None:
    """A control message is for the SDK, which handles it later; it is never shown as mail."""
    session.out.note("a control message for the SDK was stored")


def print_message(
    session: CommandContext, opened: Opened, *, fresh: bool, named: bool = True, alone: bool = True
) -> None:
    """Prints the content on stdout and everything about it on stderr, with its id if `named`. Content that is no text
    goes into a file or a pipe byte for byte if the message is printed `alone`."""
    message = opened.message
    text, members = body_members(opened.body)
    if session.shared.json:
        session.out.records([message_record(message, members, received_at=message.received_at)])
        return
    state = "signature ok, not seen before" if fresh else "signature ok"
    id_ = f", {short(message.replay_key)}" if named else ""
    session.out.note(f"from {message.sender}, {ago(message.created_at)} ago, {state}{id_}")
    if text is not None:
        print_body(session, text)
    elif alone and session.out.raw(opened.body):
        session.out.note(f"{len(opened.body):,} bytes that are no text, written as they are")
    else:
        ways = f"`angelia mail open {short(message.replay_key)} > FILE` writes them, --json shows them in base64url"
        session.out.note(f"{len(opened.body):,} bytes that are no text; {ways}")


def body_members(body: bytes) -> tuple[str | None, Line]:
    """The text of a body, None if it is no UTF-8; and its member in JSON: `body`, or `body_base64` if it is no text."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        from angelia.envelope.json_form import to_text

        return None, {"body_base64": to_text(body)}
    return text, {"body": text}


def message_record(message: Message | ChannelMessage, body: Line, **more: object) -> Line:
    """What `--json` says of an opened message: of mail and of channels alike, with the members of its body."""
    return {
        "replay_key": message.replay_key,
        "message_id": message.message_id,
        "sender": message.sender,
        "fingerprint": message.sender_fingerprint,
        "created_at": message.created_at,
        **more,
        "priority": message.priority,
        **({"correlation_id": message.correlation_id} if message.correlation_id else {}),
        **body,
    }


def print_body(session: CommandContext, text: str) -> None:
    """Prints the content of a message. On a terminal every line of it is marked, also where a long one wraps, so that
    none can pose as one of ours; a file or a pipe gets the text alone."""
    out = session.out
    if not out.stdout.isatty():
        out.text(text)
        return
    columns = max(shutil.get_terminal_size().columns - width(_MARK), 8)
    for line in escape_text(text.removesuffix("\n")).expandtabs().split("\n"):
        out.painted(_MARK + piece for piece in folded(line, columns))


def _say_new(session: CommandContext, envelope: Envelope, what: str, more: Line) -> None:
    """Says what was made, and its id; with -q only the id, whole."""
    from angelia.envelope.wire import Suite

    header, size = envelope.header, len(envelope.wire)
    kem = {Suite.ML_KEM: "ML-KEM-768", Suite.XWING: "X-Wing"}[header.suite]
    named = {"replay_key": envelope.replay_key, "message_id": header.message_id, "recipient": header.recipient_nhi}
    left = age(timedelta(seconds=header.ttl_seconds))
    text = f"{what} ({kem}, Ed25519 + ML-DSA-65), {size:,} bytes, expires in {left}"
    record = {**named, "bytes": size, **more}
    session.out.done(record, text, short(envelope.replay_key), quietly=envelope.replay_key)
