"""Mail through a server: send, retry, receive, withdraw, and refresh the states of the outbox."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import exit_code, one_of, report
from angelia.cli.mail_output import print_message, say_control
from angelia.cli.paging import short
from angelia.cli.tables import counted
from angelia.cli.times import duration
from angelia.errors import AngeliaError, Conflict, KeyNotFound, NotFound, QueueFull, RateLimited

if TYPE_CHECKING:
    from angelia.client import Client, Received, SentMail
    from angelia.mailbox.drafts import MessageOptions
    from angelia.mailbox.mailbox import Mailbox

MOST = 10
ROUND = 30.0
_NOTHING, _HINT = "no mail", "angelia mail receive --wait"


def send(client: Client, mailbox: Mailbox, recipient: str, content: bytes, options: MessageOptions) -> SentMail:
    """Sends a message. If the server could not accept it, the error's hint says that it waits in the outbox."""
    from angelia.client import mail_sending

    try:
        return client.run(mail_sending.send(mailbox, recipient, content, **options))
    except NotFound as error:
        if recipient != recipient.lower():
            error.hint = f"handles are lower case: angelia mail send {recipient.lower()}"
        raise
    except KeyNotFound as error:
        error.hint = f"{error.hint}; without a bundle there is `angelia dm send {recipient}`"
        raise
    except AngeliaError as error:
        if mail_sending.WAITING in error.members:
            error.hint = _way_on(error)
        raise


def retry(session: CommandContext, mailbox: Mailbox) -> int:
    """Sends everything that waits in the outbox; returns the exit code of what could not be sent."""
    done = session.as_agent(mailbox).mail.retry_outbox(mailbox)
    for one in done.unsent:
        report(one.error, session.shared, session.out.stderr)
    total = len(done.sent) + len(done.unsent) + done.left
    waited = counted(total, "message")
    text = f"sent {len(done.sent):,} of {waited} that waited" if total else "nothing waits in the outbox"
    session.out.done({"done": "sent", "count": len(done.sent)}, text)
    return one_of({exit_code(one.error) for one in done.unsent})


def deliver_due(session: CommandContext, client: Client, mailbox: Mailbox) -> None:
    """Sends what is due in the outbox; a failure is only noted."""
    from angelia.client import mail_sending

    done = client.run(mail_sending.deliver_outbox(mailbox))
    if done.sent:
        session.out.note(f"sent {counted(len(done.sent), 'message')} that waited in the outbox")
    for one in done.unsent:
        where = session.out.detail if mail_sending.WAITING in one.error.members else session.out.note
        where(f"warning: {short(one.message.replay_key)} to {one.message.recipient} was not sent: {one.error.message}")


def receive(session: CommandContext, mailbox: Mailbox, wait: float) -> int:
    """Fetches mail and prints it; waits up to `wait` seconds for some. Returns the exit code of messages that will
    never be opened."""
    from angelia.client import mail_receiving

    client = session.as_agent(mailbox)
    deadline = time.monotonic() + wait
    codes = set[int]()
    while True:
        left = max(0.0, deadline - time.monotonic())
        received = client.run(mail_receiving.receive(mailbox, wait=min(ROUND, left), most=session.shared.limit or MOST))
        came = received.messages or received.recovered
        _show(session, received)
        codes |= _refusals(received)
        if received.interrupted is not None and not came:
            raise received.interrupted
        deliver_due(session, client, mailbox)
        if came:
            return one_of(codes)
        if time.monotonic() >= deadline:
            break
    if session.shared.require and not codes:
        raise NotFound(_NOTHING, hint=_HINT)
    session.out.note(_NOTHING)
    if wait == 0:
        session.out.note(f"hint: {_HINT}")
    return one_of(codes)


def withdraw(session: CommandContext, mailbox: Mailbox, id_: str) -> None:
    """Withdraws a message, from the server as well if that has it."""
    row = mailbox.outbox.current(id_)
    if mailbox.identity.id is None:
        if not mailbox.withdrawals.complete(row.replay_key, datetime.now(UTC)):
            raise Conflict(f"the message to {row.recipient} is {row.status.value} and not taken back")
    else:
        session.as_agent(mailbox).mail.withdraw(mailbox, row.replay_key)
    record = {"replay_key": row.replay_key, "message_id": row.message_id, "recipient": row.recipient}
    session.out.done(record, f"withdrew {short(row.replay_key)} to {row.recipient}")


def refresh_outbox(session: CommandContext, mailbox: Mailbox) -> None:
    """Asks the server for the states of sent mail; a failure is noted, and the list is shown all the same."""
    from angelia.client import ApiError, BadAnswer, Unreachable

    try:
        news = session.as_agent(mailbox).mail.update_outbox(mailbox)
    except (ApiError, Unreachable, BadAnswer) as error:
        session.out.note(f"warning: these states may be old: {error.message}")
        return
    if news.interrupted is not None:
        session.out.note(f"warning: some of these states may be old: {news.interrupted.message}")
    for one in news.resent:
        session.out.note(f"{short(one.replay_key)} to {one.envelope.header.recipient_nhi} was sealed and sent again")
    for doubt in news.doubts:
        id_, to = short(doubt.message.replay_key), doubt.message.recipient
        session.out.note(f"warning: {id_} to {to} stays as it is: {doubt.error.message}")


def _show(session: CommandContext, received: Received) -> None:
    from angelia.client.ack_plan import AckVerdict

    out = session.out
    for opened in received.messages:
        print_message(session, opened, fresh=True, named=False, alone=len(received.messages) == 1)
        if received.unacknowledged is None and not session.shared.json:
            out.note(f"acknowledged; {opened.message.sender} gets a signed receipt")
    if received.unacknowledged is not None:
        out.note(f"warning: not acknowledged yet: {received.unacknowledged.message}; the next receive does it")
    for message in received.recovered:
        id_ = short(message.replay_key)
        out.note(f"a message of {message.sender} was opened before, and is in the inbox: angelia mail open {id_}")
    if received.controls:
        say_control(session)
    if received.interrupted is not None and (received.messages or received.recovered):
        out.note(f"warning: there may be more: {received.interrupted.message}")
    kept_out = Counter(one.sender for one in received.not_opened if one.verdict is AckVerdict.HELD)
    for sender, count in kept_out.items():
        out.note(f"{counted(count, 'message')} of {sender}, who is not allowed: angelia mail allow {sender}")
    for one in received.not_opened:
        if one.verdict is AckVerdict.FAILED:
            out.note(f"warning: {one.sender} is told that its message was refused: {one.error.message}")
        elif one.verdict is AckVerdict.REPEATED:
            out.note(f"the server hands out a message of {one.sender or 'somebody'} again: {one.error.message}")
        elif one.verdict in (AckVerdict.NACKED, AckVerdict.DEFERRED, AckVerdict.NOTHING):
            out.note(f"warning: a message of {one.sender or 'somebody'} waits: {one.error.message}")
    if received.has_more:
        out.note("more waits: angelia mail receive")


def _refusals(received: Received) -> set[int]:
    """The exit codes of messages that were tampered with, replayed or refused for good; waiting is no failure."""
    from angelia.client.ack_plan import AckVerdict

    again = {message.replay_key for message in received.recovered}
    settled = (AckVerdict.FAILED, AckVerdict.ACKNOWLEDGED, AckVerdict.REPEATED)
    refused = [one for one in received.not_opened if one.verdict in settled]
    return {exit_code(one.error) for one in refused if one.replay_key not in again}


def _way_on(error: AngeliaError) -> str:
    """The hint for a message that was sealed and not accepted: when and how it is sent."""
    sends_it = "`angelia mail send --retry` sends it, and so does the next `mail send` or `mail receive`"
    if error.retry_after:
        return f"it is sealed and waits: in {duration(timedelta(seconds=error.retry_after))} {sends_it}"
    if isinstance(error, RateLimited | QueueFull) and error.hint:
        return f"{error.hint}; it is sealed and waits: {sends_it}"
    return f"it is sealed and waits: {sends_it}"
