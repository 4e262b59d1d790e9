"""What the verbs of `angelia log` share: how a log is opened, and the snapshot that is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.flags import Needs
from angelia.errors import AngeliaError

if TYPE_CHECKING:
    from angelia.client.log_verbs import BlockingLog, BlockingLogs

ACTS = Needs.SERVER | Needs.AGENT
TAMPERED, NETWORK = 3, 7  # exit codes

name_argument = click.argument("name", metavar="NAME")


def all_logs(session: CommandContext) -> BlockingLogs:
    from angelia.client.log_verbs import BlockingLogs

    return BlockingLogs(session.as_agent(session.mailbox), session.mailbox)


def open_log(session: CommandContext, name: str) -> BlockingLog:
    return all_logs(session).open(name)


def compact_if_due(session: CommandContext, log: BlockingLog) -> None:
    """Takes the snapshot that is due, if it is this agent's turn; what fails is done by a later command."""
    try:
        done = log.compact_if_due()
    except AngeliaError as error:
        session.out.detail(f"the snapshot that is due was not taken: {error.message} ({error.code})")
        return
    if done is not None:
        session.out.note(f"took snapshot {done.seq:,} of level {done.level}, which was due")
