"""`angelia guard`: addresses that are refused everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from angelia.cli import flags
from angelia.cli.command_context import CommandContext
from angelia.cli.flags import Needs
from angelia.cli.grammar import Noun
from angelia.cli.paging import ago, server_pages, show_list, until
from angelia.cli.tables import Column
from angelia.cli.times import full

if TYPE_CHECKING:
    from angelia.guard.model import Block

command = Noun("guard", "blocked addresses: list, block, unblock")


@command.verb(example="angelia guard blocks", needs=Needs.SERVER | Needs.OPERATOR | Needs.PAGES)
def blocks(session: CommandContext) -> None:
    """List the blocked addresses."""
    columns: list[Column[Block]] = [
        Column("ADDRESS", lambda b: b.address),
        Column("REASON", lambda b: b.reason, long=True),
        Column("BY", lambda b: b.blocked_by, long=True),
        Column("BLOCKED", lambda b: ago(b.blocked_at), right=True),
        Column("ENDS", lambda b: until(b.expires_at), right=True),
    ]
    fetch = server_pages(session.as_operator().guard.blocks, lambda page: page.blocks)
    show_list(session, fetch, columns, nothing="no blocked addresses", hint="angelia guard block ADDRESS --expires 1d")


@command.verb(example="angelia guard block 203.0.113.7 --expires 1d", needs=Needs.SERVER | Needs.OPERATOR)
@click.argument("address", metavar="ADDRESS", type=flags.address)
@click.option("--reason", metavar="TEXT", help="why, for the readers of the list")
@click.option("--expires", type=flags.seconds, metavar="D", help="for how long, such as 1d (until it is unblocked)")
def block(session: CommandContext, address: str, reason: str | None, expires: int | None) -> None:
    """Refuse every request from an address."""
    made = session.as_operator().guard.block(address, reason=reason or "", expires_in=expires)
    end = "until it is unblocked" if made.expires_at is None else f"until {full(made.expires_at)}"
    session.out.done(made, f"blocked {made.address} {end}")


@command.verb(example="angelia guard unblock 203.0.113.7", needs=Needs.SERVER | Needs.OPERATOR)
@click.argument("address", metavar="ADDRESS", type=flags.address)
def unblock(session: CommandContext, address: str) -> None:
    """Let an address in again."""
    session.as_operator().guard.unblock(address)
    session.out.done({"address": address}, f"unblocked {address}")
