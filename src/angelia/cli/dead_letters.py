"""Mail that could not be delivered, on the command line: the recipient's own, or for operators anybody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from angelia.cli.command_context import Session
from angelia.cli.paging import Page, ago, every, full_id, short, show_list, until
from angelia.cli.public_files import refuse_unregistered
from angelia.cli.tables import Column

if TYPE_CHECKING:
    from angelia.cli.paging import Fetch
    from angelia.client import Client
    from angelia.mail.api import DeadLetter

_LIST = "angelia mail dead"


def show(session: Session, of: str | None) -> None:
    """List dead letters; what is in them stays sealed."""
    columns: list[Column[DeadLetter]] = [
        Column("ID", lambda d: short(d.replay_key)),
        Column("FROM", lambda d: d.sender, long=True),
        Column("SINCE", lambda d: ago(d.dead_at), right=True),
        Column("BYTES", lambda d: f"{d.wire_bytes:,}", right=True),
        Column("EXPIRES", lambda d: until(d.expires_at), right=True),
        Column("REASON", lambda d: d.reason or "", long=True),
    ]
    fetch = _pages(_client(session, of), of)
    show_list(session, fetch, columns, nothing="no dead letters", hint="angelia mail receive")


def requeue(session: Session, id_: str, of: str | None) -> None:
    """Put one back into its queue."""
    client = _client(session, of)
    known = [one.replay_key for one in every(_pages(client, of))]
    look = _LIST if of is None else f"{_LIST} --of {of}"
    letter = client.mail.requeue(full_id(id_, known, "dead letter", look))
    session.out.done(letter, f"{short(letter.replay_key)} of {letter.sender} waits for {letter.recipient} again")
    if of is None:
        session.out.note("hint: angelia mail receive")


def _client(session: Session, of: str | None) -> Client:
    if of is not None:
        return session.as_operator()
    refuse_unregistered(session.mailbox, without="angelia mail inbox")
    return session.as_agent(session.mailbox)


def _pages(client: Client, of: str | None) -> Fetch[DeadLetter]:
    def fetch(cursor: str | None, limit: int) -> Page[DeadLetter]:
        page = client.mail.dead_letters(agent=of, cursor=cursor, limit=limit)
        return Page(page.dead_letters, page.next)

    return fetch
