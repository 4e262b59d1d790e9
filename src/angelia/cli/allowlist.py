"""The senders whose mail is opened, on the command line: their list, its import and its export."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from angelia.cli.command_context import CommandContext
from angelia.cli.paging import ago, pages_of, show_list
from angelia.cli.public_files import handing_over
from angelia.cli.tables import Column, counted

if TYPE_CHECKING:
    from angelia.mailbox.allowlist import AllowedSender
    from angelia.mailbox.mailbox import Mailbox


def import_list(session: CommandContext, mailbox: Mailbox, file: Path) -> None:
    """Adds the entries of a file, and says which were refused."""
    from angelia.mailbox.envelope_files import read_safely

    imported = mailbox.allowlist.import_json(read_safely(file, file), datetime.now(UTC))
    for why in imported.refused:
        session.out.note(f"refused: {why}")
    refused = f", {len(imported.refused):,} refused" if imported.refused else ""
    session.out.done(imported, f"added {counted(imported.added, 'entry', 'entries')}{refused}")


def export_list(session: CommandContext, mailbox: Mailbox, path: Path) -> None:
    """Writes the list to a new file."""
    with handing_over(path) as file:
        file.write(mailbox.allowlist.export_json())
    count = len(mailbox.allowlist.entries())
    session.out.done({"done": "exported", "count": count}, f"exported {counted(count, 'entry', 'entries')} to {path}")


def show_allowed(session: CommandContext, mailbox: Mailbox) -> None:
    """Lists the senders whose mail is opened."""
    columns: list[Column[AllowedSender]] = [
        Column("NAME", lambda e: e.nhi, long=True),
        Column("FINGERPRINT", lambda e: e.fingerprint),
        Column("SINCE", lambda e: ago(e.added_at), right=True),
        Column("LABEL", lambda e: e.label or "", long=True),
    ]
    nothing, hint = "nobody is allowed, so no mail is opened", "angelia mail allow NAME"
    show_list(session, pages_of(mailbox.allowlist.entries()), columns, nothing=nothing, hint=hint)
