"""`angelia mail`: the agent's sealed mail, through a server or handed over as files."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click
import msgspec

from angelia.cli import mail_files, mail_lists, mail_server, times
from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.errors import Usage, exit_code, one_of, report
from angelia.cli.flags import Needs, moment, span
from angelia.cli.grammar import Noun
from angelia.cli.mail_output import print_message, say_control, say_sealed, say_sent
from angelia.cli.message_body import compress_flag, message_options, pad_flag, priority_flag, read_body
from angelia.cli.paging import SHORTEST_PREFIX, Page, ago, short, show_list
from angelia.cli.tables import Column, counted
from angelia.errors import AngeliaError, NotFound, ReceiptArchived

if TYPE_CHECKING:
    from angelia.mailbox.inbox import Message
    from angelia.mailbox.mailbox import Mailbox

STATES = ("pending", "delivered", "read", "expired", "failed")
_file = click.Path(path_type=Path, dir_okay=False)
_HEX = re.compile(r"[0-9a-f]{1,64}")

command = Noun("mail", "sealed mail: send, receive, allow, inbox, receipts")


@command.verb(example='angelia mail send bob "the server cannot read this"', needs=Needs.SERVER | Needs.AGENT)
@click.argument("recipient", metavar="NAME", required=False)
@click.argument("body", metavar="[TEXT]", required=False)
@click.option("--retry", is_flag=True, help="send what waits in the outbox now, also what was refused; no NAME")
@click.option("--out", type=_file, metavar="FILE", help="write the envelope there, to be handed over, and send nothing")
@click.option("--ttl", type=span, metavar="D", help="how long it may be opened (7d)")
@priority_flag
@click.option("--correlation", metavar="ID", help="the message of the inbox that this one answers, or a UUID")
@pad_flag
@compress_flag
def send(
    session: CommandContext,
    recipient: str | None,
    body: str | None,
    retry: bool,
    out: Path | None,
    ttl: timedelta | None,
    priority: str,
    correlation: str | None,
    pad: bool,
    compress: str,
) -> int:
    """Seal a message and send it. TEXT may come from stdin.

    With --out, and for an agent that is on no server, the sealed envelope is a file:
    NAME opens it with `angelia mail open FILE`."""
    if retry:
        if recipient is not None:
            raise Usage("--retry sends what waits, and takes no NAME", hint="angelia mail send --retry")
        mail_files.refuse_unregistered(session.mailbox, without="angelia mail send NAME --out FILE")
        return mail_server.retry(session, session.mailbox)
    if recipient is None:
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    mailbox = session.mailbox
    answered = None if correlation is None else _answered(mailbox, correlation)
    options = message_options(session, ttl, priority, pad, compress, answered)
    content = read_body(session, body)
    if out is None and mailbox.identity.id is not None:
        client = session.as_agent(mailbox)
        say_sent(session, mail_server.send(client, mailbox, recipient, content, options))
        mail_server.deliver_due(session, client, mailbox)
        return 0
    with mail_files.handing_over(out) as file:
        envelope = mail_files.sealed_by_hand(session, mailbox, recipient, content, options)
        file.write(envelope.wire)
    say_sealed(session, mailbox, envelope, out)
    return 0


@command.verb(name="open", example="angelia mail open 5b0f3c9a71e2", needs=Needs.SERVER | Needs.AGENT)
@click.argument("what", metavar="ID|FILE")
def open_(session: CommandContext, what: str) -> None:
    """Read a message: one of the inbox by its ID, or an envelope that was handed over as a FILE.

    An envelope opens once; afterwards its stored copy is read by its id."""
    mailbox = session.mailbox
    path = Path(what)
    fresh = path.is_file()
    if fresh:
        (received,) = mail_files.received_from(session, mailbox, [path])
        if isinstance(received, AngeliaError):
            raise received
        if received.control:
            say_control(session)
            return
        id_ = received.message.replay_key
    else:
        id_ = _id(what, or_file=True)
    print_message(session, mailbox.inbox.read(id_, times.now()), fresh=fresh)


@command.verb(example="angelia mail receive --wait", needs=Needs.SERVER | Needs.AGENT)
@click.argument("files", metavar="[FILE...]", nargs=-1, type=_file)
@click.option(
    "--wait",
    is_flag=False,
    flag_value="",
    metavar="[S]",
    help="wait so many seconds for mail; without S until some comes",
)
@click.option("-n", "--limit", type=click.IntRange(1, 100), metavar="N", help="at most so many messages (10)")
@click.option("--require", is_flag=True, help="no mail is an error (exit 8)")
def receive(session: CommandContext, files: tuple[Path, ...], wait: str | None) -> int:
    """Fetch mail from the server, open it, each message once, and acknowledge it; `mail inbox` keeps it.

    With FILE: open envelopes that were handed over."""
    if files:
        return _receive_files(session, files)
    mail_files.refuse_unregistered(session.mailbox, without="angelia mail receive FILE")
    return mail_server.receive(session, session.mailbox, _wait(wait))


def _receive_files(session: CommandContext, files: tuple[Path, ...]) -> int:
    outcomes = mail_files.received_from(session, session.mailbox, list(files))
    codes = set[int]()
    for file, one in zip(files, outcomes, strict=True):
        if not isinstance(one, AngeliaError):
            if one.control:
                say_control(session)
            else:
                print_message(session, one, fresh=True, alone=len(files) == 1)
            continue
        codes.add(exit_code(one))
        if len(files) > 1 and str(file) not in one.message:
            one.message = f"{file}: {one.message}"
        report(one, session.shared, session.out.stderr)
    return one_of(codes)


@command.verb(example="angelia mail inbox", needs=Needs.AGENT | Needs.PAGES)
def inbox(session: CommandContext) -> None:
    """List the mail that was received, newest first; no content."""
    mailbox = session.mailbox
    columns: list[Column[Message]] = [
        Column("ID", lambda m: short(m.replay_key)),
        Column("FROM", lambda m: m.sender, long=True),
        Column("AGE", lambda m: ago(m.created_at), right=True),
        Column("PRIORITY", lambda m: m.priority.name.lower()),
        Column("STATE", lambda m: m.status.value),
    ]

    def fetch(cursor: str | None, limit: int) -> Page[Message]:
        page = mailbox.inbox.page(limit, cursor)
        for problem in page.warnings:
            session.out.note(f"warning: {problem}")
        return Page(list(page.messages), page.after)

    show_list(session, fetch, columns, nothing="no mail yet", hint="angelia mail receive")


@command.verb(example="angelia mail outbox", needs=Needs.SERVER | Needs.AGENT | Needs.PAGES)
def outbox(session: CommandContext) -> None:
    """List the mail that was sealed here, newest first: its state, by whose report, and why it waits."""
    mailbox = session.mailbox
    if mailbox.identity.id is not None:
        mail_server.refresh_outbox(session, mailbox)
    mail_lists.list_outbox(session, mailbox)


@command.verb(example="angelia mail withdraw 5b0f3c9a71e2", needs=Needs.SERVER | Needs.AGENT)
@click.argument("id_", metavar="ID")
def withdraw(session: CommandContext, id_: str) -> None:
    """Take back a message that was not delivered to its recipient yet."""
    mail_server.withdraw(session, session.mailbox, _id(id_, "outbox"))


@command.verb(example="angelia mail delete 5b0f3c9a71e2", needs=Needs.AGENT | Needs.YES)
@click.argument("id_", metavar="ID")
def delete(session: CommandContext, id_: str) -> None:
    """Delete a message here, for good: its content, its sealed file and what opens it.

    What was received is not accepted a second time. The server keeps what it has:
    `angelia mail withdraw ID` takes back what was not given out yet."""
    mailbox = session.mailbox
    found = mailbox.find(_id(id_))
    what = f"{short(found.replay_key)} {'from' if found.received else 'to'} {found.peer}"
    look = "angelia mail inbox" if found.received else "angelia mail outbox"
    if may(session, Deed("delete", "deleting", what, look, where="this machine")):
        mailbox.delete(found.replay_key, times.now())
        session.out.done({"replay_key": found.replay_key}, f"deleted {what}")


@command.verb(example="angelia mail dead", needs=Needs.SERVER | Needs.AGENT | Needs.OPERATOR | Needs.PAGES)
@click.option("--of", metavar="NAME", help="another agent's, for operators")
def dead(session: CommandContext, of: str | None) -> None:
    """List dead letters: mail to this agent that was returned to its queue too often, newest first.

    `angelia mail requeue ID` tries a message again."""
    mail_lists.list_dead_letters(session, of)


@command.verb(example="angelia mail requeue 5b0f3c9a71e2", needs=Needs.SERVER | Needs.AGENT | Needs.OPERATOR)
@click.argument("id_", metavar="ID")
@click.option("--of", metavar="NAME", help="another agent's, for operators")
def requeue(session: CommandContext, id_: str, of: str | None) -> None:
    """Put a dead letter back at the end of its queue."""
    mail_lists.requeue(session, id_, of)


@command.verb(example="angelia mail ack 5b0f3c9a71e2", needs=Needs.SERVER | Needs.AGENT)
@click.argument("id_", metavar="ID")
@click.option("--out", type=_file, metavar="FILE", help="write the signed receipt there, to be handed over")
def ack(session: CommandContext, id_: str, out: Path | None) -> None:
    """Acknowledge a message: sign a receipt, delivered or read, that its sender gets and can check."""
    from angelia.envelope.receipts import ReceiptStatus, receipt_document
    from angelia.mailbox.inbox import ReadState

    mailbox = session.mailbox
    message = mailbox.inbox.mail(_id(id_))
    status = ReceiptStatus.READ if message.status is ReadState.READ else ReceiptStatus.DELIVERED
    with mail_files.handing_over(out) as file:
        receipt = mailbox.inbox.receipt(message.replay_key, status, times.now())
        document = receipt_document(receipt)
        file.write(msgspec.json.encode(document) + b"\n")
    if out is None and mailbox.identity.id is not None:
        try:
            session.as_agent(mailbox).mail.hand_in_receipt(receipt)
        except ReceiptArchived:
            session.out.note(f"the server has no such message; --out FILE hands the receipt to {message.sender}")
    mailbox.inbox.mark_acked([message.replay_key], times.now())
    session.out.done(document, f"acknowledged {short(message.replay_key)} of {message.sender}: {document.status}")
    if out is not None:
        session.out.note(f"hand over {out}: {message.sender} checks it by `angelia mail receipts {out.name}`")


@command.verb(example="angelia mail receipts", needs=Needs.SERVER | Needs.AGENT | Needs.PAGES)
@click.argument("file", metavar="[FILE]", required=False, type=_file)
@click.option("--given", is_flag=True, help="those that this agent signed, from its own log")
@click.option("--state", type=click.Choice(STATES), metavar="S", help=", ".join(STATES))
@click.option("--since", type=moment, metavar="T", help="of mail sent from then on: 2026-11-15, RFC 3339, 15m")
def receipts(session: CommandContext, file: Path | None, given: bool, state: str | None) -> None:
    """List the state of the mail that this agent sent and received, newest first, and by whose report.

    An agent that is on no server lists the receipts that it gave.
    With FILE: check a receipt that a recipient of this agent's mail handed back."""
    mailbox = session.mailbox
    if file is not None:
        mail_lists.check_receipt_file(session, mailbox, file)
    elif given or mailbox.identity.id is None:
        mail_lists.list_own_receipts(session, mailbox)
    else:
        mail_lists.list_receipts(session, mailbox, state)


@command.verb(example="angelia mail allow alice --as bob", needs=Needs.SERVER | Needs.AGENT | Needs.PAGES)
@click.argument("name", metavar="[NAME]", required=False)
@click.argument("file", metavar="[FILE]", required=False, type=_file)
@click.option("--label", metavar="TEXT", help="a note for yourself")
@click.option("--import", "import_", type=_file, metavar="FILE", help="add the entries of a JSON array")
@click.option("--export", type=_file, metavar="FILE", help="write the list there, for --import")
def allow(
    session: CommandContext,
    name: str | None,
    file: Path | None,
    label: str | None,
    import_: Path | None,
    export: Path | None,
) -> None:
    """Open the mail of NAME from now on; without NAME, list the senders whose mail is opened.

    The keys of NAME come from the server, or from a FILE of `angelia key publish --out`.
    While the list is empty, no mail is opened."""
    mailbox = session.mailbox
    if import_ is not None:
        mail_lists.import_allowed(session, mailbox, import_)
        return
    if export is not None:
        mail_lists.export_allowed(session, mailbox, export)
        return
    if name is None:
        mail_lists.list_allowed(session, mailbox)
        return
    if file is not None:
        from angelia.mailbox import bundle_file

        bundle_file.take(mailbox.pinned_keys, mail_files.chain_in(file, name), times.now())
    elif mailbox.pinned_keys.pin(name) is None:
        if mailbox.identity.id is None:
            raise mail_files.not_known(name)
        session.as_agent(mailbox).keys.find(mailbox, name)
    entry = mailbox.allowlist.allow(name, times.now(), label)
    session.out.done(entry, f"allowed {entry.nhi}: {entry.fingerprint} (must equal {entry.nhi}'s `agent show`)")


@command.verb(example="angelia mail deny alice --as bob", needs=Needs.AGENT)
@click.argument("name", metavar="NAME")
def deny(session: CommandContext, name: str) -> None:
    """Open no more mail of NAME."""
    removed = session.mailbox.allowlist.deny(name)
    if not removed:
        raise NotFound(f"{name} is not on the allowlist", hint="angelia mail allow")
    session.out.done({"done": "denied", "count": removed}, f"denied {name}; what it sent before stays in the inbox")


@command.verb(example="angelia mail block mallory", needs=Needs.SERVER | Needs.AGENT | Needs.PAGES)
@click.argument("name", metavar="[NAME]", required=False)
def block(session: CommandContext, name: str | None) -> None:
    """Have the server refuse mail and direct messages of NAME; without NAME, list the blocked agents."""
    if name is None:
        mail_lists.list_blocked(session)
    else:
        mail_lists.block(session, name)


@command.verb(example="angelia mail unblock mallory", needs=Needs.SERVER | Needs.AGENT)
@click.argument("name", metavar="NAME")
def unblock(session: CommandContext, name: str) -> None:
    """Take NAME off the block list."""
    mail_lists.unblock(session, name)


@command.verb(example="angelia mail prune --retention-hours 48", needs=Needs.AGENT)
@click.option("--retention-hours", type=click.IntRange(0, 24 * 3650), default=24, metavar="N", help="at least 24")
@click.option("--force", is_flag=True, help="allow less than 24")
def prune(session: CommandContext, retention_hours: int, force: bool) -> None:
    """Forget replay state that nothing needs any more; this also happens by itself, once a day."""
    pruned = session.mailbox.prune(times.now(), retention_hours, force=force)
    if pruned.warning:
        session.out.note(f"warning: {pruned.warning}")
    session.out.done({"done": "pruned", "count": pruned.rows}, f"pruned {counted(pruned.rows, 'row')}")


@command.verb(example="angelia mail migrate --from ~/calyx/runtime --as bob", needs=Needs.AGENT)
@click.option(
    "--from", "directory", required=True, metavar="DIR", help="the runtime directory of a Calyx mailbox",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)  # fmt: skip
def migrate(session: CommandContext, directory: Path) -> None:
    """Take over a Calyx mailbox's replay state: what its seen_cache.json lists is not accepted as new.

    Saying it again does no harm; copies of what was there are kept beside it."""
    done = session.mailbox.migrate(directory, times.now())
    for problem in done.problems:
        session.out.note(f"warning: {problem}")
    pairs = [
        ("ids", f"{done.ids:,} in the old cache"),
        ("replay keys", f"{done.with_envelope:,} computed from envelopes"),
        ("ids only", f"{done.without_envelope:,} without an envelope, refused for 24h"),
        ("known", f"{done.already_there:,} were here already"),
        *(("back-up", str(path)) for path in done.backups),
    ]
    session.out.thing(done, pairs, quietly=str(done.ids))


@command.verb(example="angelia mail verify", needs=Needs.AGENT)
def verify(session: CommandContext) -> int:
    """Check every file of the mailbox: its name must be the hash of its content."""
    problems = session.mailbox.verify()
    for problem in problems:
        session.out.note(f"warning: {problem}")
    text = counted(len(problems), "problem") if problems else "every file is what its name says"
    session.out.done({"done": "problems", "count": len(problems)}, text)
    return 3 if problems else 0


def _id(text: str, box: str = "inbox", *, or_file: bool = False) -> str:
    """The text, lower case, if it can be the beginning of a message's id; `box` is for the hint."""
    given, look = text.lower(), f"`angelia mail {box}` lists them"
    if not given:
        what = "the id of a message, or a file" if or_file else "the id of a message"
        raise Usage(f"an empty text is no id: say {what}", hint=look)
    if _HEX.fullmatch(given) is None:
        no_file = f"there is no file {text}, and" if or_file else f"{text!r} is no id:"
        raise NotFound(f"{no_file} no message of the {box} has such an id", hint=look)
    if len(given) < SHORTEST_PREFIX:
        raise Usage(f"{text!r} is too short for an id", hint=f"{SHORTEST_PREFIX} characters or more; {look}")
    return given


def _answered(mailbox: Mailbox, text: str) -> UUID:
    """The correlation id: a UUID, or that of the inbox message whose id begins with the text."""
    given = text.lower()
    if len(given) >= SHORTEST_PREFIX and _HEX.fullmatch(given):
        try:
            found = mailbox.inbox.mail(given)
            return found.correlation_id or found.message_id
        except NotFound:
            if len(given) != len(UUID(int=0).hex):
                raise
    try:
        return UUID(given)
    except ValueError as error:
        raise Usage(
            f"--correlation: {text!r} is neither a UUID nor the id of a message in the inbox",
            hint=f"`angelia mail inbox` lists them; {SHORTEST_PREFIX} characters of an id or more",
        ) from error


def _wait(text: str | None) -> float:
    """Seconds to wait for mail; without a number until some comes."""
    if text is None:
        return 0.0
    if text == "":
        return math.inf
    if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII):
        return float(text)
    try:
        return span(text).total_seconds()
    except click.BadParameter as error:
        raise Usage(f"--wait: {error.message}", hint="seconds, or 90s, 15m; alone it waits until mail comes") from error
