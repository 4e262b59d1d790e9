"""How a message is shown that was sealed, and one that was opened."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from angelia.cli.command_context import Session
from angelia.cli.escaping import escape_text, folded, width
from angelia.cli.paging import ago, short
from angelia.cli.times import age

if TYPE_CHECKING:
    from angelia.client.mail_sending import SentMail
    from angelia.envelope.wire import Envelope
    from angelia.mailbox.inbox import Opened
    from angelia.mailbox.mailbox import Mailbox


_MARK = "│ "


class Read(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What `--json` says of a message that was opened; `body` where it is text, else `body_base64`."""

    replay_key: str
    message_id: str
    sender: str
    fingerprint: str
    created_at: datetime
    received_at: datetime
    priority: int
    correlation_id: str | None = None
    body: str | None = None
    body_base64: str | None = None


class Sealed(msgspec.Struct, kw_only=True):
    """What `--json` says of a message that was sealed."""

    replay_key: str
    message_id: str
    recipient: str
    bytes: int
    expires_at: datetime
    file: str


class SentOut(msgspec.Struct, kw_only=True):
    """What `--json` says of a message that the server has."""

    replay_key: str
    message_id: str
    recipient: str
    bytes: int
    enqueued_at: datetime
    expires_at: datetime


class Withdrawn(msgspec.Struct, kw_only=True):
    """What `--json` says of a message that was taken back."""

    replay_key: str
    message_id: str
    recipient: str


class Deleted(msgspec.Struct, kw_only=True):
    """What `--json` says of a message that was deleted here."""

    replay_key: str


class Counted(msgspec.Struct, kw_only=True):
    """What `--json` says of something that was done to several things."""

    done: str
    count: int


def say_sent(session: Session, sent: SentMail) -> None:
    """Tell what the server took."""
    envelope, accepted = sent.envelope, sent.accepted
    record = SentOut(
        replay_key=envelope.replay_key,
        message_id=str(envelope.header.message_id),
        recipient=envelope.header.recipient_nhi,
        bytes=len(envelope.wire),
        enqueued_at=accepted.enqueued_at,
        expires_at=accepted.expires_at,
    )
    _say_new(session, record, envelope, f"sent to {envelope.header.recipient_nhi}, sealed ({_suite(envelope)})")


def say_sealed(session: Session, mailbox: Mailbox, envelope: Envelope, out: Path | None) -> None:
    """Tell what was sealed, and where its file is."""
    from angelia.envelope.times import moment

    header = envelope.header
    file = out or mailbox.directory / "outbox" / f"{envelope.replay_key}.agl"
    sealed = Sealed(
        replay_key=envelope.replay_key,
        message_id=str(header.message_id),
        recipient=header.recipient_nhi,
        bytes=len(envelope.wire),
        expires_at=moment(header.expires_at),
        file=str(file),
    )
    _say_new(session, sealed, envelope, f"sealed for {header.recipient_nhi} ({_suite(envelope)})")
    session.out.note(f"hand it over within 5 minutes, for `angelia mail open FILE`: {file}")


def say_control(session: Session) -> None:
    """A control message is for the SDK: it stays unread until that handles it, and is never shown as mail."""
    session.out.note("a control message for the SDK was stored")


def print_message(session: Session, opened: Opened, *, fresh: bool, named: bool = True, alone: bool = True) -> None:
    """The content on stdout, everything about it on stderr; with its id if it is `named`.

    One that is `alone` and no text goes into a file or a pipe as it is."""
    message = opened.message
    try:
        text, encoded = opened.body.decode(), None
    except UnicodeDecodeError:
        from angelia.envelope.json_form import to_text

        text, encoded = None, to_text(opened.body)
    if session.shared.json:
        session.out.records(
            [
                Read(
                    replay_key=message.replay_key,
                    message_id=str(message.message_id),
                    sender=message.sender,
                    fingerprint=message.sender_fingerprint,
                    created_at=message.created_at,
                    received_at=message.received_at,
                    priority=int(message.priority),
                    correlation_id=None if message.correlation_id is None else str(message.correlation_id),
                    body=text,
                    body_base64=encoded,
                )
            ]
        )
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


def print_body(session: Session, text: str) -> None:
    """The content of a message. On a terminal each of its lines is marked, so that none can pose as one of ours, also
    where a long one wraps; a file or a pipe gets the text alone."""
    out = session.out
    if not out.stdout.isatty():
        out.text(text)
        return
    columns = max(shutil.get_terminal_size().columns - width(_MARK), 8)
    for line in escape_text(text.removesuffix("\n")).expandtabs().split("\n"):
        out.painted(_MARK + piece for piece in folded(line, columns))


def _say_new(session: Session, record: object, envelope: Envelope, what: str) -> None:
    """Something new: what it is, and its id; with -q only the id, whole."""
    if session.shared.json:
        session.out.records([record])
    elif session.shared.quiet:
        session.out.line(envelope.replay_key)
    else:
        left = age(timedelta(seconds=envelope.header.ttl_seconds))
        session.out.line(f"{what}, {len(envelope.wire):,} bytes, expires in {left}")
        session.out.line(short(envelope.replay_key))


def _suite(envelope: Envelope) -> str:
    from angelia.envelope.wire import Suite

    kem = {Suite.ML_KEM: "ML-KEM-768", Suite.XWING: "X-Wing"}[envelope.header.suite]
    return f"{kem}, Ed25519 + ML-DSA-65"
