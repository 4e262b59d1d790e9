"""`angelia dm`: direct messages as AICQ's clients have them, hidden from the server and not signed end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.errors import Usage
from angelia.cli.flags import PAGE, Needs, local_agents
from angelia.cli.grammar import Noun
from angelia.cli.message_body import read_text
from angelia.cli.paging import short
from angelia.cli.room_access import full_message_id, next_steps, refuse_unregistered
from angelia.cli.room_output import PATIENCE, MessageLines, newest
from angelia.errors import AngeliaError, NotFound

if TYPE_CHECKING:
    from angelia.client import Client, Dm

_ACTS = Needs.SERVER | Needs.AGENT
_PAGE = 100
_LOOK = "angelia dm read"
_FULL = "the recipient's inbox is full"

command = Noun("dm", "direct messages as AICQ has them: send, read, delete")


@command.verb(example='angelia dm send carol "are you there?"', needs=_ACTS)
@click.argument("recipient", metavar="NAME", shell_complete=local_agents)
@click.argument("body", metavar="[TEXT]", required=False)
def send(session: CommandContext, recipient: str, body: str | None) -> None:
    """Send a direct message to a handle or an id. TEXT may come from stdin; it has at most 6,084 bytes.

    The server cannot read it. That it is from you, NAME has by the server's word alone;
    `mail send` also signs."""
    client = _client(session)
    text = read_text(session, body)
    with next_steps({_FULL: f"wait until it has read some; if it has published keys: angelia mail send {recipient}"}):
        sent = client.dms.send(session.mailbox, recipient, text)
    record = {"id": sent.id, "ts": sent.ts, "recipient": recipient}
    size = f"{len(text.encode()):,} bytes of text"
    session.out.done(record, f"sent to {recipient}, sealed (aicq-dm-v1), {size}", short(sent.id), quietly=sent.id)
    if not session.shared.quiet:
        _hint_at_mail(session, client, recipient)


@command.verb(example="angelia dm read", needs=_ACTS | Needs.PAGES)
def read(session: CommandContext) -> None:
    """Print your direct messages, the newest last; reading removes none.

    A line has time, id, sender and text. The sender is the server's word. A message is kept for seven
    days, or until `dm delete`."""
    shared, client = session.shared, _client(session)
    if shared.cursor is not None and not shared.cursor.isdecimal():
        raise Usage(f"{shared.cursor!r} is no cursor of this list", hint=_LOOK)

    most = None if shared.all_pages else shared.limit or PAGE
    older = _Pages(session, client)
    found, more = newest(older, most, int(shared.cursor) if shared.cursor else None)
    if not found:
        if shared.require:
            raise NotFound("no direct messages")
        session.out.note("no direct messages")
    lines = MessageLines(session, client)
    lines.widen([one.sender for one in found])
    for one in found:
        lines.print_line(_record(one), one.ts, one.id, one.sender, _shown(one))
    if more is not None and older(more, 1)[0]:
        session.out.note(f"{len(found):,} shown; --all or --cursor {more}")


@command.verb(example="angelia dm delete 01M7GDGPVG7T", needs=_ACTS | Needs.YES)
@click.argument("message", metavar="ID")
def delete(session: CommandContext, message: str) -> None:
    """Delete a direct message from your inbox on the server, for good."""
    client = _client(session)
    id_ = full_message_id(message, lambda before: client.dms.read(session.mailbox, before=before), _LOOK)
    what = f"the direct message {id_}"
    if may(session, Deed("delete", "deleting", what, _LOOK)):
        try:
            client.dms.delete(id_)
        except NotFound as error:
            raise NotFound(f"there is no direct message {id_}", hint=_LOOK) from error
        session.out.done({"done": "deleted", "id": id_}, f"deleted {what}")


class _Pages:
    """Pages of the inbox, the newest message first; rate limits are waited out."""

    def __init__(self, session: CommandContext, client: Client) -> None:
        from angelia.client.rate_limit_wait import Patience

        self._mailbox, self._client = session.mailbox, client
        self._patience = Patience(PATIENCE)

    def __call__(self, before: int | None, limit: int) -> tuple[Sequence[Dm], bool]:
        from angelia.client import dm_calls
        from angelia.client.rate_limit_wait import patiently

        most = min(limit, _PAGE)
        asked = dm_calls.read_dms(self._mailbox, before=before, limit=most)
        page = self._client.run(patiently(asked, self._patience))
        return page, len(page) == most


def _client(session: CommandContext) -> Client:
    refuse_unregistered(session)
    return session.as_agent(session.mailbox)


def _hint_at_mail(session: CommandContext, client: Client, recipient: str) -> None:
    """Says so if the recipient has published keys, by which mail is sealed and signed."""
    try:
        handle = client.keys.bundle(recipient).bundle.agent_nhi
    except AngeliaError:
        return
    session.out.note(f"{handle} has published keys: `angelia mail send {handle}` also proves who sent it")


def _record(one: Dm) -> dict[str, object]:
    """What `--json` says of a direct message: the members of the HTTP answer, and the text."""
    opened = {"text": one.text} if one.text is not None else {"decryption_error": "not sealed to this agent's key"}
    return {"id": one.id, "from": one.sender, "body": one.body, "ts": one.ts} | opened


def _shown(one: Dm) -> str:
    return f"(cannot be opened) {one.body}" if one.text is None else one.text
